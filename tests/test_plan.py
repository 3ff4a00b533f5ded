"""What the engine is asked to do for a call."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from service.api.body import parse
from service.api.caller import Caller
from service.api.errors import ApiError
from service.api.plan import derive_seed, plan
from service.api.schema import CompletionRequest
from service.api.served import Serving
from service.auth import Tenant
from service.engine.messages import Request
from tests.fakes import END, VOCAB_SIZE, Client
from tests.fakes_engine import allowed_ids

ANYBODYS = Caller()


def make_plan(
    *prompts: list[int],
    caller: Caller = ANYBODYS,
    defaults: Mapping[str, float] | None = None,
    **fields: Any,
) -> list[Request]:
    serving: Serving = Client().app.state.served.serving()
    serving = replace(serving, text=replace(serving.text, defaults=defaults or {}))
    asked = parse(orjson.dumps({"prompt": "Hi"} | fields), CompletionRequest)
    return plan(serving.ticket("cmpl", None, caller), asked, prompts or [[1]], serving)


def test_choices_are_numbered_prompt_by_prompt() -> None:
    requests = make_plan([1], [2, 3], n=2)
    assert [request.prompt_ids for request in requests] == [[1], [1], [2, 3], [2, 3]]
    assert [int(request.id.rpartition("-")[2]) for request in requests] == [0, 1, 2, 3]


def test_what_is_asked_reaches_the_engine() -> None:
    [request] = make_plan(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=-5, logprobs=3, max_tokens=9
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.min_p, sampling.seed, sampling.num_logprobs) == (0.1, -5, 3)
    assert request.max_tokens == 9
    assert request.cache_salt == ""


def test_penalties_and_biases_reach_the_engine() -> None:
    [request] = make_plan(
        repetition_penalty=1.5,
        frequency_penalty=-1,
        presence_penalty=0.5,
        logit_bias={"3": -100, "257": 2.5},
    )
    sampling = request.sampling
    assert (sampling.repetition_penalty, sampling.frequency_penalty) == (1.5, -1)
    assert sampling.presence_penalty == 0.5
    assert sampling.logit_bias == {3: -100, 257: 2.5}
    assert not make_plan()[0].sampling.has_penalty


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"258": 1}}, "logit_bias"),
        ({"allowed_token_ids": [1, 258]}, "allowed_token_ids"),
        ({"stop_token_ids": [258]}, "stop_token_ids"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError, match=f"{param} has 258; this model's ids go up to 257") as caught:
        make_plan(**fields)
    assert caught.value.body["error"]["param"] == param


def test_allowed_ids_become_a_mask() -> None:
    assert make_plan()[0].allowed is None
    mask = make_plan(allowed_token_ids=[0, 9, 257, 9])[0].allowed
    assert mask is not None
    assert len(mask) == VOCAB_SIZE // 8 + 1
    assert allowed_ids(mask) == [0, 9, 257]


def test_bad_words_become_runs_of_ids_with_and_without_a_space() -> None:
    assert make_plan()[0].bad_words == []
    [request] = make_plan(bad_words=["ab", " ab", "é"])
    assert request.bad_words == [[*b"ab"], [*b" ab"], [*"é".encode()], [*" é".encode()]]


def test_a_bad_word_of_nothing_but_spaces_is_refused() -> None:
    with pytest.raises(ApiError, match='bad_words has "  ", which is no token'):
        make_plan(bad_words=["a", "  "])


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [*b"ab"], "bad_words": ["a", "b"]},
        {"allowed_token_ids": [END], "min_tokens": 1},
        {"allowed_token_ids": [97, END], "min_tokens": 1, "bad_words": ["a"]},
    ],
)
def test_something_must_be_left_to_generate(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="allow more"):
        make_plan(**fields)
    more = fields["allowed_token_ids"] + [99]
    assert make_plan(**fields | {"allowed_token_ids": more})[0].allowed


def test_min_tokens_are_no_more_than_may_be_generated() -> None:
    assert make_plan(min_tokens=16)[0].min_tokens == 16
    with pytest.raises(ApiError, match="min_tokens is 17: no more than 16 are") as caught:
        make_plan(min_tokens=17)
    assert caught.value.body["error"]["param"] == "min_tokens"


def test_nothing_is_generated_only_where_the_prompt_is_scored() -> None:
    [request] = make_plan(max_tokens=0, echo=True)
    assert (request.max_tokens, request.num_prompt_logprobs) == (0, 0)
    assert make_plan(max_tokens=0, prompt_logprobs=2)[0].num_prompt_logprobs == 2
    with pytest.raises(ApiError, match="max_tokens is 0"):
        make_plan(max_tokens=0)


def test_a_prompt_is_scored_once_unless_each_choice_begins_with_it() -> None:
    def scored(**fields: Any) -> list[int | None]:
        return [request.num_prompt_logprobs for request in make_plan([1], [2], n=2, **fields)]

    assert scored(prompt_logprobs=3) == [3, None, 3, None]
    assert scored(echo=True, logprobs=3) == [3] * 4
    assert scored(prompt_logprobs=3, max_tokens=0) == [3] * 4


def test_the_best_are_chosen_among_more_by_their_logprobs() -> None:
    requests = make_plan([1], [2], n=2, best_of=3, seed=7)
    assert [request.prompt_ids for request in requests] == [[1]] * 3 + [[2]] * 3
    assert len({request.id for request in requests}) == 6
    assert [request.sampling.num_logprobs for request in requests] == [0] * 6
    assert [r.sampling.seed for r in requests[:3]] == [derive_seed(7, i) for i in range(3)]
    assert make_plan(n=2, best_of=2)[0].sampling.num_logprobs is None


def test_what_is_not_said_is_as_the_models_maker_recommends() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}
    [request] = make_plan(defaults=defaults, top_k=0, min_p=0.1)
    sampling = request.sampling
    assert (sampling.temperature, sampling.repetition_penalty) == (0.6, 1.1)
    assert (sampling.top_k, sampling.min_p, sampling.top_p) == (0, 0.1, 1.0)


def test_the_cache_salt_of_all_choices_is_the_callers() -> None:
    requests = make_plan([1], [2], n=2, cache_salt="pepper")
    assert [request.cache_salt for request in requests] == ["pepper"] * 4


@pytest.mark.parametrize(("asked", "used"), [(-1, 0), (0, 0), (5, 5), (10**7, VOCAB_SIZE)])
def test_top_k_is_off_or_within_the_vocabulary(asked: int, used: int) -> None:
    [request] = make_plan(top_k=asked)
    assert request.sampling.top_k == used


def test_seeds_of_choices_differ_and_depend_on_the_seed_alone() -> None:
    seeds = [request.sampling.seed for request in make_plan([1], [2], n=3, seed=42)]
    assert seeds[:3] == seeds[3:] == [derive_seed(42, i) for i in range(3)]
    assert seeds[0] == 42
    assert len({derive_seed(seed, i) for seed in range(-20, 20) for i in range(20)}) == 800
    assert all(-(2**63) <= derive_seed(2**63 - 1, i) < 2**63 for i in range(100))


def test_without_a_seed_each_call_has_another() -> None:
    assert make_plan()[0].sampling.seed != make_plan()[0].sampling.seed


def test_ids_that_stop() -> None:
    assert make_plan()[0].stop_token_ids == {END}
    assert make_plan(stop_token_ids=[5, 5])[0].stop_token_ids == {5, END}
    assert make_plan(stop_token_ids=[5], ignore_eos=True)[0].stop_token_ids == {5}


def test_priority_and_tenant_reach_the_engine() -> None:
    requests = make_plan(n=2, priority=-7, caller=Caller(Tenant("a", 2.5)))
    assert [(r.priority, r.tenant, r.weight) for r in requests] == [(-7, "a", 2.5)] * 2
    [request] = make_plan()
    assert (request.priority, request.tenant, request.weight) == (0, "", 1.0)


def test_two_keys_share_no_pages_whatever_their_salts() -> None:
    def salt(name: str, **fields: Any) -> str:
        return make_plan(caller=Caller(Tenant(name)), **fields)[0].cache_salt

    salts = [
        *(salt("a"), salt("a", cache_salt="b"), salt("a", cache_salt="/b"), salt("ab")),
        *(salt("b"), salt("b", cache_salt="a"), salt("b", cache_salt="a/b")),
    ]
    assert len(set(salts)) == len(salts)
    assert "" not in salts
    assert salt("a") == salt("a")
