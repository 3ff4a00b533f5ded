"""Log lines: JSON for machines, columns for people, each with the id of the request at hand.

Knows stdlib logging only. Prompts, outputs and keys are never handed to it.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from queue import Full, Queue
from threading import Thread
from typing import Any

STDERR = 2
MAX_LINES = 10_000
FLUSH_SECONDS = 2.0

_request_id: ContextVar[str] = ContextVar("request_id", default="")
_request_notes: ContextVar[dict[str, Any]] = ContextVar("request_notes")


def begin_request(request_id: str) -> dict[str, Any]:
    """Bind the id to all that is logged from here on; what `note` collects is in the result."""
    _request_id.set(request_id)
    notes: dict[str, Any] = {}
    _request_notes.set(notes)
    return notes


def current_request_id() -> str:
    return _request_id.get()


def note(**fields: Any) -> None:
    """Add fields, such as token counts, to the line that will be written of this request."""
    _request_notes.get().update(fields)


class _RequestIdFilter(logging.Filter):
    """Stamps the id at the call, in the context of the request."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = current_request_id()
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line; `extra={"fields": {...}}` adds keys of its own."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := getattr(record, "request_id", ""):
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class PrettyFormatter(logging.Formatter):
    """`12:34:56 INFO  message  key=value …`, with a traceback below where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = dict(getattr(record, "fields", {}))
        if request_id := getattr(record, "request_id", ""):
            fields["request_id"] = request_id
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        pairs = "".join(f"  {key}={value}" for key, value in fields.items())
        line = f"{clock} {record.levelname:<7} {record.getMessage()}{pairs}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def write_stderr(line: bytes) -> None:
    """To the file itself: what Python buffers for a full disk, or for a reader who doesn't read,
    would have to be got rid of before the process may end."""
    with suppress(OSError):
        while line:
            line = line[os.write(STDERR, line) :]


class LineQueue(logging.Handler):
    """Hands lines to a thread, which may have to wait for whoever reads them, or for a disk.

    The event loop never does: past MAX_LINES, lines are lost, and their number is told.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._write_line = write
        self._records: Queue[logging.LogRecord | None] = Queue(MAX_LINES)
        self._num_lost = 0
        self._thread = Thread(target=self._write, daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._records.put_nowait(record)
        except Full:
            self._num_lost += 1

    def close(self) -> None:
        """Write what there is, if that is a matter of FLUSH_SECONDS."""
        with suppress(Full):
            self._records.put(None, timeout=FLUSH_SECONDS)
        self._thread.join(FLUSH_SECONDS)
        super().close()

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            self._write_record(record)
            if self._num_lost:
                num_lost, self._num_lost = self._num_lost, 0
                self._write_record(_loss(num_lost))
            self._records.task_done()

    def _write_record(self, record: logging.LogRecord) -> None:
        self._write_line(f"{self.format(record)}\n".encode(errors="backslashreplace"))


def _loss(num_lost: int) -> logging.LogRecord:
    message = f"{num_lost} log lines were lost, as nobody read them in time"
    return logging.makeLogRecord({"name": __name__, "levelname": "WARNING", "msg": message})


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def configure(log_format: str) -> None:
    """Send all loggers, the server library's too, to stderr: "json", "pretty", or "auto"."""
    pretty = log_format == "pretty" or (log_format == "auto" and sys.stderr.isatty())
    handler = LineQueue(write_stderr)
    handler.setFormatter(PrettyFormatter() if pretty else JsonFormatter())
    handler.addFilter(_RequestIdFilter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
