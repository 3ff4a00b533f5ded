"""Prints what octavo needs to run, at the versions installed here: a line NAME==VERSION for each.

    python -m deploy.lock

`make lock` adds the hashes of all files that there are of each, which makes requirements.lock. Not
of torch: its builds differ by platform, and so do the libraries that some of them need, so that
those go by version alone.
"""

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
BY_VERSION_ALONE = re.compile("torch$|triton$|nvidia-|cuda-")


def runtime_requirements() -> list[str]:
    """Octavo's own, with all that is optional."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    return [*project["dependencies"], *chain(*project["optional-dependencies"].values())]


def needed(requirements: Iterable[str]) -> set[str]:
    """The names of all distributions that these ask for, and of what those ask for in turn."""
    seen: set[str] = set()
    _add(requirements, frozenset(), seen)
    return seen


def _add(requirements: Iterable[str], extras: frozenset[str], seen: set[str]) -> None:
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        wanted = not marker or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})
        name = metadata.metadata(requirement.name)["Name"] if wanted else ""
        if wanted and name not in seen:
            seen.add(name)
            _add(metadata.requires(name) or [], frozenset(requirement.extras), seen)


def locked() -> list[str]:
    names = sorted(needed(runtime_requirements()), key=str.lower)
    hashed = (name for name in names if not BY_VERSION_ALONE.match(name))
    return [f"{name}=={metadata.version(name)}" for name in hashed]


if __name__ == "__main__":
    print("\n".join(locked()))
