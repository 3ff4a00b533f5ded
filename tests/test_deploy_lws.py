"""The LeaderWorkerSet of a model that several hosts compute is what its operator takes."""

from typing import Any

import pytest
import yaml

from model.rendezvous import Rendezvous
from service.api import ops
from service.config import ServerConfig
from tests.manifests import DEPLOY, Object
from tests.test_deploy import CRDS, SPARE_SECONDS, VERSIONS, crd_schemas

FOLDER = DEPLOY / "lws"
LWS = {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "octavo-0.octavo"}
"""As the controller sets them before all others."""


def read(name: str) -> Object:
    loaded: Object = yaml.safe_load((FOLDER / name).read_text())
    return loaded


@pytest.fixture
def group() -> Object:
    template: Object = read("leaderworkerset.yaml")["spec"]["leaderWorkerTemplate"]
    return template


@pytest.fixture(params=["leaderTemplate", "workerTemplate"])
def pod(request: pytest.FixtureRequest, group: Object) -> Object:
    spec: Object = group[request.param]["spec"]
    return spec


def test_the_operator_takes_it() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="make deploy-tools")
    if not CRDS.exists():
        pytest.skip("the definitions of custom resources aren't here")
    found = read("leaderworkerset.yaml")
    schema = crd_schemas()[found["apiVersion"], found["kind"]]
    jsonschema.Draft202012Validator(schema).validate(found)
    found["spec"]["leaderWorkerTemplate"]["restartPolicy"] = "Sometimes"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(found)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_pods_and_the_rest(pod: Object, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="make deploy-tools").validate
    as_a_pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "octavo"}, "spec": pod}
    for each in (as_a_pod, read("service.yaml"), read("networkpolicy.yaml")):
        validate(each, version, strict=True)


def test_ranks_are_told_what_torchrun_would(pod: Object, group: Object) -> None:
    told: dict[str, Any] = dict(LWS)
    for each in pod["containers"][0]["env"]:
        value = each["value"]
        for name, known in LWS.items():
            value = value.replace(f"$({name})", known)
        told[each["name"]] = value
    assert told["OCTAVO_TENSOR_PARALLEL_SIZE"] == str(group["size"])
    expected = Rendezvous(1, group["size"], 1, LWS["LWS_LEADER_ADDRESS"], 29500).variables
    del expected["LOCAL_WORLD_SIZE"]
    assert told.items() >= expected.items()


def test_only_the_leader_is_asked_and_routes_exist(group: Object) -> None:
    leader, worker = (
        group[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate")
    )
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    routes = {getattr(route, "path", "") for route in ops.router.routes}
    assert {leader[name]["httpGet"]["path"] for name in probes} <= routes
    assert not {*probes, "ports"} & worker.keys()
    labels = group["leaderTemplate"]["metadata"]["labels"]
    assert read("service.yaml")["spec"]["selector"] == labels


def test_the_workers_outlast_the_leaders_answers(group: Object) -> None:
    leader, worker = (group[name]["spec"] for name in ("leaderTemplate", "workerTemplate"))
    slept = [
        spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        for spec in (leader, worker)
    ]
    answered = slept[0] + ServerConfig().drain_timeout + SPARE_SECONDS
    assert leader["terminationGracePeriodSeconds"] == answered == slept[1]
    assert worker["terminationGracePeriodSeconds"] == slept[1] + SPARE_SECONDS


def test_every_pod_is_restricted(pod: Object) -> None:
    """By Kubernetes' Pod Security Standards."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
