"""What all objects that clients send have in common: strictness, and null for absence."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


class Object(BaseModel):
    """Strict: a number is a number, not "3", nor true, nor 3.0 for 3."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        return {key: value for key, value in raw.items() if value is not None}


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
