"""The parameters that chat and completions have in common, and the bounds of each."""

from typing import Annotated, Any

from pydantic import BeforeValidator, FailFast, Field, ValidationInfo, field_validator

from service.api.schema_base import NotYet, Object

MAX_CHOICES_PER_PROMPT = 128
MAX_STOPS = 4
MAX_STOP_LEN = 256
MAX_SALT_LEN = 256
INT32_END = 1 << 31


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LEN)]],
    Field(max_length=MAX_STOPS),
    FailFast(),
    BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
]


class StreamOptions(Object):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: NotYet = None


class GenerationRequest(Object):
    """What chat and completions have in common."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES_PER_PROMPT)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, description="-1 or 0: off")] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stops = Field([])
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], FailFast()] = Field([])
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: Annotated[
        int, Field(ge=-INT32_END, lt=INT32_END, description="the lowest of a key's goes first")
    ] = 0
    include_timings: bool = False
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_LEN)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    @field_validator("stream_options")
    @classmethod
    def _only_of_streams(
        cls, value: StreamOptions | None, info: ValidationInfo
    ) -> StreamOptions | None:
        if not info.data.get("stream"):
            raise ValueError("only a request with stream: true may have this")
        return value
