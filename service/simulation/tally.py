"""Counts and times what comes out of a simulated engine, request by request and step by step.

Fairness is counted while two tenants or more wait. A tenant waits as long as it has a request
without a token; then its share of what the waiting ones get, by weight, is due to it:

    due = sum over steps of (tokens that the waiting tenants got) * weight / (their weights)

so that received / due is 1 for all, however often the company changes. A prompt counts, with what
the cache had of it, when its first token comes. Knows no engine and no clock.
"""

from array import array
from collections.abc import Iterable

from service.engine.messages import Event, Stats, StepRecord
from service.simulation.trace import TracedRequest


class Tenant:
    def __init__(self) -> None:
        self.num_requests = 0
        self.num_waiting = 0
        self.num_tokens = 0
        """Of prompts and outputs."""
        self.weight = 1.0
        self.received = 0
        self.due = 0.0


class Live:
    """A request that hasn't ended."""

    __slots__ = ("entered", "last", "tenant", "traced")

    def __init__(self, traced: TracedRequest, tenant: Tenant, *, entered: float) -> None:
        self.traced = traced
        self.tenant = tenant
        self.entered = entered
        """When the engine took it: after its arrival, if a step was being computed then."""
        self.last: float | None = None
        """When its last token came."""


class Tally:
    def __init__(self) -> None:
        self.num_requests = 0
        self.num_finished = 0
        self.num_refused = 0
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.end = 0.0
        self.first_token_seconds = array("d")
        self.gap_seconds = array("d")
        """Between a request's tokens."""
        self.total_seconds = array("d")
        self.queue_seconds = array("d")
        self.num_steps = 0
        self.num_rows = 0
        self.num_preemptions = 0
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self.step_seconds = 0.0
        self.page_seconds = 0.0
        self.most_rows = 0
        self.most_pages = 0
        self.num_pages = 0
        self.tenants: dict[str, Tenant] = {}
        self._live: dict[str, Live] = {}

    def enter(self, request_id: str, traced: TracedRequest, *, now: float) -> None:
        tenant = self.tenants.setdefault(traced.tenant, Tenant())
        tenant.weight = traced.weight
        tenant.num_requests += 1
        tenant.num_waiting += 1
        self.num_requests += 1
        self._live[request_id] = Live(traced, tenant, entered=now)

    def observe(self, events: Iterable[Event], *, now: float) -> None:
        """What a step brought; it ended now."""
        self.end = now
        waiting = [tenant for tenant in self.tenants.values() if tenant.num_waiting]
        before = [tenant.num_tokens for tenant in waiting]
        live, gaps = self._live, self.gap_seconds
        for event in events:  # millions in all
            request = live[event.request_id]
            if event.token_ids:
                request.tenant.num_tokens += len(event.token_ids)
                if request.last is None:
                    self._begin(request, now=now)
                else:
                    gaps.append(now - request.last)
                request.last = now
            if event.finish_reason:
                self._end(event, now=now)
        if len(waiting) > 1:
            _share_out(waiting, before)

    def _begin(self, request: Live, *, now: float) -> None:
        request.tenant.num_waiting -= 1
        request.tenant.num_tokens += request.traced.prompt_len
        self.num_prompt_tokens += request.traced.prompt_len
        self.first_token_seconds.append(now - request.traced.arrival)

    def _end(self, event: Event, *, now: float) -> None:
        request = self._live.pop(event.request_id)
        if event.timings is None:
            self.num_refused += 1
            request.tenant.num_waiting -= 1
            return
        self.num_finished += 1
        self.num_output_tokens += request.traced.output_len
        self.total_seconds.append(now - request.traced.arrival)
        late = request.entered - request.traced.arrival
        self.queue_seconds.append(late + event.timings.queue_seconds)

    def count(self, record: StepRecord, stats: Stats, *, seconds: float) -> None:
        """What a step was; its pages are those that were held when it had ended."""
        num_rows = record.num_decodes + record.num_chunks
        num_pages = stats.num_pages - stats.num_free_pages
        self.num_steps += 1
        self.num_rows += num_rows
        self.most_rows = max(self.most_rows, num_rows)
        self.num_preemptions += record.num_preempted
        self.num_queried_tokens += record.num_queried_tokens
        self.num_hit_tokens += record.num_hit_tokens
        self.num_pages = stats.num_pages
        self.most_pages = max(self.most_pages, num_pages)
        self.step_seconds += seconds
        self.page_seconds += num_pages * seconds


def _share_out(waiting: list[Tenant], before: list[int]) -> None:
    """Note what those who waited in a step received of it, and what was due to them."""
    received = [t.num_tokens - tokens for t, tokens in zip(waiting, before, strict=True)]
    due = sum(received) / sum(tenant.weight for tenant in waiting)
    for tenant, num_tokens in zip(waiting, received, strict=True):
        tenant.received += num_tokens
        tenant.due += due * tenant.weight
