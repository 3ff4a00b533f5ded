"""Whether a text has a spelling among thousands in it, at the cost of reading it a few times."""

import re
from collections.abc import Iterable

BRACKETED = (re.compile(r"<[^<>]*>"), re.compile(r"\[[^\[\]]*\]"))
"""As nearly all control tokens are spelled."""


class Spellings:
    def __init__(self, spellings: Iterable[str] = ()) -> None:
        self._bracketed: set[str] = set()
        self._others: list[str] = []
        for spelling in spellings:
            if any(form.fullmatch(spelling) for form in BRACKETED):
                self._bracketed.add(spelling)
            else:
                self._others.append(spelling)

    def occur_in(self, text: str) -> bool:
        return any(not self._bracketed.isdisjoint(form.findall(text)) for form in BRACKETED) or any(
            spelling in text for spelling in self._others
        )


NONE = Spellings()
