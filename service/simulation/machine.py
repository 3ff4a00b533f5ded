"""A machine that computes nothing: each step moves a virtual clock by what the step would take.

What it takes is a linear model, of terms that are written as `base=8ms,prompt=400us,decode=1ms`:

    base      each step
    prompt    each token of a prompt, or of a part of one
    decode    each row that computes one token
    context   1,000 tokens in the cache that a row reads, its own included

Knows no request and no queue.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from model.batch import Batch, Row, SampledToken, StepOutput
from service.config import require

PER_SECOND = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}
TERM = re.compile(r"(\w+)=(\d{1,9}(?:\.\d{1,9})?)(s|ms|us|ns)")
VOCAB_SIZE = 1 << 32
"""So that each prompt may begin with a token of its own."""
FILL = 0
"""The token of which all outputs consist."""
SAMPLED = SampledToken(FILL)
NO_LIMIT = 1 << 62


class VirtualClock:
    """Gives seconds, as time.monotonic does; moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """In seconds. A term that isn't given costs nothing."""

    base: float = 0.0
    prompt: float = 0.0
    decode: float = 0.0
    context: float = 0.0

    def seconds(self, rows: Sequence[Row]) -> float:
        num_decodes = num_prompt_tokens = num_read = 0
        for row in rows:
            num_tokens = len(row.token_ids)
            num_read += row.start + num_tokens
            if num_tokens == 1:
                num_decodes += 1
            else:
                num_prompt_tokens += num_tokens
        linear = self.base + self.prompt * num_prompt_tokens + self.decode * num_decodes
        return linear + self.context * num_read / 1000


def parse_step_cost(text: str) -> StepCost:
    terms: dict[str, float] = {}
    names = [field.name for field in fields(StepCost)]
    for term in text.split(","):
        match = TERM.fullmatch(term.strip())
        remedy = f"{term!r} is no term: write {', '.join(names)} as base=8ms, in s, ms, us or ns"
        require(match is not None and match[1] in names, "step_cost", text, remedy)
        assert match is not None
        require(match[1] not in terms, "step_cost", text, f"give {match[1]} once")
        terms[match[1]] = float(match[2]) / PER_SECOND[match[3]]
    cost = StepCost(**terms)
    remedy = "give base, or prompt and decode, more than 0"
    require(bool(cost.base or (cost.prompt and cost.decode)), "step_cost", text, remedy)
    return cost


class SimulatedRunner:
    """Fulfils model.batch.Runner."""

    vocab_size = VOCAB_SIZE
    device, attention = "none", "none"

    def __init__(
        self,
        clock: VirtualClock,
        cost: StepCost,
        *,
        num_pages: int,
        page_size: int,
        max_model_len: int = NO_LIMIT,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.max_model_len = max_model_len
        self._clock = clock
        self._cost = cost

    def run(self, batch: Batch) -> StepOutput:
        self._clock.now += self._cost.seconds(batch.rows)
        return StepOutput([SAMPLED if row.sampling is not None else None for row in batch.rows])
