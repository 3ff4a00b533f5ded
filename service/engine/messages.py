"""The words that the API process and the engine process exchange, as msgspec structs.

    API process  -- EngineSpec (once, on stdin) ------------------->  engine process
                 -- Vocabulary (once), Request, Abort ------------->
                 <- Loading*, then Failed, or Ready and StepReports -

Only token ids cross; text stays in the API process. Sockets are the business of client and process.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from model.batch import Pooling, SamplingParams, TokenLogprobs
from service.config import EngineConfig

FinishReason = Literal["stop", "length", "cancelled", "refused", "error", "unavailable"]
"""refused: the request itself is at fault, and its message says how.
unavailable: the engine is gone for good, in whatever the request had got to."""


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process is started with: the model, the limits, the two ipc addresses."""

    model_path: str
    config: EngineConfig
    requests_address: str
    reports_address: str


class Request(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One sequence to generate. Validated before it gets here: it fits the context and the pool."""

    id: str
    prompt_ids: list[int]
    max_tokens: int
    """0 generates nothing, where logprobs or the vector of the prompt are asked for."""
    min_tokens: int = 0
    """No stop token is drawn before there are this many tokens."""
    sampling: SamplingParams = SamplingParams()
    stop_token_ids: frozenset[int] = frozenset()
    """Ids that end the sequence with reason "stop"; the id itself is part of the output."""
    bad_words: list[list[int]] = []
    """None of these runs of ids is generated."""
    allowed: bytes | None = None
    """The ids that may be generated, as in `model.batch.Context`; None: all."""
    pooling: Pooling | None = None
    """Asks for the prompt's vector, and for nothing to be generated."""
    grammar: str = ""
    """In llguidance's form: the output follows it, up to an end of text; "": anything goes."""
    num_prompt_logprobs: int | None = None
    """k: the logprobs of the prompt's tokens but the first, and of the k most likely beside each.
    Such a request takes nothing from the prefix cache."""
    output_ids: list[int] = []
    """Tokens that were already generated and delivered, when a request is resumed."""
    cache_salt: str = ""
    """Cached pages are shared only between requests of equal salt."""
    priority: int = 0
    """Of a tenant's waiting requests, those with the lowest number go first."""
    tenant: str = ""
    """Tenants share the engine fairly, by weight, whoever asks for more."""
    weight: float = 1.0
    """The tenant's; 0.1 or more."""


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What token ids stand for, which only grammars ask for."""

    tokenizer_json: str
    """As in a tokenizer.json."""
    size: int
    eos_ids: list[int]
    """Ids that end a text."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    request_id: str


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sequence's time went, from when this engine process got it."""

    queue_seconds: float
    """Until it was first taken into a step."""
    prefill_seconds: float
    """From then to its first new token."""
    num_preemptions: int
    """So far."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """News of one request. Exactly one event of a request has a finish_reason: the last one."""

    request_id: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()
    """As many as token_ids where the request asked for logprobs, else none."""
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    """Told once, with the first token, or with the end where none is generated."""
    embedding: Sequence[float] = ()
    """Told with the end, where a pooling was asked for."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache supplied; told once, with the first token."""
    finish_reason: FinishReason | None = None
    timings: Timings | None = None
    """Told with the first token, and with the finish_reason "stop" or "length"."""
    message: str = ""
    """Says what failed, where finish_reason is "error", "refused" or "unavailable"."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's state after a step."""

    num_running: int = 0
    num_waiting: int = 0
    num_free_pages: int = 0
    num_pages: int = 0


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one step did, and where its time went."""

    number: int
    """Counts from 1 when the engine process starts."""
    started: float
    """Seconds on the machine's monotonic clock."""
    num_decodes: int
    """Rows that computed one token."""
    num_chunks: int
    """Rows that computed a prompt, or a part of one."""
    num_chunk_tokens: int
    num_admitted: int
    """Sequences that left the queue."""
    num_preempted: int
    num_finished: int
    num_queried_tokens: int
    """Prompt tokens that the prefix cache was asked for."""
    num_hit_tokens: int
    """Those it had."""
    num_copied_pages: int
    num_guessed_tokens: int = 0
    """Computed beside decodes by speculation."""
    num_true_guesses: int = 0
    """Those that were then drawn."""
    phase_seconds: dict[str, float]
    """By phase, in order; together all the time since the step before, but for idle waiting."""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the loaded engine can take."""

    max_model_len: int
    """The most tokens of prompt and output together, by the model's context and the pool."""
    vocab_size: int
    page_size: int
    num_pages: int
    device: str = ""
    """Where it computes."""
    attention: str = ""
    """Which kernels compute attention."""


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Progress before Ready: the phase's name, what of it is being done, and its share done."""

    phase: str
    detail: str = ""
    fraction: float = 0.0


class Ready(msgspec.Struct, frozen=True, tag=True):
    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine can't start, for a reason that a restart won't mend; the message is for a user."""

    message: str


class StepReport(msgspec.Struct, frozen=True, tag=True):
    """What a step brought; with no events also the heartbeat of an idle engine."""

    events: Sequence[Event]
    stats: Stats
    record: StepRecord | None = None


ToEngine = Vocabulary | Request | Abort
FromEngine = Loading | Ready | Failed | StepReport
