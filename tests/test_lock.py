"""Every package that is installed has one version, and what octavo runs on has its hashes too."""

import re
import tomllib
from importlib import metadata
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.lock import BY_VERSION_ALONE, PROJECT, locked, needed, runtime_requirements

ROOT = PROJECT.parent
PIN = re.compile(r"^([\w.-]+)==([\w.]+)", re.MULTILINE)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


def pins(text: str) -> dict[str, str]:
    """Versions by name."""
    return {canonicalize_name(name): version for name, version in PIN.findall(text)}


CONSTRAINTS = pins((ROOT / "constraints.txt").read_text())
LOCK = (ROOT / "requirements.lock").read_text()


def named() -> list[str]:
    """All that pyproject.toml asks for, whatever for."""
    toml = tomllib.loads(PROJECT.read_text())
    groups = chain(*toml["dependency-groups"].values())
    return [*runtime_requirements(), *groups, *toml["build-system"]["requires"]]


def is_installed(requirement: str) -> bool:
    """Some groups have environments of their own."""
    try:
        return bool(metadata.version(Requirement(requirement).name))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.parametrize("requirement", named())
def test_every_dependency_is_pinned_to_what_is_asked_for(requirement: str) -> None:
    asked = Requirement(requirement)
    assert CONSTRAINTS[canonicalize_name(asked.name)] in asked.specifier


def test_so_is_what_those_need() -> None:
    names = needed(filter(is_installed, named()))
    ours = {canonicalize_name(name) for name in names if not re.match("nvidia-|cuda-|triton", name)}
    assert ours <= CONSTRAINTS.keys()


def test_the_lock_is_of_the_same_versions() -> None:
    """After a change, `make lock` writes it anew."""
    assert pins(LOCK) == pins("\n".join(locked()))
    assert pins(LOCK).items() <= CONSTRAINTS.items()


def test_all_in_it_have_hashes_but_what_goes_by_version_alone() -> None:
    for entry in re.split(r"\n(?=\S)", LOCK.strip()):
        assert PIN.match(entry), entry
        assert HASH.search(entry), entry
        assert not BY_VERSION_ALONE.match(entry)
