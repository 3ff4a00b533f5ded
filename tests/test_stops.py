"""Stop strings: the same text for every cut, nothing held back that needn't be."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import example, given, settings, strategies as st

from service.text.stops import StopChecker

TEXTS = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4)


def reference(text: str, stops: Sequence[str], *, include_stop: bool) -> tuple[str, str | None]:
    """By definition: the shortest beginning of the text that ends with a stop."""
    for end in range(len(text) + 1):
        if complete := [stop for stop in stops if text[:end].endswith(stop)]:
            stop = max(complete, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


@settings(deadline=None)
@given(text=TEXTS, stops=STOPS, cuts=st.sets(st.integers(0, 30)), include_stop=st.booleans())
@example(text="abcd", stops=["abcd", "bc"], cuts=set(), include_stop=False)
@example(text="aab", stops=["ab", "aab"], cuts={2}, include_stop=False)
def test_every_cut_gives_the_text_up_to_the_first_complete_stop(
    text: str, stops: list[str], cuts: set[int], include_stop: bool
) -> None:
    checker = StopChecker(stops, include_stop=include_stop)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(bounds)]
    got = "".join(map(checker.push, pieces)) + checker.flush()
    assert (got, checker.matched) == reference(text, stops, include_stop=include_stop)


@settings(deadline=None)
@given(text=TEXTS, stops=STOPS)
def test_exactly_the_longest_possible_beginning_of_a_stop_is_held_back(
    text: str, stops: list[str]
) -> None:
    checker = StopChecker(stops)
    passed = checker.push(text)
    if checker.matched is None:
        beginnings = {stop[:end] for stop in stops for end in range(len(stop))}
        longest = max((len(b) for b in beginnings if text.endswith(b)), default=0)
        assert passed == text[: len(text) - longest]
        assert checker.flush() == text[len(text) - longest :]


def test_nothing_comes_after_a_stop() -> None:
    checker = StopChecker(["\n\n"])
    assert checker.push("one\n") == "one"
    assert checker.push("\ntwo") == ""
    assert checker.matched == "\n\n"
    assert checker.push("three") == ""
    assert checker.flush() == ""


def test_the_stop_itself_can_be_kept_even_where_it_was_held_back() -> None:
    checker = StopChecker(["END"], include_stop=True)
    assert [checker.push(piece) for piece in ("an E", "N", "D and more")] == ["an ", "", "END"]


def test_text_passes_at_once_without_stops() -> None:
    checker = StopChecker([])
    assert checker.push("anything") == "anything"
    assert checker.flush() == ""
    assert checker.matched is None
