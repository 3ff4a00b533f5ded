"""One request and its stream of server-sent events, with the time of each piece of text.

An answer counts only if it came whole and is what was asked for; else the observation says what was
wrong, as one of FAULTS. Knows neither Locust nor who else is asking.
"""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from loadtests.prompts import Work

Fault = Literal[
    "429",
    "4xx",
    "5xx",
    "unreachable",
    "timeout",
    "cut stream",
    "bad event",
    "error event",
    "no text",
    "wrong usage",
    "wrong JSON",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
READ_BYTES = 65536
DETAIL_CHARACTERS = 200


class StreamError(Exception):
    """The request failed. `str()` of it is the kind and the details."""

    def __init__(self, kind: Fault, detail: str) -> None:
        super().__init__(f"{kind}: {detail[:DETAIL_CHARACTERS]}")
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and how to ask it."""

    url: str
    api_key: str | None = None
    timeout: float
    """Seconds that a request may take from its sending to its end."""
    sends_done: bool = True
    """Whether streams end with data: [DONE], as OpenAI's do."""

    def connect(self, timeout: float | None = None) -> HTTPConnection:
        address = urlsplit(self.url)
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        assert address.hostname is not None
        return kind(address.hostname, address.port, timeout=timeout or self.timeout)

    def path(self, route: str) -> str:
        return urlsplit(self.url).path.rstrip("/") + route

    @property
    def headers(self) -> dict[str, str]:
        """Each request has a connection of its own, so that none dies of another's closing."""
        headers = {"content-type": "application/json", "connection": "close"}
        return headers | ({"authorization": f"Bearer {self.api_key}"} if self.api_key else {})


@dataclass(slots=True)
class Observation:
    """What became of a request. Times are time.perf_counter()'s."""

    work: Work
    due: float
    """When it should have been sent. In an open loop everything is counted from here, so that a
    request that was late to be sent, as others kept the generator busy, isn't flattered by it."""
    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    """Of each piece of text."""
    ended: float = 0.0
    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    fault: StreamError | None = None

    @property
    def ttft(self) -> float:
        """Until the first text: the role's chunk before it says nothing of the model."""
        return self.times[0] - self.due

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None: there were no two."""
        tokens = self.output_tokens
        return (self.times[-1] - self.times[0]) / (tokens - 1) if tokens > 1 else None

    @property
    def latency(self) -> float:
        return self.ended - self.due

    @property
    def output_tokens(self) -> int:
        return int(self.usage["completion_tokens"]) if self.usage else 0

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage["prompt_tokens"]) if self.usage else 0


def observe(target: Target, work: Work, due: float | None = None) -> Observation:
    """Send the request and read its answer to the end. Without `due`, it was due when sent."""
    sent = time.perf_counter()
    observation = Observation(work, due=sent if due is None else due, sent=sent)
    try:
        _ask(target, observation)
        _check(observation)
    except StreamError as fault:
        observation.fault = fault
    except TimeoutError:
        observation.fault = StreamError("timeout", f"not over after {target.timeout:g} s")
    except (OSError, HTTPException) as error:
        observation.fault = StreamError("unreachable", f"{type(error).__name__}: {error}")
    observation.ended = time.perf_counter()
    return observation


def _ask(target: Target, observation: Observation) -> None:
    body = json.dumps(observation.work.body).encode()
    with closing(target.connect()) as connection:
        connection.request("POST", target.path(observation.work.path), body, target.headers)
        with connection.getresponse() as response:
            if response.status != 200:
                raise _refusal(response)
            try:
                _read(response, observation, target)
            except TimeoutError:
                raise
            except (OSError, HTTPException) as error:
                raise StreamError("cut stream", f"{type(error).__name__}: {error}") from error


def _refusal(response: HTTPResponse) -> StreamError:
    text = response.read(READ_BYTES).decode(errors="replace")
    kind: Fault = "5xx" if response.status >= 500 else "4xx"
    return StreamError("429" if response.status == 429 else kind, f"{response.status}: {text}")


def _read(response: HTTPResponse, observation: Observation, target: Target) -> None:
    for data in _events(response):
        if data == b"[DONE]":
            return
        now = time.perf_counter()
        if now - observation.sent > target.timeout:  # the socket's own limit is for each read
            raise TimeoutError
        _take(data, now, observation)
    if target.sends_done:
        raise StreamError("cut stream", "it ended without data: [DONE]")


def _events(response: HTTPResponse) -> Iterator[bytes]:
    """The data of each event, as soon as its line is here. Comments and other fields say nothing
    here, and OpenAI's events are of one line."""
    rest = b""
    while piece := response.read1(READ_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line[5:].strip() for line in lines if line.startswith(b"data:"))


def _take(data: bytes, now: float, observation: Observation) -> None:
    try:
        chunk = json.loads(data)
        if "error" in chunk:
            raise StreamError("error event", json.dumps(chunk["error"]))
        for choice in chunk["choices"]:
            _take_choice(choice, now, observation)
        observation.usage = chunk.get("usage") or observation.usage
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StreamError("bad event", f"{error!r} in {data.decode(errors='replace')}") from None


def _take_choice(choice: dict[str, Any], now: float, observation: Observation) -> None:
    delta = choice.get("delta") or {}
    piece = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
    if piece:
        observation.times.append(now)
        observation.text += piece
    observation.finish_reason = choice.get("finish_reason") or observation.finish_reason


def _check(observation: Observation) -> None:
    """A stream that came to its end said all that it should."""
    if observation.finish_reason is None:
        raise StreamError("cut stream", "no chunk had a finish_reason")
    if observation.usage is None:
        raise StreamError("wrong usage", "there was none, though stream_options asked for it")
    if not observation.times:
        raise StreamError("no text", f"it ended with finish_reason {observation.finish_reason!r}")
    _check_usage(observation)
    if observation.work.is_json and observation.finish_reason == "stop":
        _check_json(observation.text)


def _check_usage(observation: Observation) -> None:
    """Every piece of text is of one token at least."""
    try:
        tokens, _ = observation.output_tokens, observation.prompt_tokens
    except (LookupError, TypeError, ValueError):
        raise StreamError("wrong usage", json.dumps(observation.usage)) from None
    most, pieces = observation.work.max_tokens, len(observation.times)
    if not pieces <= tokens <= most:
        detail = f"{tokens} tokens, with {pieces} pieces of text and max_tokens {most}"
        raise StreamError("wrong usage", detail)
    if observation.work.is_exact and tokens < most:
        detail = f"{tokens} tokens, with ignore_eos and max_tokens {most}: try --no-ignore-eos"
        raise StreamError("wrong usage", detail)


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise StreamError("wrong JSON", f"{error} in {text}") from None
