"""The engine process: `python -m service.engine.process`. The only place in service with torch."""
# ruff: noqa: E402

import gc

# What is imported below stays for good: looking it through for garbage, again and again while it
# grows, takes a sixth of the time until a model begins to load.
gc.disable()

from pathlib import Path

from model.batch import Runner
from model.runner import load_runner
from service.engine.loop import Progress, main
from service.engine.messages import EngineSpec


def load_model(spec: EngineSpec, progress: Progress) -> Runner:
    config = spec.config
    runner = load_runner(
        Path(spec.model_path),
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        max_model_len=config.max_model_len,
        kv_cache_memory=config.kv_cache_memory,
        threads=config.threads,
        quantization=config.quantization,
        progress=progress,
    )
    gc.freeze()  # nor do collections between steps look at what stays
    gc.enable()
    return runner


if __name__ == "__main__":
    main(load_model)
