"""The tool calls of an answer in OpenAI's words: piece by piece in a stream, or each as a whole."""

from collections.abc import Sequence
from typing import Any

from service.text.tool_parser import CallPiece


def spell_call_piece(piece: CallPiece) -> dict[str, Any]:
    """The first of a call has its id and name."""
    if not piece.name:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    return {"index": piece.index, **_call(piece)}


def spell_calls(pieces: Sequence[CallPiece]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if piece.name:
            calls.append(_call(piece))
        else:
            calls[piece.index]["function"]["arguments"] += piece.arguments
    return calls


def _call(piece: CallPiece) -> dict[str, Any]:
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"id": piece.id, "type": "function", "function": function}
