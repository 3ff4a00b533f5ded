"""What clients may ask of embeddings."""

from typing import Annotated, Literal

from pydantic import Field

from model.batch import Pooling
from service.api.schema import Prompts
from service.api.schema_base import Object
from service.api.schema_generation import ModelName


class EmbeddingRequest(Object):
    input: Annotated[
        Prompts,
        Field(
            description="A text, or token ids; or several of either.",
            examples=["Hello", ["One", "Two"], [1, 2, 3]],
        ),
    ]
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] = Field(
        default="float",
        description="base64: each vector as little-endian float32, in base64.",
        examples=["base64"],
    )
    dimensions: (
        Annotated[
            int,
            Field(
                ge=1, description="Keep the first so many numbers; all if absent.", examples=[256]
            ),
        ]
        | None
    ) = None
    pooling: Pooling = Field(
        default="last",
        description="The last token's vector, or the mean of all tokens'.",
        examples=["mean"],
    )
    add_special_tokens: bool = Field(
        default=True, description="Let the tokenizer begin texts as it does.", examples=[False]
    )
