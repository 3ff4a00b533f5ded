"""What octavo needs to run may be used by whoever runs it: permissive licences only."""

import re
from collections.abc import Iterator
from importlib import metadata

import pytest

from deploy.lock import needed, runtime_requirements

PERMISSIVE = (
    "MIT",
    "BSD",
    "APACHE",
    "ISC",
    "PSF",
    "PYTHON SOFTWARE FOUNDATION",
    "UNLICENSE",
    "ZLIB",
)
FILES_APART = {
    # Licences that bind changes to their own files, and nothing that uses them.
    "certifi": "MPL-2.0",
    "pyzmq": "its libzmq is MPL-2.0",
    "tqdm": "MPL-2.0 and MIT",
}
OWN_TERMS = re.compile("nvidia-|cuda-|triton")
"""They come with torch's CUDA builds only."""


def licences(name: str) -> Iterator[str]:
    about = metadata.metadata(name)
    for field in ("License-Expression", "License"):
        yield from (text[:200] for text in about.get_all(field) or [])
    yield from (each for each in about.get_all("Classifier") or [] if each.startswith("License"))


def with_plain_terms() -> list[str]:
    names = needed(runtime_requirements()) - FILES_APART.keys()
    return sorted(name for name in names if not OWN_TERMS.match(name))


@pytest.mark.parametrize("name", with_plain_terms())
def test_licences_are_permissive(name: str) -> None:
    said = " ".join(licences(name)).upper()
    assert any(licence in said for licence in PERMISSIVE), said
    assert not re.search(r"\b[AL]?GPL", said), said
