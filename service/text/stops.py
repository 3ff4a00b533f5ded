"""Finds stop strings in text that comes in pieces. Knows nothing of tokens.

The stop that is complete first wins, as a reader would see it who reads the text one character at
a time; of several that are complete at the same character, the longest. So what is found never
depends on how the text was cut into pieces, and a complete stop never waits for a longer one.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    """A text that some stop begins with."""

    depth: int
    """The length of that text."""
    children: dict[str, "_Node"] = field(default_factory=dict)
    fallback: "_Node | None" = None
    """The longest other node that this one's text ends with; None for the root alone."""
    match: str | None = None
    """The longest stop that this node's text ends with."""


class StopChecker:
    """Passes text on up to the first stop string, holding back what may turn out to be one.

    The automaton of Aho and Corasick (1975): after each character, the current node is the longest
    ending of the text that some stop begins with, which is exactly what has to be held back.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        assert "" not in stops
        self.matched: str | None = None
        """The stop string that ended the text; no text comes after it."""
        self._include_stop = include_stop
        self._root = self._node = _automaton(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """The text that is certain now, with this piece, to come before any stop."""
        if self.matched is not None:
            return ""
        if not self._root.children:
            return text
        text = self._held + text
        for end in range(len(self._held), len(text)):
            self._node = _follow(self._node, text[end])
            if self._node.match is not None:
                return self._finish(text[: end + 1], self._node.match)
        certain = len(text) - self._node.depth
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """What was held back, once the text has ended without completing a stop."""
        held, self._held, self._node = self._held, "", self._root
        return held

    def _finish(self, text: str, stop: str) -> str:
        self.matched = stop
        self._held = ""
        return text if self._include_stop else text.removesuffix(stop)


def _follow(node: _Node, char: str) -> _Node:
    while char not in node.children:
        if node.fallback is None:
            return node
        node = node.fallback
    return node.children[char]


def _automaton(stops: Sequence[str]) -> _Node:
    root = _Node(depth=0)
    for stop in stops:
        node = root
        for char in stop:
            node = node.children.setdefault(char, _Node(depth=node.depth + 1))
        node.match = stop
    _link(root)
    return root


def _link(root: _Node) -> None:
    """Breadth first, since a node's fallback is less deep than the node."""
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for char, child in node.children.items():
            child.fallback = root if node.fallback is None else _follow(node.fallback, char)
            child.match = child.match or child.fallback.match
            queue.append(child)
