"""An engine that draws at random what a request's grammar allows, as the real one would."""

import random
from collections.abc import Iterator, Sequence

from service.api.served import read_vocabulary
from service.engine.grammar import Grammars
from service.engine.messages import EngineInfo, Event, Request
from tests.fakes import END, VOCAB_SIZE, Client, FakeEngine, Script, make_text
from tests.fakes_engine import allowed_ids

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


def obey(seed: int) -> Script:
    """A token at a time; where nothing is asked for, one and the end."""

    def script(request: Request) -> Iterator[Event]:
        rng = random.Random(f"{seed} {request.sampling.seed}")
        constraint = GRAMMARS.start(request.grammar or "start: /[a-z]/", [])
        for number in range(1, request.max_tokens + 1):
            token_id = draw(rng, allowed_ids(constraint.allowed))
            reason = "stop" if token_id == END else None
            if number == request.max_tokens:
                reason = reason or "length"
            yield Event(request_id=request.id, token_ids=[token_id], finish_reason=reason)
            if reason:
                return
            constraint.push([token_id])

    return script


def obedient(seed: int = 0) -> Client:
    """A client of a server with room for the prompts that tools make."""
    engine = FakeEngine(obey(seed))
    engine.info = EngineInfo(
        max_model_len=20_000, vocab_size=VOCAB_SIZE, page_size=16, num_pages=2000
    )
    return Client(engine)
