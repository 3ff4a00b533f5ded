"""transformers' own server with continuous batching, in float32."""

from benchmarks.peers import environment, models
from benchmarks.peers.environment import TORCH
from benchmarks.peers.peer import Launch, Peer, Setup

VERSION = "5.24.0"
OPTIONS = ("--no-ignore-eos", "--no-done")
"""It refuses fields that it doesn't know, and ends streams without data: [DONE]."""


def float32(setup: Setup) -> Launch:
    folder = setup.environment("transformers")
    environment.install(folder, [TORCH, f"transformers[serving]=={VERSION}"])
    model = str(models.endless(setup.hugging_face(), setup.model("endless")))
    command = (
        *(str(folder / "bin/transformers"), "serve", model, "--host", "127.0.0.1"),
        *("--continuous-batching", "--attn-implementation", "sdpa"),
        *("--device", "cpu", "--dtype", "float32"),
        *("--cb-num-blocks", "512", "--cb-block-size", "32", "--cb-max-batch-tokens", "512"),
    )
    variables = {"OMP_NUM_THREADS": str(setup.threads), "HF_HUB_OFFLINE": "1"}
    return Launch(command, model, variables, bench_options=OPTIONS)


PEERS = {"transformers": Peer(f"transformers {VERSION}, float32", float32)}
