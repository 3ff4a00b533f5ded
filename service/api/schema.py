"""The requests that clients may send: OpenAI's words and the bounds of each.

Bounds that need no model are checked here, before anything is tokenized. In every object an
explicit null means the same as leaving the key out, and unknown keys are ignored.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from service.api.errors import shown

MAX_CHOICES_PER_PROMPT = 128
MAX_PROMPTS = 128
MAX_CHOICES = 256
MAX_MESSAGES = 4096
MAX_STOPS = 4
MAX_STOP_LEN = 256
MAX_SALT_LEN = 256
MAX_LOGPROBS = 20
INT32_END = 1 << 31


class Object(BaseModel):
    """Strict: a number is a number, not "3", nor true, nor 3.0 for 3."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        return {key: value for key, value in raw.items() if value is not None}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LEN)]],
    Field(max_length=MAX_STOPS),
    FailFast(),
    BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
]


def _not_yet(value: Any) -> Any:
    if value:
        raise PydanticCustomError("unsupported_parameter", "this is not supported yet")
    return value


NotYet = Annotated[Any, AfterValidator(_not_yet)]
"""Within an object what `service.api.unsupported` is for requests: empty, false, or refused."""


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
    stop: Stops = []
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], FailFast()] = []
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


Role = Literal["developer", "system", "user", "assistant", "tool"]


def _join_parts(content: Any) -> Any:
    """Text parts become one text, a line each; this server has no other modality."""
    if not isinstance(content, list):
        return content
    return "\n".join(map(_part_text, content))


def _part_text(part: Any) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "text"}:
            raise ValueError("a text part has a string as its text")
        case {"type": other}:
            raise ValueError(f"parts of type {shown(other)} can't be read here; send text parts")
        case _:
            raise ValueError("a part is an object with a type")


class Message(Object):
    role: Role
    content: Annotated[
        str | None,
        BeforeValidator(_join_parts, json_schema_input_type=str | list[dict[str, str]] | None),
        Field(validate_default=True),
    ] = None
    name: str | None = None
    tool_call_id: str | None = None
    audio: NotYet = None
    function_call: NotYet = None
    reasoning: NotYet = None
    reasoning_content: NotYet = None
    refusal: NotYet = None
    tool_calls: NotYet = None
    tools: NotYet = None

    @field_validator("content")
    @classmethod
    def _absent_only_from_assistants(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("role") != "assistant":
            raise ValueError("a string or a list of text parts is required")
        return value

    def for_template(self) -> dict[str, str]:
        role = "system" if self.role == "developer" else self.role
        rest = {"name": self.name, "tool_call_id": self.tool_call_id}
        given = {key: value for key, value in rest.items() if value is not None}
        return {"role": role, "content": self.content or "", **given}


class ChatRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES), FailFast()]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    add_special_tokens: Annotated[
        bool, Field(description="on top of those that the template writes")
    ] = False
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0

    @field_validator("top_logprobs")
    @classmethod
    def _only_with_logprobs(cls, value: int, info: ValidationInfo) -> int:
        if value and not info.data.get("logprobs"):
            raise ValueError("only a request with logprobs: true may have this")
        return value

    @property
    def token_limit(self) -> int | None:
        """The most tokens to generate; None: as many as fit."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives to list with each token; None: no logprobs at all."""
        return self.top_logprobs if self.logprobs else None


Prompt = str | list[int]
PROMPT_FORMS = "take a string, strings, a list of token ids or lists of those; none may be empty"


def _as_prompts(value: Any) -> list[Prompt]:
    """One list of prompts out of any of OpenAI's four forms."""
    several = isinstance(value, list) and value and isinstance(value[0], str | list)
    prompts = value if several else [value]
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"there are {len(prompts)} prompts; send {MAX_PROMPTS} at most")
    if not all(map(_is_prompt, prompts)):
        raise ValueError(PROMPT_FORMS)
    return prompts


def _is_prompt(value: Any) -> bool:
    if isinstance(value, list):
        return set(map(type, value)) == {int} and min(value) >= 0
    return isinstance(value, str) and value != ""


Prompts = Annotated[
    list[Prompt],
    PlainValidator(
        _as_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
    ),
]


class CompletionRequest(GenerationRequest):
    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=1)] = 16
    best_of: int | None = None
    add_special_tokens: bool = True
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @field_validator("prompt")
    @classmethod
    def _bounded_choices(cls, value: list[Prompt], info: ValidationInfo) -> list[Prompt]:
        choices = len(value) * info.data.get("n", 1)
        if choices > MAX_CHOICES:
            raise ValueError(f"prompts times n is {choices}; ask for {MAX_CHOICES} at most")
        return value

    @field_validator("best_of")
    @classmethod
    def _same_as_n(cls, value: int, info: ValidationInfo) -> int:
        if value != info.data.get("n"):
            raise PydanticCustomError(
                "unsupported_parameter", "only a value equal to n is supported yet"
            )
        return value

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


AnyRequest = ChatRequest | CompletionRequest
