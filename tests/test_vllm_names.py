"""vLLM's names, as its dashboards, routers and load tools ask for them."""

import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import Metrics
from service.vllm_names import TWINS, add_twins
from tests.test_metrics import IDLE

LABELS = {"model_name": 'a "b" \\ c', "engine": "0"}


def make_metrics() -> Metrics:
    metrics = Metrics(lambda: IDLE, version="1", vllm_model_name=LABELS["model_name"])
    metrics.first_token(0.3)
    metrics.prompt_ended(num_tokens=7)
    for outcome in ("stop", "deadline", "length", "cancelled"):
        metrics.request_ended(outcome, seconds=1.0, num_tokens=2)
    return metrics


def families(
    text: str,
) -> dict[str, tuple[str, dict[tuple[str, frozenset[tuple[str, str]]], float]]]:
    found = {}
    for family in text_string_to_metric_families(text):
        samples = {(s.name, frozenset(s.labels.items())): s.value for s in family.samples}
        found[family.name] = (family.type, samples)
    return found


def test_every_twin_says_what_the_original_says() -> None:
    found = families(make_metrics().render().decode())
    for name, twin in TWINS.items():
        kind, samples = found[name.removesuffix("_total")]
        short = twin if kind == "histogram" else twin.removesuffix("_total")
        twin_kind, twin_samples = found[short]
        assert twin_kind == kind
        assert twin_samples == {
            (sample.replace(name, twin), labels | frozenset(LABELS.items())): value
            for (sample, labels), value in samples.items()
        }


def test_ends_are_told_in_vllms_words() -> None:
    _, samples = families(make_metrics().render().decode())["vllm:request_success"]
    by_reason = {dict(labels)["finished_reason"]: value for (_, labels), value in samples.items()}
    assert by_reason == {"stop": 1, "length": 2, "abort": 1, "error": 0}


def test_without_a_name_there_are_none() -> None:
    assert "vllm" not in Metrics(lambda: IDLE, version="1").render().decode()


def test_what_was_there_stays_as_it_was() -> None:
    text = Metrics(lambda: IDLE, version="1").render().decode()
    assert add_twins(text, "m").startswith(text)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's prometheus")
def test_prometheus_own_tool_minds_the_colons_only() -> None:
    text = make_metrics().render()
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=False, check=False)
    complaints = (done.stdout + done.stderr).decode().splitlines()
    assert [line for line in complaints if not line.startswith("vllm:")] == []
    ours = ("should not contain ':'", "abbreviated", "non-counter metrics should not have")
    assert [line for line in complaints if not any(part in line for part in ours)] == []
