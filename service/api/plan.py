"""What the engine is to do for a call: a Request for each choice of each prompt."""

import hashlib
import secrets
from collections.abc import Sequence

from model.batch import SamplingParams
from service.api.errors import bad_request
from service.api.prompts import max_new_tokens
from service.api.schema import AnyRequest
from service.api.served import Serving, Ticket
from service.auth import Tenant
from service.engine.messages import Request


def plan(
    ticket: Ticket, asked: AnyRequest, prompts: Sequence[list[int]], serving: Serving
) -> list[Request]:
    """A request per choice, all choices of the first prompt first."""
    limits = [
        max_new_tokens(len(ids), asked.token_limit, serving.info.max_model_len) for ids in prompts
    ]
    seed = asked.seed if asked.seed is not None else secrets.randbits(63)
    stop_ids = _stop_ids(asked, serving)
    return [
        Request(
            id=f"{ticket.id}-{number * asked.n + i}",
            prompt_ids=prompt_ids,
            max_tokens=limits[number],
            sampling=_sampling(asked, seed=derive_seed(seed, i), serving=serving),
            stop_token_ids=stop_ids,
            cache_salt=salt_of(ticket.caller.tenant, asked.cache_salt),
            priority=asked.priority,
            tenant=ticket.caller.tenant.name,
            weight=ticket.caller.tenant.weight,
        )
        for number, prompt_ids in enumerate(prompts)
        for i in range(asked.n)
    ]


def _stop_ids(asked: AnyRequest, serving: Serving) -> frozenset[int]:
    unknown = [id_ for id_ in asked.stop_token_ids if id_ >= serving.info.vocab_size]
    if unknown:
        last = serving.info.vocab_size - 1
        raise bad_request(
            f"stop_token_ids has {unknown[0]}; this model's ids go up to {last}.",
            param="stop_token_ids",
        )
    ends = frozenset() if asked.ignore_eos else serving.text.tokenizer.eos_ids
    return ends | frozenset(asked.stop_token_ids)


def _sampling(asked: AnyRequest, *, seed: int, serving: Serving) -> SamplingParams:
    return SamplingParams(
        temperature=asked.temperature,
        top_k=min(max(asked.top_k, 0), serving.info.vocab_size),
        top_p=asked.top_p,
        min_p=asked.min_p,
        seed=seed,
        num_logprobs=asked.num_logprobs,
    )


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
