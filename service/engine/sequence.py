"""One request's state while the engine works on it: its tokens, and which of them are computed.

token_ids   p p p p p p p p o o o        prompt, then output
            `------------' `-------'
             num_computed   num_pending  (one pending token: a decode; more: a prompt chunk)
"""

from model.batch import Row
from service.engine.blocks import page_hash, root_hash
from service.engine.messages import FinishReason, Request


class Sequence:
    def __init__(self, request: Request, *, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        """Its place in the order of arrivals; the youngest is preempted first."""
        self.token_ids = [*request.prompt_ids, *request.output_ids]
        self.page_ids: list[int] = []
        self.num_computed = 0
        self.num_cached: int | None = None
        """Tokens that the prefix cache supplied when it was first admitted; None: not yet."""
        self._page_hashes: list[bytes] = []

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def num_pending(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def finish_reason(self) -> FinishReason | None:
        if self.token_ids[-1] in self.request.stop_token_ids:
            return "stop"
        return "length" if self.num_output >= self.request.max_tokens else None

    def row(self, num_tokens: int) -> Row:
        """The next num_tokens pending tokens as a row; the last pending token brings a new one."""
        end = self.num_computed + num_tokens
        sampling = self.request.sampling if end == len(self.token_ids) else None
        tokens = self.token_ids[self.num_computed : end]
        return Row(tokens, self.num_computed, self.page_ids, sampling)

    def page_hashes(self, num_pages: int, *, page_size: int) -> list[bytes]:
        """The names of the first num_pages pages, which must be full of known tokens."""
        hashes = self._page_hashes
        while len(hashes) < num_pages:
            start = len(hashes) * page_size
            parent = hashes[-1] if hashes else root_hash(self.request.cache_salt)
            hashes.append(page_hash(parent, self.token_ids[start : start + page_size]))
        return hashes[:num_pages]
