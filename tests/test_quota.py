"""What is left to a tenant this minute, with a clock of its own."""

import pytest
from hypothesis import given, strategies as st

from service.auth import Tenant
from service.quota import QuotaExceededError, Quotas


def refusal(quotas: Quotas, tenant: Tenant, now: float) -> QuotaExceededError:
    with pytest.raises(QuotaExceededError) as caught:
        quotas.admit(tenant, now)
    return caught.value


def test_requests_come_back_one_by_one() -> None:
    quotas, tenant = Quotas(), Tenant("a", requests_per_minute=2)
    quotas.admit(tenant, 100.0)
    quotas.admit(tenant, 100.0)
    error = refusal(quotas, tenant, 100.0)
    assert (error.quota, error.retry_after) == ("requests", 30)
    assert refusal(quotas, tenant, 129.0).retry_after == 1
    quotas.admit(tenant, 130.0)
    assert refusal(quotas, tenant, 130.0).retry_after == 30


def test_tokens_are_charged_afterwards_and_may_be_owed() -> None:
    quotas, tenant = Quotas(), Tenant("a", tokens_per_minute=60)
    quotas.admit(tenant, 0.0)
    quotas.charge(tenant, 60)
    quotas.admit(tenant, 0.0)
    quotas.charge(tenant, 30)
    error = refusal(quotas, tenant, 0.0)
    assert (error.quota, error.retry_after) == ("tokens", 30)
    assert "this key has 60 tokens a minute" in str(error)
    quotas.admit(tenant, 30.0)


def test_a_night_saves_up_no_more_than_a_minute() -> None:
    quotas, tenant = Quotas(), Tenant("a", requests_per_minute=1)
    quotas.admit(tenant, 1e6)
    refusal(quotas, tenant, 1e6)


def test_tenants_do_not_share_and_without_limits_there_are_none() -> None:
    quotas = Quotas()
    one, other, free = (
        Tenant("a", requests_per_minute=1),
        Tenant("b", requests_per_minute=1),
        Tenant("c"),
    )
    quotas.admit(one, 0.0)
    quotas.admit(other, 0.0)
    for _ in range(100):
        quotas.admit(free, 0.0)
        quotas.charge(free, 10**9)
    refusal(quotas, one, 0.0)
    quotas.admit(Tenant("c", tokens_per_minute=1), 0.0)


def test_a_changed_limit_keeps_what_was_used() -> None:
    quotas = Quotas()
    quotas.charge(Tenant("a", tokens_per_minute=1000), 500)
    quotas.admit(Tenant("a", tokens_per_minute=1000), 0.0)
    refusal(quotas, Tenant("a", tokens_per_minute=400), 0.0)


@given(st.lists(st.floats(0, 10), max_size=200), st.integers(1, 100))
def test_no_minute_lets_in_more_than_twice_the_limit(waits: list[float], limit: int) -> None:
    """What was saved up, and what came back meanwhile."""
    quotas, tenant, now = Quotas(), Tenant("a", requests_per_minute=limit), 0.0
    taken: list[float] = []
    retries: list[int] = []
    for wait in waits:
        now += wait
        try:
            quotas.admit(tenant, now)
            taken.append(now)
        except QuotaExceededError as error:
            retries.append(error.retry_after)
    assert all(1 <= seconds <= 60 for seconds in retries)
    assert all(sum(1 for t in taken if s <= t < s + 60) <= 2 * limit for s in taken)
