"""What all objects that clients send have in common: strictness, and null for absence."""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

ABOUT = ("title", "description", "default", "examples")
"""What a JSON schema says of a value that doesn't restrict it."""


class Object(BaseModel):
    """Strict: a number is a number, not "3", nor true, nor 3.0 for 3."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        return {key: value for key, value in raw.items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Says of what may be absent that it may be null."""
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        required = schema.get("required", ())
        for name, field in schema["properties"].items():
            if name not in required:
                schema["properties"][name] = _or_null(field)
        return reference


def _or_null(field: JsonSchemaValue) -> JsonSchemaValue:
    """The same, but for null; what is told of the field stands beside the alternatives."""
    about, values = _split(field)
    if not values:
        return field
    options = []
    for option in values["anyOf"] if values.keys() == {"anyOf"} else [values]:
        told, rest = _split(option)
        about |= told
        options.append(rest)
    null = {"type": "null"}
    return {"anyOf": [*(option for option in options if option != null), null], **about}


def _split(schema: JsonSchemaValue) -> tuple[JsonSchemaValue, JsonSchemaValue]:
    """What it says of a value, and what it asks of it."""
    told = {key: value for key, value in schema.items() if key in ABOUT}
    return told, {key: value for key, value in schema.items() if key not in ABOUT}


def _not_yet(value: Any) -> Any:
    if value:
        raise PydanticCustomError("unsupported_parameter", "this is not supported yet")
    return value


NotYet = Annotated[
    Any,
    AfterValidator(_not_yet),
    Field(description="Not supported: empty, false or refused.", examples=[None]),
]
"""Within an object what `service.api.unsupported` is for requests: empty, false, or refused."""
