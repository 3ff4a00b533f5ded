"""Waiting sequences, and who is next: fairly between tenants, then by priority, then by arrival.

Between tenants it is deficit round robin (Shreedhar and Varghese, SIGCOMM 1995), counted in tokens:

    on turn ->  a   [ 300 ] [ 900 ]        credit 512: the first goes, and 212 are left
                b   [ 100 ] [ 100 ] …      at the end of a turn a tenant gets weight * QUANTUM more
                c   [ 8000 ]               and goes to the end of the line

A sequence costs its prompt and all it may generate; what it leaves unused is given back when it
ends. Knows no pages and no batch.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator

from service.engine.sequence import Sequence

QUANTUM = 512


class Lane:
    """One tenant's waiting sequences, in their order."""

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.credit = 0.0

    @property
    def first(self) -> Sequence:
        return self.sequences[0]

    def end_turn(self) -> None:
        self.credit += QUANTUM * self.first.request.weight


class WaitingQueue:
    def __init__(self) -> None:
        self._lanes: OrderedDict[str, Lane] = OrderedDict()  # the first is on turn
        self._preempted: list[Sequence] = []  # paid for already, so that they go first

    def __len__(self) -> int:
        return len(self._preempted) + sum(len(lane.sequences) for lane in self._lanes.values())

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._preempted
        for lane in self._lanes.values():
            yield from lane.sequences

    def push(self, sequence: Sequence) -> None:
        lane = self._lanes.setdefault(sequence.request.tenant, Lane())
        insort(lane.sequences, sequence, key=_place)

    def put_back(self, sequence: Sequence) -> None:
        """A preempted one: before all that never ran, the oldest first."""
        insort(self._preempted, sequence, key=_place_of_preempted)

    def peek(self) -> Sequence | None:
        """The next one; the same one until it is taken, or another goes before it."""
        if self._preempted:
            return self._preempted[0]
        if not self._lanes:
            return None
        while (lane := self._on_turn()).credit < lane.first.cost:
            lane.end_turn()
            self._lanes.move_to_end(lane.first.request.tenant)
        return lane.first

    def take(self) -> Sequence:
        """The one that `peek` shows, out of the queue."""
        if self._preempted:
            return self._preempted.pop(0)
        lane = self._on_turn()
        lane.credit -= lane.first.cost
        return self._drop(lane, 0)

    def give_back(self, sequence: Sequence) -> None:
        """What an ended sequence left unused; lost where its tenant has nothing that waits."""
        lane = self._lanes.get(sequence.request.tenant)
        if lane is not None:
            lane.credit += sequence.unused_cost

    def remove(self, request_id: str) -> Sequence | None:
        for index, sequence in enumerate(self._preempted):
            if sequence.request.id == request_id:
                return self._preempted.pop(index)
        for lane in self._lanes.values():
            for index, sequence in enumerate(lane.sequences):
                if sequence.request.id == request_id:
                    return self._drop(lane, index)
        return None

    def _on_turn(self) -> Lane:
        return next(iter(self._lanes.values()))

    def _drop(self, lane: Lane, index: int) -> Sequence:
        sequence = lane.sequences.pop(index)
        if not lane.sequences:
            del self._lanes[sequence.request.tenant]
        return sequence


def _place(sequence: Sequence) -> tuple[int, int]:
    return sequence.request.priority, sequence.arrival


def _place_of_preempted(sequence: Sequence) -> int:
    return sequence.arrival
