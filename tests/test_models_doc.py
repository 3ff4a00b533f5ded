"""docs/models.md says of every family what its config turns on, and which tests hold it."""

from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from model.config import ModelConfig
from model.families.gguf import READERS
from model.families.hugging_face import FAMILIES, describe
from tests.families import KINDS
from tests.test_gguf_families import FILES

DOCUMENT = Path(__file__).parent.parent / "docs" / "models.md"
TITLES = {family.name: family.title for family in FAMILIES.values()}


def config_of(kind: str) -> ModelConfig:
    return ModelConfig(**describe(KINDS[kind].describe().to_dict()))


def variants(config: ModelConfig) -> set[str]:
    """The fields by which it isn't Llama."""
    differing = {
        field.name
        for field in fields(ModelConfig)
        if field.default is not MISSING and getattr(config, field.name) != field.default
    }
    return (differing - {"family"}) | ({"rope_scaling"} if config.rope_scaling else set())


def rows() -> dict[str, list[str]]:
    """Cells of the first table by the first of them."""
    lines = DOCUMENT.read_text().split("\n\n## ")[1].splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    return {title: rest for title, *rest in cells[2:]}


def listed(cell: str) -> set[str]:
    return {name.strip(" `") for name in cell.split(";") if name.strip()}


def test_all_families_have_a_row_in_the_order_of_the_code() -> None:
    assert list(rows()) == list(dict.fromkeys(TITLES.values()))


@pytest.mark.parametrize("family", TITLES)
def test_a_row_names_the_fields_and_the_tests_of_its_family(family: str) -> None:
    kinds = {kind for kind in KINDS if config_of(kind).family == family}
    _, in_row, tests, gguf = rows()[TITLES[family]]
    assert listed(in_row) == set().union(*(variants(config_of(kind)) for kind in kinds))
    assert listed(tests) == kinds
    architectures = {file.architecture for file in FILES.values() if file.kind in kinds}
    assert listed(gguf) == architectures


def test_all_architectures_of_gguf_are_tested() -> None:
    assert {file.architecture for file in FILES.values()} == READERS.keys()


def test_plain_llama_is_what_differs_in_nothing() -> None:
    for kind in KINDS:
        config = config_of(kind)
        scaled_lengths = {"rope_scaling"} if config.rotation_scale == 1 else set()
        assert config.is_plain_llama == (not variants(config) - scaled_lengths)
