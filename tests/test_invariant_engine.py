"""Random arrivals, aborts, crashes and steps over engine, scheduler and blocks with fake runners.

After every step no page is lost, owned twice, or free while a launched step may touch it; every
request ends in exactly one terminal event; every token is the unbatched reference's; of one tenant
and priority, the first to come is the first to run; when idle, all pages are free.
"""

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from model.batch import SamplingParams
from service.engine.engine import Engine
from service.engine.messages import Event, Request
from tests.fakes_engine import FakeRunner, LateRunner, generate, next_token

TINY_VOCABULARY = st.integers(0, 2)  # so that prompts often share prefixes


class Ticking:
    """A clock on which the time between two looks is drawn from few values, so that the pace of
    prompts beside decodes changes."""

    def __init__(self, seconds: list[float]) -> None:
        self._seconds = seconds
        self._looks = 0
        self._now = 0.0

    def __call__(self) -> float:
        self._looks += 1
        self._now += self._seconds[self._looks % len(self._seconds)]
        return self._now


def repetitive(token_ids: Sequence[int], *, seed: int = 0) -> int:
    """A fake model that mostly says again what it said, so guesses come true or not."""
    return next_token(token_ids, seed=seed) if len(token_ids) % 7 == 0 else token_ids[-2:][0]


class RepetitiveRunner(FakeRunner):
    next_token = staticmethod(repetitive)


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        num_pages=st.integers(3, 12),
        page_size=st.integers(1, 4),
        max_batch_tokens=st.integers(1, 12),
        seconds=st.lists(st.sampled_from([0.001, 0.01, 0.3]), min_size=1, max_size=5),
        runner=st.sampled_from([FakeRunner, RepetitiveRunner, LateRunner]),
        data=st.data(),
    )
    def start(
        self,
        num_pages: int,
        page_size: int,
        max_batch_tokens: int,
        seconds: list[float],
        runner: type[FakeRunner],
        data: st.DataObject,
    ) -> None:
        self.make_runner = partial(runner, num_pages=num_pages, page_size=page_size)
        self.next_token = runner.next_token
        self.speculative = data.draw(st.booleans())
        self.max_batch_tokens = max_batch_tokens
        self.max_sequences = data.draw(st.integers(1, max_batch_tokens))
        self.clock = Ticking(seconds)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, Event] = {}
        self.start_engine()

    def start_engine(self) -> None:
        self.runner = self.make_runner()
        self.engine = Engine(
            self.runner,
            max_batch_tokens=self.max_batch_tokens,
            max_sequences=self.max_sequences,
            speculative=self.speculative,
            clock=self.clock,
        )
        self.queued: list[str] = []  # in order of arrival at this engine, and not run yet

    def submit(self, request: Request) -> None:
        self.queued.append(request.id)
        self.engine.add(request)

    @rule(
        prompt_ids=st.lists(TINY_VOCABULARY, min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        num_choices=st.integers(1, 3),
        salt=st.sampled_from(["", "other"]),
        tenant=st.sampled_from(["", "a", "b"]),
        priority=st.integers(-1, 1),
    )
    def add(
        self,
        prompt_ids: list[int],
        max_tokens: int,
        num_choices: int,
        salt: str,
        tenant: str,
        priority: int,
    ) -> None:
        max_tokens = min(max_tokens, self.engine.info.max_model_len - 1)
        prompt_ids = prompt_ids[: max(1, self.engine.info.max_model_len - max_tokens)]
        for choice in range(num_choices):
            name = f"request-{len(self.requests)}"
            self.requests[name] = Request(
                id=name,
                prompt_ids=prompt_ids,
                max_tokens=max_tokens,
                sampling=SamplingParams(seed=choice),
                stop_token_ids=frozenset({3}),
                cache_salt=salt,
                tenant=tenant,
                weight=2.0 if tenant == "b" else 1.0,
                priority=priority,
            )
            self.outputs[name] = []
            self.submit(self.requests[name])

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.requests:
            name = data.draw(st.sampled_from(sorted(self.requests)))
            self.engine.abort(name)
            if name in self.queued:
                self.queued.remove(name)

    @rule()
    def crash(self) -> None:
        """The next engine gets what is unfinished, with the tokens that were delivered."""
        self.take(self.engine.step())
        self.start_engine()
        for name, request in self.requests.items():
            if name not in self.ended:
                self.submit(replace(request, output_ids=list(self.outputs[name])))

    @precondition(lambda self: self.engine.has_work)
    @rule(num_steps=st.integers(1, 12))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.take(self.engine.step())
            self.engine.check_integrity()
            self.check_order()
            self.check_pages()
            assert all(b.num_tokens <= self.max_batch_tokens for b in self.runner.batches)
            assert all(len(b.rows) <= self.max_sequences for b in self.runner.batches)
            self.runner.batches.clear()

    def check_order(self) -> None:
        """Who left the queue in this step were the first of their tenant and priority."""
        waiting = {sequence.request.id for sequence in self.engine._scheduler.waiting}
        started = [name for name in self.queued if name not in waiting]
        self.queued = [name for name in self.queued if name in waiting]
        for late in started:
            request = self.requests[late]
            for early in self.queued:
                other = self.requests[early]
                if (other.tenant, other.priority) == (request.tenant, request.priority):
                    assert int(early.split("-")[1]) > int(late.split("-")[1]), "out of order"

    def check_pages(self) -> None:
        """Nothing that a step may still touch can be handed out."""
        if isinstance(self.runner, LateRunner):
            blocks = self.engine._blocks
            assert self.runner.pages_in_use.isdisjoint([*blocks._free, *blocks._cached])

    def take(self, events: list[Event]) -> None:
        for event in events:
            request, output = self.requests[event.request_id], self.outputs[event.request_id]
            assert event.request_id not in self.ended, "news after the end"
            assert [*event.token_ids] == generate(
                [*request.prompt_ids, *output],
                max_tokens=len(event.token_ids),
                seed=request.sampling.seed,
                next_token=self.next_token,
            )
            output += event.token_ids
            if event.finish_reason:
                self.ended[event.request_id] = event

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(3000):
            self.take(self.engine.step())
            if not self.engine.has_work:
                break
        assert self.ended.keys() == self.requests.keys(), "every request ends once"
        for name, event in self.ended.items():
            if event.finish_reason == "length":
                assert len(self.outputs[name]) == self.requests[name].max_tokens
            elif event.finish_reason == "stop":
                assert self.outputs[name][-1] == 3
            else:
                assert event.finish_reason == "cancelled"
        self.engine.check_integrity()
        assert self.engine.stats.num_free_pages == self.engine.stats.num_pages


class LongEngineMachine(EngineMachine):
    """The same for longer: about 100,000 steps of the engine."""


EngineMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=60, deadline=None)
LongEngineMachine.TestCase.settings = settings(EngineMachine.TestCase.settings, max_examples=800)
TestEngineInvariants = pytest.mark.no_cover(EngineMachine.TestCase)
TestEngineInvariantsForLonger = pytest.mark.slow(pytest.mark.no_cover(LongEngineMachine.TestCase))
