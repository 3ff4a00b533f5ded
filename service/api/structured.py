"""What an answer has to follow, out of all the ways in which a request may say it.

Refuses what could end an answer before it is whole, or leave it no token to go on with.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from service.api.errors import bad_request
from service.api.schema import AnyRequest
from service.api.served import Serving
from service.text.grammar import ALONE, Part, choice_part, json_part, lark_part, regex_part

PARTS: Mapping[str, Callable[[Any], Part]] = {
    "json": json_part,
    "json_object": lambda _: json_part({"type": "object"}),
    "regex": regex_part,
    "choice": choice_part,
    "grammar": lark_part,
}
CONFLICTS = ("allowed_token_ids", "bad_words", "ignore_eos", "min_tokens", "stop_token_ids")
"""They may end a constrained answer early, or leave it no way to its end."""
CONFLICTS_OF_TEXT = ("stop", "include_stop_str_in_output")
"""They concern the text alone, and not calls."""

Asked = tuple[str, str, Any]
"""The parameter, the kind of what it wants, and that."""


async def find_part(asked: AnyRequest, serving: Serving) -> Part | None:
    """What the answer's text follows; None: anything goes."""
    wishes = [*_response_format(asked), *_structured_outputs(asked), *_guided(asked)]
    if not wishes:
        return None
    if len(wishes) > 1:
        first, second = wishes[0][0], wishes[1][0]
        raise bad_request(f"{first} and {second} can't both be followed; send one.", param=second)
    param, kind, value = wishes[0]
    check_conflicts(asked, param, names=CONFLICTS + CONFLICTS_OF_TEXT)
    part = PARTS[kind](value)
    if problem := await serving.grammars.find_problem({"answer": part}, ALONE):
        raise bad_request(f"{param} can't be followed: {problem}.", param=param)
    return part


def _response_format(asked: AnyRequest) -> Iterator[Asked]:
    format = asked.response_format
    if format is not None and format.type == "json_object":
        yield "response_format", "json_object", True
    if format is not None and format.json_schema is not None:
        yield "response_format", "json", format.json_schema.schema_


def _structured_outputs(asked: AnyRequest) -> Iterator[Asked]:
    if asked.structured_outputs is None:
        return
    given = asked.structured_outputs.model_dump(include=PARTS.keys() | {"json_"}, by_alias=True)
    named = [kind for kind in PARTS if _is_given(given[kind])]
    if len(named) != 1:
        raise bad_request(
            f"structured_outputs has {' and '.join(named) or 'nothing'}: "
            f"send one of {', '.join(PARTS)}.",
            param="structured_outputs",
        )
    yield "structured_outputs", named[0], given[named[0]]


def _guided(asked: AnyRequest) -> Iterator[Asked]:
    for kind in ("json", "regex", "choice", "grammar"):
        value = getattr(asked, f"guided_{kind}")
        if _is_given(value):
            yield f"guided_{kind}", kind, value


def _is_given(value: Any) -> bool:
    """The empty schema is one: it takes any JSON."""
    return value is not None and value is not False and value != []


def check_conflicts(asked: AnyRequest, param: str, *, names: Sequence[str]) -> None:
    conflict = next((name for name in names if getattr(asked, name)), None)
    if conflict is not None:
        raise bad_request(
            f"{conflict} can't be combined with {param}, since an answer could end before it is "
            "whole; leave out one of them.",
            param=conflict,
        )
