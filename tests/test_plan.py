"""What the engine is asked to do for a call."""

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

ANYBODYS = Caller()


def make_plan(*prompts: list[int], caller: Caller = ANYBODYS, **fields: Any) -> list[Request]:
    serving: Serving = Client().app.state.served.serving()
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
    with pytest.raises(ApiError, match="stop_token_ids has 258"):
        make_plan(stop_token_ids=[VOCAB_SIZE])


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
