"""The engine process: `python -m service.engine.process`. The only place in service with torch."""
# ruff: noqa: E402

import gc

# What is imported below stays for good: looking it through for garbage, again and again while it
# grows, takes a sixth of the time until a model begins to load.
gc.disable()

import os
import sys
from pathlib import Path

from model.batch import Runner
from model.errors import ModelError
from model.leading import LeadingRunner, follow
from model.parallel import ALONE, Ranks, join
from model.runner import load_runner
from service.engine.loop import Progress, read_spec, run
from service.engine.messages import EngineSpec
from service.engine.ranks import REFUSED, is_other, meet


def load_model(spec: EngineSpec, progress: Progress) -> Runner:
    runner, ranks = load_share(spec, progress)
    return runner if ranks.size == 1 else LeadingRunner(runner, ranks)


def load_share(spec: EngineSpec, progress: Progress) -> tuple[Runner, Ranks]:
    """This process's of the model: all of it, unless there are other ranks."""
    config = spec.config
    rendezvous = meet(spec)
    ranks = join(rendezvous, seconds=config.step_timeout) if rendezvous else ALONE
    runner = load_runner(
        Path(spec.model_path),
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        max_model_len=config.max_model_len,
        kv_cache_memory=config.kv_cache_memory,
        threads=config.threads,
        quantization=config.quantization,
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        gpu_memory_utilization=config.gpu_memory_utilization,
        progress=progress,
        ranks=ranks,
    )
    gc.freeze()  # nor do collections between steps look at what stays
    gc.enable()
    return runner, ranks


def compute_for_rank_0(spec: EngineSpec) -> None:
    try:
        runner, ranks = load_share(spec, lambda *progress: None)
    except ModelError as error:
        print(f"rank {os.environ['RANK']}: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    follow(runner, ranks)


if __name__ == "__main__":
    spec = read_spec()
    if is_other(spec.config, os.environ):
        compute_for_rank_0(spec)
    else:
        run(spec, load_model)
