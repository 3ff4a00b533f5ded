"""Tells tools to models whose chat template knows none: in the system message, as Hermes does.

The calls of earlier turns become text as this prompt asks for it, and results become the user's.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Chat = list[dict[str, Any]]

PROMPT = """You may call one or more of these functions, described in JSON, to help the user:
<tools>
{tools}
</tools>
To call a function, write its name and arguments as JSON between these tags:
<tool_call>
{{"name": <function name>, "arguments": <arguments as an object>}}
</tool_call>"""


def with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Chat:
    """The same conversation for a template that takes texts of system, user and assistant only."""
    chat = [_as_text(message) for message in messages]
    if not tools:
        return chat
    prompt = PROMPT.format(tools="\n".join(map(_json, tools)))
    if chat and chat[0]["role"] == "system":
        first = {**chat[0], "content": f"{chat[0]['content']}\n\n{prompt}"}
        return [first, *chat[1:]]
    return [{"role": "system", "content": prompt}, *chat]


def with_written_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of its calls as texts of JSON, not as objects."""
    calls = [
        {**call, "function": {**function, "arguments": _written(function["arguments"])}}
        for call in message.get("tool_calls", ())
        for function in [call["function"]]
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


def _written(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else _json(arguments)


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    calls = map(_call, message.get("tool_calls", ()))
    return plain | {"content": "\n".join(filter(None, (message["content"], *calls)))}


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    written = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{_json(written)}\n</tool_call>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
