"""Tenants that all have work waiting get tokens by weight, whoever asks for more.

The engine runs in virtual time. Each tenant's queue is filled up again before it is empty, so that
all are backlogged throughout; the first steps, which begin with an empty engine, aren't counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest

from service.engine.engine import Engine
from service.engine.messages import Request
from service.simulation.machine import SimulatedRunner, VirtualClock, parse_step_cost
from service.simulation.report import jain_index

COST = "base=8ms,prompt=400us,decode=600us,context=2us"
WARM_UP_STEPS = 500
STEPS = 2500

pytestmark = pytest.mark.no_cover  # traced, so many steps take four times as long


@dataclass(kw_only=True)
class Tenant:
    name: str
    prompt_len: int = 60
    output_len: int = 40
    weight: float = 1.0
    least_waiting: int = 8
    """So many that the queue hardly ever empties it between two steps."""
    burst: int = 1
    """How many requests come at once when there are fewer waiting."""
    num_waiting: int = 0
    num_tokens: int = 0

    def requests(self, numbers: Iterator[int]) -> Iterator[Request]:
        while self.num_waiting < self.least_waiting:
            for number in (next(numbers) for _ in range(self.burst)):
                self.num_waiting += 1
                yield Request(
                    id=f"{self.name} {number}",
                    prompt_ids=[number, *[0] * (self.prompt_len - 1)],
                    max_tokens=self.output_len,
                    tenant=self.name,
                    weight=self.weight,
                )


def make_engine(*, num_pages: int) -> Engine:
    clock = VirtualClock()
    runner = SimulatedRunner(clock, parse_step_cost(COST), num_pages=num_pages, page_size=16)
    return Engine(runner, max_batch_tokens=512, max_sequences=32, clock=clock)


def serve(*tenants: Tenant, num_pages: int = 4096) -> int:
    """Count each tenant's tokens, prompts included, after the warm-up; how often one was
    preempted."""
    engine, numbers, begun = make_engine(num_pages=num_pages), count(1), set()
    num_preemptions = 0
    by_name = {tenant.name: tenant for tenant in tenants}
    for step in range(STEPS):
        for tenant in tenants:
            for request in tenant.requests(numbers):
                engine.add(request)
        for event in engine.step():
            tenant, is_first = by_name[event.request_id.split()[0]], event.request_id not in begun
            begun.add(event.request_id)
            tenant.num_waiting -= is_first
            if step >= WARM_UP_STEPS:
                tenant.num_tokens += 1 + is_first * tenant.prompt_len
        num_preemptions += engine.record.num_preempted if engine.record else 0
    return num_preemptions


def share_of_due(tenant: Tenant, *all_tenants: Tenant) -> float:
    """What it got, by its part of all tokens according to weight."""
    due = sum(t.num_tokens for t in all_tenants) * tenant.weight
    return tenant.num_tokens * sum(t.weight for t in all_tenants) / due


@pytest.mark.parametrize("aggressor_len", [60, 600], ids=["equal sizes", "long prompts"])
def test_ten_times_the_requests_get_no_more(aggressor_len: int) -> None:
    small = Tenant(name="small")
    aggressor = Tenant(name="aggressor", least_waiting=80, prompt_len=aggressor_len)
    serve(small, aggressor)
    assert share_of_due(small, small, aggressor) == pytest.approx(1.0, abs=0.1)


def test_ten_aggressors_leave_a_small_tenant_its_part() -> None:
    small = Tenant(name="small")
    aggressors = [Tenant(name=f"aggressor{n}", least_waiting=20) for n in range(10)]
    serve(small, *aggressors)
    assert share_of_due(small, small, *aggressors) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    "num_waiting", [1, *(pytest.param(num, marks=pytest.mark.slow) for num in (2, 4))]
)
@pytest.mark.parametrize("num_aggressors", [1, 10])
def test_a_tenant_with_few_requests_at_a_time_gets_its_part(
    num_waiting: int, num_aggressors: int
) -> None:
    small = Tenant(name="small", least_waiting=num_waiting)
    aggressors = [Tenant(name=f"aggressor{n}", least_waiting=20) for n in range(num_aggressors)]
    serve(small, *aggressors)
    assert share_of_due(small, small, *aggressors) == pytest.approx(1.0, abs=0.1)


def test_bursts_get_no_more() -> None:
    small = Tenant(name="small", burst=5)
    aggressor = Tenant(name="aggressor", burst=200)
    serve(small, aggressor)
    assert share_of_due(small, small, aggressor) == pytest.approx(1.0, abs=0.1)


def test_sizes_of_requests_don_t_matter() -> None:
    sizes = [(16, 4), (60, 40), (20, 200), (1000, 20), (700, 300)]
    tenants = [Tenant(name=f"{p}+{o}", prompt_len=p, output_len=o) for p, o in sizes]
    serve(*tenants)
    index = jain_index([tenant.num_tokens for tenant in tenants])
    assert index is not None
    assert index >= 0.95
    for tenant in tenants:
        assert share_of_due(tenant, *tenants) == pytest.approx(1.0, abs=0.1)


def test_tokens_go_by_weight() -> None:
    tenants = [Tenant(name=f"weight{weight}", weight=weight) for weight in (1, 2, 4)]
    serve(*tenants)
    for tenant in tenants:
        assert share_of_due(tenant, *tenants) == pytest.approx(1.0, abs=0.1)


def test_fairness_outlasts_a_shortage_of_pages() -> None:
    sizes = [(60, 40), (20, 200), (300, 100)]
    tenants = [Tenant(name=f"{p}+{o}", prompt_len=p, output_len=o) for p, o in sizes]
    assert serve(*tenants, num_pages=48) > 50
    for tenant in tenants:
        assert share_of_due(tenant, *tenants) == pytest.approx(1.0, abs=0.1)
