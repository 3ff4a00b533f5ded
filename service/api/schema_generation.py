"""The parameters that chat and completions have in common, and the bounds of each."""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    ValidationInfo,
    field_validator,
)

from service.api.schema_base import NotYet, Object
from service.api.schema_sampling import Sampling, TokenId
from service.api.schema_structured import Structured
from service.config import MOST_STOPS

MAX_CHOICES_PER_PROMPT = 128
MAX_STOP_LEN = 256
MAX_SALT_LEN = 256
MAX_LOGPROBS = 20
INT32_END = 1 << 31


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LEN)]
Stops = Annotated[
    list[Stop],
    Field(max_length=MOST_STOPS),
    FailFast(),
    BeforeValidator(
        _as_list,
        json_schema_input_type=Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)],
    ),
]


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("nothing would be left; take -1, or 1 or more")
    return value


ModelName = Annotated[
    str,
    Field(
        description="One of /v1/models; the first of them if absent.",
        examples=["SmolLM2-135M-Instruct"],
    ),
]


class StreamOptions(Object):
    include_usage: bool = Field(
        default=False,
        description="One more chunk at the end, with usage and no choices.",
        examples=[True],
    )
    continuous_usage_stats: bool = Field(
        default=False, description="Usage so far on every chunk.", examples=[True]
    )
    include_obfuscation: NotYet = None


class GenerationRequest(Sampling, Structured):
    model: ModelName | None = None
    max_tokens: (
        Annotated[
            int,
            Field(
                ge=1,
                description="Most tokens to generate; as many as fit if absent.",
                examples=[99],
            ),
        ]
        | None
    ) = None
    min_tokens: Annotated[
        int, Field(ge=0, description="Draw no stop token before these.", examples=[8])
    ] = 0
    n: Annotated[
        int,
        Field(ge=1, le=MAX_CHOICES_PER_PROMPT, description="Choices of each prompt.", examples=[2]),
    ] = 1
    stop: Annotated[
        Stops,
        Field(
            description="Texts that end a choice, unshown; 4, unless --max-stops allows more.",
            examples=[["\n\n"]],
        ),
    ] = Field(default=[])
    stop_token_ids: Annotated[
        list[TokenId],
        Field(description="Ids that end a choice, as the model's own do.", examples=[[2]]),
        FailFast(),
    ] = Field(default=[])
    ignore_eos: bool = Field(
        default=False, description="Go on after the model's own ends.", examples=[True]
    )
    include_stop_str_in_output: bool = Field(
        default=False, description="Show what ended the choice, too.", examples=[True]
    )
    skip_special_tokens: bool = Field(
        default=True, description="Leave control tokens out of the text.", examples=[False]
    )
    truncate_prompt_tokens: (
        Annotated[
            int,
            Field(
                ge=-1,
                description="Keep the last so many tokens of the prompt; -1: as many as fit. "
                "Not 0.",
                examples=[-1, 512],
            ),
            AfterValidator(_not_zero),
        ]
        | None
    ) = None
    return_token_ids: bool = Field(
        default=False,
        description="Add prompt_token_ids, and token_ids to choices.",
        examples=[True],
    )
    return_tokens_as_token_ids: bool = Field(
        default=False, description='Spell tokens in logprobs as "token_id:1234".', examples=[True]
    )
    priority: Annotated[
        int,
        Field(
            ge=-INT32_END,
            lt=INT32_END,
            description="Of a key's waiting requests the lowest goes first.",
            examples=[-1],
        ),
    ] = 0
    include_timings: bool = Field(
        default=False, description="Add timings to choices, in milliseconds.", examples=[True]
    )
    cache_salt: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_SALT_LEN,
                description="Cached prompts are shared only where this is the same.",
                examples=["team-a"],
            ),
        ]
        | None
    ) = None
    stream: bool = Field(default=False, description="Send the answer as it comes.", examples=[True])
    stream_options: (
        Annotated[
            StreamOptions,
            Field(description="Of streams only.", examples=[{"include_usage": True}]),
        ]
        | None
    ) = None
    prompt_logprobs: (
        Annotated[
            int,
            Field(
                ge=0,
                le=MAX_LOGPROBS,
                description="Logprobs of the prompt's tokens, and of so many others at each place.",
                examples=[0],
            ),
        ]
        | None
    ) = None

    @field_validator("stream_options")
    @classmethod
    def _only_of_streams(
        cls, value: StreamOptions | None, info: ValidationInfo
    ) -> StreamOptions | None:
        if not info.data.get("stream"):
            raise ValueError("only a request with stream: true may have this")
        return value

    @field_validator("prompt_logprobs")
    @classmethod
    def _never_of_streams(cls, value: int, info: ValidationInfo) -> int:
        if info.data.get("stream"):
            raise ValueError("streams have no place for it; leave stream out")
        return value
