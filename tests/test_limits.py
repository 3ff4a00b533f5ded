"""The bound on what waits: what is let in, what is refused, and when to come back."""

import pytest

from service.limits import MAX_RETRY_SECONDS, Admission, Bound, Place, QueueFullError


def make(max_requests: int = 0, max_tokens: int = 0) -> tuple[Admission, list[Bound]]:
    refused: list[Bound] = []
    admission = Admission(
        max_requests=max_requests, max_tokens=max_tokens, count_refusal=refused.append
    )
    return admission, refused


def refusal(admission: Admission, *prompt_lens: int, n: int = 1, now: float = 0) -> QueueFullError:
    before = admission.num_requests, admission.num_tokens
    with pytest.raises(QueueFullError) as caught:
        admission.admit(prompt_lens, n=n, now=now)
    assert (admission.num_requests, admission.num_tokens) == before
    return caught.value


def test_requests_are_bounded_and_a_place_that_is_left_is_free() -> None:
    admission, refused = make(max_requests=2)
    [first] = admission.admit([10], n=1, now=0)
    admission.admit([10], n=1, now=0)
    error = refusal(admission, 10)
    assert (error.bound, str(error)) == (
        "queue_requests",
        "2 requests wait already, and the limit is 2",
    )
    assert refused == ["queue_requests"]
    first.leave(1, computed=True)
    admission.admit([10], n=1, now=1)


def test_tokens_are_bounded() -> None:
    admission, refused = make(max_tokens=100)
    admission.admit([60], n=1, now=0)
    error = refusal(admission, 41)
    assert "60 prompt tokens wait already, and the limit is 100" in str(error)
    assert refused == ["queue_tokens"]
    admission.admit([40], n=1, now=0)


def test_a_call_is_taken_whole_or_not_at_all() -> None:
    admission, _ = make(max_requests=4)
    admission.admit([5], n=1, now=0)
    refusal(admission, 5, 5, n=2)
    assert len(admission.admit([5], n=3, now=0)) == 3


def test_the_choices_of_a_prompt_share_its_tokens() -> None:
    admission, _ = make()
    places = admission.admit([10, 20], n=3, now=0)
    assert (admission.num_requests, admission.num_tokens) == (6, 30)
    assert [place.num_tokens for place in places] == [10, 0, 0, 20, 0, 0]


def test_an_empty_queue_takes_a_call_of_any_size() -> None:
    admission, _ = make(max_requests=2, max_tokens=10)
    places = admission.admit([1000] * 3, n=2, now=0)
    refusal(admission, 1)
    for place in places:
        place.leave(0, computed=False)
    admission.admit([1000], n=1, now=0)


def test_zero_is_no_limit() -> None:
    admission, refused = make()
    for _ in range(5000):
        admission.admit([10**6], n=1, now=0)
    assert not refused


def test_a_place_is_left_once() -> None:
    admission, _ = make()
    [place] = admission.admit([10], n=1, now=0)
    for _ in range(3):
        place.leave(0, computed=False)
    assert (admission.num_requests, admission.num_tokens) == (0, 0)


def test_a_full_queue_is_known_before_the_size_of_a_call_is() -> None:
    admission, _ = make(max_requests=1)
    admission.check(1, 1, 0)
    admission.admit([1], n=1, now=0)
    with pytest.raises(QueueFullError):
        admission.check(1, 1, 0)


def full(*prompt_lens: int) -> tuple[Admission, list[Place]]:
    admission, _ = make(max_requests=len(prompt_lens))
    places = [admission.admit([length], n=1, now=100)[0] for length in prompt_lens]
    return admission, places


def test_before_anything_is_measured_come_back_soon() -> None:
    admission, _ = full(1000, 1000)
    assert refusal(admission, 1, now=150).retry_after == 1


def test_until_something_is_through_what_is_done_of_it_counts() -> None:
    admission, _ = full(1000, 1000)
    admission.progress(200)
    assert refusal(admission, 1, now=101).retry_after == 10
    admission.progress(10**9)  # computed again, as after a preemption: no more than there is
    assert refusal(admission, 1, now=101).retry_after == 1


def test_what_is_done_of_a_prompt_and_its_departure_count_once() -> None:
    admission, places = full(100, 100, 100)
    admission.progress(150)
    places[0].leave(110, computed=True)
    admission.admit([100], n=1, now=110)
    assert refusal(admission, 1, now=115).retry_after == 30
    for place in places[1:]:
        place.leave(115, computed=False)
    admission.admit([500], n=2, now=115)
    assert refusal(admission, 1, now=115).retry_after == 60


def test_come_back_when_what_waits_is_done_at_the_measured_pace() -> None:
    admission, places = full(*[100] * 11)
    for seconds, place in enumerate(places[:5], start=1):
        place.leave(100 + seconds, computed=True)
        admission.admit([100], n=1, now=100 + seconds)
    assert refusal(admission, 1, now=105).retry_after == 11


def test_what_is_given_up_is_no_work_done() -> None:
    admission, places = full(*[100] * 4)
    places[0].leave(110, computed=True)
    places[1].leave(110, computed=False)
    admission.admit([50], n=2, now=110)
    assert refusal(admission, 1, now=110).retry_after == 25


def test_a_quiet_night_is_not_slow_work() -> None:
    admission, [first, second] = full(100, 100)
    first.leave(101, computed=True)
    second.leave(102, computed=True)
    admission.admit([300], n=2, now=50_000)
    assert refusal(admission, 1, now=50_000).retry_after == 3


def test_a_stuck_engine_makes_the_wait_longer_up_to_a_bound() -> None:
    admission, places = full(100, 100)
    places[0].leave(101, computed=True)
    admission.admit([100], n=1, now=101)
    waits = [refusal(admission, 1, now=101 + stuck).retry_after for stuck in (0, 9, 10**6)]
    assert waits == [2, 20, MAX_RETRY_SECONDS]


def test_the_pace_is_that_of_the_last_half_minute() -> None:
    admission, places = full(*[100] * 101)
    now = 100.0
    for place in places[:50]:  # slow, then fast
        now += 10
        place.leave(now, computed=True)
    for place in places[50:90]:
        now += 1
        place.leave(now, computed=True)
    admission.admit([100] * 90, n=1, now=now)
    assert refusal(admission, 1, now=now).retry_after == 101
