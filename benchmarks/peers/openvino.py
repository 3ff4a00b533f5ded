"""OpenVINO GenAI's continuous batching, with weights of 4 and of 8 bits, behind our own front."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.peers import environment, models
from benchmarks.peers.environment import TORCH
from benchmarks.peers.peer import Launch, Peer, Setup

VERSION = "2026.4.1.0"
REQUIREMENTS = (
    TORCH,
    f"openvino-genai=={VERSION}",
    f"openvino-tokenizers=={VERSION}",
    "optimum-intel[openvino]==2.2.0",
    "aiohttp",
)
FRONT = Path(__file__).with_name("openvino_front.py")
INT4 = ("--weight-format", "int4", "--group-size", "64", "--ratio", "1.0", "--sym")
INT8 = ("--weight-format", "int8")


def launch(name: str, weights: Sequence[str], setup: Setup) -> Launch:
    """weights: options of the export, of which the name is told from the others'."""
    folder = setup.environment("openvino")
    environment.install(folder, REQUIREMENTS)

    def export(to: Path) -> None:
        plain = str(setup.hugging_face())
        command = (str(folder / "bin/optimum-cli"), "export", "openvino", "--model", plain)
        task = ("--task", "text-generation-with-past")
        environment.run([*command, *task, *weights, str(to)], HF_HUB_OFFLINE="1")

    model = models.whole(setup.model(f"openvino-{name}"), export)
    python = str(folder / "bin/python")
    threads = ("--threads", str(setup.threads))
    return Launch((python, "-P", str(FRONT), str(model), *threads), "m")


PEERS = {
    f"openvino-{name}": Peer(f"OpenVINO GenAI {VERSION}, {name}", partial(launch, name, weights))
    for name, weights in (("int4", INT4), ("int8", INT8))
}
