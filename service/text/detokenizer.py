"""Turns token ids into text as they come. Knows bytes and UTF-8, not what a vocabulary is."""

import codecs
from collections.abc import Container, Sequence

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The texts of all calls, joined, are the text of all ids, for any ids whatever.

    A token may end within a character. Its first bytes wait for the rest, or for the proof that no
    rest can follow: then they become U+FFFD, as they would have in the whole text.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        skipped_ids: Container[int] = (),
        strip_first_space: bool = False,
    ) -> None:
        self._token_bytes = token_bytes
        self._skipped_ids = skipped_ids
        self._strip_first_space = strip_first_space
        self._utf8 = _Utf8Decoder("replace")

    def push(self, token_id: int) -> str:
        """The text that is certain now and wasn't before."""
        if token_id in self._skipped_ids or token_id >= len(self._token_bytes):
            return ""
        data = self._token_bytes[token_id]
        if self._strip_first_space and data:
            self._strip_first_space = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """What is left at the end: the beginning of a character as U+FFFD, mostly nothing."""
        return self._utf8.decode(b"", final=True)
