"""The engine process: `python -m service.engine.process`. The only place in service with torch."""

from pathlib import Path

from model.batch import Runner
from model.runner import load_runner
from service.engine.loop import Progress, main
from service.engine.messages import EngineSpec


def load_model(spec: EngineSpec, progress: Progress) -> Runner:
    config = spec.config
    return load_runner(
        Path(spec.model_path),
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        max_model_len=config.max_model_len,
        kv_cache_memory=config.kv_cache_memory,
        threads=config.threads,
        progress=progress,
    )


if __name__ == "__main__":
    main(load_model)
