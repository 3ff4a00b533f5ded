"""Answers in the terminal: what is asked of the engine, what is printed, what is remembered."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from model.errors import ModelError
from service import terminal
from service.config import SamplingConfig
from service.engine.messages import Event, Request
from service.engine.protocol import EngineStatus
from service.terminal import AnswerError, Session
from tests.fakes import (
    END,
    MAX_MODEL_LEN,
    MODEL_PATH,
    FakeEngine,
    fail_after,
    hang_after,
    load_text,
    make_text,
    say,
)

TEXT = make_text()
ASKED = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(say("Hello, wörld."))


@pytest.fixture
def session(engine: FakeEngine) -> Iterator[Session]:
    with terminal.open_session(engine, MODEL_PATH, load_text, SamplingConfig(seed=7)) as opened:
        yield opened


def type_lines(
    monkeypatch: pytest.MonkeyPatch, *lines: str | BaseException | type[BaseException]
) -> None:
    """What the user types into the chat; the end of input comes after it."""
    remaining = iter(lines)

    def fake_input(prompt: str) -> str:
        line = next(remaining, EOFError)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", fake_input)


def prompts(engine: FakeEngine) -> list[str]:
    return [TEXT.tokenizer.decode(request.prompt_ids).rstrip() for request in engine.submitted]


def test_engine_lives_as_long_as_the_session(engine: FakeEngine) -> None:
    with terminal.open_session(engine, MODEL_PATH, load_text, SamplingConfig()):
        assert engine.calls == ["start"]
        assert engine.model_path == MODEL_PATH
    assert engine.calls == ["start", "stop"]


def test_complete_prints_how_the_text_goes_on(
    session: Session, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    session.complete("Once")
    assert capsys.readouterr().out == "Hello, wörld.\n"
    (request,) = engine.submitted
    assert request.prompt_ids == list(b"Once")
    assert request.stop_token_ids == {END}


def test_reply_goes_through_the_chat_template(session: Session, engine: FakeEngine) -> None:
    messages = list(ASKED)
    session.reply(messages)
    assert messages == [*ASKED, {"role": "assistant", "content": "Hello, wörld."}]
    assert prompts(engine) == ["user\nHiassistant"]
    assert engine.submitted[0].prompt_ids[0] > 255, "special tokens of the template are ids"


def test_sampling_is_as_configured(engine: FakeEngine) -> None:
    config = SamplingConfig(temperature=0.5, top_p=0.25, max_tokens=3, seed=11)
    with terminal.open_session(engine, MODEL_PATH, load_text, config) as session:
        session.complete("Once")
    (request,) = engine.submitted
    assert request.max_tokens == 3
    assert request.sampling.temperature == 0.5
    assert request.sampling.top_p == 0.25
    assert request.sampling.seed == 11


def test_seeds_differ_unless_given(engine: FakeEngine) -> None:
    with terminal.open_session(engine, MODEL_PATH, load_text, SamplingConfig()) as session:
        session.complete("Once")
        session.complete("Once")
    first, second = engine.submitted
    assert first.sampling.seed != second.sampling.seed


def test_an_answer_ends_with_the_context(session: Session, engine: FakeEngine) -> None:
    session.complete("x" * (MAX_MODEL_LEN - 1))
    assert engine.submitted[0].max_tokens == 1


@pytest.mark.parametrize("length", [0, MAX_MODEL_LEN])
def test_a_prompt_that_does_not_fit_is_refused(length: int, session: Session) -> None:
    with pytest.raises(AnswerError, match=f"has {length} tokens: this model takes 1 to 199"):
        session.complete("x" * length)


def test_bytes_that_are_no_text_are_refused(session: Session) -> None:
    text = b"caf\xe9".decode(errors="surrogateescape")
    with pytest.raises(AnswerError, match=r"bytes that are no UTF-8: write it anew"):
        session.complete(text)
    with pytest.raises(AnswerError, match=r"bytes that are no UTF-8: write it anew"):
        session.reply([{"role": "user", "content": text}])


def test_a_line_that_is_no_text_does_not_end_the_chat(
    session: Session,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = UnicodeDecodeError("utf-8", b"caf\xe9", 3, 4, "unexpected end of data")
    type_lines(monkeypatch, error, "One")
    terminal.chat(session)
    assert prompts(engine) == ["user\nOneassistant"]
    assert capsys.readouterr().err == f"octavo: {terminal.NOT_UTF8}\n"


def test_a_chat_that_the_template_refuses(session: Session) -> None:
    with pytest.raises(AnswerError, match="no such chat"):
        session.reply([{"role": "user", "content": "refuse"}])


def test_an_answer_that_fails_says_why(session: Session, engine: FakeEngine) -> None:
    engine.script = fail_after("Hel")
    messages = list(ASKED)
    with pytest.raises(AnswerError, match="a secret"):
        session.reply(messages)
    assert messages[-1]["content"] == "Hel"


def test_an_engine_that_restarts_says_so(session: Session, engine: FakeEngine) -> None:
    engine.status = EngineStatus("restarting")
    with pytest.raises(AnswerError, match="the engine is restarting: try again"):
        session.complete("Once")


def test_interrupting_cancels_the_request(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hanging = threading.Event()

    def press_ctrl_c(future: Future[None], timeout: float | None = None) -> None:
        assert hanging.wait(timeout=60)
        raise KeyboardInterrupt

    def announce(request: Request) -> Iterator[Event | None]:
        for event in hang_after("Hel")(request):
            if event is None:
                hanging.set()
            yield event

    engine.script = announce
    messages = list(ASKED)
    with terminal.open_session(engine, MODEL_PATH, load_text, SamplingConfig()) as session:
        monkeypatch.setattr(Future, "result", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            session.reply(messages)
        monkeypatch.undo()
    assert engine.cancelled == [engine.submitted[0].id]
    assert messages[-1] == {"role": "assistant", "content": "Hel"}
    assert capsys.readouterr().out == "Hel\n"


def test_loading_is_shown_and_awaited(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.status = EngineStatus("loading", "weights", 0.25)
    ready = EngineStatus("ready")

    def show(line: str) -> None:
        shown.append(line)
        engine.status = ready

    shown: list[str] = []
    monkeypatch.setattr(terminal, "show", show)
    with terminal.open_session(engine, MODEL_PATH, load_text, SamplingConfig()):
        assert shown == ["[#####               ] 25% loading weights", ""]


def test_nothing_is_shown_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show("loading")
    assert capsys.readouterr().err == ""


def test_a_line_on_a_terminal_replaces_the_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    terminal.show("loading")
    assert capsys.readouterr().err == f"{terminal.CLEAR_LINE}loading"


def test_a_model_that_fails_to_load_ends_the_session(engine: FakeEngine) -> None:
    engine.status = EngineStatus("failed", "truncated: fetch it again")
    with (
        pytest.raises(ModelError, match="truncated: fetch it again"),
        terminal.open_session(engine, MODEL_PATH, load_text, SamplingConfig()),
    ):
        raise AssertionError("never opened")
    assert engine.calls == ["start", "stop"]


def test_chat_remembers(
    session: Session, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_lines(monkeypatch, "One", "  ", "Two", "/exit", "Three")
    terminal.chat(session)
    assert prompts(engine) == [
        "user\nOneassistant",
        "user\nOneassistant\nHello, wörld.user\nTwoassistant",
    ]


def test_reset_forgets(
    session: Session, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_lines(monkeypatch, "One", "/reset", "Two")
    terminal.chat(session)
    assert prompts(engine) == ["user\nOneassistant", "user\nTwoassistant"]


def test_ctrl_c_at_the_prompt_explains_itself(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines(monkeypatch, KeyboardInterrupt, "/exit")
    terminal.chat(session)
    assert capsys.readouterr().out.count(terminal.CHAT_HELP) == 2


def test_a_stopped_answer_stays_in_the_chat(
    session: Session, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_after_one_word(messages: list[dict[str, str]]) -> None:
        messages.append({"role": "assistant", "content": "Well"})
        raise KeyboardInterrupt

    messages: list[dict[str, str]] = []
    monkeypatch.setattr(session, "reply", stop_after_one_word)
    terminal.take_turn(session, messages, "One")
    assert [message["content"] for message in messages] == ["One", "Well"]


def test_a_failed_turn_can_be_tried_again(
    session: Session,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    type_lines(monkeypatch, "refuse", "x" * MAX_MODEL_LEN, "Two")
    terminal.chat(session)
    assert prompts(engine) == ["user\nTwoassistant"]
    errors = capsys.readouterr().err.splitlines()
    assert [error.split(":")[0] for error in errors] == ["octavo", "octavo"]
    assert "no such chat" in errors[0]
