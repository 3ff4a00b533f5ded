"""Log lines: what is in them, in both formats."""

import json
import logging
from collections.abc import Iterator
from contextvars import Context
from datetime import UTC, datetime

import pytest

from service import logs


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """Gives back the handlers that `configure` replaces."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def error_with_cause() -> None:
    try:
        raise KeyError("cause")
    except KeyError:
        logging.getLogger("test").exception("it failed")


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    logs.begin_request("abc")
    logging.getLogger("test").info("two %s", "words\n", extra={"fields": {"tokens": 5}})
    line = json.loads(capsys.readouterr().err)
    assert datetime.fromisoformat(line.pop("time")).tzinfo == UTC
    assert line == {
        "level": "info",
        "logger": "test",
        "message": "two words\n",
        "request_id": "abc",
        "tokens": 5,
    }


def test_a_json_line_holds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    error_with_cause()
    [line] = capsys.readouterr().err.splitlines()
    assert "KeyError: 'cause'" in json.loads(line)["exception"]


def test_pretty_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("pretty")
    Context().run(logging.getLogger("test").info, "plain")
    assert capsys.readouterr().err.endswith("INFO    plain\n")
    logs.begin_request("abc")
    logging.getLogger("test").warning("two words", extra={"fields": {"tokens": 5}})
    line = capsys.readouterr().err
    assert line.endswith("WARNING two words  tokens=5  request_id=abc\n")
    error_with_cause()
    assert "KeyError: 'cause'" in capsys.readouterr().err


@pytest.mark.parametrize(("terminal", "pretty"), [(True, True), (False, False)])
def test_auto_is_pretty_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
    pretty: bool,
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    logs.configure("auto")
    logging.getLogger("test").info("words")
    assert capsys.readouterr().err.startswith("{") != pretty


def test_outside_of_requests_there_is_no_id(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    Context().run(logging.getLogger("test").info, "words")
    assert "request_id" not in json.loads(capsys.readouterr().err)


def test_debug_lines_of_libraries_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    logging.getLogger("uvicorn").debug("words")
    assert capsys.readouterr().err == ""


def test_notes_end_in_the_requests_own_line() -> None:
    notes = logs.begin_request("abc")
    logs.note(prompt_tokens=3)
    logs.note(finish_reason="stop")
    assert notes == {"prompt_tokens": 3, "finish_reason": "stop"}
    assert logs.begin_request("def") == {}
