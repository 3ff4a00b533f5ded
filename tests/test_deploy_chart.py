"""The chart renders the objects that kustomize does."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests import DEPLOY, ROOT, Object, read_objects, render, run, tool

CHART = DEPLOY / "chart"
GPU = ("--set", "gpu=true,config.OCTAVO_KV_CACHE_MEMORY=null")
SAME = [
    ("cpu", [], []),
    ("gpu", [], GPU),
    ("cpu", ["hpa"], ["--set", "autoscaling=true"]),
    ("cpu", ["api-keys"], ["--set", "apiKeysSecret=octavo-api-keys"]),
    ("gpu", ["model-pvc"], [*GPU, "--set", "modelClaim=octavo-model"]),
    ("cpu", ["monitoring"], ["--set", "podMonitor=true"]),
]
"""An overlay, components, and the chart's values that say the same."""
ONLY_KUSTOMIZE = {
    "PrometheusRule": "rules and dashboard are files to apply, whatever installed octavo",
    "PersistentVolumeClaim": "the chart is told a claim's name",
}
OF_HELM = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"}


def template(*values: str) -> list[Object]:
    return read_objects(run(tool("helm"), "template", "octavo", CHART, *values))


def normal(node: Any) -> Any:
    """Without what differs by nature: helm's labels, hashes of the config, an API default."""
    if isinstance(node, list):
        return [normal(each) for each in node]
    if isinstance(node, dict):
        kept = {key: normal(value) for key, value in node.items() if is_kept(key, value)}
        return {key: value for key, value in kept.items() if key != "annotations" or value}
    return re.sub(r"^octavo-config-\w+$", "octavo-config", node) if isinstance(node, str) else node


def is_kept(key: str, value: Any) -> bool:
    return (
        key not in OF_HELM
        and key != "checksum/config"
        and (key, value) not in (("imagePullPolicy", "IfNotPresent"), ("initContainers", []))
    )


def by_name(objects: list[Object]) -> dict[tuple[str, str], Any]:
    normalized = [normal(sort_lists(each)) for each in objects]
    return {(each["kind"], each["metadata"]["name"]): each for each in normalized}


def sort_lists(node: Any) -> Any:
    """Order has no meaning in these objects' lists, but in arguments, which are single words."""
    if isinstance(node, dict):
        return {key: sort_lists(value) for key, value in node.items()}
    if isinstance(node, list):
        return sorted(map(sort_lists, node), key=lambda each: json.dumps(each, sort_keys=True))
    return node


@pytest.mark.parametrize(("overlay", "components", "values"), SAME)
def test_chart_and_kustomize_render_the_same(
    overlay: str, components: list[str], values: list[str], tmp_path: Path
) -> None:
    rendered = by_name(template(*values))
    expected = {
        (kind, name): each
        for (kind, name), each in by_name(render(overlay, components, tmp_path)).items()
        if kind not in ONLY_KUSTOMIZE and name != "octavo-dashboard"
    }
    assert rendered.keys() == expected.keys()
    for key, each in expected.items():
        assert rendered[key] == each


def test_releases_of_other_names_are_apart() -> None:
    helm = tool("helm")
    objects = read_objects(run(helm, "template", "small", CHART))
    assert {each["metadata"]["name"] for each in objects} == {"small", "small-config"}
    deployment = next(each for each in objects if each["kind"] == "Deployment")
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector["app.kubernetes.io/instance"] == "small"


def test_a_changed_knob_rolls_out() -> None:
    def checksum(*values: str) -> str:
        (pod,) = (
            each["spec"]["template"] for each in template(*values) if each["kind"] == "Deployment"
        )
        return str(pod["metadata"]["annotations"]["checksum/config"])

    assert checksum() == checksum()
    assert checksum("--set-string", "config.OCTAVO_MAX_SEQUENCES=8") != checksum()


@pytest.mark.parametrize(
    "values",
    ["replica=3", "image.tag=latest", "config.max_sequences=8", "config.OCTAVO_PORT=8001"],
)
def test_values_that_would_be_ignored_or_harm_are_refused(values: str) -> None:
    command = [tool("helm"), "template", "octavo", str(CHART), "--set", values]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert values.split("=")[0].split(".")[-1] in done.stderr


def test_chart_is_clean() -> None:
    run(tool("helm"), "lint", "--strict", CHART)


def test_chart_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
