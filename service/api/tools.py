"""The tools of a chat: as its template takes them, and as the grammar of calls."""

from collections.abc import Mapping
from typing import Any

from service.api.errors import bad_request
from service.api.schema import ChatRequest
from service.api.schema_tools import Function
from service.api.served import Serving
from service.api.structured import CONFLICTS, check_conflicts
from service.text.grammar import ALONE, Part, json_part


async def call_parts(asked: ChatRequest, serving: Serving) -> dict[str, Part]:
    """What the arguments of each function that may be called follow, by its name."""
    if not asked.offered:
        return {}
    check_conflicts(asked, "tools", names=CONFLICTS)
    places = {tool.function.name: number for number, tool in enumerate(asked.tools)}
    return {
        tool.function.name: await _arguments(
            tool.function, serving, param=f"tools[{places[tool.function.name]}].function.parameters"
        )
        for tool in asked.callable
    }


async def _arguments(function: Function, serving: Serving, *, param: str) -> Part:
    """Unless the function is strict, what can't be enforced of its schema only advises."""
    schema = _schema(function, param)
    problem = ""
    for lenient in (False,) if function.strict else (False, True):
        part = json_part(schema, lenient=lenient)
        problem = await serving.grammars.find_problem({"answer": part}, ALONE)
        if not problem:
            return part
    raise bad_request(f"{param} can't be followed: {problem}.", param=param)


def _schema(function: Function, param: str) -> Mapping[str, Any]:
    if function.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema = {"type": "object", **function.parameters}
    if schema["type"] != "object":
        raise bad_request(f"{param} isn't of type object, as arguments are.", param=param)
    return schema
