"""What load tests ask, when, and how their figures come from what was observed."""

import itertools
import json
import random
import re
import statistics
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from loadtests import monitor, options, page, scenarios, slo, table
from loadtests.errors import BenchError
from loadtests.options import Comparison, Plan
from loadtests.prompts import TEXT, Text, Work, Workload
from loadtests.results import Report, make_level, make_times
from loadtests.scenarios import Lengths
from loadtests.shapes import SHAPES, Stage, poisson_arrivals, spike, users_at
from loadtests.stream import Fault, Observation, StreamError

LOADTESTS = Path(options.__file__).parent
NAMES = list(scenarios.load())
ALICE = Text(TEXT.read_text())


def works(name: str, num: int, seed: str = "1") -> list[Work]:
    mix = scenarios.load()[name]
    workload = Workload(mix, ALICE, model="m", seed=seed, temperature=0.5)
    return list(itertools.islice(workload, num))


def prompt_of(work: Work) -> str:
    """The user's part."""
    return str(work.body.get("prompt") or work.body["messages"][-1]["content"])


@pytest.mark.parametrize("name", NAMES)
def test_all_prompts_differ_in_their_first_characters(name: str) -> None:
    prompts = [prompt_of(work) for seed in ("1", "2") for work in works(name, 200, seed)]
    assert len({prompt[:10] for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_decides_what_is_asked(name: str) -> None:
    assert works(name, 20) == works(name, 20)
    assert works(name, 20) != works(name, 20, "2")


@pytest.mark.parametrize("name", NAMES)
def test_bodies_ask_for_a_stream_with_usage_and_no_more_than_is_said(name: str) -> None:
    for work in works(name, 20):
        assert work.body["stream_options"] == {"include_usage": True}
        assert (work.body["model"], work.body["stream"]) == ("m", True)
        assert (work.body["temperature"], work.body["max_tokens"]) == (0.5, work.max_tokens)
        assert work.body.get("ignore_eos", False) == work.is_exact
        assert ("messages" in work.body) == work.path.endswith("/chat/completions")
        assert ("response_format" in work.body) == work.is_json


def test_a_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    systems = {work.body["messages"][0]["content"] for work in works("shared-prefix", 20)}
    assert len(systems) == 1
    assert len(systems.pop()) > 1000


def test_prompts_are_as_long_as_was_drawn() -> None:
    lengths = [len(prompt_of(work)) / 4 for work in works("long-prompt", 200)]
    assert 400 < statistics.median(lengths) < 640
    assert max(lengths) < 1025
    assert len(set(lengths)) > 100


def test_passages_are_of_any_length() -> None:
    for num_tokens in (1, 50, 100_000):
        passage = ALICE.passage(random.Random(0), num_tokens)
        assert 0 <= num_tokens * 4 - len(passage) <= 1


def test_a_mix_is_mixed_by_its_weights() -> None:
    counts = Counter(work.scenario for work in works("mixed", 1200))
    assert counts.keys() == {
        "chat-short",
        "long-prompt",
        "long-answer",
        "shared-prefix",
        "completions",
    }
    assert 500 < counts["chat-short"] < 700
    assert 50 < counts["completions"] < 150


def test_lengths_keep_their_bounds() -> None:
    lengths = Lengths(median=10, spread=2.0, most=40)
    drawn = [lengths.draw(random.Random(seed)) for seed in range(500)]
    assert (min(drawn), max(drawn)) == (1, 40)
    assert scenarios.fixed(7).draw(random.Random(0)) == 7


def test_a_misspelt_scenario_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "scenarios.toml"
    file.write_text(scenarios.FILE.read_text().replace("ignore_eos", "ignore_eso"))
    with pytest.raises(msgspec.ValidationError, match="ignore_eso"):
        scenarios.load(file)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_end_in_time_and_reach_their_peak(name: str) -> None:
    stages = SHAPES[name](32, 100.0)
    ends = [stage.until for stage in stages]
    assert ends == sorted(ends)
    assert ends[-1] == 100.0
    assert max(stage.users for stage in stages) == 32
    assert min(stage.users for stage in SHAPES[name](1, 10.0)) == 1


def test_a_stage_lasts_until_the_next() -> None:
    stages = spike(16, 10.0)
    assert stages == [Stage(4.0, 2), Stage(6.0, 16), Stage(10.0, 2)]
    assert [users_at(stages, at) for at in (0, 3.9, 4, 6, 9.9, 10)] == [2, 2, 16, 2, 2, None]


def test_arrivals_are_as_frequent_as_was_said() -> None:
    arrivals = list(itertools.islice(poisson_arrivals(4.0, seed=1), 4001))
    assert arrivals[0] == 0
    assert 950 < arrivals[-1] < 1050
    assert arrivals[:9] == list(itertools.islice(poisson_arrivals(4.0, seed=1), 9))


def observation(
    times: list[float], *, due: float = 0.0, sent: float | None = None, fault: Fault | None = None
) -> Observation:
    """Of a request whose answer had a token at each of the times."""
    work = works("chat-short", 1)[0]
    return Observation(
        work,
        due=due,
        sent=due if sent is None else sent,
        times=times,
        ended=times[-1],
        usage={"prompt_tokens": 10, "completion_tokens": len(times)},
        fault=StreamError(fault, "why") if fault else None,
    )


def report(label: str, *observations: Observation, objectives: str = "ttft_p50=1s") -> Report:
    level = make_level(
        "concurrency",
        2,
        observations,
        objectives=slo.parse(objectives),
        cpu_seconds=0.5,
        samples=[],
    )
    return Report(
        version=1,
        label=label,
        started="now",
        scenario="chat-short",
        seed=1,
        work={},
        objectives=objectives,
        machine={"processor": "<b>"},
        server={},
        levels=[level],
    )


def test_a_level_counts_what_came_whole() -> None:
    (level,) = report(
        "a",
        observation([1.0, 1.5, 2.0]),
        observation([2.0, 4.0], due=0.5, sent=0.75),
        observation([5.0], fault="cut stream"),
    ).levels
    assert (level.requests, level.errors) == (3, {"cut stream": 1})
    assert level.first_error == "cut stream: why"
    assert level.seconds == 5.0
    assert level.output_tokens_per_second == 1.0
    assert level.prompt_tokens_per_second == 4.0
    assert level.requests_per_second == 0.4
    assert level.ttft is not None
    assert (level.ttft.p50, level.ttft.curve[0], level.ttft.curve[100]) == (1.25, 1.0, 1.5)
    assert level.itl is not None
    assert (level.itl.p50, level.itl.mean) == (0.5, 1.0)
    assert level.tpot is not None
    assert level.tpot.p50 == 1.25
    assert level.late == 0.25
    assert level.generator_cpu_share == 0.1
    assert (level.good_share, level.good_requests_per_second) == (1 / 3, 0.2)
    assert level.broken == ["ttft_p50=1000ms: it was 1250.0ms"]


def test_a_level_without_an_answer_has_no_times_and_keeps_nothing() -> None:
    (level,) = report("a", observation([1.0], fault="5xx")).levels
    assert (level.ttft, level.itl, level.good_share) == (None, None, 0.0)
    assert level.broken == ["ttft_p50=1000ms: no answer came whole"]
    assert table.rows([level])[1][1] == "0/1"


def test_percentiles_are_interpolated() -> None:
    times = make_times([0.0, 1.0])
    assert times is not None
    assert (times.p50, times.p95, times.mean) == (0.5, 0.95, 0.5)


def test_objectives_are_read_as_they_are_written() -> None:
    text = "ttft_p95=500ms,itl_p99.9=80ms,errors=1%"
    assert ",".join(map(str, slo.parse(text))) == text
    assert slo.parse("latency_p50=2s")[0].limit == 2.0


@pytest.mark.parametrize(
    "text", ["", "ttft=1s", "ttft_p95=1", "ttft_p101=1s", "speed_p50=1s", "errors=1", "x,"]
)
def test_an_objective_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="write objectives like ttft_p95=500ms"):
        slo.parse(text)


def test_a_request_is_good_if_its_own_times_are() -> None:
    objectives = slo.parse("ttft_p95=1s,itl_p50=125ms")
    assert slo.is_good(observation([1.0, 1.125, 9.0, 9.125]), objectives)
    assert not slo.is_good(observation([1.0, 1.25]), objectives)
    assert not slo.is_good(observation([1.1, 1.2]), objectives)
    assert not slo.is_good(observation([1.0, 1.125], fault="wrong usage"), objectives)


def test_errors_are_an_objective_too() -> None:
    observations = [observation([1.0]), observation([1.0], fault="429")]
    ((objective, value),) = slo.broken(slo.parse("errors=10%"), observations)
    assert slo.tell(objective, value) == "errors=10%: it was 50.0%"
    assert slo.broken(slo.parse("errors=50%"), observations) == []


def test_ratios_are_after_by_before() -> None:
    before, after = report("a", observation([1.0, 2.0])), report("b", observation([0.5, 1.0]))
    heads, row = table.ratio_rows(before, after)
    ratios = dict(zip(heads, row, strict=True))
    assert (ratios["load"], ratios["tok/s"], ratios["ttft50"]) == ("c=2", "2.00", "0.50")


def test_a_page_stands_alone_and_escapes_what_it_was_told() -> None:
    text = page.render(report("<script>", observation([1.0, 2.0])), {"ttft": "<svg></svg>"})
    assert "&lt;script&gt;: chat-short" in text
    assert "&lt;b&gt;" in text
    assert "ttft_p50=1000ms" not in text  # it was kept
    assert not re.search(r"(src|href)=", text)


@pytest.mark.parametrize("prefix", ["octavo", "vllm"])
def test_metrics_are_read_by_either_name(prefix: str) -> None:
    text = {
        "octavo": "octavo_requests_running 3.0\noctavo_requests_waiting 1.0\n"
        "octavo_kv_cache_usage_ratio 0.5\n",
        "vllm": '# HELP x\nvllm:num_requests_running{engine="0"} 3.0\n'
        'vllm:num_requests_waiting{engine="0"} 1.0\nvllm:kv_cache_usage_perc{a="{}"} 0.5\n',
    }[prefix]
    sample = monitor.Sample(seconds=2.0, running=3.0, waiting=1.0, kv_cache_usage=0.5)
    assert monitor.parse(text, 2.0) == sample
    assert monitor.parse(text.splitlines()[0], 2.0) is None


def test_a_plan_is_what_was_asked_for() -> None:
    arguments = "--url http://h:1/v1/ --rate 0.5,2 --prompt-tokens 9 --no-ignore-eos --no-done"
    plan = options.parse([*arguments.split(), "--slo", "ttft_p95=1s", "--scenario", "mixed"])
    assert isinstance(plan, Plan)
    assert (plan.url, plan.load.kind, plan.load.levels) == ("http://h:1", "rate", (0.5, 2.0))
    assert (plan.requests, plan.must_keep, plan.sends_done) == (32, True, False)
    assert {each.prompt_tokens.median for each in plan.mix.scenarios} == {9}
    assert {each.ignore_eos for each in plan.mix.scenarios} == {False}


def test_a_shape_has_a_peak_and_no_bound_of_requests_by_itself() -> None:
    plan = options.parse(["--shape", "spike"])
    assert isinstance(plan, Plan)
    assert (plan.load.levels, plan.requests, plan.url) == ((16.0,), None, None)


def test_two_reports_are_compared() -> None:
    found = options.parse(["--compare", "a.json", "b.json", "--out", "c"])
    assert found == Comparison(before=Path("a.json"), after=Path("b.json"), out=Path("c"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--users 4", "--users is the peak of a --shape"),
        ("model --url http://h", "MODEL is for a server that is started here"),
        ("--url h:8000", "doesn't begin with http://"),
        ("--rate 0", "no positive number"),
        ("--rate x", "no positive number"),
        ("--concurrency 1,2.5", "no whole number from 1 on"),
        ("--rate 1 --concurrency 1", "not allowed with"),
        ("--compare a.json b.json --seed 2", "unrecognized arguments: --seed 2"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        options.parse(arguments.split())
    assert message in capsys.readouterr().err


def test_the_readme_shows_pictures_and_files_that_are_there() -> None:
    links = re.findall(r"\]\(([^)#]+)", (LOADTESTS / "README.md").read_text())
    local = [link for link in links if "://" not in link]
    assert local
    assert [link for link in local if not (LOADTESTS / link).exists()] == []


def test_a_report_is_read_back_as_it_was_written() -> None:
    written = report("a", observation([1.0, 2.0]))
    assert msgspec.json.decode(msgspec.json.encode(written), type=Report) == written
    assert json.loads(msgspec.json.encode(written))["levels"][0]["kind"] == "concurrency"
