"""What this process serves: one model under some names, and whether it can take requests now."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import Request

from model.errors import ModelError
from service.api.caller import Caller
from service.api.compiling import GrammarChecks
from service.api.errors import bad_request, model_not_found, unavailable
from service.drain import is_draining
from service.engine.messages import EngineInfo, Vocabulary
from service.engine.protocol import Engine, EngineStatus
from service.engine.recorder import FlightRecorder
from service.limits import Admission
from service.metrics import Metrics
from service.startup import seconds_since_start
from service.text.message import MessageFormat
from service.text.model import TextModel
from service.threads import start_daemon

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ticket:
    """One call that was taken: what all chunks of its answer share."""

    id: str
    model: str
    created: int
    started: float
    """On the monotonic clock."""
    caller: Caller


@dataclass(frozen=True, slots=True)
class Serving:
    """All that a route needs to generate; exists only while requests can be taken."""

    engine: Engine
    info: EngineInfo
    text: TextModel
    metrics: Metrics
    admission: Admission
    grammars: GrammarChecks
    format: MessageFormat
    names: Sequence[str]
    max_body_bytes: int
    max_stops: int

    def name(self, asked: str | None) -> str:
        """Refuses one that isn't served; the first is the default."""
        name = asked if asked is not None else self.names[0]
        if name not in self.names:
            raise model_not_found(name, self.names)
        return name

    def check_ids(self, param: str, ids: Iterable[int]) -> None:
        """Refuses, by the parameter's name, an id that the vocabulary doesn't have."""
        vocab_size = self.info.vocab_size
        unknown = next((token_id for token_id in ids if token_id >= vocab_size), None)
        if unknown is not None:
            raise bad_request(
                f"{param} has {unknown}; this model's ids go up to {vocab_size - 1}.", param=param
            )

    def ticket(self, prefix: str, asked_name: str | None, caller: Caller) -> Ticket:
        """While not even a token may wait, refuses all, before their prompts are tokenized."""
        name = self.name(asked_name)
        now = time.monotonic()
        self.admission.check(1, 1, now)
        return Ticket(f"{prefix}-{uuid.uuid4().hex}", name, int(time.time()), now, caller)


class ServedModel:
    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        admission: Admission,
        *,
        names: Sequence[str],
        max_body_bytes: int,
        max_stops: int,
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
    ) -> None:
        self.names = names
        self.metrics = metrics
        self.created = int(time.time())
        self._engine = engine
        self._admission = admission
        self._max_body_bytes = max_body_bytes
        self._max_stops = max_stops
        self._find_format = partial(
            MessageFormat.find, tool_parser=tool_parser, reasoning_parser=reasoning_parser
        )
        self._grammars = GrammarChecks()
        self._text: TextModel | None = None
        self._format: MessageFormat | None = None
        self._fetching = False
        self._error = ""
        self._seconds = {"import": seconds_since_start()}

    @property
    def startup_seconds(self) -> Mapping[str, float]:
        """By phase. Some go on beside one another."""
        return self._seconds | dict(self._engine.startup_seconds)

    @property
    def info(self) -> EngineInfo | None:
        return self._engine.info

    @property
    def recorder(self) -> FlightRecorder:
        return self._engine.recorder

    @property
    def status(self) -> EngineStatus:
        """The engine's, unless it is the fetch or the text side that keeps requests out."""
        status = self._engine.status
        if self._error:
            return EngineStatus("failed", self._error)
        if self._fetching:
            return EngineStatus("loading", f"fetching {self.names[0]}")
        if self._text is None and status.phase == "ready":
            return EngineStatus("loading", "tokenizer", status.fraction)
        return status

    async def load(self, fetch: Callable[[], Path], load_text: Callable[[Path], TextModel]) -> None:
        """Fetch the model, start the engine on it, read its tokenizer; `status` tells the rest."""
        try:
            with self._timed("fetch"):
                path = await self._fetch(fetch)
            await self._engine.start(path)
            with self._timed("tokenizer"):
                text = await asyncio.to_thread(load_text, path)
                self._engine.learn(await asyncio.to_thread(read_vocabulary, text))
            self._format = self._find_format(text)
            self._text = text
        except Exception as error:
            log.critical("no model: %s", error, exc_info=not isinstance(error, ModelError))
            self._error = str(error) or type(error).__name__

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[phase] = time.monotonic() - began

    async def _fetch(self, fetch: Callable[[], Path]) -> Path:
        self._fetching = True
        try:
            return await asyncio.wrap_future(start_daemon(fetch))
        finally:
            self._fetching = False

    def serving(self) -> Serving:
        phase = self.status.phase
        if phase != "ready":
            raise unavailable(f"The model is {phase}; try again in a moment.", code=phase)
        assert self._engine.info is not None
        assert self._text is not None
        assert self._format is not None
        return Serving(
            engine=self._engine,
            info=self._engine.info,
            text=self._text,
            metrics=self.metrics,
            admission=self._admission,
            grammars=self._grammars,
            format=self._format,
            names=self.names,
            max_body_bytes=self._max_body_bytes,
            max_stops=self._max_stops,
        )


def read_vocabulary(text: TextModel) -> Vocabulary:
    tokenizer = text.tokenizer
    return Vocabulary(
        tokenizer_json=tokenizer.to_json(),
        size=tokenizer.vocab_size,
        eos_ids=sorted(tokenizer.eos_ids),
    )


async def get_served(request: Request) -> ServedModel:
    return cast(ServedModel, request.app.state.served)


async def get_serving(
    request: Request, served: Annotated[ServedModel, Depends(get_served)]
) -> Serving:
    if is_draining(request.scope.get("state", {})):
        served.metrics.call_rejected("draining")
        raise unavailable("This server is stopping; others go on, try again.", code="draining")
    return served.serving()


Served = Annotated[ServedModel, Depends(get_served)]
Ready = Annotated[Serving, Depends(get_serving)]
"""Of routes that generate: answered with 503 while the model can't."""
