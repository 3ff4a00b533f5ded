"""The tools that clients may offer, and the calls of them in a conversation: OpenAI's words."""

from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    BeforeValidator,
    FailFast,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from service.api.schema_base import Object

MAX_TOOLS = 128
MAX_CALLS = 128
NAME = r"^[a-zA-Z0-9_.-]{1,64}$"


class Function(Object):
    name: Annotated[
        str, Field(pattern=NAME, description="What the model calls it by.", examples=["now"])
    ]
    description: str | None = Field(
        default=None, description="What it does, for the model.", examples=["The time of day."]
    )
    parameters: dict[str, Any] | None = Field(
        default=None,
        description="A JSON schema of an object, which arguments follow; absent: there are none.",
        examples=[{"type": "object", "properties": {"zone": {"type": "string"}}}],
    )
    strict: bool = Field(
        default=False,
        description="Refuse what can't be enforced of the schema; else it only advises.",
        examples=[True],
    )


class Tool(Object):
    type: Literal["function"] = Field(description="No other is known.", examples=["function"])
    function: Function = Field(description="What may be called.", examples=[{"name": "now"}])

    def for_template(self) -> dict[str, Any]:
        function = self.function
        said = {"name": function.name, "description": function.description}
        parameters = function.parameters or {"type": "object", "properties": {}}
        given = {key: value for key, value in said.items() if value is not None}
        return {"type": "function", "function": {**given, "parameters": parameters}}


def _as_choice(value: Any) -> str:
    """none, auto, required, or the one function's name behind a colon."""
    match value:
        case "none" | "auto" | "required":
            return str(value)
        case {"type": "function", "function": {"name": str(name)}}:
            return f":{name}"
        case _:
            raise ValueError(
                'take "none", "auto", "required" or {"type": "function", "function": {"name": …}}'
            )


class FunctionName(Object):
    name: Annotated[str, Field(pattern=NAME, description="One of the tools.", examples=["now"])]


class NamedChoice(Object):
    type: Literal["function"] = Field(description="No other is known.", examples=["function"])
    function: FunctionName = Field(description="What must be called.", examples=[{"name": "now"}])


ToolChoice = Annotated[
    str,
    PlainValidator(
        _as_choice,
        json_schema_input_type=Literal["none", "auto", "required"] | NamedChoice,
    ),
]


class ToolUse(Object):
    """What of a request is about tools."""

    tools: Annotated[
        list[Tool],
        Field(
            max_length=MAX_TOOLS,
            description="Functions that the answer may call.",
            examples=[[{"type": "function", "function": {"name": "now"}}]],
        ),
        FailFast(),
    ] = Field(default=[])
    tool_choice: Annotated[
        ToolChoice,
        Field(
            description="Whether it calls: auto leaves that to the model, none offers no tools, "
            "one by name is called exactly once.",
            examples=["required", {"type": "function", "function": {"name": "now"}}],
        ),
    ] = "auto"
    parallel_tool_calls: bool = Field(
        default=True, description="Whether it may call several times.", examples=[False]
    )

    @field_validator("tools")
    @classmethod
    def _one_of_a_name(cls, value: list[Tool]) -> list[Tool]:
        if len({tool.function.name for tool in value}) < len(value):
            raise ValueError("two functions have one name")
        return value

    @field_validator("tool_choice")
    @classmethod
    def _among_the_tools(cls, value: str, info: ValidationInfo) -> str:
        names = {tool.function.name for tool in info.data.get("tools", ())}
        if value == "required" and not names:
            raise ValueError("there are no tools")
        if value.startswith(":") and value[1:] not in names:
            raise ValueError("none of the tools has this name")
        return value

    @property
    def offered(self) -> list[Tool]:
        return [] if self.tool_choice == "none" else self.tools

    @property
    def callable(self) -> list[Tool]:
        """Those that the answer may call."""
        named = self.tool_choice.removeprefix(":") if self.names_one else None
        return [tool for tool in self.offered if named in (None, tool.function.name)]

    @property
    def calls_once(self) -> bool:
        """One by name is called exactly once, as OpenAI has it."""
        return self.names_one or not self.parallel_tool_calls

    @property
    def names_one(self) -> bool:
        return self.tool_choice.startswith(":")

    @property
    def must_call(self) -> bool:
        return self.tool_choice not in ("none", "auto")


class CalledFunction(Object):
    name: Annotated[str, Field(min_length=1, description="What it called.", examples=["now"])]
    arguments: dict[str, Any] | str = Field(
        default="{}", description="An object, or its JSON.", examples=['{"zone": "UTC"}']
    )


class ToolCall(Object):
    """One that an assistant's message made."""

    id: str | None = Field(
        default=None, description="By which a tool's message answers it.", examples=["call_5f1d0c"]
    )
    type: Literal["function"] = Field(
        default="function", description="No other is known.", examples=["function"]
    )
    function: CalledFunction = Field(
        description="What it called, and how.", examples=[{"name": "now", "arguments": "{}"}]
    )

    def for_template(self) -> dict[str, Any]:
        """Templates take the arguments as an object; what isn't one stays as it was written."""
        function = {"name": self.function.name, "arguments": _as_object(self.function.arguments)}
        given = {} if self.id is None else {"id": self.id}
        return {**given, "type": "function", "function": function}


def _as_object(arguments: dict[str, Any] | str) -> dict[str, Any] | str:
    if isinstance(arguments, dict):
        return arguments
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _refuse_functions(value: Any) -> Any:
    if value not in ([], "none", "auto"):
        raise ValueError("this is an older form: send tools and tool_choice instead")
    return value


OldForm = Annotated[
    Any,
    BeforeValidator(_refuse_functions),
    Field(description="An older form: send tools and tool_choice instead.", examples=[None]),
]
