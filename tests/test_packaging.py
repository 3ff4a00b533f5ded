"""What we would publish works: sdist, wheel from it, and the command in a fresh environment."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ASK_METADATA = """
import json, service
from importlib.metadata import packages_distributions
owners = packages_distributions()
print(json.dumps([service.__file__, owners["service"], owners["model"]]))
"""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    environment = os.environ | variables
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it: unoptimized, which takes a
    fraction of the time; the install that runs these tests was built the other way."""
    folder = tmp_path_factory.mktemp("dist")
    compiler = tmp_path_factory.mktemp("compiler") / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0\n')
    compiler.chmod(0o755)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    run(*build, folder, ROOT, cwd=folder, CC=str(compiler))
    return folder


@pytest.fixture(scope="module")
def fresh(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with our wheel, and our dependencies by reference."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", folder / "bin/python"]
    run(*pip, "install", "--no-deps", *dist.glob("*.whl"), cwd=folder)
    site_packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
    (Path(site_packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def test_sdist_holds_what_a_packager_needs(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py"} <= names
    assert not {name.split("/")[0] for name in names} & {".venv", ".git", "dist"}


def test_wheel_holds_only_our_packages(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"service", "model", f"octavo-{version('octavo')}.dist-info"}


def test_wheel_holds_what_the_sources_in_the_sdist_were_compiled_to(dist: Path) -> None:
    """For this kind of machine, by any Python."""
    (wheel,) = dist.glob("*.whl")
    assert wheel.name.split("-")[-3:-1] == ["py3", "none"]
    assert not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        native = {name for name in archive.namelist() if name.startswith("model/native/")}
    assert "model/native/octavo_plain.so" in native
    assert not [name for name in native if name.endswith((".c", ".h"))]


def test_command_works_in_a_fresh_environment(fresh: Path) -> None:
    assert run(fresh / "octavo", "--version", cwd=fresh) == f"octavo {version('octavo')}\n"


def test_our_modules_are_ours_there(fresh: Path) -> None:
    file, *owners = json.loads(run(fresh / "python", "-c", ASK_METADATA, cwd=fresh))
    assert Path(file).is_relative_to(fresh.parent)
    assert owners == [["octavo"], ["octavo"]]
