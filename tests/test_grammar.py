"""Grammars in the engine: what a sequence generates is in the language, whatever interrupts it."""

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from model.batch import Batch, SampledToken, StepOutput
from service.engine.engine import Engine
from service.engine.grammar import GrammarError, Grammars
from service.engine.messages import Event, Request, Vocabulary
from tests.fakes_engine import FakeClock, FakeRunner, ObedientRunner, allowed_ids

WORDS = [*'abcdefgh{}":,0123456789', "ab", "abc", "1234", "<end>", "<stop>"]
END, STOP = WORDS.index("<end>"), WORDS.index("<stop>")
GRAMMAR = LLMatcher.grammar_from_regex("(ab|cd){2,3}")
LONG = LLMatcher.grammar_from_regex("(ab|cd){5}")


def vocabulary() -> Vocabulary:
    backend = Tokenizer(models.BPE({word: id_ for id_, word in enumerate(WORDS[:-2])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(WORDS[-2:])
    return Vocabulary(tokenizer_json=backend.to_str(), size=50, eos_ids=[END, STOP])


class DisobedientRunner(FakeRunner):
    def run(self, batch: Batch) -> StepOutput:
        return StepOutput([SampledToken(WORDS.index("h")) for _ in batch.rows])


def make_engine(runner: FakeRunner) -> Engine:
    engine = Engine(runner, max_batch_tokens=8, max_sequences=4, clock=FakeClock())
    engine.learn(vocabulary())
    return engine


def request(
    name: str, *, start: int = 1, output_ids: tuple[int, ...] = (), grammar: str = GRAMMAR
) -> Request:
    return Request(
        id=name,
        prompt_ids=[start, 2, 3],
        max_tokens=20,
        grammar=grammar,
        stop_token_ids=frozenset({END, STOP}),
        output_ids=list(output_ids),
    )


def run(engine: Engine) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = {}
    while engine.has_work:
        for event in engine.step():
            events.setdefault(event.request_id, []).append(event)
        engine.check_integrity()
    return events


def token_ids(events: list[Event]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def test_an_idle_engine_reads_the_vocabulary_before_it_is_needed() -> None:
    engine = Engine(ObedientRunner(), max_batch_tokens=8, max_sequences=4)
    engine.rest()
    engine.learn(vocabulary())
    assert engine._grammars is not None
    assert engine._grammars._tokenizer is None, "what is in flight goes first"
    engine.rest()
    assert engine._grammars._tokenizer is not None


def test_what_may_come_next_follows_the_text_so_far() -> None:
    constraint = Grammars(vocabulary()).start(GRAMMAR, [])
    assert {WORDS[i] for i in allowed_ids(constraint.allowed())} == {"a", "ab", "abc", "c"}
    constraint.push([WORDS.index("abc")])
    assert {WORDS[i] for i in allowed_ids(constraint.allowed())} == {"d"}
    constraint.push([WORDS.index("d")])
    assert {WORDS[i] for i in allowed_ids(constraint.allowed())} == {
        "a",
        "ab",
        "c",
        "<end>",
        "<stop>",
    }
    constraint.push([WORDS.index("ab")])
    assert allowed_ids(constraint.allowed()) == [END, STOP]


@pytest.mark.parametrize("end", [END, STOP])
def test_an_end_of_text_is_no_error(end: int) -> None:
    constraint = Grammars(vocabulary()).start(GRAMMAR, [WORDS.index(w) for w in ("ab", "ab")])
    constraint.push([end])


def test_every_output_is_in_the_language() -> None:
    engine = make_engine(ObedientRunner())
    for start in range(40):
        engine.add(request(f"{start}", start=start))
    for name, events in run(engine).items():
        *text, end = token_ids(events)
        assert end in (END, STOP)
        joined = "".join(WORDS[i] for i in text)
        assert joined.replace("ab", "").replace("cd", "") == "", name
        assert len(joined) in (4, 6)
        assert events[-1].finish_reason == "stop"


def test_a_resumed_sequence_goes_on_at_its_place_in_the_grammar() -> None:
    engine = make_engine(ObedientRunner())
    engine.add(request("whole"))
    whole = token_ids(run(engine)["whole"])
    for cut in range(1, len(whole)):
        engine = make_engine(ObedientRunner())
        engine.add(request("rest", output_ids=tuple(whole[:cut])))
        assert token_ids(run(engine)["rest"]) == whole[cut:]


def test_preemption_keeps_the_place_in_the_grammar() -> None:
    engines = make_engine(ObedientRunner()), make_engine(ObedientRunner(num_pages=6))
    for engine in engines:
        for start in range(4):
            engine.add(request(f"{start}", start=start, grammar=LONG))
    alone, crowded = engines
    expected = {name: token_ids(events) for name, events in run(alone).items()}
    events = run(crowded)
    assert sum(e[-1].timings.num_preemptions for e in events.values() if e[-1].timings) > 0
    assert {name: token_ids(events) for name, events in events.items()} == expected


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No grammar is compiled before it is set."""
    opened = threading.Event()

    def compile_late(*args: Any, **limits: Any) -> LLMatcher:
        opened.wait()
        return LLMatcher(*args, **limits)

    monkeypatch.setattr("service.engine.grammar.LLMatcher", compile_late)
    yield opened
    opened.set()


def test_a_grammar_that_is_being_compiled_holds_up_nobody(gate: threading.Event) -> None:
    engine = make_engine(ObedientRunner())
    engine.add(request("late"))
    engine.add(request("later"))
    engine.add(Request(id="free", prompt_ids=[5], max_tokens=3))
    assert engine.stats.num_waiting == 3
    events = [event for _ in range(3) for event in engine.step()]
    assert [event.request_id for event in events] == ["free"] * 3
    assert engine.has_work
    assert engine.step() == []
    engine.abort("later")
    (event,) = engine.step()
    assert (event.request_id, event.finish_reason) == ("later", "cancelled")
    gate.set()
    assert run(engine)["late"][-1].finish_reason == "stop"


def test_what_may_come_next_is_found_while_the_model_computes() -> None:
    """That is, by another thread, begun before the runner is asked."""
    finders: set[int] = set()

    class Matcher:
        def compute_bitmask(self) -> bytes:
            finders.add(threading.get_ident())
            return b"\xff" * 8

        def __getattr__(self, name: str) -> Any:
            return lambda *_: False

    with patch("service.engine.grammar.LLMatcher", lambda *_, **__: Matcher()):
        engine = make_engine(ObedientRunner())
        engine.add(request("a"))
        run(engine)
    assert finders
    assert threading.get_ident() not in finders


def test_what_the_grammar_has_no_place_for_ends_the_sequence_alone() -> None:
    engine = make_engine(DisobedientRunner())
    engine.add(request("a"))
    engine.add(Request(id="free", prompt_ids=[5], max_tokens=3))
    events = run(engine)
    (refusal,) = events["a"]
    assert refusal.finish_reason == "refused"
    assert "the grammar can't be followed" in refusal.message
    assert events["free"][-1].finish_reason == "length"
    assert engine.stats.num_free_pages == engine.stats.num_pages


@pytest.mark.parametrize("grammar", ["start: (", LLMatcher.grammar_from_regex("(ab")])
def test_a_grammar_that_is_none_is_refused(grammar: str) -> None:
    constraint = Grammars(vocabulary()).start(grammar, [])
    constraint.allowed()
    with pytest.raises(GrammarError, match="can't be followed"):
        constraint.push([])
    engine = make_engine(ObedientRunner())
    engine.add(Request(id="a", prompt_ids=[1], max_tokens=3, grammar=grammar))
    (event,) = run(engine)["a"]
    assert event.finish_reason == "refused"
