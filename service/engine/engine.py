"""The engine core: requests in, a step at a time, events out. Synchronous, without I/O or torch.

add, abort --> scheduler.schedule() --> runner.run(batch) --> scheduler.commit(output) --> events
"""

from model.batch import Runner
from service.engine.blocks import BlockManager
from service.engine.messages import EngineInfo, Event, Request, Stats
from service.engine.scheduler import Scheduler
from service.engine.sequence import Sequence


class Engine:
    def __init__(self, runner: Runner, *, max_batch_tokens: int, max_sequences: int) -> None:
        self._runner = runner
        self._blocks = BlockManager(runner.num_pages, page_size=runner.page_size)
        self._scheduler = Scheduler(
            self._blocks, max_batch_tokens=max_batch_tokens, max_sequences=max_sequences
        )
        self._events: list[Event] = []
        self._num_arrivals = 0
        self._num_steps = 0

    @property
    def info(self) -> EngineInfo:
        runner = self._runner
        return EngineInfo(
            max_model_len=min(runner.max_model_len, runner.num_pages * runner.page_size),
            vocab_size=runner.vocab_size,
            page_size=runner.page_size,
            num_pages=runner.num_pages,
        )

    @property
    def stats(self) -> Stats:
        return Stats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_free_pages=self._blocks.num_free,
            num_pages=self._blocks.num_pages,
            num_steps=self._num_steps,
            num_preemptions=self._scheduler.num_preemptions,
        )

    @property
    def has_work(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    def add(self, request: Request) -> None:
        """Queue a request. One that can never run ends with an error event in the next step."""
        problem = self._problem(request)
        if problem:
            failure = Event(request_id=request.id, finish_reason="error", message=problem)
            self._events.append(failure)
            return
        self._scheduler.add(Sequence(request, arrival=self._num_arrivals))
        self._num_arrivals += 1

    def _problem(self, request: Request) -> str:
        """Why a request can never run; empty if it can. The routes refuse such requests earlier."""
        info = self.info
        num_tokens = len(request.prompt_ids) + request.max_tokens
        if not request.prompt_ids or request.max_tokens < 1:
            return "a request needs at least one prompt token and one token to generate"
        if num_tokens > info.max_model_len:
            return f"{num_tokens} tokens of prompt and output exceed {info.max_model_len}"
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < info.vocab_size:
            return f"a prompt token is outside the vocabulary of {info.vocab_size}"
        return ""

    def abort(self, request_id: str) -> None:
        """End a request now and free its pages; one that has ended already is left in peace."""
        if self._scheduler.remove(request_id):
            self._events.append(Event(request_id=request_id, finish_reason="cancelled"))

    def step(self) -> list[Event]:
        """Compute one batch, if there is work, and return all news since the last step."""
        batch = self._scheduler.schedule()
        if batch.rows:
            self._events += self._scheduler.commit(self._runner.run(batch))
            self._num_steps += 1
        events, self._events = self._events, []
        return events

    def check_integrity(self) -> None:
        """Assert that no page is lost, held twice by one, or held by nobody who runs."""
        self._blocks.check_integrity([s.page_ids for s in self._scheduler.running])
        assert not any(s.page_ids for s in self._scheduler.waiting), (
            "a waiting sequence holds pages"
        )
