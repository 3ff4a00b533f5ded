"""One call as sequences of the engine: planned, run to their ends, or cancelled all together.

    plan() -> Request per choice        what the engine is to do
    Generation.run(emit)                a task per choice; each delta is awaited by its receiver

A sequence is cancelled in one way: its task leaves `engine.submit(...)`, because a stop string
came, or because the task is cancelled with the whole call.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass

from model.batch import SamplingParams
from service.api.choice import Choice, Delta
from service.api.errors import bad_request, internal_error
from service.api.prompts import max_new_tokens
from service.api.schema import AnyRequest
from service.api.served import Serving, Ticket
from service.engine.messages import Event, Request
from service.logs import note
from service.metrics import Metrics, Outcome
from service.text.stops import StopChecker

log = logging.getLogger(__name__)

Emit = Callable[[Delta], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    """Those of the prompts that needn't be computed, since the cache had them."""
    completion_tokens: int

    def as_dict(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def plan(
    ticket: Ticket, asked: AnyRequest, prompts: Sequence[list[int]], serving: Serving
) -> list[Request]:
    """A request per choice, all choices of the first prompt first."""
    limits = [
        max_new_tokens(len(ids), asked.token_limit, serving.info.max_model_len) for ids in prompts
    ]
    seed = asked.seed if asked.seed is not None else secrets.randbits(63)
    stop_ids = _stop_ids(asked, serving)
    return [
        Request(
            id=f"{ticket.id}-{number * asked.n + i}",
            prompt_ids=prompt_ids,
            max_tokens=limits[number],
            sampling=_sampling(asked, seed=derive_seed(seed, i), serving=serving),
            stop_token_ids=stop_ids,
            cache_salt=asked.cache_salt or "",
        )
        for number, prompt_ids in enumerate(prompts)
        for i in range(asked.n)
    ]


def _stop_ids(asked: AnyRequest, serving: Serving) -> frozenset[int]:
    unknown = [id_ for id_ in asked.stop_token_ids if id_ >= serving.info.vocab_size]
    if unknown:
        last = serving.info.vocab_size - 1
        raise bad_request(
            f"stop_token_ids has {unknown[0]}; this model's ids go up to {last}.",
            param="stop_token_ids",
        )
    ends = frozenset() if asked.ignore_eos else serving.text.tokenizer.eos_ids
    return ends | frozenset(asked.stop_token_ids)


def _sampling(asked: AnyRequest, *, seed: int, serving: Serving) -> SamplingParams:
    return SamplingParams(
        temperature=asked.temperature,
        top_k=min(max(asked.top_k, 0), serving.info.vocab_size),
        top_p=asked.top_p,
        min_p=asked.min_p,
        seed=seed,
        num_logprobs=asked.num_logprobs,
    )


def derive_seed(seed: int, choice: int) -> int:
    """Another seed for each choice of a prompt; the first has the one asked for, as if alone."""
    if choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class Generation:
    def __init__(
        self,
        ticket: Ticket,
        asked: AnyRequest,
        prompts: Sequence[list[int]],
        serving: Serving,
    ) -> None:
        self.ticket = ticket
        self.asked = asked
        self._serving = serving
        self._prompts = prompts
        self._requests = plan(ticket, asked, prompts, serving)
        self._accepted_prompts: set[int] = set()  # those that the engine took, for any choice
        stops = StopChecker(asked.stop, include_stop=asked.include_stop_str_in_output)
        self.choices = [
            Choice(index, serving.text.tokenizer, copy(stops), asked)  # shares the automaton
            for index in range(len(self._requests))
        ]

    @property
    def usage(self) -> Usage:
        """So far. The choices of a prompt share it, and it counts once."""
        first_choices = self.choices[:: self.asked.n]
        return Usage(
            prompt_tokens=sum(map(len, self._prompts)),
            cached_tokens=sum(choice.num_cached_tokens for choice in first_choices),
            completion_tokens=sum(choice.num_tokens for choice in self.choices),
        )

    async def run(self, emit: Emit) -> None:
        """Every choice to its end; the failure of one is the failure of all."""
        try:
            async with asyncio.TaskGroup() as group:
                for request, choice in zip(self._requests, self.choices, strict=True):
                    group.create_task(self._run_choice(request, choice, emit))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._note_end()

    async def _run_choice(self, request: Request, choice: Choice, emit: Emit) -> None:
        outcome: Outcome = "error"
        clock = _TokenClock(self.ticket.started, self._serving.metrics)
        try:
            async with self._serving.engine.submit(request) as events:
                self._accepted_prompts.add(choice.index // self.asked.n)
                async for event in events:
                    clock.tick(event)
                    delta = choice.push(_checked(event))
                    if choice.finish_reason is not None:
                        break  # leave before the last delta is sent to a client that may be slow
                    if delta.text:
                        await emit(delta)
            assert delta.finish_reason is not None
            outcome = delta.finish_reason
            await emit(delta)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._count(outcome, choice)

    def _count(self, outcome: Outcome, choice: Choice) -> None:
        self._serving.metrics.request_ended(
            outcome,
            seconds=time.monotonic() - self.ticket.started,
            num_tokens=choice.num_tokens,
        )

    def _note_end(self) -> None:
        for number in self._accepted_prompts:
            self._serving.metrics.prompt_ended(num_tokens=len(self._prompts[number]))
        usage = self.usage
        reasons = sorted({choice.finish_reason or "unfinished" for choice in self.choices})
        note(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            finish_reason=",".join(reasons),
        )


class _TokenClock:
    """Measures when the tokens of one sequence come."""

    def __init__(self, started: float, metrics: Metrics) -> None:
        self._last = started
        self._observe = metrics.first_token
        self._metrics = metrics

    def tick(self, event: Event) -> None:
        if event.token_ids:
            now = time.monotonic()
            self._observe(now - self._last)
            self._observe = self._metrics.next_token
            self._last = now


def _checked(event: Event) -> Event:
    """Raises where the engine couldn't bring the sequence to an end of its own."""
    if event.finish_reason in ("error", "cancelled"):
        log.error("request %s ended by the engine: %s", event.request_id, event.message)
        raise internal_error()
    return event
