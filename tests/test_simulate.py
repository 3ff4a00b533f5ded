"""A simulation plays a trace on the real engine, in virtual time, and reports what came of it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.batch import Batch, Row, SamplingParams
from service import cli
from service.config import ConfigError, EngineConfig, SimulationConfig
from service.engine.engine import Engine
from service.simulation.machine import (
    NO_LIMIT,
    SimulatedRunner,
    StepCost,
    VirtualClock,
    parse_step_cost,
)
from service.simulation.replay import Prompts, replay
from service.simulation.report import Quantiles, Report, jain_index, make_report, quantiles, to_text
from service.simulation.tally import Tally
from service.simulation.trace import TracedRequest, TraceError, at_rate, make_trace, read_trace

HUNDREDTH = StepCost(base=0.01)


def simulate(
    trace: list[TracedRequest],
    *,
    cost: StepCost = HUNDREDTH,
    num_pages: int = 4096,
    max_model_len: int = NO_LIMIT,
    max_sequences: int = 64,
) -> Tally:
    clock = VirtualClock()
    runner = SimulatedRunner(
        clock, cost, num_pages=num_pages, page_size=16, max_model_len=max_model_len
    )
    engine = Engine(runner, max_batch_tokens=512, max_sequences=max_sequences, clock=clock)
    tally = replay(trace, engine, clock)
    engine.check_integrity()
    return tally


def report_of(trace: list[TracedRequest], **options: Any) -> Report:
    return make_report(simulate(trace, **options))


def ask(arrival: float = 0.0, prompt_len: int = 4, output_len: int = 3, **rest: Any) -> Any:
    return TracedRequest(arrival=arrival, prompt_len=prompt_len, output_len=output_len, **rest)


def entry(**changes: Any) -> str:
    return json.dumps({"timestamp": 0, "input_length": 600, "output_length": 5} | changes)


def all_of(times: Quantiles | None) -> list[float]:
    return [times.p50, times.p90, times.p99] if times else []


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], list[TracedRequest]]:
    def read(text: str) -> list[TracedRequest]:
        path = tmp_path / "trace"
        path.write_text(text)
        return read_trace(path)

    return read


# The machine


def test_a_step_costs_its_terms() -> None:
    cost = StepCost(base=1.0, prompt=0.1, decode=10.0, context=1000.0)
    decode = Row([7], 4, [0], SamplingParams())  # reads 4 tokens and its own
    chunk = Row([7, 8, 9], 2, [1], None)  # reads 2 and 3
    assert cost.seconds([]) == 1.0
    assert cost.seconds([decode]) == pytest.approx(1.0 + 10.0 + 5)
    assert cost.seconds([decode, chunk]) == pytest.approx(1.0 + 10.0 + 0.3 + 5 + 5)


def test_a_run_moves_the_clock_and_samples_where_asked() -> None:
    clock = VirtualClock()
    runner = SimulatedRunner(clock, HUNDREDTH, num_pages=2, page_size=16)
    output = runner.run(Batch([Row([7], 4, [0], SamplingParams()), Row([7, 8], 0, [1], None)]))
    assert [sampled is None for sampled in output.sampled] == [False, True]
    assert clock() == 0.01


def test_step_costs_are_read_by_name_and_unit() -> None:
    cost = parse_step_cost("base=8ms, prompt=400us,decode=0.5s,context=20ns")
    assert cost == StepCost(base=0.008, prompt=0.0004, decode=0.5, context=2e-8)
    assert parse_step_cost("base=1s") == StepCost(base=1.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is no term: write base, prompt, decode, context as base=8ms"),
        ("base=8", "'base=8' is no term"),
        ("base=8ms,,", "'' is no term"),
        ("base=-1ms", "'base=-1ms' is no term"),
        ("base=8ms,wheel=2ms", "'wheel=2ms' is no term"),
        (f"base={'9' * 400}s", "is no term"),
        ("base=8ms,base=9ms", "give base once"),
        ("decode=8ms", "give base, or prompt and decode, more than 0"),
        ("base=0ms", "give base, or prompt and decode, more than 0"),
    ],
)
def test_bad_step_costs_are_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_step_cost(text)
    assert str(error.value).startswith(f"--step-cost is {text!r}: ")
    assert problem in str(error.value)


# Traces


def test_a_mooncake_trace_is_read_in_order_of_arrival(read: Any) -> None:
    line = '{"timestamp": %d, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}\n'
    assert read(line % 3500 + "\n" + line % 500) == [
        ask(arrival, 600, 52, hash_ids=(46, 47)) for arrival in (0.0, 3.0)
    ]


def test_a_trace_may_name_tenants(read: Any) -> None:
    line = entry(input_length=6, tenant="a", weight=2, priority=-1)
    assert read(line) == [ask(0.0, 6, 5, tenant="a", weight=2, priority=-1)]


def test_an_azure_trace_is_read(read: Any) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:17:03.9799600,4808,10\r\n"
        "2023-11-16 18:17:05.479960+00:00,110,27\r\n"
    )
    assert read(text) == [ask(0.0, 4808, 10), ask(1.5, 110, 27)]


LENGTH = "give a whole number from 0 to 10000000"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (entry(input_length=-1), f"input_length is -1: {LENGTH}"),
        (entry(input_length=10**30), f"input_length is {10**30}: {LENGTH}"),
        (entry(output_length="5"), f"output_length is '5': {LENGTH}"),
        (entry(output_length=True), f"output_length is True: {LENGTH}"),
        ('{"timestamp": 0, "input_length": 1}', f"output_length is missing: {LENGTH}"),
        (entry(timestamp=-1), "timestamp is -1: give a number from 0 to"),
        (entry(timestamp=None), "timestamp is None: give a number from 0 to"),
        (entry(weight=0), "weight is 0: give a number from 0.1 to 1000000"),
        (entry(tenant=5), "tenant is 5: give a string"),
        (entry(priority=0.5), "priority is 0.5: give a whole number from -2147483648 to"),
        (entry(hash_ids=7), "hash_ids is 7: give a list of whole numbers"),
        (entry(hash_ids=["7"]), "hash_ids is ['7']: give a list of whole numbers"),
        (entry(hash_ids=[1, 2, 3]), "hash_ids is [1, 2, 3]: give 2 or fewer, one for each 512"),
    ],
)
def test_a_bad_field_is_named_with_its_line_and_value(read: Any, line: str, problem: str) -> None:
    with pytest.raises(TraceError) as error:
        read(entry() + "\n" + line)
    assert str(error.value).startswith(f"line 2 of the trace: {problem}")


@pytest.mark.parametrize("line", ["[]", "{", "x", '{"timestamp": NaN}'])
def test_a_line_that_is_no_object_is_shown(read: Any, line: str) -> None:
    with pytest.raises(TraceError) as error:
        read(entry() + "\n" + line)
    assert str(error.value).startswith(f"line 2 of the trace is {line!r}: write a JSON object")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("soon,1,2", "TIMESTAMP is 'soon': give a date and time, as 2023-"),
        ("", "TIMESTAMP is '': give a date and time"),
        ("2023-11-16 18:17:03,x,2", f"ContextTokens is 'x': {LENGTH}"),
        ("2023-11-16 18:17:03,1", f"GeneratedTokens is missing: {LENGTH}"),
    ],
)
def test_a_bad_cell_is_named_with_its_line_and_value(read: Any, line: str, problem: str) -> None:
    with pytest.raises(TraceError) as error:
        read(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{line}\n")
    assert str(error.value).startswith(f"line 2 of the trace: {problem}")


@pytest.mark.parametrize("text", ["", "\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n"])
def test_a_trace_without_requests_is_refused(read: Any, text: str) -> None:
    with pytest.raises(TraceError, match="holds no request: give one in each line"):
        read(text)


def test_a_made_up_trace_has_the_means_asked_for() -> None:
    trace = make_trace(20_000, rate=5.0, prompt_len=100, output_len=1, seed=3)
    assert trace[-1].arrival == pytest.approx(20_000 / 5, rel=0.05)
    assert np.mean([request.prompt_len for request in trace]) == pytest.approx(100, rel=0.05)
    assert min(request.prompt_len for request in trace) == 1
    assert {request.output_len for request in trace} == {1}
    assert trace == make_trace(20_000, rate=5.0, prompt_len=100, output_len=1, seed=3)
    assert trace != make_trace(20_000, rate=5.0, prompt_len=100, output_len=1, seed=4)


def test_a_trace_can_be_played_at_another_rate() -> None:
    trace = [ask(0.0), ask(1.0), ask(4.0)]
    assert [request.arrival for request in at_rate(trace, 1.0)] == [0.0, 0.5, 2.0]
    with pytest.raises(TraceError, match="all come at once: leave out --rate"):
        at_rate([ask(), ask()], 1.0)


def test_prompts_begin_alike_where_their_blocks_do() -> None:
    prompts = Prompts()
    first = prompts.ids(ask(prompt_len=600, hash_ids=(5, 6)))
    second = prompts.ids(ask(prompt_len=1030, hash_ids=(5, 7)))
    own = prompts.ids(ask(prompt_len=600))
    assert [len(ids) for ids in (first, second, own)] == [600, 1030, 600]
    assert first[:512] == second[:512]
    assert first[512] != second[512]
    assert own[0] not in {*first, *second, *prompts.ids(ask(prompt_len=2))}


# What comes of it


def test_one_request_takes_its_steps_and_the_clock_jumps_to_the_next() -> None:
    report = report_of([ask(0.0), ask(100.0)])
    assert report.seconds == pytest.approx(100.03)
    assert all_of(report.ttft) == pytest.approx([0.01] * 3)
    assert all_of(report.itl) == pytest.approx([0.01] * 3)
    assert all_of(report.end_to_end) == pytest.approx([0.03] * 3)
    assert report.queue == Quantiles(0.0, 0.0, 0.0)
    assert (report.steps, report.rows.mean, report.rows.max) == (6, 1.0, 1)
    assert report.pages.mean == pytest.approx(2 / 3)  # none are held after the last of 3 steps
    assert (report.pages.max, report.num_pages) == (1, 4096)


def test_who_comes_during_a_step_has_waited_for_its_end() -> None:
    report = report_of([ask(0.0), ask(0.004)], max_sequences=1)
    assert report.queue is not None
    assert report.queue.p50 == pytest.approx((0.0 + 0.026) / 2)
    assert report.ttft is not None
    assert report.ttft.p50 == pytest.approx((0.01 + 0.036) / 2)


def test_all_tokens_are_counted() -> None:
    trace = make_trace(300, rate=50.0, prompt_len=60, output_len=20, seed=1)
    tally = simulate(trace)
    num_prompt_tokens = sum(request.prompt_len for request in trace)
    num_output_tokens = sum(request.output_len for request in trace)
    assert tally.num_prompt_tokens == num_prompt_tokens
    assert tally.num_output_tokens == num_output_tokens
    assert tally.tenants[""].num_tokens == num_prompt_tokens + num_output_tokens
    assert len(tally.first_token_seconds) == tally.num_finished == 300
    assert len(tally.gap_seconds) == num_output_tokens - 300
    report = make_report(tally)
    assert report.output_tokens_per_second * report.seconds == pytest.approx(num_output_tokens)
    assert report.prompt_tokens_per_second * report.seconds == pytest.approx(num_prompt_tokens)
    assert report.requests_per_second * report.seconds == pytest.approx(300)


def test_the_same_trace_gives_the_same_report() -> None:
    trace = make_trace(200, rate=50.0, prompt_len=60, output_len=20, seed=1)
    cost = parse_step_cost("base=8ms,prompt=400us,decode=600us,context=2us")
    assert report_of(trace, cost=cost) == report_of(trace, cost=cost)


def test_what_can_never_run_is_refused_and_the_rest_goes_on() -> None:
    fits, too_long = ask(0.0, 20, 12), ask(0.0, 20, 13)
    never = [ask(0.0, 0, 5), ask(0.0, 5, 0)]
    for options in ({"num_pages": 2}, {"max_model_len": 32}):
        report = report_of([too_long, *never, fits], **options)
        assert (report.requests, report.finished, report.refused) == (4, 1, 3)


def test_with_nothing_but_refusals_there_are_no_times() -> None:
    report = report_of([ask(0.0, 20, 100)], num_pages=2)
    assert (report.finished, report.ttft, report.itl, report.queue) == (0, None, None, None)
    assert (report.seconds, report.requests_per_second, report.pages.mean) == (0.0, 0.0, 0.0)
    assert "first token \n" in to_text(report)


def test_the_cache_serves_prompts_that_begin_alike() -> None:
    trace = [ask(at, 1024, 2, hash_ids=(1, own)) for at, own in [(0.0, 2), (10.0, 3)]]
    assert report_of(trace).prefix_hit_share == pytest.approx(512 / 2048)


def test_short_pages_make_preemptions_that_cost_time_but_no_tokens() -> None:
    trace = [ask(0.0, 16, 48) for _ in range(4)]
    ample, short = report_of(trace), report_of(trace, num_pages=8)
    assert ample.preemptions == 0 < short.preemptions
    assert short.finished == 4
    assert short.seconds > ample.seconds
    assert short.pages.max <= short.num_pages == 8


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_quantiles_are_numpy_s(size: int) -> None:
    values = np.random.default_rng(size).exponential(size=size)
    found = quantiles(values.tolist())
    assert found is not None
    assert (found.p50, found.p90, found.p99) == pytest.approx(
        tuple(np.quantile(values, [0.5, 0.9, 0.99]))
    )


def test_jain_s_index_is_one_over_n_at_worst() -> None:
    assert jain_index([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain_index([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain_index([]) is None


def test_tenants_are_told_apart_while_they_wait() -> None:
    trace = [ask(0.0, 10, 10, tenant=name) for name in "ab" for _ in range(400)]
    trace += [ask(50.0, 10, 10, tenant="c")]
    report = report_of(trace, max_sequences=4)
    tokens = {"a": 8000, "b": 8000, "c": 20}
    assert {name: t.tokens for name, t in report.tenants.items()} == tokens
    assert report.tenants["a"].share_of_due == pytest.approx(1.0, abs=0.05)
    assert report.tenants["c"].share_of_due is None
    assert report.jain_index == pytest.approx(1.0, abs=0.01)
    assert "Jain's index" in to_text(report)


def test_tenants_that_never_wait_together_have_no_index() -> None:
    report = report_of([ask(0.0, tenant="a"), ask(100.0, tenant="b")])
    assert report.jain_index is None
    assert to_text(report).splitlines()[-1].split() == ["b", "1", "7"]


# The command


def octavo(
    *arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["octavo", "simulate", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


def test_the_command_prints_text_or_the_same_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--requests", "20", "--rate", "10", "--seed", "5"]
    code, text, _ = octavo(*flags, monkeypatch=monkeypatch, capsys=capsys)
    assert (code, text.splitlines()[0][:30]) == (0, "requests      20: 20 finished,")
    code, out, _ = octavo(*flags, "--json", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert json.loads(out)["finished"] == 20
    assert f"{json.loads(out)['itl']['p99']:.3f}" in text


def test_the_command_plays_a_trace_cut_and_at_a_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(entry(timestamp=1000 * second) for second in range(10)))
    flags = ["--trace", str(trace), "--requests", "5", "--json"]
    _, out, _ = octavo(*flags, monkeypatch=monkeypatch, capsys=capsys)
    assert json.loads(out)["requests"] == 5
    assert 4 < json.loads(out)["seconds"] < 5
    _, out, _ = octavo(*flags, "--rate", "0.1", monkeypatch=monkeypatch, capsys=capsys)
    assert 40 < json.loads(out)["seconds"] < 41


@pytest.mark.parametrize(
    ("flags", "code", "problem"),
    [
        (["--trace", "nowhere.jsonl"], 1, "No such file or directory: 'nowhere.jsonl'"),
        (["--step-cost", "base"], 2, "--step-cost is 'base': 'base' is no term"),
        (["--trace", "x", "--seed", "1"], 2, "--seed is 1: leave it out: --trace says it"),
    ],
)
def test_the_command_s_errors_are_one_line(
    flags: list[str],
    code: int,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exit_code, out, err = octavo(*flags, monkeypatch=monkeypatch, capsys=capsys)
    assert (exit_code, out) == (code, "")
    assert problem in err
    assert err.count("\n") == 1


def test_the_scheduler_s_limits_are_those_of_serving() -> None:
    simulated, served = SimulationConfig(), EngineConfig()
    assert simulated.max_batch_tokens == served.max_batch_tokens
    assert simulated.max_sequences == served.max_sequences
