"""Who is next: fairly between tenants, then by priority, then by arrival."""

from collections import Counter
from itertools import count

import pytest

from service.engine.messages import Request
from service.engine.queue import WaitingQueue
from service.engine.sequence import Sequence

arrivals = count()


def waiting(
    name: str, *, tenant: str = "", weight: float = 1.0, priority: int = 0, cost: int = 100
) -> Sequence:
    request = Request(
        id=name,
        prompt_ids=[1] * (cost - 1),
        max_tokens=1,
        tenant=tenant,
        weight=weight,
        priority=priority,
    )
    return Sequence(request, arrival=next(arrivals), now=0.0)


def queue_of(*sequences: Sequence) -> WaitingQueue:
    queue = WaitingQueue()
    for sequence in sequences:
        queue.push(sequence)
    return queue


def taken(queue: WaitingQueue, *, most: int = 1000) -> list[str]:
    names: list[str] = []
    while len(names) < most and (sequence := queue.peek()) is not None:
        assert queue.peek() is queue.take() is sequence
        names.append(sequence.request.id)
    return names


def test_within_a_tenant_the_order_is_priority_then_arrival() -> None:
    queue = queue_of(
        waiting("late", priority=5),
        waiting("a"),
        waiting("urgent", priority=-1),
        waiting("b"),
        waiting("late too", priority=5),
    )
    assert len(queue) == 5
    assert taken(queue) == ["urgent", "a", "b", "late", "late too"]
    assert len(queue) == 0


def test_a_priority_helps_only_against_ones_own_requests() -> None:
    ordinary = [waiting("a", tenant="a", cost=500) for _ in range(10)]
    pushy = [waiting("b", tenant="b", cost=500, priority=-100) for _ in range(10)]
    served = Counter(taken(queue_of(*pushy, *ordinary), most=10))
    assert served == {"a": 5, "b": 5}


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 60), (2.0, 40), (5.0, 20)])
def test_tenants_share_tokens_by_weight_whoever_asks_for_more(weight: float, expected: int) -> None:
    """a's requests are of 100 tokens, b's of 200: 120 * 100 tokens for a weight of 1 each."""
    aggressor = [waiting("a", tenant="a", weight=weight, cost=100) for _ in range(1000)]
    small = [waiting("b", tenant="b", cost=200) for _ in range(100)]
    served = Counter(taken(queue_of(*aggressor, *small), most=180))
    tokens = {"a": served["a"] * 100, "b": served["b"] * 200}
    assert tokens["a"] / tokens["b"] == pytest.approx(weight, rel=0.15)


def test_a_cost_above_the_quantum_waits_for_its_turns_but_comes() -> None:
    large = waiting("large", tenant="a", cost=3000)
    small = [waiting("small", tenant="b", cost=500) for _ in range(20)]
    order = taken(queue_of(large, *small))
    assert 4 <= order.index("large") <= 8


def test_what_an_ended_sequence_left_unused_is_given_back() -> None:
    queue = queue_of(*(waiting(name, tenant=name, cost=512) for name in "ababababab"))
    assert taken(queue, most=2) == ["a", "b"]
    unused = Request(id="ended", prompt_ids=[1], max_tokens=1024, tenant="b")
    queue.give_back(Sequence(unused, arrival=0, now=0.0))
    assert taken(queue, most=5) == ["b", "b", "a", "b", "a"]


def test_what_is_given_back_to_a_tenant_that_waits_for_nothing_is_lost() -> None:
    queue = queue_of(waiting("a", tenant="a"))
    sequence = queue.peek()
    assert sequence is not None
    queue.take()
    queue.give_back(sequence)
    assert queue.peek() is None


def test_preempted_ones_go_before_all_others_the_oldest_first() -> None:
    first, second, third = waiting("first"), waiting("second"), waiting("third", priority=-1)
    queue = queue_of(third)
    queue.put_back(second)
    queue.put_back(first)
    assert [s.request.id for s in queue] == ["first", "second", "third"]
    assert taken(queue) == ["first", "second", "third"]


def test_any_waiting_sequence_can_be_removed_once() -> None:
    queue = queue_of(waiting("a"), waiting("b"), waiting("c", tenant="other"))
    queue.put_back(waiting("preempted"))
    for name in ("b", "preempted", "c"):
        removed = queue.remove(name)
        assert removed is not None
        assert removed.request.id == name
        assert queue.remove(name) is None
    assert taken(queue) == ["a"]
