"""What a tenant may still take this minute, in requests and in tokens. Knows no clock.

Token buckets: each fills at its limit per minute, up to one minute's worth. How many tokens a call
takes is known when it has ended, so a bucket may go below nothing; the next call waits for that.
Whoever calls brings the time, in seconds of the monotonic clock.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from service.auth import Tenant

Quota = Literal["requests", "tokens"]


class QuotaExceededError(Exception):
    """A tenant has had what is theirs; `quota` says of what."""

    def __init__(self, quota: Quota, per_minute: int, *, retry_after: int) -> None:
        super().__init__(f"this key has {per_minute} {quota} a minute, and has had them")
        self.quota: Quota = quota
        self.retry_after = retry_after


@dataclass(slots=True)
class _Bucket:
    used: float = 0.0
    filled: float = 0.0
    """When it was last looked at."""

    def fill(self, per_minute: int, now: float) -> None:
        self.used = max(0.0, self.used - (now - self.filled) * per_minute / 60)
        self.filled = now

    def seconds_until(self, num: float, per_minute: int) -> int:
        return max(1, math.ceil((self.used + num - per_minute) * 60 / per_minute))


@dataclass(slots=True)
class _Tab:
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)


class Quotas:
    """By name, so that a tenant whose key or limits change keeps what it has used."""

    def __init__(self) -> None:
        self._tabs: dict[str, _Tab] = {}

    def admit(self, tenant: Tenant, now: float) -> None:
        """Count one request, or raise QuotaExceededError and count nothing."""
        tab = self._tabs.setdefault(tenant.name, _Tab())
        self._check("requests", tab.requests, tenant.requests_per_minute, 1, now)
        self._check("tokens", tab.tokens, tenant.tokens_per_minute, 0, now)
        tab.requests.used += 1

    def charge(self, tenant: Tenant, num_tokens: int) -> None:
        if tenant.tokens_per_minute:
            self._tabs.setdefault(tenant.name, _Tab()).tokens.used += num_tokens

    def _check(
        self, quota: Quota, bucket: _Bucket, per_minute: int, num: float, now: float
    ) -> None:
        if not per_minute:
            return
        bucket.fill(per_minute, now)
        if bucket.used + num > per_minute:
            raise QuotaExceededError(
                quota, per_minute, retry_after=bucket.seconds_until(num, per_minute)
            )
