"""What the engine is to do for a call: a Request for each sequence of each prompt."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace

from service.api.drawing import allowed_of, bad_words_of, check_choice, sampling_of, stop_ids_of
from service.api.errors import bad_request
from service.api.prompts import max_new_tokens
from service.api.schema import AnyRequest
from service.api.served import Serving, Ticket
from service.auth import Tenant
from service.engine.messages import Request


def plan(
    ticket: Ticket,
    asked: AnyRequest,
    prompts: Sequence[list[int]],
    serving: Serving,
    *,
    grammar: str = "",
) -> list[Request]:
    """A request per sequence, all those of the first prompt first."""
    scores_all = asked.echoes or asked.token_limit == 0  # else the first's scores serve for all
    _check_stops(asked, serving)
    limits = [_limit(ids, asked, serving) for ids in prompts]
    seed = asked.seed if asked.seed is not None else secrets.randbits(63)
    sampling = sampling_of(asked, seed=seed, serving=serving)
    stop_ids = stop_ids_of(asked, serving)
    bad_words = bad_words_of(asked, serving)
    allowed = allowed_of(asked, serving)
    check_choice(asked, stop_ids, bad_words)
    assert not (grammar and allowed), "the engine follows one mask"
    return [
        Request(
            id=f"{ticket.id}-{number * asked.num_drawn + i}",
            prompt_ids=prompt_ids,
            max_tokens=limits[number],
            min_tokens=asked.min_tokens,
            sampling=replace(sampling, seed=derive_seed(seed, i)),
            stop_token_ids=stop_ids,
            bad_words=bad_words,
            allowed=allowed,
            grammar=grammar,
            num_prompt_logprobs=asked.num_scored if i == 0 or scores_all else None,
            cache_salt=salt_of(ticket.caller.tenant, asked.cache_salt),
            priority=asked.priority,
            tenant=ticket.caller.tenant.name,
            weight=ticket.caller.tenant.weight,
        )
        for number, prompt_ids in enumerate(prompts)
        for i in range(asked.num_drawn)
    ]


def _check_stops(asked: AnyRequest, serving: Serving) -> None:
    if len(asked.stop) > serving.max_stops:
        raise bad_request(
            f"stop has {len(asked.stop)} texts; send {serving.max_stops} at most.", param="stop"
        )


def _limit(prompt_ids: Sequence[int], asked: AnyRequest, serving: Serving) -> int:
    limit = max_new_tokens(
        len(prompt_ids),
        asked.token_limit,
        serving.info.max_model_len,
        param=asked.prompt_field,
    )
    if limit == 0 and asked.num_scored is None:
        raise bad_request(
            "max_tokens is 0: only a request with echo or prompt_logprobs has an answer then.",
            param="max_tokens",
        )
    if asked.min_tokens > limit:
        raise bad_request(
            f"min_tokens is {asked.min_tokens}: no more than {limit} are generated; "
            "lower it, or raise max_tokens.",
            param="min_tokens",
        )
    return limit


def derive_seed(seed: int, choice: int) -> int:
    """Another seed for each choice of a prompt; the first has the one asked for, as if alone."""
    if choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def salt_of(tenant: Tenant, asked_salt: str | None) -> str:
    """Each key's requests have pages of their own; a name has no slash in it."""
    salt = asked_salt or ""
    return f"{tenant.name}/{salt}" if tenant.name else salt
