"""What clients may ask of the tokenizer alone, in the words of vLLM."""

from typing import Annotated

from pydantic import FailFast, Field

from service.api.schema_base import Object
from service.api.schema_generation import ModelName
from service.api.schema_messages import MAX_MESSAGES, ChatPrompt, Message
from service.api.schema_sampling import TokenId

MAX_TOKENS = 1 << 18
"""To turn into text at once, of which each may be a hundred bytes."""


class TokenizeRequest(ChatPrompt):
    """Of a prompt or of a chat; a chat's text has its special tokens already."""

    model: ModelName | None = None
    prompt: (
        Annotated[str, Field(description="A text; or else messages.", examples=["Hello"])] | None
    ) = None
    messages: Annotated[
        list[Message],
        Field(
            min_length=1,
            max_length=MAX_MESSAGES,
            description="A chat; or else prompt.",
            examples=[[{"role": "user", "content": "Hello"}]],
        ),
        FailFast(),
    ] = Field(default=[])
    return_token_strs: bool = Field(
        default=False, description="Add token_strs, as the vocabulary has them.", examples=[True]
    )

    @property
    def adds_special_tokens(self) -> bool:
        """To a prompt, for which the tokenizer's own are added unless told otherwise."""
        return self.add_special_tokens or "add_special_tokens" not in self.model_fields_set


class DetokenizeRequest(Object):
    model: ModelName | None = None
    tokens: Annotated[
        list[TokenId],
        Field(max_length=MAX_TOKENS, description="Token ids.", examples=[[19556, 905]]),
        FailFast(),
    ]
