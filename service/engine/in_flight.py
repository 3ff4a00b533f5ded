"""Pages that running sequences are filling, by name, so that nothing is computed twice at once.

The prefix cache knows full pages that are computed. This knows the rest of what can be shared:

    prompt of A    [ full ] [ full ] [ full ] [ tail   |   room for A's output ]
                    cached   A is computing    A will; it won't be full of prompt

B, of the same prompt, waits for what A is computing; then it shares the full pages, and takes a
copy of the tail, since both will write behind it (copy on write, as in section 4.4 of the paper on
PagedAttention, SOSP 2023). The choices of one prompt share it in this way, and so do strangers with
the same system prompt. Knows no tokens and no batch.
"""

from service.engine.sequence import Sequence


class InFlight:
    def __init__(self, *, page_size: int) -> None:
        self._page_size = page_size
        self._holders: dict[bytes, tuple[Sequence, int]] = {}  # and which of its pages it is

    def announce(self, sequence: Sequence) -> None:
        """It holds pages for its whole prefix from now on; what isn't computed, it will compute."""
        for index, name in enumerate(sequence.prefix_names):
            self._holders.setdefault(name, (sequence, index))

    def forget(self, sequence: Sequence) -> None:
        """It is about to give back its pages."""
        for name in sequence.prefix_names:
            if name in self._holders and self._holders[name][0] is sequence:
                del self._holders[name]

    def is_coming(self, name: bytes) -> bool:
        """Whether a page of these tokens is being computed."""
        return name in self._holders and not self._is_computed(*self._holders[name])

    def page(self, name: bytes) -> int | None:
        """A page that holds these tokens, computed, and behind them perhaps others."""
        if name not in self._holders or not self._is_computed(*self._holders[name]):
            return None
        holder, index = self._holders[name]
        return holder.page_ids[index]

    def _is_computed(self, holder: Sequence, index: int) -> bool:
        return holder.num_computed >= min((index + 1) * self._page_size, holder.prefix_len)
