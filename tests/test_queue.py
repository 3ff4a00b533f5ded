"""Who is next: fairly between tenants, then by priority, then by arrival."""

from collections import Counter
from itertools import count

import pytest

from service.engine.messages import Request
from service.engine.queue import WaitingQueue
from service.engine.sequence import Sequence

arrivals = count()


def waiting(
    name: str, *, tenant: str = "", weight: float = 1.0, priority: int = 0, prompt_len: int = 100
) -> Sequence:
    request = Request(
        id=name,
        prompt_ids=[1] * prompt_len,
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
    ordinary = [waiting("a", tenant="a", prompt_len=500) for _ in range(10)]
    pushy = [waiting("b", tenant="b", prompt_len=500, priority=-100) for _ in range(10)]
    served = Counter(taken(queue_of(*pushy, *ordinary), most=10))
    assert served == {"a": 5, "b": 5}


@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0, 5.0])
def test_tenants_share_tokens_by_weight_whoever_asks_for_more(weight: float) -> None:
    aggressor = [waiting("a", tenant="a", weight=weight, prompt_len=100) for _ in range(1000)]
    small = [waiting("b", tenant="b", prompt_len=200) for _ in range(100)]
    served = Counter(taken(queue_of(*aggressor, *small), most=150))
    tokens = {"a": served["a"] * 100, "b": served["b"] * 200}
    assert tokens["a"] / tokens["b"] == pytest.approx(weight, rel=0.1)


def test_new_tokens_are_charged_as_they_come() -> None:
    queue = queue_of(*(waiting(name, tenant=name, prompt_len=100) for name in "ababababab"))
    assert taken(queue, most=2) == ["a", "b"]
    queue.charge(waiting("running", tenant="a"), 250)
    assert taken(queue, most=5) == ["b", "b", "b", "a", "b"]


def test_tokens_that_were_charged_in_vain_are_given_back() -> None:
    queue = queue_of(*(waiting(name, tenant=name, prompt_len=100) for name in "abababab"))
    assert taken(queue, most=2) == ["a", "b"]
    queue.charge(waiting("cached", tenant="b"), -100)
    assert taken(queue, most=3) == ["b", "a", "b"]


def test_one_request_at_a_time_gets_its_part_too() -> None:
    """Whoever waits with one request isn't behind those that wait with many."""
    queue = queue_of(*(waiting("a", tenant="a", prompt_len=100) for _ in range(100)))
    served: Counter[str] = Counter()
    for _ in range(50):
        queue.push(waiting("b", tenant="b", prompt_len=100))
        while "b" not in (names := taken(queue, most=1)):
            served.update(names)
        served.update(names)
    assert served == {"a": pytest.approx(50, abs=1), "b": 50}


def test_a_pause_earns_nothing() -> None:
    queue = queue_of(*(waiting("a", tenant="a", prompt_len=100) for _ in range(100)))
    assert taken(queue, most=50) == ["a"] * 50
    for _ in range(10):
        queue.push(waiting("b", tenant="b", prompt_len=100))
    assert Counter(taken(queue, most=10)) == {"a": 5, "b": 5}


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
