"""A runner without a model: it stores tokens in pages, reads them back, and hashes what it read.

Whatever goes wrong with page tables, positions or chunks changes what is read, and so the output.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from zlib import crc32

from model.batch import Batch, Collect, Row, SampledToken, StepOutput, TokenLogprobs
from service.engine.engine import Engine
from service.engine.messages import Event

VOCAB_SIZE = 50


def next_token(token_ids: Sequence[int], *, seed: int = 0) -> int:
    """The fake model: the token that follows these, alone and unbatched."""
    return crc32(repr((seed, list(token_ids))).encode()) % VOCAB_SIZE


def score(token_ids: Sequence[int]) -> list[TokenLogprobs]:
    """The fake model's opinion of all tokens but the first."""
    return [
        TokenLogprobs(-1.0 - next_token(token_ids[:i]), [(token_ids[i], 0.0)])
        for i in range(1, len(token_ids))
    ]


def generate(
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    seed: int = 0,
    next_token: Callable[..., int] = next_token,
) -> list[int]:
    """What the fake model generates after a prompt: the reference for every test."""
    token_ids = list(prompt_ids)
    for _ in range(max_tokens):
        token_ids.append(next_token(token_ids, seed=seed))
    return token_ids[len(prompt_ids) :]


def run(engine: Engine) -> dict[str, list[Event]]:
    """Step until idle; all events by request."""
    events: dict[str, list[Event]] = {}
    for _ in range(1000):
        for event in engine.step():
            events.setdefault(event.request_id, []).append(event)
        engine.check_integrity()
        if not engine.has_work:
            return events
    raise AssertionError("the engine makes no progress")


class FakeClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeRunner:
    vocab_size = VOCAB_SIZE
    device, attention = "cpu", "none"
    next_token = staticmethod(next_token)

    def __init__(self, *, num_pages: int = 16, page_size: int = 4, max_model_len: int = 64) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.max_model_len = max_model_len
        self.batches: list[Batch] = []
        self._slots: dict[tuple[int, int], int] = {}

    def run(self, batch: Batch) -> StepOutput:
        self.batches.append(batch)
        self._copy(batch.copies)
        for row in batch.rows:
            self._write(row)
        return StepOutput(
            [self._sample(row) for row in batch.rows],
            {i: self._score(row) for i, row in enumerate(batch.rows) if row.scoring},
            {i: self._pool(row) for i, row in enumerate(batch.rows) if row.pooling},
            followers={
                i: self._followers(row) for i, row in enumerate(batch.rows) if row.guessed_ids
            },
        )

    def _slot(self, row: Row, position: int) -> tuple[int, int]:
        return row.page_ids[position // self.page_size], position % self.page_size

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        targets = [target for _, target in copies]
        assert len(set(targets)) == len(targets), "two copies to one page"
        self._slots |= {
            (target, offset): self._slots.get((source, offset), -1)
            for source, target in copies
            for offset in range(self.page_size)
        }

    def _write(self, row: Row) -> None:
        for position, token_id in enumerate((*row.token_ids, *row.guessed_ids), start=row.start):
            self._slots[self._slot(row, position)] = token_id

    def _sample(self, row: Row) -> SampledToken | None:
        if row.sampling is None:
            return None
        token_id = self.next_token(self._read(row), seed=row.sampling.seed)
        while row.context and token_id in row.context.forbidden_ids:
            token_id = (token_id + 1) % VOCAB_SIZE
        wants_logprobs = row.sampling.num_logprobs is not None
        return SampledToken(token_id, TokenLogprobs(-1.0, []) if wants_logprobs else None)

    def _followers(self, row: Row) -> list[SampledToken]:
        followers: list[SampledToken] = []
        drawn = self._sample(row)
        for number, guess in enumerate(row.guessed_ids, start=1):
            if drawn is None or drawn.token_id != guess:
                break
            known = replace(row, token_ids=[*row.token_ids, *row.guessed_ids[:number]])
            drawn = self._sample(known)
            followers += [drawn] if drawn else []
        return followers

    def _score(self, row: Row) -> list[TokenLogprobs]:
        assert row.scoring is not None
        token_ids = [*self._read(row)[: row.start + 1], *row.scoring.token_ids]
        assert token_ids[row.start :][: len(row.token_ids)] == list(row.token_ids)
        return score(token_ids)[row.start :]

    def _pool(self, row: Row) -> list[float]:
        ids = self._read(row)[row.start :] if row.pooling == "mean" else self._read(row)[-1:]
        return [float(sum(ids)), 1.0 * len(ids)]

    def _read(self, row: Row) -> list[int]:
        end = row.start + len(row.token_ids)
        return [self._slots[self._slot(row, position)] for position in range(end)]


class LateRunner(FakeRunner):
    """Computes a step at some time from its launch on, and when it is collected at the latest."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.most_launched = 0
        self._waiting: list[tuple[Batch, list[StepOutput]]] = []
        self._uncollected: list[Batch] = []
        self._drawn: list[int] = []

    @property
    def pages_in_use(self) -> set[int]:
        tables = [row.page_ids for batch in self._uncollected for row in batch.rows]
        copied = [pages for batch in self._uncollected for pages in batch.copies]
        return {page for pages in (*tables, *copied) for page in pages}

    def launch(self, batch: Batch) -> Collect:
        # The engine goes on to change its lists.
        rows = [replace(r, page_ids=[*r.page_ids], token_ids=[*r.token_ids]) for r in batch.rows]
        frozen, output = Batch(rows, batch.copies), list[StepOutput]()
        self._waiting.append((frozen, output))
        self._uncollected.append(frozen)
        self.most_launched = max(self.most_launched, len(self._uncollected))
        for _ in range(crc32(repr(rows).encode()) % 3):
            self._compute_next()

        def collect() -> StepOutput:
            while not output:
                self._compute_next()
            assert self._uncollected.pop(0) is frozen
            return output[0]

        return collect

    def _compute_next(self) -> None:
        if self._waiting:
            batch, output = self._waiting.pop(0)
            rows = [
                row if row.drawn_by is None else replace(row, token_ids=[self._drawn[row.drawn_by]])
                for row in batch.rows
            ]
            output.append(self.run(Batch(rows, batch.copies)))
            self._drawn = [token.token_id if token else -1 for token in output[0].sampled]


def allowed_ids(mask: bytes) -> list[int]:
    return [i for i in range(len(mask) * 8) if mask[i // 8] >> i % 8 & 1]


class ObedientRunner(FakeRunner):
    """Draws the first allowed id after the one that the fake model would draw."""

    def _sample(self, row: Row) -> SampledToken | None:
        sampled = super()._sample(row)
        if sampled is None or row.context is None or row.context.allowed is None:
            return sampled
        allowed = allowed_ids(row.context.allowed())
        return SampledToken(min(allowed, key=lambda i: (i - sampled.token_id) % VOCAB_SIZE))
