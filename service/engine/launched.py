"""Steps that were scheduled and aren't committed yet, in order: one, or two while one overlaps.

What is given back meanwhile they may still read or write, for instance where a sequence ended in
the first and has a row in the second all the same. So those pages wait for the last one launched.
"""

from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field

from service.engine.sequence import Sequence


@dataclass(eq=False, slots=True)
class Step:
    plan: dict[Sequence, int]
    """How many tokens of each sequence, in the order of the rows."""
    guesses: dict[Sequence, ListLike[int]]
    given_back: list[int] = field(default_factory=list)
    """Pages that are free when it is committed."""


class Launched:
    def __init__(self) -> None:
        self._steps: list[Step] = []

    def __bool__(self) -> bool:
        return bool(self._steps)

    @property
    def given_back(self) -> list[list[int]]:
        return [step.given_back for step in self._steps]

    def add(self, step: Step) -> None:
        for sequence, num in step.plan.items():
            sequence.launch(num)
        self._steps.append(step)

    def take(self) -> Step:
        """The first one."""
        return self._steps.pop(0)

    def keep(self, page_ids: list[int]) -> None:
        """Take pages out of a table, and free them in time."""
        self._steps[-1].given_back += page_ids
        page_ids.clear()

    def rows(self) -> dict[Sequence, int]:
        """The rows of the last one, by sequence."""
        last = self._steps[-1].plan if self._steps else {}
        return {sequence: row for row, sequence in enumerate(last)}
