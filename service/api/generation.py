"""One call as sequences of the engine: admitted, run to their ends, or cancelled all together.

    plan() -> Request per choice        what the engine is to do
    Generation.run(emit)                a task per choice; each delta is awaited by its receiver

A sequence is cancelled in one way: its task leaves `engine.submit(...)`, because a stop string
came, or because the task is cancelled with the whole call.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass

from model.batch import TokenLogprobs
from service.api.choice import Choice, Delta, FinishReason
from service.api.clock import SequenceClock, TimelyEvents
from service.api.errors import bad_request, internal_error, unavailable
from service.api.form import FREE, Form
from service.api.plan import plan
from service.api.schema import AnyRequest
from service.api.sequences import End, counted, let_in, missed_deadline, run_side_by_side
from service.api.served import Serving, Ticket
from service.api.traced import trace_generation
from service.engine.messages import Event
from service.limits import Place
from service.logs import note
from service.metrics import Outcome
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


class Generation:
    def __init__(
        self,
        ticket: Ticket,
        asked: AnyRequest,
        prompts: Sequence[list[int]],
        serving: Serving,
        form: Form = FREE,
    ) -> None:
        self.ticket = ticket
        self.asked = asked
        self.tokenizer = serving.text.tokenizer
        self._serving = serving
        self._prompts = prompts
        self._requests = plan(ticket, asked, prompts, serving, grammar=form.grammar)
        self._accepted_prompts: set[int] = set()  # those that the engine took, for any choice
        stops = StopChecker(asked.stop, include_stop=asked.include_stop_str_in_output)
        self.choices = [
            Choice(index, self.tokenizer, copy(stops), asked, request.prompt_ids, form)
            for index, request in enumerate(self._requests)  # the copies share the automaton
        ]
        self._clocks = [SequenceClock(ticket.started, serving.metrics) for _ in self.choices]
        self._late: list[Delta] = []  # the ends of choices that the deadline left without a token

    @property
    def usage(self) -> Usage:
        """So far. The choices of a prompt share it, and it counts once."""
        first_choices = self.choices[:: self.asked.num_drawn]
        return Usage(
            prompt_tokens=sum(map(len, self._prompts)),
            cached_tokens=sum(choice.num_cached_tokens for choice in first_choices),
            completion_tokens=sum(choice.num_tokens for choice in self.choices),
        )

    def prompt_ids(self, index: int) -> Sequence[int]:
        """Of a choice."""
        return self._requests[index].prompt_ids

    def prompt_logprobs(self, index: int) -> Sequence[TokenLogprobs]:
        """Of a choice's prompt, as its first choice has them."""
        return self.choices[index - index % self.asked.num_drawn].prompt_logprobs

    def answered(self) -> list[int]:
        """The indexes of the choices to answer with: of each prompt's, the n likeliest."""
        num_drawn, n = self.asked.num_drawn, self.asked.n
        if num_drawn == n:
            return list(range(len(self.choices)))
        groups = (
            range(first, first + num_drawn) for first in range(0, len(self.choices), num_drawn)
        )
        return [index for group in groups for index in sorted(group, key=self._unlikelihood)[:n]]

    def _unlikelihood(self, index: int) -> float:
        return -self.choices[index].mean_logprob

    def timings(self, index: int) -> dict[str, object]:
        """Of a choice that has ended; in the words that llama.cpp's users know, and ours."""
        choice = self.choices[index]
        return {
            "prompt_n": len(self._requests[index].prompt_ids) - choice.num_cached_tokens,
            "cached_tokens": choice.num_cached_tokens,
            "predicted_n": choice.num_tokens,
            **self._clocks[index].as_dict(),
        }

    async def run(self, emit: Emit) -> None:
        """Every choice to its end; the failure of one is the failure of all."""
        lens = list(map(len, self._prompts))
        with let_in(self._serving, self.ticket, lens, n=self.asked.num_drawn) as places:
            try:
                pairs = zip(self.choices, places, strict=True)
                await run_side_by_side([self._run_choice(*pair, emit) for pair in pairs])
                await self._end_late(emit)
            finally:
                self._note_end()
                trace_generation(self.ticket, self.asked, self._requests[0], self._clocks)

    async def _run_choice(self, choice: Choice, place: Place, emit: Emit) -> None:
        clock = self._clocks[choice.index]
        with counted(self.ticket, self._serving.metrics, lambda: choice.num_tokens) as end:
            try:
                await self._follow(choice, place, clock, end, emit)
            finally:
                clock.end()

    async def _follow(
        self, choice: Choice, place: Place, clock: SequenceClock, end: End, emit: Emit
    ) -> None:
        request = self._requests[choice.index]
        async with self._serving.engine.submit(request) as submitted:
            events = TimelyEvents(submitted, request.id, self.ticket.caller.deadline)
            self._accepted_prompts.add(choice.index // self.asked.num_drawn)
            async for event in events:
                place.leave(
                    time.monotonic(), computed=bool(event.token_ids or event.prompt_logprobs)
                )
                clock.tick(event)
                delta = choice.push(checked(event))
                if choice.finish_reason is not None:
                    break  # leave before the last delta is sent to a client that may be slow
                if delta.tells:
                    await emit(delta)
        assert delta.finish_reason is not None
        end.outcome = "deadline" if events.expired else _outcome(delta.finish_reason)
        if events.expired and not choice.num_tokens:
            self._late.append(delta)
        else:
            await emit(delta)

    async def _end_late(self, emit: Emit) -> None:
        """They end empty, unless no choice of the call has a token."""
        if self._late and not any(choice.num_tokens for choice in self.choices):
            raise missed_deadline(self._serving.metrics)
        for delta in self._late:
            await emit(delta)

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
            **self._first_token(),
        )

    def _first_token(self) -> dict[str, float]:
        """When the first came of all choices."""
        seconds = min(clock.first_token_at for clock in self._clocks) - self.ticket.started
        return {"first_token_seconds": round(seconds, 4)} if seconds < math.inf else {}


def _outcome(reason: FinishReason) -> Outcome:
    return "stop" if reason == "tool_calls" else reason


def checked(event: Event) -> Event:
    """Raises where the engine couldn't bring the sequence to an end of its own."""
    if event.finish_reason == "refused":
        reason = event.message.partition("\n")[0]  # a grammar's goes on with its whole state
        raise bad_request(f"This request can't be computed: {reason}.")
    if event.finish_reason == "unavailable":
        message = "The server ended before this was done; send it again."
        raise unavailable(message, code="engine_unavailable")
    if event.finish_reason in ("error", "cancelled"):
        log.error("request %s ended by the engine: %s", event.request_id, event.message)
        raise internal_error()
    return event
