"""Guesses at what a sequence says next: what followed when it last said, or read, the same words.

Prompt lookup (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding): no second model,
only the sequence's own tokens, which answers that quote, summarize or edit repeat.

    … the cat sat on the mat …   the cat sat         `the cat sat` came before:
                  └────────┘                 ·       guess `on the mat`

A step computes the guesses beside the newest token, and draws the token after each. Since a draw
depends on nothing but the logits, the seed and the position, what comes out is what would have come
out without guesses; a guess that comes true has saved a step.
"""

from collections.abc import Sequence as ListLike

NGRAM = 3
"""Tokens that must be alike before a guess is made."""
FIRST_GUESSES, MOST_GUESSES = 4, 12
LONGEST_PAUSE = 32
"""Guesses passed over after many in a row of which none came true."""


class Lookup:
    """Of one sequence, whose tokens only grow."""

    def __init__(self) -> None:
        self._followers: dict[tuple[int, ...], int] = {}
        """By the tokens of an n-gram, the position after its last occurrence; the sequence's own
        end is entered once something follows it."""
        self._num_seen = 0
        self._most = FIRST_GUESSES
        self._pause = self._passed = 0

    def guess(self, token_ids: ListLike[int], *, most: int) -> ListLike[int]:
        """The tokens that may follow, at most so many; mostly none."""
        for end in range(max(self._num_seen, NGRAM), len(token_ids)):
            self._followers[tuple(token_ids[end - NGRAM : end])] = end
        self._num_seen = len(token_ids)
        start = self._followers.get(tuple(token_ids[-NGRAM:]))
        if start is None or most < 1:
            return ()
        if self._passed < self._pause:
            self._passed += 1
            return ()
        return token_ids[start : start + min(most, self._most)]

    def learn(self, num_guessed: int, num_true: int) -> None:
        """Guess more after guesses that all came true, and more rarely where none do."""
        self._passed = 0
        self._pause = 0 if num_true else min(2 * self._pause + 1, LONGEST_PAUSE)
        if num_true == num_guessed:
            self._most = min(2 * self._most, MOST_GUESSES)
        else:
            self._most = max(num_true + 1, FIRST_GUESSES // 2)
