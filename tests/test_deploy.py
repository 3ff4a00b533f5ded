"""Every installation that deploy/ offers is what Kubernetes takes, and what octavo promises."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.api import ops
from service.config import EngineConfig, ServerConfig
from tests.manifests import (
    AUTOSCALERS,
    COMPONENTS,
    DEPLOY,
    OVERLAYS,
    ROOT,
    Object,
    of_kind,
    pod_of,
    read_objects,
    render,
    run,
    server_of,
    tool,
)

VERSIONS = ("1.30", "1.32", "1.34", "1.37")
"""Of Kubernetes, from the first that has preStop.sleep without a feature gate."""
CRDS = ROOT.parent / "shared/crds"
BUILTIN_GROUPS = {"", "apps", "autoscaling", "networking.k8s.io", "policy"}
SPARE_SECONDS = 10
ELSEWHERE = {"OCTAVO_CACHE", "OCTAVO_MODEL"}
"""Variables that are no knobs: where models are kept, and which one is served."""

ALL_WITH = [
    [name for name in COMPONENTS if name not in AUTOSCALERS or name == scaler]
    for scaler in AUTOSCALERS
]
COMBINATIONS = [[], *([name] for name in COMPONENTS), *ALL_WITH]
INSTALLATIONS = [(overlay, each) for overlay in OVERLAYS for each in COMBINATIONS]


def name_of(installation: tuple[str, list[str]]) -> str:
    overlay, components = installation
    return "+".join([overlay, *components])


@pytest.fixture(scope="module", params=INSTALLATIONS, ids=name_of)
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    overlay, components = request.param
    return render(overlay, components, tmp_path_factory.mktemp("installation"))


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, tmp_path: Path) -> list[Object]:
    return render(request.param, [], tmp_path)


@cache
def crd_schemas() -> dict[tuple[str, str], Object]:
    """By apiVersion and kind; no field is taken that they don't name."""
    found = {}
    for path in sorted(CRDS.glob("*.yaml")):
        for crd in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            group, kind = crd["spec"]["group"], crd["spec"]["names"]["kind"]
            for version in crd["spec"]["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                schema["properties"]["metadata"] = {}  # the API server's own; CRDs leave it open
                found[f"{group}/{version['name']}", kind] = closed(schema)
    return found


def closed(schema: Any) -> Any:
    """The schema that refuses unknown fields wherever it names known ones."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):  # which is an anyOf in prose only, in some
        return {"type": ["integer", "string"]}
    inner = {key: closed(value) for key, value in schema.items()}
    if isinstance(pattern := schema.get("pattern"), str):  # in Go's dialect, where flags may follow
        inner["pattern"] = re.sub(r"^\^\(\?i\)", "(?i)^", pattern)
    if "properties" in schema and isinstance(schema["properties"], dict):
        open_ = schema.get("x-kubernetes-preserve-unknown-fields", False)
        if schema.get("type") == "object" and not open_:
            inner["additionalProperties"] = False
    return inner


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_object(objects: list[Object], version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="make deploy-tools").validate
    own = [each for each in objects if is_builtin(each)]
    assert len(own) >= 6
    for each in own:
        validate(each, version, strict=True)


def is_builtin(each: Object) -> bool:
    group = each["apiVersion"].rpartition("/")[0]
    return group in BUILTIN_GROUPS


def test_operators_take_their_objects(objects: list[Object]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="make deploy-tools")
    if not CRDS.exists():
        pytest.skip("the definitions of custom resources aren't here")
    schemas = crd_schemas()
    for each in objects:
        if not is_builtin(each):
            schema = schemas[each["apiVersion"], each["kind"]]
            jsonschema.Draft202012Validator(schema).validate(each)


def test_unknown_fields_of_custom_resources_are_found(tmp_path: Path) -> None:
    """The check above can fail."""
    jsonschema = pytest.importorskip("jsonschema", reason="make deploy-tools")
    if not CRDS.exists():
        pytest.skip("the definitions of custom resources aren't here")
    pool = of_kind(render("cpu", ["gateway"], tmp_path), "InferencePool")
    pool["spec"]["targetPort"] = 8000  # as it was called before v1
    with pytest.raises(jsonschema.ValidationError, match="targetPort"):
        jsonschema.validate(pool, crd_schemas()[pool["apiVersion"], pool["kind"]])


def test_kserve_runtime_stands_alone() -> None:
    rendered = read_objects(run(tool("kubectl"), "kustomize", DEPLOY / "components/kserve"))
    assert [each["kind"] for each in rendered] == ["ServingRuntime"]


def test_selectors_find_the_pods(objects: list[Object]) -> None:
    labels = of_kind(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = list(selectors_of(objects))
    assert len(selectors) >= 5
    for selector in selectors:
        assert selector.items() <= labels.items()


def selectors_of(objects: list[Object]) -> Iterator[dict[str, str]]:
    for each in objects:
        spec = each.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector")
        if selector:
            yield selector.get("matchLabels", selector)
    yield pod_of(objects)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]


def test_every_pod_is_restricted(objects: list[Object]) -> None:
    """By Kubernetes' Pod Security Standards."""
    pod = pod_of(objects)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"] + (pod.get("initContainers") or []):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_nothing_writes_to_the_root_but_the_gpu_hook(tmp_path: Path) -> None:
    cpu, gpu = (server_of(render(name, [], tmp_path)) for name in OVERLAYS)
    assert cpu["securityContext"]["readOnlyRootFilesystem"] is True
    assert gpu["securityContext"]["readOnlyRootFilesystem"] is False


def test_all_mounts_have_their_volume(objects: list[Object]) -> None:
    pod = pod_of(objects)
    volumes = {volume["name"] for volume in pod["volumes"]}
    containers = pod["containers"] + (pod.get("initContainers") or [])
    mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
    assert mounted == volumes


def test_a_pod_has_time_to_drain(overlay: list[Object]) -> None:
    slept = server_of(overlay)["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = pod_of(overlay)["terminationGracePeriodSeconds"]
    assert grace == slept + ServerConfig().drain_timeout + SPARE_SECONDS


def test_kserve_pods_have_time_to_drain() -> None:
    runtime, example = (
        yaml.safe_load((DEPLOY / "components/kserve" / name).read_text())
        for name in ("servingruntime.yaml", "example.yaml")
    )
    (server,) = runtime["spec"]["containers"]
    slept = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = example["spec"]["predictor"]["terminationGracePeriodSeconds"]
    assert grace == slept + ServerConfig().drain_timeout + SPARE_SECONDS


def test_probes_ask_routes_that_exist(overlay: list[Object]) -> None:
    routes = {getattr(route, "path", "") for route in ops.router.routes}
    server = server_of(overlay)
    asked = {
        name: server[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }
    assert asked == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    assert set(asked.values()) <= routes


def test_services_put_no_knobs_into_the_environment(objects: list[Object]) -> None:
    assert pod_of(objects)["enableServiceLinks"] is False


def test_variables_are_knobs(objects: list[Object]) -> None:
    knobs = {
        f"OCTAVO_{field.name.upper()}"
        for config in (EngineConfig, ServerConfig)
        for field in fields(config)
    }
    config = next(
        each
        for each in objects
        if each["kind"] == "ConfigMap" and "config" in each["metadata"]["name"]
    )
    variables = set(config["data"]) | {each["name"] for each in server_of(objects)["env"]}
    assert {name for name in variables if name.startswith("OCTAVO_")} <= knobs | ELSEWHERE


def test_kserve_flags_are_knobs() -> None:
    runtime = yaml.safe_load((DEPLOY / "components/kserve/servingruntime.yaml").read_text())
    flags = re.findall(r"--([a-z-]+)=", " ".join(runtime["spec"]["containers"][0]["args"]))
    assert {flag.replace("-", "_") for flag in flags} <= {f.name for f in fields(ServerConfig)}


@pytest.mark.parametrize("scaler", AUTOSCALERS)
def test_an_autoscaler_alone_says_how_many(scaler: str, tmp_path: Path) -> None:
    assert "replicas" in of_kind(render("cpu", [], tmp_path), "Deployment")["spec"]
    scaled = render("cpu", [scaler], tmp_path)
    assert "replicas" not in of_kind(scaled, "Deployment")["spec"]


def test_a_model_on_a_volume_closes_the_pod(tmp_path: Path) -> None:
    rendered = render("cpu", ["model-pvc"], tmp_path)
    assert of_kind(rendered, "NetworkPolicy")["spec"]["egress"] == []
    assert not pod_of(rendered).get("initContainers")


def test_images_are_of_this_version(objects: list[Object]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    pod = pod_of(objects)
    images = {each["image"] for each in pod["containers"] + (pod.get("initContainers") or [])}
    images |= {
        each["image"]
        for runtime in objects
        if runtime["kind"] == "ServingRuntime"
        for each in runtime["spec"]["containers"]
    }
    assert images <= {f"octavo:{version}", f"octavo:{version}-cuda"}


def test_scripts_are_clean() -> None:
    run(tool("shellcheck"), *sorted((DEPLOY / "test").glob("*.sh")), ROOT / ".ci/run")


def test_dockerfile_is_clean() -> None:
    run(tool("hadolint"), ROOT / "Dockerfile")


def test_what_the_image_copies_is_not_ignored() -> None:
    """.dockerignore refuses everything, and names what it lets through."""
    copies = re.findall(
        r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    names = {name for sources in copies for name in sources.split()} - {"."}
    let_through = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert names
    assert names <= set(let_through)
    assert all((ROOT / name).exists() for name in let_through)
