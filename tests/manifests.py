"""Kubernetes objects as kustomize and helm render them, and the tools that render."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
OVERLAYS = ("cpu", "gpu")
AUTOSCALERS = ("hpa", "keda")
"""Of which an installation has one at most."""
COMPONENTS = ("api-keys", "gateway", *AUTOSCALERS, "kserve", "model-pvc", "monitoring")

Object = dict[str, Any]


def tool(name: str) -> str:
    """Its path; a test that needs it is skipped where it isn't."""
    beside_python = os.path.dirname(sys.executable)
    found = shutil.which(name, path=os.pathsep.join([beside_python, os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"{name} isn't installed: make deploy-tools, and Debian's prometheus")
    return found


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_objects(text: str) -> list[Object]:
    return [loaded for loaded in yaml.safe_load_all(text) if loaded]


def render(overlay: str, components: Sequence[str], folder: Path) -> list[Object]:
    """What `kubectl apply -k` of a folder with these in it would send."""
    kustomization = {
        "resources": [relative(DEPLOY / "overlays" / overlay, folder)],
        "components": [relative(DEPLOY / "components" / name, folder) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return read_objects(run(tool("kubectl"), "kustomize", folder))


def relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def of_kind(objects: Sequence[Object], kind: str) -> Object:
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def pod_of(objects: Sequence[Object]) -> Object:
    spec: Object = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def server_of(objects: Sequence[Object]) -> Object:
    """The container that serves."""
    (server,) = pod_of(objects)["containers"]
    assert isinstance(server, dict)
    return server
