"""An attack or a fault, and the tests that it is held off or got over by."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    name: str
    tests: tuple[str, ...]
    """As pytest calls them, below tests/."""

    def __init__(self, name: str, *tests: str) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "tests", tests)
