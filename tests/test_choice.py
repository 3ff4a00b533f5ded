"""Ids to deltas: the same text however the ids come, up to the first stop, and honest logprobs."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from hypothesis import given, strategies as st

from model.batch import TokenLogprobs
from service.api.choice import Choice, Delta
from service.api.schema import CompletionRequest
from service.engine.messages import Event
from service.text.stops import StopChecker
from tests.fakes import END, START, make_text

TOKENIZER = make_text().tokenizer
Reason = Literal["stop", "length"]
PROMPT = "é!"


def make_choice(**asked: Any) -> Choice:
    request = CompletionRequest.model_validate({"prompt": PROMPT, "logprobs": 5} | asked)
    stops = StopChecker(request.stop, include_stop=request.include_stop_str_in_output)
    return Choice(0, TOKENIZER, stops, request, list(PROMPT.encode()))


def event(ids: Sequence[int], reason: Reason | None = None, logprob: float | None = None) -> Event:
    logprobs = [] if logprob is None else [TokenLogprobs(logprob, [(id_, logprob)]) for id_ in ids]
    return Event(request_id="a", token_ids=ids, logprobs=logprobs, finish_reason=reason)


def run(choice: Choice, *events: Event) -> list[Delta]:
    """As the generation does: nothing is pushed after the end."""
    return [choice.push(one) for one in events if choice.finish_reason is None]


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_a_character_comes_whole() -> None:
    rocket = "🚀".encode()
    deltas = run(make_choice(), *(event([byte]) for byte in rocket))
    assert [delta.text for delta in deltas] == ["", "", "", "🚀"]


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    [delta] = run(make_choice(), event([*b"a", 0xF0, 0x9F], "length"))
    assert (delta.text, delta.finish_reason) == ("a\ufffd", "length")


def test_the_ending_token_counts_but_is_no_text() -> None:
    for asked in ({}, {"skip_special_tokens": False}):
        choice = make_choice(**asked)
        [delta] = run(choice, event([*b"Hi", END], "stop"))
        assert (delta.text, delta.finish_reason, choice.num_tokens) == ("Hi", "stop", 3)


def test_a_stop_token_that_is_text_is_shown_only_if_asked() -> None:
    for include, text in ((False, "Hi"), (True, "Hi!")):
        choice = make_choice(include_stop_str_in_output=include)
        [delta] = run(choice, event(b"Hi!", "stop"))
        assert (delta.text, choice.num_tokens) == (text, 3)


def test_special_tokens_amid_the_text_are_skipped_unless_asked() -> None:
    ids = [*b"a", START, *b"b"]
    assert text_of(run(make_choice(), event(ids, "length"))) == "ab"
    shown = make_choice(skip_special_tokens=False)
    assert text_of(run(shown, event(ids, "length"))) == "a<|start|>b"


def test_a_stop_string_ends_the_choice_at_its_last_token() -> None:
    choice = make_choice(stop=["END"])
    deltas = run(choice, event(b"one E"), event(b"ND two"), event(b"three"))
    assert [delta.text for delta in deltas] == ["one ", ""]
    assert deltas[-1].finish_reason == "stop"
    assert choice.num_tokens == len("one END")


def test_a_stop_string_that_does_not_come_true_is_text() -> None:
    deltas = run(make_choice(stop=["END"]), event(b"EN"), event([END], "stop"))
    assert [delta.text for delta in deltas] == ["", "EN"]


def test_a_stop_string_may_be_completed_by_the_broken_end() -> None:
    [delta] = run(make_choice(stop=["\ufffd"]), event([*b"a", 0xF0], "length"))
    assert (delta.text, delta.finish_reason) == ("a", "stop")


def test_logprobs_wait_for_the_text_of_their_token() -> None:
    choice = make_choice(stop=["ab!"])
    held, released, last = run(
        choice, event(b"a", logprob=-1), event(b"c", logprob=-2), event([END], "stop", logprob=-3)
    )
    assert (held.text, held.logprobs) == ("", ())
    assert released.text == "ac"
    assert [entry.chosen.logprob for entry in released.logprobs] == [-1, -2]
    assert last.logprobs == []  # the end has no entry, as it has no text


def test_text_offsets_are_places_in_the_text() -> None:
    ids = [*"é".encode(), START, *b"x"]
    [delta] = run(make_choice(), event(ids, "length", logprob=-1))
    assert [entry.text_offset for entry in delta.logprobs] == [0, 0, 1, 1]
    assert b"".join(entry.chosen.text_bytes for entry in delta.logprobs) == "éx".encode()
    assert delta.logprobs[2].chosen.spelling == b"<|start|>"


def test_what_is_not_finite_has_a_number() -> None:
    for value in (float("-inf"), float("nan")):
        [delta] = run(make_choice(), event(b"x", "length", logprob=value))
        assert delta.logprobs[0].chosen.logprob == -9999.0
        assert delta.logprobs[0].top[0].logprob == -9999.0


def test_a_choice_without_a_token_is_the_least_likely() -> None:
    choice = make_choice()
    assert choice.mean_logprob < -9999
    run(choice, event(b"ab", "length", logprob=-2))
    assert choice.mean_logprob == -2


IDS = st.lists(st.sampled_from([*b"ab", *"é🚀".encode(), START]), max_size=12)


STOPS = st.lists(st.sampled_from(["ab", "éa", "🚀"]), max_size=3)


@given(ids=IDS, cuts=st.sets(st.integers(0, 12)), stops=STOPS)
def test_how_the_ids_are_cut_does_not_matter(
    ids: list[int], cuts: set[int], stops: list[str]
) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    pieces = [event(ids[i:j]) for i, j in pairwise(bounds)]
    whole, split = make_choice(stop=stops), make_choice(stop=stops)
    [expected] = run(whole, event([*ids, END], "stop"))
    deltas = run(split, *pieces, event([END], "stop"))
    assert text_of(deltas) == expected.text
    assert split.num_tokens == whole.num_tokens
    assert deltas[-1].finish_reason == expected.finish_reason
    assert all(delta.finish_reason is None for delta in deltas[:-1])
