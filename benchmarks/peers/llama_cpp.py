"""llama.cpp's server, built for this machine from the sources in llama-cpp-python's sdist."""

import tarfile
from pathlib import Path

from benchmarks.peers import environment, models
from benchmarks.peers.peer import Launch, Peer, Setup

VERSION = "0.3.36"
"""Of llama-cpp-python."""
INSIDE = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # it would be fetched from a model hub
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
}
NUM_SEQUENCES, CONTEXT_LEN = 32, 1024


def q4_0(setup: Setup) -> Launch:
    folder = setup.environment("llama-cpp")
    environment.install(folder, ["cmake", "ninja"], finish=build)
    command = (
        *(str(folder / "build/bin/llama-server"), "--host", "127.0.0.1"),
        *("--model", str(models.q4_0(setup.gguf, setup.model("q4_0")))),
        *("--threads", str(setup.threads), "--threads-batch", str(setup.threads)),
        *("--parallel", str(NUM_SEQUENCES), "--ctx-size", str(NUM_SEQUENCES * CONTEXT_LEN)),
    )
    return Launch(command, "m")


def build(folder: Path) -> None:
    unpack(folder)
    programs, build = folder / "bin", str(folder / "build")
    options = {"CMAKE_MAKE_PROGRAM": str((programs / "ninja").resolve())} | OPTIONS
    settings = [f"-D{name}={value}" for name, value in options.items()]
    cmake = str(programs / "cmake")
    environment.run([cmake, "-G", "Ninja", "-S", str(folder / "source"), "-B", build, *settings])
    environment.run([cmake, "--build", build, "--target", "llama-server"])


def unpack(folder: Path) -> None:
    """The part of the sdist that is llama.cpp itself."""
    sdist = f"llama-cpp-python=={VERSION}"
    wanted = ("--no-deps", "--no-binary", ":all:", "--dest", str(folder))
    environment.pip(folder, "download", *wanted, sdist)
    (file,) = folder.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(file) as archive:
        for member in archive:
            if member.name.startswith(INSIDE):
                inside = member.replace(name=member.name.removeprefix(INSIDE))
                archive.extract(inside, folder / "source", filter="data")


PEERS = {"llama.cpp": Peer(f"llama.cpp (llama-cpp-python {VERSION}), Q4_0", q4_0)}
