"""Random arrivals, aborts and steps over engine, scheduler and block manager with a fake runner.

After every step no page is lost or owned twice; every request ends in exactly one terminal event;
every token is the unbatched reference's; when idle, all pages are free.
"""

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from model.batch import SamplingParams
from service.engine.engine import Engine
from service.engine.messages import Event, Request
from tests.fakes_engine import FakeRunner, generate

TINY_VOCABULARY = st.integers(0, 2)  # so that prompts often share prefixes


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        num_pages=st.integers(3, 12),
        page_size=st.integers(1, 4),
        max_batch_tokens=st.integers(1, 12),
        data=st.data(),
    )
    def start(
        self, num_pages: int, page_size: int, max_batch_tokens: int, data: st.DataObject
    ) -> None:
        max_sequences = data.draw(st.integers(1, max_batch_tokens))
        self.runner = FakeRunner(num_pages=num_pages, page_size=page_size)
        self.engine = Engine(
            self.runner, max_batch_tokens=max_batch_tokens, max_sequences=max_sequences
        )
        self.max_batch_tokens = max_batch_tokens
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, Event] = {}

    @rule(
        prompt_ids=st.lists(TINY_VOCABULARY, min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        seed=st.integers(0, 1),
        salt=st.sampled_from(["", "other"]),
        num_resumed=st.integers(0, 3),
    )
    def add(
        self, prompt_ids: list[int], max_tokens: int, seed: int, salt: str, num_resumed: int
    ) -> None:
        max_prompt_len = max(1, self.engine.info.max_model_len - max_tokens)
        max_tokens = min(max_tokens, self.engine.info.max_model_len - 1)
        prompt_ids = prompt_ids[:max_prompt_len]
        name = f"request-{len(self.requests)}"
        resumed = generate(prompt_ids, max_tokens=min(num_resumed, max_tokens - 1), seed=seed)
        self.requests[name] = Request(
            id=name,
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            sampling=SamplingParams(seed=seed),
            stop_token_ids=frozenset({3}),
            output_ids=resumed if 3 not in resumed else [],
            cache_salt=salt,
        )
        self.outputs[name] = list(self.requests[name].output_ids)
        self.engine.add(self.requests[name])

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.requests:
            self.engine.abort(data.draw(st.sampled_from(sorted(self.requests))))

    @precondition(lambda self: self.engine.has_work)
    @rule(num_steps=st.integers(1, 5))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.take(self.engine.step())
            self.engine.check_integrity()
            assert all(b.num_tokens <= self.max_batch_tokens for b in self.runner.batches)
            self.runner.batches.clear()

    def take(self, events: list[Event]) -> None:
        for event in events:
            assert event.request_id not in self.ended, "news after the end"
            self.outputs[event.request_id] += event.token_ids
            if event.finish_reason:
                self.ended[event.request_id] = event

    @invariant()
    def tokens_are_the_references(self) -> None:
        for name, output in getattr(self, "outputs", {}).items():
            request = self.requests[name]
            seed = request.sampling.seed
            assert output == generate(request.prompt_ids, max_tokens=len(output), seed=seed)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(1000):
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


EngineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestEngineInvariants = EngineMachine.TestCase
