"""Where `octavo bench` is put together: plan, server, levels, report."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from loadtests import drive, machine, monitor, options, page, plots, server, table
from loadtests.drive import Driven
from loadtests.errors import BenchError
from loadtests.options import ROUNDS, Comparison, Plan
from loadtests.prompts import Text, Work, Workload
from loadtests.results import VERSION, Level, Report, make_level
from loadtests.shapes import SHAPES
from loadtests.stream import Target

BROKEN_CODE, USAGE_CODE = 1, 2
BUSY_SHARE = 0.7
"""Of a core: with less to spare, the generator itself makes others wait."""


def main() -> None:
    try:
        sys.exit(run(sys.argv[1:]))
    except (BenchError, OSError) as error:
        complain(str(error))
        sys.exit(USAGE_CODE)


def run(arguments: Sequence[str]) -> int:
    """The exit code: 1 if an objective was named and not kept, or no answer came whole."""
    plan = options.parse(arguments)
    plan.out.mkdir(parents=True, exist_ok=True)
    if isinstance(plan, Comparison):
        compare(plan)
        return 0
    report = measure(plan)
    publish(report, plan.out)
    return verdict(plan, report)


def measure(plan: Plan) -> Report:
    with served(plan) as target:
        model = plan.served_name or server.first_model(target)
        description = server.describe(target, model) | ({} if plan.url else server.knobs())
        text = Text(options.read_text(plan.text_file))
        warm_up(plan, target, _works(plan, text, model, "warm-up"))
        levels = []
        for index, load in enumerate(plan.load.levels):
            works = _works(plan, text, model, str(index))
            levels.append(measure_level(plan, target, load, works))
            print(f"{levels[-1].label}: {levels[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    return Report(
        version=VERSION,
        label=plan.label,
        started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        scenario=plan.mix.name,
        seed=plan.seed,
        work=describe_work(plan),
        objectives=",".join(map(str, plan.objectives)),
        machine=machine.describe(),
        server=description,
        levels=levels,
    )


@contextmanager
def served(plan: Plan) -> Iterator[Target]:
    """What is at the address, or else a server of our own."""
    target = Target(
        url=plan.url or "",
        api_key=plan.api_key,
        timeout=plan.timeout,
        sends_done=plan.sends_done,
    )
    if plan.url:
        yield target
    else:
        with server.started(plan.model, plan.out / "server.log") as url:
            yield replace(target, url=url)


def _works(plan: Plan, text: Text, model: str, part: str) -> Iterator[Work]:
    seed = f"{plan.seed}-{part}"
    workload = Workload(plan.mix, text, model=model, seed=seed, temperature=plan.temperature)
    return iter(workload)


def warm_up(plan: Plan, target: Target, works: Iterator[Work]) -> None:
    """A server that answers nothing as it should isn't worth measuring."""
    limited = itertools.islice(works, plan.warmup)
    observations = drive.closed_loop(target, limited, plan.warmup, plan.seconds).observations
    if all(each.fault is not None for each in observations):
        raise BenchError(f"{target.url} can't be measured: {observations[0].fault}")


def measure_level(plan: Plan, target: Target, load: float, works: Iterator[Work]) -> Level:
    with monitor.watching(target) as samples:
        driven = drive_level(plan, target, load, works)
    return make_level(
        plan.load.kind,
        load,
        driven.observations,
        objectives=plan.objectives,
        cpu_seconds=driven.cpu_seconds,
        samples=samples,
    )


def drive_level(plan: Plan, target: Target, load: float, works: Iterator[Work]) -> Driven:
    limited = itertools.islice(works, plan.requests)
    if plan.load.kind == "rate":
        return drive.open_loop(target, limited, load, plan.seconds, plan.seed)
    users = round(load)
    if plan.load.shape is not None:
        return drive.shaped(target, limited, SHAPES[plan.load.shape](users, plan.seconds))
    if plan.requests is not None:
        limited = itertools.islice(works, max(plan.requests, ROUNDS * users))
    return drive.closed_loop(target, limited, users, plan.seconds)


def describe_work(plan: Plan) -> dict[str, str]:
    requests = "as many as there was time for" if plan.requests is None else str(plan.requests)
    work = {
        "load": plan.load.shape or plan.load.kind,
        "requests of a level": requests,
        "seconds of a level": f"{plan.seconds:g}",
        "temperature": f"{plan.temperature:g}",
    }
    for scenario in plan.mix.scenarios:
        work[scenario.name] = (
            f"about {scenario.prompt_tokens.median} tokens to read, "
            f"{scenario.output_tokens.median} to write, in the median"
        )
    return work


def publish(report: Report, out: Path) -> None:
    pictures = plots.save(plots.draw([report]), out)
    (out / "report.html").write_text(page.render(report, pictures))
    (out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    print(f"\n{table.to_text(table.rows(report.levels))}\n\n{table.LEGEND}\n\n{out}/report.html")


def verdict(plan: Plan, report: Report) -> int:
    for level in report.levels:
        if level.errors:
            complain(f"{level.label}: {level.first_error}")
        if level.generator_cpu_share > BUSY_SHARE:
            complain(
                f"{level.label}: this program was short of CPU: measure with locust --processes"
            )
    if any(level.requests == sum(level.errors.values()) for level in report.levels):
        return BROKEN_CODE
    if not plan.must_keep:
        return 0
    broken = [f"{level.label}: {each}" for level in report.levels for each in level.broken]
    for line in broken:
        complain(f"not kept: {line}")
    return BROKEN_CODE if broken else 0


def complain(line: str) -> None:
    print(f"octavo bench: {line}", file=sys.stderr)


def compare(comparison: Comparison) -> None:
    before, after = (read(file) for file in (comparison.before, comparison.after))
    if before.scenario != after.scenario:
        raise BenchError(
            f"{before.scenario} and {after.scenario} are different work, whose ratio says nothing"
        )
    if not table.pairs(before, after):
        raise BenchError("the two reports have no load in common: run both with the same levels")
    if before.label == after.label:
        before = msgspec.structs.replace(before, label="before")
        after = msgspec.structs.replace(after, label="after")
    pictures = plots.save(plots.draw([before, after]), comparison.out)
    (comparison.out / "compare.html").write_text(page.render_comparison(before, after, pictures))
    print(f"{after.label} / {before.label}\n")
    print(table.to_text(table.ratio_rows(before, after)))
    print(f"\n{comparison.out}/compare.html")


def read(file: Path) -> Report:
    try:
        report = msgspec.json.decode(options.read_text(file), type=Report)
    except msgspec.DecodeError as error:
        raise BenchError(f"{file} is no report of octavo bench: {error}") from None
    if report.version != VERSION:
        raise BenchError(f"{file} is of version {report.version}, not {VERSION}: measure it anew")
    return report
