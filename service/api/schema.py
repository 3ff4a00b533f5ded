"""The requests that clients may send: OpenAI's words and the bounds of each.

Bounds that need no model are checked here, before anything is tokenized. In every object an
explicit null means the same as leaving the key out, and unknown keys are ignored.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator, ValidationInfo, field_validator

from service.api.schema_generation import (
    MAX_CHOICES_PER_PROMPT,
    MAX_LOGPROBS,
    GenerationRequest,
)
from service.api.schema_messages import ChatPrompt
from service.api.schema_sampling import TokenId
from service.api.schema_tools import OldForm

MAX_PROMPTS = 128
MAX_CHOICES = 256


class ChatRequest(ChatPrompt, GenerationRequest):
    prompt_field: ClassVar[str] = "messages"
    max_completion_tokens: (
        Annotated[
            int, Field(ge=1, description="The newer name of max_tokens; it wins.", examples=[99])
        ]
        | None
    ) = None
    include_reasoning: bool = Field(
        default=True, description="Show what the model thinks first.", examples=[False]
    )
    functions: OldForm = None
    function_call: OldForm = None
    logprobs: bool = Field(
        default=False,
        description="List each token's logarithm of its probability.",
        examples=[True],
    )
    top_logprobs: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_LOGPROBS,
            description="List so many of the likeliest tokens beside each; needs logprobs.",
            examples=[3],
        ),
    ] = 0

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

    @property
    def num_drawn(self) -> int:
        """Sequences to generate for each prompt."""
        return self.n

    @property
    def echoes(self) -> bool:
        """Whether the prompt is part of the answer."""
        return False

    @property
    def num_scored(self) -> int | None:
        """As num_logprobs, for the tokens of the prompt."""
        return self.prompt_logprobs


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


_Text = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
Prompts = Annotated[
    list[Prompt],
    PlainValidator(
        _as_prompts,
        json_schema_input_type=_Text
        | Annotated[list[_Text], Field(min_length=1, max_length=MAX_PROMPTS)]
        | _Ids
        | Annotated[list[_Ids], Field(min_length=1, max_length=MAX_PROMPTS)],
    ),
]


class CompletionRequest(GenerationRequest):
    prompt_field: ClassVar[str] = "prompt"
    prompt: Annotated[
        Prompts,
        Field(
            description="A text, or token ids; or several of either.",
            examples=["Paper is made of", ["One", "Two"], [1, 2, 3]],
        ),
    ]
    max_tokens: Annotated[
        int,
        Field(
            ge=0,
            description="Most tokens to generate; 0 only scores the prompt, with echo.",
            examples=[99],
        ),
    ] = 16
    best_of: (
        Annotated[
            int,
            Field(
                ge=1,
                le=MAX_CHOICES_PER_PROMPT,
                description="Generate so many for each prompt, and answer with the n whose tokens "
                "were the likeliest in the mean; not of streams.",
                examples=[4],
            ),
        ]
        | None
    ) = None
    echo: bool = Field(
        default=False, description="Begin with the prompt, and its logprobs.", examples=[True]
    )
    add_special_tokens: bool = Field(
        default=True, description="Let the tokenizer begin texts as it does.", examples=[False]
    )
    logprobs: (
        Annotated[
            int,
            Field(
                ge=0,
                le=MAX_LOGPROBS,
                description="List logprobs of each token and of so many of the likeliest.",
                examples=[1],
            ),
        ]
        | None
    ) = None

    @field_validator("prompt")
    @classmethod
    def _bounded_choices(cls, value: list[Prompt], info: ValidationInfo) -> list[Prompt]:
        return cls._check_choices(value, info.data.get("n", 1), "n")

    @field_validator("best_of")
    @classmethod
    def _at_least_n(cls, value: int, info: ValidationInfo) -> int:
        n = info.data.get("n", 1)
        if value < n:
            raise ValueError(f"n is {n}, and there is nothing to choose from; take n or more")
        if value > n and info.data.get("stream"):
            raise ValueError("a stream can't take back what it sent; take n, or leave stream out")
        cls._check_choices(info.data.get("prompt", []), value, "best_of")
        return value

    @staticmethod
    def _check_choices(prompts: list[Prompt], num_drawn: int, name: str) -> list[Prompt]:
        choices = len(prompts) * num_drawn
        if choices > MAX_CHOICES:
            raise ValueError(f"prompts times {name} is {choices}; ask for {MAX_CHOICES} at most")
        return prompts

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_drawn(self) -> int:
        return self.best_of or self.n

    @property
    def echoes(self) -> bool:
        return self.echo

    @property
    def num_scored(self) -> int | None:
        """Without logprobs too where nothing is generated, since scoring is all there is then."""
        shown = self.logprobs if self.echo else None
        asked = (self.prompt_logprobs, shown, 0 if self.echo and not self.max_tokens else None)
        return max((count for count in asked if count is not None), default=None)


AnyRequest = ChatRequest | CompletionRequest
