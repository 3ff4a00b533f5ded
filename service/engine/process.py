"""The engine process: `python -m service.engine.process`. The only place in service with torch."""
# ruff: noqa: E402

import gc

# What is imported below stays for good: looking it through for garbage, again and again while it
# grows, takes a sixth of the time until a model begins to load.
gc.disable()

import os
import sys
from pathlib import Path
from typing import NoReturn

from model.batch import Runner
from model.errors import ModelError
from model.leading import follow, lead
from model.parallel import ALONE, Ranks, join
from model.runner import load_runner
from service.engine.loop import Progress, read_spec, run
from service.engine.messages import EngineSpec
from service.engine.ranks import REFUSED, is_other, meet


def load_model(spec: EngineSpec, progress: Progress) -> Runner:
    rendezvous = meet(spec)
    if rendezvous is None:
        return load_share(spec, progress, ALONE)
    ranks, wire = join(rendezvous, seconds=spec.config.step_timeout)
    return lead(load_share(spec, progress, ranks), wire)


def load_share(spec: EngineSpec, progress: Progress, ranks: Ranks) -> Runner:
    """This process's of the model: all of it, unless there are other ranks."""
    config = spec.config
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
        graphs=not config.no_graphs,
        progress=progress,
        ranks=ranks,
    )
    gc.freeze()  # nor do collections between steps look at what stays
    gc.enable()
    return runner


def compute_for_rank_0(spec: EngineSpec) -> NoReturn:
    rendezvous = meet(spec)
    assert rendezvous is not None
    ranks, wire = join(rendezvous, seconds=spec.config.step_timeout)
    try:
        runner = load_share(spec, lambda *progress: None, ranks)
    except ModelError as error:
        print(f"rank {ranks.rank}: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    follow(runner, wire)
    os._exit(0)  # another way out might wait for a device that waits for rank 0


def main() -> None:
    spec = read_spec()
    if is_other(spec.config, os.environ):
        compute_for_rank_0(spec)
    else:
        run(spec, load_model)


if __name__ == "__main__":
    main()
