"""`octavo bench` and the locustfile against servers without a model, each in its own process.

Never imported here: Locust exchanges the sockets and threads of the process that imports it.
"""

import csv
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from loadtests import server
from loadtests.errors import BenchError
from loadtests.stream import Target
from model.native.library import PHASES
from service import bench, cli
from service.errors import CommandError
from tests.fake_openai import MODEL, OneAtATime, running, written
from tests.tiny_llama import transformers_llama

ROOT = Path(__file__).parent.parent
SECONDS = 120
"""Far more than anything here takes."""
OCTAVO = str(Path(sys.executable).parent / "octavo")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def octavo_bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run(OCTAVO, "bench", *arguments)


def read(file: Path) -> Any:
    return json.loads(file.read_text())


@pytest.mark.slow
def test_a_sweep_is_measured_judged_reported_and_compared(tmp_path: Path) -> None:
    with running() as fake:
        done = octavo_bench(
            *("--url", f"{fake.url}/v1", "--concurrency", "1,3", "--requests", "5"),
            *("--scenario", "mixed", "--out", tmp_path, "--slo", "errors=0%,itl_p50=1us"),
        )
    assert done.returncode == 1, done.stderr
    assert "not kept: c=1: itl_p50=0.001ms: it was " in done.stderr
    assert "errors=0%: it was" not in done.stderr
    assert len(fake.bodies) == 2 + 5 + 6  # warm-up, and two for each at once
    assert len({json.dumps(body) for body in fake.bodies}) == 13
    assert {body["model"] for body in fake.bodies} == {MODEL}
    report = read(tmp_path / "report.json")
    assert [(each["load"], each["requests"]) for each in report["levels"]] == [(1, 5), (3, 6)]
    assert all(each["errors"] == {} and each["itl"] for each in report["levels"])
    assert re.search(r"c=3 +6/6", done.stdout)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") >= 4
    assert not re.search(r"(src|href)=\"http", page.replace("http://www.w3.org", ""))
    assert {"throughput.png", "ttft.svg", "itl.png", "cdf.svg"} <= set(os.listdir(tmp_path))

    file = tmp_path / "report.json"
    done = octavo_bench("--compare", file, file, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"c=3 +1\.00 +1\.00", done.stdout)
    assert "after / before" in (tmp_path / "compare.html").read_text()

    other = tmp_path / "other.json"
    other.write_text(json.dumps(report | {"scenario": "chat-short"}))
    done = octavo_bench("--compare", file, other, "--out", tmp_path)
    assert done.returncode == 2
    assert "mixed and chat-short are different work" in done.stderr


@pytest.mark.slow
def test_an_open_loop_does_not_omit_what_its_load_delays(tmp_path: Path) -> None:
    """All are due within a moment, and the i-th can't be served before i times the pause."""
    with running(OneAtATime(0.05)) as fake:
        arguments = ("--url", fake.url, "--rate", "1000", "--requests", "20", "--warmup", "1")
        done = octavo_bench(*arguments, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (level,) = read(tmp_path / "report.json")["levels"]
    assert (level["kind"], level["requests"]) == ("rate", 20)
    assert level["ttft"]["curve"][100] > 20 * 0.05 - 0.1  # less the time that arrivals take
    assert "no coordinated omission" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_shape_is_followed_to_its_end(tmp_path: Path) -> None:
    with running(OneAtATime(0.01)) as fake:
        arguments = ("--url", fake.url, "--shape", "spike", "--users", "3", "--seconds", "3")
        done = octavo_bench(*arguments, "--out", tmp_path, "--output-tokens", "2")
    assert done.returncode == 0, done.stderr
    (level,) = read(tmp_path / "report.json")["levels"]
    assert (level["kind"], level["load"], level["errors"]) == ("shape", 3, {})
    assert level["requests"] > 10
    assert level["samples"][0]["running"] == 3.0


def test_a_server_that_fails_at_once_is_not_measured(tmp_path: Path) -> None:
    with running(written([b"busy"]), status=503) as fake:
        done = octavo_bench("--url", fake.url, "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"octavo bench: {fake.url} can't be measured: 5xx: 503: busy\n"


def test_a_file_that_is_no_report_is_a_line(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text('{"version": 1}')
    done = octavo_bench("--compare", file, file, "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"octavo bench: {file} is no report of octavo bench: ")


def test_a_step_is_taken_apart(tmp_path: Path) -> None:
    transformers_llama().save_pretrained(tmp_path)
    done = octavo_bench(
        *("step", tmp_path, "--batch", "1,3", "--context", "20", "--prompt", "30", "--runs", "2")
    )
    assert done.returncode == 0, done.stderr
    machine, phases, *shapes = done.stdout.splitlines()
    assert "threads; floor" in machine
    assert phases.split()[7:] == [*PHASES, "pack", "sample", "floor", "GMAC/s"]
    assert [line.split()[:5] for line in shapes] == [
        ["1", "x", "1", "@", "20"],
        ["3", "x", "1", "@", "20"],
        ["1", "x", "30", "@", "0"],
    ]
    for line in shapes:
        total, *parts = map(float, line.split()[5:-2])
        assert 0 < sum(parts) <= total * 1.1 + len(parts)


def test_locust_shows_first_tokens_gaps_and_tokens(tmp_path: Path) -> None:
    with running() as fake:
        done = run(
            *(sys.executable, "-m", "locust", "-f", "loadtests/locustfile.py", "--headless"),
            *("--host", fake.url, "--scenario", "json", "--shape", "steps", "--exit-code", "0"),
            *("-u", "2", "-t", "2s", "--csv", tmp_path / "x", "--only-summary"),
        )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "x_stats.csv").open() as file:
        rows = {row["Type"]: row for row in csv.DictReader(file)}
    assert rows.keys() >= {"POST", "TTFT", "ITL", "TOKENS"}
    assert int(rows["POST"]["Request Count"]) > 0
    assert rows["TTFT"]["Name"] == "json"
    assert float(rows["TOKENS"]["Average Response Time"]) > 50


def test_a_server_is_started_and_stopped(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own command line, with an engine without a model."""
    monkeypatch.setattr(server, "OCTAVO", (sys.executable, "-m", "tests.fake_octavo", "none"))
    with server.started(str(smollm2_path), tmp_path / "log") as url:
        target = Target(url=url, timeout=SECONDS)
        model = server.first_model(target)
        assert server.describe(target, model)["model"] == model
    with pytest.raises(BenchError, match="can't be asked"):
        server.first_model(target)


def test_a_server_that_does_not_start_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "OCTAVO", (sys.executable, "-m", "tests.fake_octavo", "none"))
    with (
        pytest.raises(BenchError, match=r"didn't become ready; see .*no model 'nothing'"),
        server.started("nothing", tmp_path / "log"),
    ):
        pass


@pytest.mark.parametrize(("word", "module"), [((), "loadtests"), (("step",), "benchmarks.step")])
def test_bench_becomes_the_program_that_measures(
    monkeypatch: pytest.MonkeyPatch, word: tuple[str, ...], module: str
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda path, arguments, environment: became.append(arguments))
    monkeypatch.setattr(sys, "argv", ["octavo", "bench", *word, "model", "--url=x", "--help", "-h"])
    with pytest.raises(SystemExit):
        cli.main()
    command = [sys.executable, "-P", "-m", module]
    assert became == [[*command, "model", "--url=x", "--help", "-h"]]


def test_bench_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bench, "find_spec", lambda name: None if name != "matplotlib" else find_spec(name)
    )
    with pytest.raises(
        CommandError, match=r"bench needs loadtests and benchmarks and locust: .* --group loadt"
    ):
        bench.run([])
