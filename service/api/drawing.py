"""How the engine is to draw a request's tokens: what was asked, checked against the vocabulary.

asked                  what the engine is told
logit_bias             the same, by ids that the model has
bad_words              runs of ids, with and without a space before
allowed_token_ids      a bit mask of the vocabulary
what isn't said        what the model's maker recommends, or OpenAI's default
"""

from typing import Any

from model.batch import SamplingParams
from service.api.errors import bad_request, shown
from service.api.schema import AnyRequest
from service.api.served import Serving


def sampling_of(asked: AnyRequest, *, seed: int, serving: Serving) -> SamplingParams:
    serving.check_ids("logit_bias", asked.logit_bias)
    return SamplingParams(
        temperature=_value("temperature", asked, serving),
        top_k=min(max(_value("top_k", asked, serving), 0), serving.info.vocab_size),
        top_p=_value("top_p", asked, serving),
        min_p=_value("min_p", asked, serving),
        repetition_penalty=_value("repetition_penalty", asked, serving),
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        logit_bias=asked.logit_bias,
        seed=seed,
        num_logprobs=_num_logprobs(asked),
    )


def _value(name: str, asked: AnyRequest, serving: Serving) -> Any:
    said = getattr(asked, name)
    return said if name in asked.model_fields_set else serving.text.defaults.get(name, said)


def _num_logprobs(asked: AnyRequest) -> int | None:
    """The best of several are found by their logprobs, though these may not be shown."""
    if asked.num_logprobs is None and asked.num_drawn > asked.n:
        return 0
    return asked.num_logprobs


def stop_ids_of(asked: AnyRequest, serving: Serving) -> frozenset[int]:
    serving.check_ids("stop_token_ids", asked.stop_token_ids)
    ends = frozenset() if asked.ignore_eos else serving.text.tokenizer.eos_ids
    return ends | frozenset(asked.stop_token_ids)


def bad_words_of(asked: AnyRequest, serving: Serving) -> list[list[int]]:
    """As a word looks where a text begins, and as it looks after another."""
    spellings = [
        start + word.lstrip(" ") for word in dict.fromkeys(asked.bad_words) for start in ("", " ")
    ]
    runs = [serving.text.tokenizer.encode(text, add_special_tokens=False) for text in spellings]
    if [] in runs:
        word = asked.bad_words[runs.index([]) // 2]
        raise bad_request(f"bad_words has {shown(word)}, which is no token.", param="bad_words")
    return [list(run) for run in dict.fromkeys(map(tuple, runs))]


def allowed_of(asked: AnyRequest, serving: Serving) -> bytes | None:
    """Bit i % 8 of byte i // 8 stands for id i."""
    if not asked.allowed_token_ids:
        return None
    serving.check_ids("allowed_token_ids", asked.allowed_token_ids)
    mask = bytearray(-(-serving.info.vocab_size // 8))
    for token_id in asked.allowed_token_ids:
        mask[token_id // 8] |= 1 << token_id % 8
    return bytes(mask)


def check_choice(asked: AnyRequest, stop_ids: frozenset[int], bad_words: list[list[int]]) -> None:
    """Where some ids alone are allowed, one must be left that may come first."""
    if not asked.allowed_token_ids:
        return
    left = set(asked.allowed_token_ids) - {run[0] for run in bad_words if len(run) == 1}
    if not (left - stop_ids if asked.min_tokens else left):
        raise bad_request(
            "allowed_token_ids has none that bad_words and min_tokens leave; allow more.",
            param="allowed_token_ids",
        )
