"""`kubectl kustomize … | for_podman.py IMAGE MODELS`: the pod, as `podman play kube` can run it.

Its users, mounts, limits, environment and commands stay. Changed are what podman has no counterpart
for, and the volume of models, so that nothing is fetched.
"""

import sys
from typing import Any

import yaml

INIT_CONTAINER_TYPE = "io.podman.annotations.init.container.type"
NOT_PODMANS = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
"""Ports can't be mapped on the host's network; of probes it would make commands in the image."""


def main(image: str, models: str) -> None:
    objects = {each["kind"]: each for each in yaml.safe_load_all(sys.stdin)}
    config, template = objects["ConfigMap"], objects["Deployment"]["spec"]["template"]
    config["data"]["OCTAVO_HOST"] = "127.0.0.1"  # it has the host's network
    yaml.safe_dump_all([config, pod(template["spec"], image, models)], sys.stdout)


def pod(spec: Any, image: str, models: str) -> Any:
    spec["hostNetwork"] = True
    for volume in spec["volumes"]:
        if volume["name"] == "models":
            del volume["emptyDir"]
            volume["hostPath"] = {"path": models, "type": "Directory"}
    for container in spec["containers"] + spec["initContainers"]:
        container |= {"image": image, "imagePullPolicy": "Never"}
        for field in NOT_PODMANS:
            container.pop(field, None)
    # The default, "once", has podman remove it as it ends, for which it may be too early.
    metadata = {"name": "octavo-pod", "annotations": {INIT_CONTAINER_TYPE: "always"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


if __name__ == "__main__":
    main(*sys.argv[1:])
