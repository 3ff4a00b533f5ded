"""How the next token is drawn, as clients may say it; what isn't said, the model's maker may have.

What needs the vocabulary's size or the tokenizer is checked in `service.api.drawing`.
"""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, FailFast, Field

from service.api.errors import shown
from service.api.schema_base import Object

MAX_BIASES = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_LEN = 64
ID = re.compile(r"0|[1-9][0-9]{0,9}")

TokenId = Annotated[int, Field(ge=0)]


def _keyed_by_id(value: Any) -> Any:
    """JSON has no keys but strings."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_BIASES:
        raise ValueError(f"it has {len(value)} ids; send {MAX_BIASES} at most")
    wrong = next((key for key in value if not ID.fullmatch(key)), None)
    if wrong is not None:
        raise ValueError(f"{shown(wrong)} is no token id; its keys are ids such as 1234")
    return {int(key): bias for key, bias in value.items()}


Bias = Annotated[float, Field(ge=-100, le=100)]
Biases = Annotated[
    dict[int, Bias],
    BeforeValidator(
        _keyed_by_id,
        json_schema_input_type=Annotated[
            dict[Annotated[str, Field(pattern=f"^({ID.pattern})$")], Bias],
            Field(max_length=MAX_BIASES),
        ],
    ),
]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LEN)]


class Sampling(Object):
    temperature: Annotated[
        float, Field(ge=0, le=2, description="0: always the likeliest token.", examples=[0.7])
    ] = 1.0
    top_p: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="Draw from the likeliest tokens that reach this probability together.",
            examples=[0.9],
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Field(
            ge=-1,
            description="Draw from this many of the likeliest tokens; -1 or 0: from all.",
            examples=[40],
        ),
    ] = 0
    min_p: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Never draw what is less likely than this share of the likeliest.",
            examples=[0.05],
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Field(
            gt=0,
            description="Divides what is positive of the logits of tokens that were in the prompt "
            "or the output, and multiplies what is negative.",
            examples=[1.1],
        ),
    ] = 1.0
    frequency_penalty: Annotated[
        float,
        Field(
            ge=-2,
            le=2,
            description="Taken off a token's logit for each time that it is in the output.",
            examples=[0.5],
        ),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        Field(
            ge=-2,
            le=2,
            description="Taken off a token's logit once it is in the output.",
            examples=[0.5],
        ),
    ] = 0.0
    logit_bias: Annotated[
        Biases,
        Field(description="Added to the logits of these token ids.", examples=[{"1234": -100}]),
    ] = Field(default={})
    seed: (
        Annotated[
            int,
            Field(
                ge=-(2**63),
                lt=2**63,
                description="The same request is drawn the same with it; random if absent.",
                examples=[42],
            ),
        ]
        | None
    ) = None
    bad_words: Annotated[
        list[BadWord],
        Field(
            max_length=MAX_BAD_WORDS,
            description="Never generate the tokens of these, with or without a space before.",
            examples=[["whilst"]],
        ),
        FailFast(),
    ] = Field(default=[])
    allowed_token_ids: Annotated[
        list[TokenId],
        Field(min_length=1, description="Generate no other ids.", examples=[[15, 16, 17]]),
        FailFast(),
    ] = Field(default=[])
