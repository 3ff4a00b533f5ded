"""The command line of `octavo bench`, as a frozen plan."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadtests import scenarios, slo
from loadtests.errors import BenchError
from loadtests.prompts import TEXT
from loadtests.scenarios import Mix
from loadtests.shapes import SHAPES
from loadtests.slo import Objective

DESCRIPTION = """Measure a server under load, and write report.html, report.json and pictures.

Without --url, an `octavo serve MODEL` is started for it, on this machine, and stopped again.
"""
EPILOG = """`octavo bench --compare BEFORE.json AFTER.json` sets two reports side by side.
loadtests/README.md tells how to size a deployment from them.
"""
DEFAULT_OBJECTIVES = "ttft_p95=2s,itl_p99=200ms"
"""By which goodput is counted when none are named; they decide no exit code."""
REQUESTS = 32
SWEEP = (1.0, 2.0, 4.0, 8.0, 16.0)
ROUNDS = 2
"""Requests of a closed loop's level, at least, for each of those at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    kind: Literal["concurrency", "rate", "shape"]
    levels: tuple[float, ...]
    shape: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    model: str
    url: str | None
    served_name: str | None
    api_key: str | None
    mix: Mix
    load: Load
    requests: int | None
    """Of a level; None: as many as there is time for."""
    seconds: float
    warmup: int
    timeout: float
    sends_done: bool
    temperature: float
    seed: int
    objectives: tuple[Objective, ...]
    must_keep: bool
    """Whether a broken objective is a failure."""
    text_file: Path
    label: str
    out: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    before: Path
    after: Path
    out: Path


def parse(arguments: Sequence[str]) -> Plan | Comparison:
    if any(argument.split("=")[0] == "--compare" for argument in arguments):
        return _comparison(arguments)
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.users is not None and given.shape is None:
        parser.error("--users is the peak of a --shape: for a sweep, use --concurrency")
    if given.url is not None and given.model is not None:
        parser.error("MODEL is for a server that is started here: with --url, use --model-name")
    return _plan(given)


def _comparison(arguments: Sequence[str]) -> Comparison:
    parser = argparse.ArgumentParser(
        prog="octavo bench",
        description="Compare two reports.",
        usage="octavo bench --compare BEFORE.json AFTER.json [--out OUT]",
    )
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE.json", "AFTER.json"))
    _add_out(parser)
    given = parser.parse_args(arguments)
    before, after = given.compare
    return Comparison(before=before, after=after, out=given.out)


def _plan(given: argparse.Namespace) -> Plan:
    return Plan(
        model=given.model or "",
        url=given.url.rstrip("/").removesuffix("/v1") if given.url else None,
        served_name=given.model_name,
        api_key=os.environ.get("OPENAI_API_KEY"),
        mix=scenarios.load()[given.scenario].changed(
            prompt_tokens=given.prompt_tokens,
            output_tokens=given.output_tokens,
            ignore_eos=given.ignore_eos,
        ),
        load=_load(given),
        requests=given.requests or (None if given.shape else REQUESTS),
        seconds=given.seconds,
        warmup=given.warmup,
        timeout=given.timeout,
        sends_done=given.done,
        temperature=given.temperature,
        seed=given.seed,
        objectives=slo.parse(given.slo or DEFAULT_OBJECTIVES),
        must_keep=given.slo is not None,
        text_file=given.text_file,
        label=given.label,
        out=given.out,
    )


def _load(given: argparse.Namespace) -> Load:
    if given.shape is not None:
        return Load(kind="shape", levels=(float(given.users or 16),), shape=given.shape)
    if given.rate is not None:
        return Load(kind="rate", levels=given.rate, shape=None)
    return Load(kind="concurrency", levels=given.concurrency or SWEEP, shape=None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="octavo bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        usage="octavo bench [MODEL | --url URL] [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_server(parser)
    _add_load(parser)
    _add_work(parser)
    parser.add_argument("--slo", metavar="OBJECTIVES", help=f"fail unless kept: {slo.EXAMPLE}%")
    parser.add_argument("--label", default="octavo", help="what comparisons call this run")
    _add_out(parser)
    return parser


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="what to serve; its knobs are OCTAVO_…")
    add("--url", type=_url, help="a running server, whose key is in OPENAI_API_KEY")
    add("--model-name", help="which of its models; default: the first")
    add("--timeout", type=_positive, default=300.0, help="seconds of a request; default: 300")
    add(
        "--done",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether streams must end with data: [DONE]",
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = parser.add_mutually_exclusive_group().add_argument
    add("--concurrency", type=_counts, help="closed loop: so many at once; default: 1,2,4,8,16")
    add("--rate", type=_levels, help="open loop: Poisson arrivals per second, such as 0.5,1,2")
    add("--shape", choices=list(SHAPES), help="closed loop whose users come and go")
    parser.add_argument("--users", type=_count, help="peak of the shape; default: 16")
    add = parser.add_argument
    add(
        "--requests", type=_count, help="of each level; default: 32, of a shape all it has time for"
    )
    add(
        "--seconds",
        type=_positive,
        default=60.0,
        help="after so many, no request of a level begins; default: 60",
    )
    add("--warmup", type=_count, default=2, help="requests before, not measured; default: 2")


def _add_work(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    mixes = list(scenarios.load())
    add("--scenario", choices=mixes, default=mixes[0], help=f"default: {mixes[0]}")
    add("--prompt-tokens", type=_count, help="roughly, of every prompt, instead of the scenario's")
    add("--output-tokens", type=_count, help="at most, of every answer, instead of the scenario's")
    add("--ignore-eos", action=argparse.BooleanOptionalAction, help="whether answers go on to it")
    add("--temperature", type=float, default=0.0, help="default: 0")
    add("--seed", type=int, default=1, help="the same prompts again, or others")
    add("--text-file", type=Path, default=TEXT, help="English, to make prompts from")


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("octavo-bench"), help="folder; default: octavo-bench"
    )


def _levels(text: str) -> tuple[float, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _counts(text: str) -> tuple[float, ...]:
    return tuple(float(_count(part)) for part in text.split(","))


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} doesn't begin with http:// or https://")
    return text


def read_text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{file} can't be read: {error}") from None
