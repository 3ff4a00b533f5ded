"""Measures where the engine's time goes, by phase: each lap ends where the next one begins."""

from collections.abc import Callable, Mapping


class Stopwatch:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._last = clock()

    def lap(self, phase: str, *, parts: Mapping[str, float] | None = None) -> float:
        """Everything since the last lap was this phase, but for those parts that have their own
        names; all the seconds of it."""
        now = self._clock()
        lap, self._last = now - self._last, now
        for name, seconds in (parts or {}).items():
            self._add(name, seconds)
        self._add(phase, lap - sum((parts or {}).values()))
        return lap

    def restart(self) -> None:
        """Forget what was measured: it was no work."""
        self._seconds = {}
        self._last = self._clock()

    def take(self) -> dict[str, float]:
        """The phases so far; begins anew."""
        taken, self._seconds = self._seconds, {}
        return taken

    def _add(self, phase: str, seconds: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
