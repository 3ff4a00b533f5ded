"""Chats of every family are rendered as transformers renders them, or refused where it refuses."""

from collections.abc import Iterable
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from model.families.hugging_face import FAMILIES
from service.text.chat_template import ChatTemplate, ChatTemplateError
from service.text.gguf_tokenizer import read_gguf_tokenizer
from service.text.tokenizer import Tokenizer
from tests.fakes_text import small_metadata
from tests.family_templates import BARE, TEMPLATES

Message = dict[str, Any]

SYSTEM: Message = {"role": "system", "content": "Be brief.\n"}
HI: Message = {"role": "user", "content": " Hi, <b>you</b> & 'it'\r\n"}
HELLO: Message = {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nHello!  "}
WHY: Message = {"role": "user", "content": "Why? 👋🏽"}
PARTS: Message = {
    "role": "user",
    "content": [{"type": "text", "text": "Look "}, {"type": "text", "text": "here"}],
}
CALL: Message = {"name": "weather", "arguments": {"city": "Łódź", "days": [1, None], "ok": True}}
CALLING: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "abcdefghi", "type": "function", "function": CALL}],
}
RESULT: Message = {"role": "tool", "content": '{"celsius": 7}', "tool_call_id": "abcdefghi"}
TOOLS: list[Message] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The "weather" in a city <é>',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]

CASES: dict[str, tuple[list[Message], dict[str, Any]]] = {
    "no system": ([HI], {}),
    "system": ([SYSTEM, HI], {}),
    "several turns": ([SYSTEM, HI, HELLO, WHY], {}),
    "no prompt for an answer": ([HI, HELLO], {"add_generation_prompt": False}),
    "out of turn": ([HI, HI], {}),
    "system in the middle": ([HI, SYSTEM], {}),
    "tools": ([SYSTEM, HI], {"tools": TOOLS}),
    "a call": ([HI, CALLING, RESULT], {"tools": TOOLS}),
    "a call and what followed": ([HI, CALLING, RESULT, HELLO, WHY], {"tools": TOOLS}),
    "null content": ([HI, {"role": "assistant", "content": None}, WHY], {}),
    "parts": ([SYSTEM, PARTS], {}),
    "without thoughts": ([HI], {"enable_thinking": False}),
    "continued": (
        [HI, {"role": "assistant", "content": "Well,"}],
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "continued after a space": (
        [SYSTEM, HI, HELLO, WHY, {"role": "assistant", "content": "Well, "}],
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
}
SOURCES = sorted({source for versions in TEMPLATES.values() for source in versions.values()})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(read_gguf_tokenizer(small_metadata(add_bos_token=True)))


def titles_of(source: str) -> str:
    return ", ".join(title for title, versions in TEMPLATES.items() if source in versions.values())


def by_transformers(source: str, messages: list[Message], **how: Any) -> str | None:
    """None: it refuses."""
    backend = read_gguf_tokenizer(small_metadata()).backend
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", chat_template=source
    )
    try:
        rendered: Any = theirs.apply_chat_template(messages, tokenize=False, **how)
    except (TemplateError, TypeError, ValueError):
        return None
    return str(rendered)


def by_us(source: str, messages: Iterable[Message], **how: Any) -> str | None:
    template = ChatTemplate(source, bos_token="<bos>", eos_token="<eos>")
    try:
        return template.render(list(messages), **how)
    except ChatTemplateError:
        return None


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("source", SOURCES, ids=titles_of)
def test_a_chat_is_rendered_as_by_transformers(
    source: str, case: str, tokenizer: Tokenizer
) -> None:
    messages, how = CASES[case]
    how = {"add_generation_prompt": True} | how
    rendered = by_us(source, messages, **how)
    assert rendered == by_transformers(source, messages, **how)
    if rendered is not None:
        ids = tokenizer.encode(rendered, add_special_tokens=False)
        assert ids.count(259) <= max(1, sum(message["role"] == "user" for message in messages))
        assert ids[:2] != [259, 259]


def test_most_cases_are_rendered() -> None:
    """Else the comparisons would say little."""
    rendered = {
        (source, case)
        for source in SOURCES
        for case, (messages, how) in CASES.items()
        if by_us(source, messages, **how)
    }
    assert len(rendered) > 0.7 * len(SOURCES) * len(CASES)
    for source in SOURCES:
        cases = {case for other, case in rendered if other == source}
        assert {"no system", "system", "several turns", "continued"} <= cases


def test_every_family_has_a_template_or_is_known_to_have_none() -> None:
    assert TEMPLATES.keys() | BARE == {family.title for family in FAMILIES.values()}
