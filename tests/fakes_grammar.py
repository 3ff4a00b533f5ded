"""An engine that draws at random what a request's grammar allows, as the real one would."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer

from service.api.served import read_vocabulary
from service.engine.grammar import Constraint, Grammars
from service.engine.messages import EngineInfo, Event, FinishReason, Request
from service.text import tokenizer as text_tokenizer
from service.text.chat_template import ChatTemplate
from service.text.definition import TokenizerDefinition
from service.text.model import TextModel
from tests.fakes import END, VOCAB_SIZE, Client, FakeEngine, Script, make_text
from tests.fakes_engine import allowed_ids

SPECIAL = [
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *("<think>", "</think>", "[THINK]", "[/THINK]"),
]
ADDED = ["<tool_call>", "</tool_call>"]
"""Not marked as special, as in Qwen's vocabulary."""
GRAMMARS = Grammars(read_vocabulary(make_text()))
ENDING = [END, *b'"}]\n']
"""Drawn often, so that answers end."""
PLAIN = [*range(32, 127)]


def draw(rng: random.Random, allowed: Sequence[int]) -> int:
    likely = [token_id for token_id in ENDING if token_id in allowed]
    if likely and rng.random() < 0.5:
        return rng.choice(likely)
    plain = [token_id for token_id in PLAIN if token_id in allowed]
    return rng.choice(plain if plain and rng.random() < 0.9 else allowed)


def start(grammar: str, text: str) -> Constraint:
    """Behind the text. Raises GrammarError where that has no place in the grammar."""
    constraint = GRAMMARS.start(grammar, list(text.encode()))
    constraint.push([])
    return constraint


def obey(seed: int, grammars: Grammars = GRAMMARS) -> Script:
    """A token at a time; where nothing is asked for, one and the end."""

    def script(request: Request) -> Iterator[Event]:
        rng = random.Random(f"{seed} {request.sampling.seed}")
        constraint = grammars.start(request.grammar or "start: /[a-z]/", [])
        for number in range(1, request.max_tokens + 1):
            token_id = draw(rng, allowed_ids(constraint.allowed()))
            ends = number == request.max_tokens
            reason: FinishReason | None = "stop" if token_id == END else "length" if ends else None
            yield Event(request_id=request.id, token_ids=[token_id], finish_reason=reason)
            if reason:
                return
            constraint.push([token_id])

    return script


def obedient(seed: int = 0, **config: Any) -> Client:
    return roomy(obey(seed), **config)


def roomy(script: Script, **config: Any) -> Client:
    """A client of a server with room for the prompts that tools make."""
    engine = FakeEngine(script)
    engine.info = EngineInfo(
        max_model_len=20_000,
        vocab_size=VOCAB_SIZE + len(SPECIAL + ADDED),
        page_size=16,
        num_pages=2000,
    )
    return Client(engine, **config)


def with_special_marks(template: str = "{{ messages[0].content }}") -> TextModel:
    """As `make_text`, with marks of tool calls and thoughts that are control tokens."""
    backend = Tokenizer.from_str(make_text().tokenizer.to_json())
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken(mark, normalized=False) for mark in ADDED])
    definition = TokenizerDefinition(backend=backend, bos_id=None, eos_id=END)
    return TextModel(text_tokenizer.Tokenizer(definition), ChatTemplate(template))


def specially_obedient(**config: Any) -> Client:
    text = with_special_marks()
    return roomy(obey(0, Grammars(read_vocabulary(text))), text=text, **config)
