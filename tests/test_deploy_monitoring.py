"""Alerts fire when they should, and what they and the dashboard ask for exists."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.metrics import EngineReading, Metrics
from tests.manifests import DEPLOY, ROOT, run, tool

MONITORING = DEPLOY / "components/monitoring"
OWN_METRIC = re.compile(r"\boctavo_[a-z0-9_]+")
RECORDED = re.compile(r"\boctavo:[a-z0-9_:]+")
LABEL = re.compile(r'\b(outcome|reason|le|phase)[!=]=?~?"([^"]+)"')
READING = EngineReading(
    up=True, requests_running=0, requests_waiting=0, kv_cache_usage_ratio=0.0, restarts=0
)


@pytest.fixture(scope="module")
def exposed() -> str:
    return Metrics(lambda: READING, version="0", tenants=["team"]).render().decode()


@pytest.fixture(scope="module")
def rules() -> Any:
    return yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text())["spec"]


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads((MONITORING / "dashboard.json").read_text())


def alerts(rules: Any) -> list[Any]:
    return [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]


def expressions() -> Iterator[str]:
    """All queries that deploy/ has, wherever they stand."""
    yield from found_under(yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text()), "expr")
    yield from expressions_of_keda()
    yield from found_under(json.loads((MONITORING / "dashboard.json").read_text()), "expr")
    yield (DEPLOY / "components/gateway/endpoint-picker.yaml").read_text()
    scaler = (DEPLOY / "components/hpa/horizontalpodautoscaler.yaml").read_text()
    yield from re.findall(r"name: (octavo_\w+)", scaler)


def expressions_of_keda() -> Iterator[str]:
    scaler = yaml.safe_load((DEPLOY / "components/keda/scaledobject.yaml").read_text())
    return found_under(scaler, "query")


def found_under(node: Any, *keys: str) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from found_under(each, *keys)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in keys and isinstance(value, str):
                yield value
            else:
                yield from found_under(value, *keys)


def test_every_metric_that_is_asked_for_exists(exposed: str) -> None:
    existing = set(re.findall(r"^(octavo_\w+)", exposed, re.MULTILINE))
    asked = {name for expression in expressions() for name in OWN_METRIC.findall(expression)}
    assert len(asked) > 20
    assert asked <= existing


def test_the_endpoint_picker_learns_how_large_the_cache_is(exposed: str) -> None:
    picker = (DEPLOY / "components/gateway/endpoint-picker.yaml").read_text()
    (metric,) = found_under(yaml.safe_load(picker), "cacheInfoSpec")
    labels = re.search(rf"^{metric}{{(.+)}} 1.0$", exposed, re.MULTILINE)
    assert labels is not None
    assert re.findall(r"(\w+)=", labels[1]) == ["block_size", "num_gpu_blocks"]


def test_every_label_value_that_is_asked_for_exists(exposed: str) -> None:
    matchers = [match for expression in expressions() for match in LABEL.findall(expression)]
    assert matchers
    for label, pattern in matchers:
        values = set(re.findall(rf'\b{label}="([^"]+)"', exposed))
        assert any(re.fullmatch(pattern, value) for value in values), (label, pattern)


def test_every_recorded_series_that_is_asked_for_is_recorded(rules: Any) -> None:
    recorded = {
        rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule
    }
    asked = {name for expression in expressions() for name in RECORDED.findall(expression)}
    assert asked <= recorded


def test_alerts_fire_when_they_should(rules: Any, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / "alerts.yaml").write_text((DEPLOY / "test/alerts.yaml").read_text())
    run(tool("promtool"), "check", "rules", "rules.yaml", cwd=tmp_path)
    run(tool("promtool"), "test", "rules", "alerts.yaml", cwd=tmp_path)


def test_every_query_can_be_read(dashboard: Any, tmp_path: Path) -> None:
    """As rules of their own, with Grafana's variables filled in."""
    queries = [*found_under(dashboard, "expr"), *expressions_of_keda()]
    assert len(queries) > 50
    filled = [query.replace("$__rate_interval", "5m").replace("$", "") for query in queries]
    rules = [{"record": f"query:{number}", "expr": each} for number, each in enumerate(filled)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [group(rules)]}))
    run(tool("promtool"), "check", "rules", "queries.yaml", cwd=tmp_path)


def group(rules: list[dict[str, str]]) -> dict[str, Any]:
    return {"name": "queries", "rules": rules}


def test_every_alert_is_tested(rules: Any) -> None:
    tested = (DEPLOY / "test/alerts.yaml").read_text()
    patterns = re.findall(r"\bOctavo[A-Za-z]+(?:\.\*)?", tested)
    for alert in alerts(rules):
        assert any(re.fullmatch(pattern, alert["alert"]) for pattern in patterns), alert["alert"]


def test_every_alert_leads_to_its_runbook(rules: Any) -> None:
    for alert in alerts(rules):
        document, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert anchor in anchors(ROOT / document), alert["alert"]


def anchors(document: Path) -> set[str]:
    """Of headings, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_dashboard_panels_lie_side_by_side(dashboard: Any) -> None:
    taken = [(x, y) for panel in dashboard["panels"] for x, y in cells(panel["gridPos"])]
    assert len(taken) == len(set(taken))
    assert all(x < 24 for x, _ in taken)


def cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    return ((place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"]))


def test_dashboard_panels_say_what_they_show(dashboard: Any) -> None:
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in panels)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
