"""Finds the first mark in text that comes in pieces. Knows nothing of what the marks are for."""

from collections.abc import Sequence

SPACES = " \n\r\t"
MAX_SPACES = 64
"""Before a mark, so many are dropped; no more are ever held back."""


class MarkFinder:
    """Passes on the text before the first mark, and, apart from it, the mark and all after it."""

    def __init__(self, marks: Sequence[str], *, only_at_start: bool = False) -> None:
        self.found = False
        self._marks = marks
        self._only_at_start = only_at_start
        self._searches = True
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """(before, mark and after), as far as they are certain now and weren't before."""
        if not self._searches:
            return ("", text) if self.found else (text, "")
        text = self._held + text
        return self._match(text) if self._only_at_start else self._search(text)

    def flush(self) -> str:
        """What was held back, once the text has ended without a mark."""
        held, self._held = self._held, ""
        return held

    def _match(self, text: str) -> tuple[str, str]:
        """Whether the text begins with a mark."""
        self.found = text.startswith(tuple(self._marks))
        self._searches = not self.found and any(mark.startswith(text) for mark in self._marks)
        self._held = text if self._searches else ""
        if self._searches:
            return "", ""
        return ("", text) if self.found else (text, "")

    def _search(self, text: str) -> tuple[str, str]:
        starts = [start for start in map(text.find, self._marks) if start >= 0]
        if starts:
            self.found, self._searches, self._held = True, False, ""
            return _without_spaces(text[: min(starts)]), text[min(starts) :]
        certain = _without_spaces(text[: len(text) - self._num_begun(text)])
        self._held = text[len(certain) :]
        return certain, ""

    def _num_begun(self, text: str) -> int:
        """The length of the text's longest ending that a mark begins with."""
        return max(
            (
                size
                for mark in self._marks
                for size in range(len(mark))
                if text.endswith(mark[:size])
            ),
            default=0,
        )


def _without_spaces(text: str) -> str:
    tail = text[-MAX_SPACES:]
    return text[: len(text) - len(tail) + len(tail.rstrip(SPACES))]
