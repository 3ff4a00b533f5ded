"""Grammars are checked off the event loop, once each, a few at once, for a limited time."""

import asyncio
import threading
from collections.abc import Awaitable, Iterator

import pytest

from service.api import compiling
from service.api.compiling import GrammarChecks
from service.api.errors import ApiError
from service.text.grammar import ALONE, GrammarError, Part, lark_part


def part(text: str) -> dict[str, Part]:
    return {"answer": lark_part(f'start: "{text}"')}


class Compiler:
    """Waits for its release, and counts."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.released = threading.Event()

    def __call__(self, grammar: str) -> None:
        self.compiled.append(grammar)
        assert self.released.wait(60)
        if "bad" in grammar:
            raise GrammarError("it is bad")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    compiler = Compiler()
    monkeypatch.setattr(compiling, "check_grammar", compiler)
    yield compiler
    compiler.released.set()


async def outcome(work: Awaitable[str]) -> str:
    try:
        return await work
    except ApiError as error:
        return f"{error.status} {error.body['error']['code']}"


def run(checks: GrammarChecks, *texts: str) -> list[str]:
    async def all_at_once() -> list[str]:
        problems = (outcome(checks.find_problem(part(text), ALONE)) for text in texts)
        return await asyncio.gather(*problems)

    return asyncio.run(all_at_once())


def test_verdicts_are_kept(compiler: Compiler) -> None:
    compiler.released.set()
    checks = GrammarChecks()
    for _ in range(3):
        assert run(checks, "good", "bad") == ["", "it is bad"]
    assert len(compiler.compiled) == 2


def test_old_verdicts_are_forgotten(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.released.set()
    monkeypatch.setattr(compiling, "MAX_VERDICTS", 2)
    checks = GrammarChecks()
    for text in ("a", "b", "a", "c", "a", "b"):
        run(checks, text)
    assert ["start" in grammar for grammar in compiler.compiled] == [True] * 4


def test_what_isnt_written_isnt_tried(compiler: Compiler) -> None:
    assert "characters" in run(GrammarChecks(), "a" * 70_000)[0]
    assert compiler.compiled == []


def test_nobody_waits_for_long(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "DEADLINE_SECONDS", 0.2)
    checks = GrammarChecks()
    first, second, third = run(checks, "a", "b", "c")
    assert "to compile" in first
    assert "to compile" in second
    assert third == "503 grammars_busy"
    assert run(checks, "c") == ["503 grammars_busy"]
    compiler.released.set()
    monkeypatch.setattr(compiling, "DEADLINE_SECONDS", 60)
    assert run(checks, "c") == [""]
    assert "to compile" in run(checks, "a")[0]


def test_the_loop_goes_on_meanwhile(compiler: Compiler) -> None:
    async def count_turns() -> int:
        task = asyncio.create_task(GrammarChecks().find_problem(part("a"), ALONE))
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
            if turns == 100:
                compiler.released.set()
        return turns

    assert asyncio.run(count_turns()) >= 100
