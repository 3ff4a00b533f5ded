"""What a peer is to the measurement: how it is made ready, and how it is started."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import models


@dataclass(frozen=True, slots=True)
class Launch:
    """A server that listens on 127.0.0.1 at the port that comes after the command's --port."""

    command: tuple[str, ...]
    model: str
    """Its name in requests."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment."""
    bench_options: tuple[str, ...] = ("--ignore-eos",)
    """Of `octavo bench`, for what it asks and expects."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Where peers are installed, what they serve, and on how many threads."""

    root: Path
    gguf: Path
    threads: int

    def environment(self, name: str) -> Path:
        return self.root / name

    def model(self, name: str) -> Path:
        return self.root / "models" / name

    def hugging_face(self) -> Path:
        return models.hugging_face(self.gguf, self.model("hugging-face"))


@dataclass(frozen=True, slots=True)
class Peer:
    title: str
    prepare: Callable[[Setup], Launch]
    """Installs it and makes its model's files, unless they are there. Raises PeerError."""
