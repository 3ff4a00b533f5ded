"""The messages of a chat, as clients send them and as templates see them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from service.api.errors import shown
from service.api.schema_base import NotYet, Object

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
