"""The forms that clients may ask an answer to have: OpenAI's words, and vLLM's."""

from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, FailFast, Field, ValidationInfo, field_validator

from service.api.schema_base import NotYet, Object

MAX_CHOICE_OPTIONS = 1024


def _as_schema(value: Any) -> Any:
    """vLLM takes the text of a schema too."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it isn't JSON: {error}") from None


Schema = Annotated[
    dict[str, Any],
    BeforeValidator(_as_schema, json_schema_input_type=dict[str, Any] | str),
]
Text = Annotated[str, Field(min_length=1)]
Options = Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICE_OPTIONS), FailFast()]


class JsonSchemaFormat(Object):
    name: Annotated[
        str,
        Field(
            pattern=r"^[a-zA-Z0-9_-]{1,64}$",
            description="For people; it changes nothing.",
            examples=["weather"],
        ),
    ]
    description: str | None = Field(
        default=None, description="For people; it changes nothing.", examples=["A day's weather."]
    )
    schema_: Annotated[
        dict[str, Any],
        Field(
            alias="schema",
            description="What the answer follows: 64 KiB of JSON schema at most.",
            examples=[{"type": "object", "properties": {"sun": {"type": "boolean"}}}],
        ),
    ]
    strict: bool | None = Field(
        default=None, description="Whatever it says, the schema is kept to.", examples=[True]
    )


class ResponseFormat(Object):
    type: Literal["text", "json_object", "json_schema"] = Field(
        description="Anything, any JSON object, or what follows json_schema.",
        examples=["json_object"],
    )
    json_schema: Annotated[
        JsonSchemaFormat | None,
        Field(
            validate_default=True,
            description="Of the type json_schema only.",
            examples=[{"name": "weather", "schema": {"type": "object"}}],
        ),
    ] = None

    @field_validator("json_schema")
    @classmethod
    def _where_it_belongs(
        cls, value: JsonSchemaFormat | None, info: ValidationInfo
    ) -> JsonSchemaFormat | None:
        if "type" in info.data and (value is None) == (info.data["type"] == "json_schema"):
            raise ValueError("it goes with the type json_schema, and with no other")
        return value


class StructuredOutputs(Object):
    json_: Annotated[
        Schema | None,
        Field(
            alias="json",
            description="A JSON schema, or its text.",
            examples=[{"type": "array"}],
        ),
    ] = None
    regex: Text | None = Field(
        default=None, description="What the whole answer matches.", examples=["[0-9]{4}"]
    )
    choice: Options = Field(default=[], description="One of these texts.", examples=[["yes", "no"]])
    grammar: Text | None = Field(
        default=None, description="A grammar in Lark's form.", examples=['start: "a"+']
    )
    json_object: bool = Field(default=False, description="Any JSON object.", examples=[True])
    disable_additional_properties: NotYet = None
    disable_any_whitespace: NotYet = None
    structural_tag: NotYet = None
    whitespace_pattern: NotYet = None


class Structured(Object):
    """At most one of these says what the answer follows."""

    response_format: Annotated[
        ResponseFormat | None,
        Field(
            description="json_object: any JSON object; json_schema: JSON that keeps to the schema.",
            examples=[{"type": "json_object"}],
        ),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None,
        Field(
            description="One of json (a schema), json_object, regex, choice, grammar (Lark).",
            examples=[{"choice": ["yes", "no"]}],
        ),
    ] = None
    guided_json: Annotated[
        Schema | None,
        Field(description="As structured_outputs.json.", examples=[{"type": "array"}]),
    ] = None
    guided_regex: Annotated[
        Text | None, Field(description="As structured_outputs.regex.", examples=["[0-9]{4}"])
    ] = None
    guided_choice: Annotated[
        Options, Field(description="As structured_outputs.choice.", examples=[["a", "b"]])
    ] = Field(default=[])
    guided_grammar: Annotated[
        Text | None,
        Field(description="As structured_outputs.grammar.", examples=['start: "a"+']),
    ] = None
