"""Waiting sequences, and who is next: fairly between tenants, then by priority, then by arrival.

Between tenants it is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with the charges
of the virtual token counter (Sheng et al., OSDI 2024): next is the tenant that has had the fewest
tokens for its weight, prompt tokens when it is taken and each new one as it comes.

    tenant       a       b       c
    had        7000    7200    6900   <- c is next
    weight        1       2       1      b pays half for each token

Who comes back after a pause doesn't get what it did without: it starts where the others are now.
Knows no pages and no batch.
"""

from bisect import insort
from collections.abc import Iterator

from service.engine.sequence import Sequence


class WaitingQueue:
    def __init__(self) -> None:
        self._lanes: dict[str, list[Sequence]] = {}  # by tenant, for those that have any
        self._had: dict[str, float] = {}  # tokens by weight; never more tenants than there are keys
        self._now = 0.0  # what the last tenant had when it was its turn
        self._preempted: list[Sequence] = []  # paid for already, so that they go first

    def __len__(self) -> int:
        return len(self._preempted) + sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._preempted
        for lane in self._lanes.values():
            yield from lane

    def push(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if tenant not in self._lanes:
            self._lanes[tenant] = []
            self._had[tenant] = max(self._had.get(tenant, 0.0), self._now)
        insort(self._lanes[tenant], sequence, key=_place)

    def put_back(self, sequence: Sequence) -> None:
        """A preempted one: before all that never ran, the oldest first."""
        insort(self._preempted, sequence, key=_place_of_preempted)

    def peek(self) -> Sequence | None:
        """The next one."""
        if self._preempted:
            return self._preempted[0]
        return self._lanes[self._on_turn()][0] if self._lanes else None

    def take(self) -> Sequence:
        """The one that `peek` shows, out of the queue."""
        if self._preempted:
            return self._preempted.pop(0)
        tenant = self._on_turn()
        sequence = self._drop(tenant, 0)
        self._now = self._had[tenant]
        self.charge(sequence, sequence.num_tokens)
        return sequence

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Its tenant gets so many tokens computed; fewer than 0 if they were charged in vain."""
        request = sequence.request
        self._had[request.tenant] += num_tokens / request.weight

    def remove(self, request_id: str) -> Sequence | None:
        for index, sequence in enumerate(self._preempted):
            if sequence.request.id == request_id:
                return self._preempted.pop(index)
        for tenant, lane in self._lanes.items():
            for index, sequence in enumerate(lane):
                if sequence.request.id == request_id:
                    return self._drop(tenant, index)
        return None

    def _on_turn(self) -> str:
        return min(self._lanes, key=self._had.__getitem__)

    def _drop(self, tenant: str, index: int) -> Sequence:
        sequence = self._lanes[tenant].pop(index)
        if not self._lanes[tenant]:
            del self._lanes[tenant]
        return sequence


def _place(sequence: Sequence) -> tuple[int, int]:
    return sequence.request.priority, sequence.arrival


def _place_of_preempted(sequence: Sequence) -> int:
    return sequence.arrival
