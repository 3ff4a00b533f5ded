"""The requests that clients may send: OpenAI's words and the bounds of each.

Bounds that need no model are checked here, before anything is tokenized. In every object an
explicit null means the same as leaving the key out, and unknown keys are ignored.
"""

from typing import Annotated, Any

from pydantic import FailFast, Field, PlainValidator, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from service.api.schema_generation import GenerationRequest
from service.api.schema_messages import Message

MAX_PROMPTS = 128
MAX_CHOICES = 256
MAX_MESSAGES = 4096
MAX_LOGPROBS = 20


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
