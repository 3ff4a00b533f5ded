"""Log lines: what is in them, in both formats."""

import json
import logging
from collections.abc import Iterator
from contextvars import Context
from datetime import UTC, datetime
from threading import Event

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


def written(capfd: pytest.CaptureFixture[str]) -> str:
    """All lines so far."""
    handler = next(h for h in logging.getLogger().handlers if isinstance(h, logs.LineQueue))
    handler._records.join()
    return capfd.readouterr().err


def error_with_cause() -> None:
    try:
        raise KeyError("cause")
    except KeyError:
        logging.getLogger("test").exception("it failed")


def test_json_lines(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    logs.begin_request("abc")
    logging.getLogger("test").info("two %s", "words\n", extra={"fields": {"tokens": 5}})
    line = json.loads(written(capfd))
    assert datetime.fromisoformat(line.pop("time")).tzinfo == UTC
    assert line == {
        "level": "info",
        "logger": "test",
        "message": "two words\n",
        "request_id": "abc",
        "tokens": 5,
    }


def test_a_json_line_holds_the_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    error_with_cause()
    [line] = written(capfd).splitlines()
    assert "KeyError: 'cause'" in json.loads(line)["exception"]


def test_pretty_lines(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("pretty")
    Context().run(logging.getLogger("test").info, "plain")
    assert written(capfd).endswith("INFO    plain\n")
    logs.begin_request("abc")
    logging.getLogger("test").warning("two words", extra={"fields": {"tokens": 5}})
    line = written(capfd)
    assert line.endswith("WARNING two words  tokens=5  request_id=abc\n")
    error_with_cause()
    assert "KeyError: 'cause'" in written(capfd)


@pytest.mark.parametrize(("terminal", "pretty"), [(True, True), (False, False)])
def test_auto_is_pretty_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    terminal: bool,
    pretty: bool,
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    logs.configure("auto")
    logging.getLogger("test").info("words")
    assert written(capfd).startswith("{") != pretty


def test_outside_of_requests_there_is_no_id(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    Context().run(logging.getLogger("test").info, "words")
    assert "request_id" not in json.loads(written(capfd))


def test_debug_lines_of_libraries_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    logging.getLogger("uvicorn").debug("words")
    assert written(capfd) == ""


def test_notes_end_in_the_requests_own_line() -> None:
    notes = logs.begin_request("abc")
    logs.note(prompt_tokens=3)
    logs.note(finish_reason="stop")
    assert notes == {"prompt_tokens": 3, "finish_reason": "stop"}
    assert logs.begin_request("def") == {}


class Stuck:
    """Writes once it may."""

    def __init__(self) -> None:
        self.may_write = Event()
        self.lines: list[str] = []

    def __call__(self, line: bytes) -> None:
        assert self.may_write.wait(60)
        self.lines.append(line.decode())


def record(message: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message})


def test_who_logs_never_waits_and_what_is_lost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LINES", 3)
    target = Stuck()
    lines = logs.LineQueue(target)
    for number in range(20):
        lines.handle(record(str(number)))
    target.may_write.set()
    lines.close()
    said = next(line for line in target.lines if "lost" in line)
    num_lost = int(said.split()[0])
    assert len(target.lines) == 20 - num_lost + 1
    assert num_lost >= 16


def test_the_end_does_not_wait_for_a_stuck_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LINES", 1)
    monkeypatch.setattr(logs, "FLUSH_SECONDS", 0.05)
    target = Stuck()
    lines = logs.LineQueue(target)
    for number in range(5):
        lines.handle(record(str(number)))
    lines.close()
    assert target.lines == []
    target.may_write.set()


def test_a_line_that_cannot_be_written_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr(logs, "STDERR", full.fileno())
        logs.write_stderr(b"words")
