"""A config dataclass becomes flags with variables in the environment."""

from dataclasses import dataclass

import pytest
import typer
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from service.config import knob
from service.flags import parse_size, with_knobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperConfig:
    sheets: int = knob(8, "How many sheets.")
    buffer_memory: int = knob(0, "Room to fold in.")
    colour: str = knob("white", "Any colour.")
    glossy: bool = knob(False, "Whether it shines.")
    margin: float | None = knob(None, "Left free.")


def run(*arguments: str, **environment: str) -> tuple[str, PaperConfig]:
    """What a command gets when it is called like this."""
    app = typer.Typer()
    got: list[tuple[str, PaperConfig]] = []

    @app.command()
    @with_knobs
    def fold(title: str, *, paper: PaperConfig) -> None:
        """Fold a book."""
        got.append((title, paper))

    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == 0, result.output
    return got[0]


def test_defaults_are_the_dataclass_s() -> None:
    assert run("Emma") == ("Emma", PaperConfig())


def test_flags_set_fields() -> None:
    flags = ["--sheets", "3", "--buffer-memory", "2MB", "--colour", "red", "--glossy"]
    _, paper = run("Emma", *flags, "--margin", "0.5")
    assert paper == PaperConfig(
        sheets=3, buffer_memory=2_000_000, colour="red", glossy=True, margin=0.5
    )


def test_environment_sets_fields_and_flags_win() -> None:
    _, paper = run("Emma", "--sheets", "3", OCTAVO_SHEETS="4", OCTAVO_BUFFER_MEMORY="1KiB")
    assert paper == PaperConfig(sheets=3, buffer_memory=1024)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("500MB", 500_000_000),
        ("2GiB", 2 << 30),
        ("2 gib", 2 << 30),
        ("1.5k", 1500),
        ("4G", 4_000_000_000),
        ("7B", 7),
        (4096, 4096),
        ("1.1KiB", 1126),
        ("9007199254740993", 9007199254740993),
        ("8589934591.5GiB", (1 << 63) - (1 << 29)),
    ],
)
def test_parse_size(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1TB", "1 2", "0x10", "1e9", "2GiBB", "½GB"])
def test_parse_size_refuses(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize(
    "text", [str(1 << 63), "8589934592GiB", "9" * 400, "9" * 5000 + "GiB", "9" * 400 + ".5"]
)
def test_parse_size_refuses_what_no_machine_has(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="too large a size: take less than"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_plain_numbers_are_bytes(number: int) -> None:
    assert parse_size(str(number)) == number
