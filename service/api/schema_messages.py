"""The messages of a chat, as clients send them and as templates see them."""

from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, FailFast, Field, ValidationInfo, field_validator

from service.api.errors import shown
from service.api.schema_base import NotYet, Object
from service.api.schema_tools import MAX_CALLS, ToolCall, ToolUse

MAX_MESSAGES = 4096
MAX_TEMPLATE_VARIABLES_LEN = 16 << 10
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


class TextPart(Object):
    type: Literal["text"] = Field(description="Nothing else can be read.", examples=["text"])
    text: str = Field(description="What it says.", examples=["Hello"])


class Message(Object):
    role: Role = Field(description="Whose it is; developer is system.", examples=["user"])
    content: Annotated[
        str | None,
        BeforeValidator(_join_parts, json_schema_input_type=str | list[TextPart] | None),
        Field(
            validate_default=True,
            description="What it says; parts are lines. Only an assistant's may be missing.",
            examples=["Hello", [{"type": "text", "text": "Hello"}]],
        ),
    ] = None
    name: str | None = Field(
        default=None, description="Who of that role, for templates that say it.", examples=["Ann"]
    )
    tool_call_id: str | None = Field(
        default=None, description="Of a tool: which call it answers.", examples=["call_5f1d0c"]
    )
    audio: NotYet = None
    function_call: NotYet = None
    reasoning: str | None = Field(
        default=None, description="As reasoning_content.", examples=["Hm."]
    )
    reasoning_content: str | None = Field(
        default=None,
        description="What an assistant thought first, for templates that show it.",
        examples=["Hm."],
    )
    refusal: NotYet = None
    tool_calls: Annotated[
        list[ToolCall],
        Field(
            max_length=MAX_CALLS,
            description="What an assistant called.",
            examples=[[{"id": "call_5f1d0c", "function": {"name": "now", "arguments": "{}"}}]],
        ),
        FailFast(),
    ] = Field(default=[])
    tools: NotYet = None

    @field_validator("tool_calls")
    @classmethod
    def _only_of_assistants(cls, value: list[ToolCall], info: ValidationInfo) -> list[ToolCall]:
        if value and info.data.get("role") != "assistant":
            raise ValueError("only an assistant calls tools")
        return value

    @field_validator("content")
    @classmethod
    def _absent_only_from_assistants(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("role") != "assistant":
            raise ValueError("a string or a list of text parts is required")
        return value

    def for_template(self) -> dict[str, Any]:
        role = "system" if self.role == "developer" else self.role
        rest = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": [call.for_template() for call in self.tool_calls] or None,
            "reasoning_content": self.reasoning_content or self.reasoning,
        }
        given = {key: value for key, value in rest.items() if value is not None}
        return {"role": role, "content": self.content or "", **given}


class ChatPrompt(ToolUse):
    """What decides which text a chat becomes."""

    messages: Annotated[
        list[Message],
        Field(
            min_length=1,
            max_length=MAX_MESSAGES,
            description="The conversation so far, oldest first.",
            examples=[[{"role": "user", "content": "Name three uses of paper."}]],
        ),
        FailFast(),
    ]
    continue_final_message: bool = Field(
        default=False, description="Go on with the last message, not after it.", examples=[True]
    )
    add_generation_prompt: bool = Field(
        default=True,
        description="End with what begins an answer; false if the last message is continued.",
        examples=[False],
    )
    add_special_tokens: bool = Field(
        default=False,
        description="Add the tokenizer's own, on top of those that the template writes.",
        examples=[True],
    )
    chat_template_kwargs: Annotated[
        dict[str, Any],
        Field(
            description="Variables that the model's template asks for, by their names.",
            examples=[{"enable_thinking": False}],
        ),
    ] = Field(default={})

    @field_validator("add_generation_prompt")
    @classmethod
    def _either_way(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("continue_final_message"):
            raise ValueError("the last message is to be continued (continue_final_message)")
        return value

    @field_validator("chat_template_kwargs")
    @classmethod
    def _bounded(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            num_bytes = len(orjson.dumps(value))
        except orjson.JSONEncodeError:
            raise ValueError("it is nested too deeply") from None
        if num_bytes > MAX_TEMPLATE_VARIABLES_LEN:
            raise ValueError(
                f"it has {num_bytes} bytes of JSON; send {MAX_TEMPLATE_VARIABLES_LEN} at most"
            )
        return value

    @property
    def begins_answer(self) -> bool:
        return self.add_generation_prompt and not self.continue_final_message
