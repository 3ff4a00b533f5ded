"""The processes of a model that several compute together, and how they come to be.

    one host        rank 0 is the engine process, and the others are its children
    several hosts   torchrun, or whoever sets its variables, starts `octavo serve` on each; that of
                    rank 0 serves, the others only compute

A rank is an engine process that is told by variables which one it is, and ends as its stdin does.
When one dies, so does rank 0, and is started again as after any crash. Knows no torch.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from model.rendezvous import LOOPBACK, Rendezvous, from_variables, listening
from service.config import EngineConfig
from service.engine.child import COMMAND, ENVIRONMENT, describe_exit
from service.engine.messages import EngineSpec
from service.errors import CommandError

REFUSED = 3
"""The exit code of a rank that can't run the model, as rank 0 will say itself."""
LOOPBACK_ONLY = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
RESTART_SECONDS = 1.0

log = logging.getLogger(__name__)


def is_other(config: EngineConfig, variables: Mapping[str, str]) -> bool:
    """Whether this process is told to be another rank than 0."""
    size = config.tensor_parallel_size
    told = from_variables(variables, size=size) if size > 1 else None
    return told is not None and told.rank > 0


def meet(spec: EngineSpec) -> Rendezvous | None:
    """Where this rank meets the others, which rank 0 starts unless it is told that they are there.
    None for a model that one process computes."""
    size = spec.config.tensor_parallel_size
    if size == 1:
        return None
    if told := from_variables(os.environ, size=size):
        return told if told.rank else listening(told)
    first = listening(Rendezvous(0, size, size, LOOPBACK, 0))
    os.environ.update(LOOPBACK_ONLY)
    for rank in range(1, size):
        process = start(spec, first._replace(rank=rank).variables)
        threading.Thread(target=exit_with, args=[process], daemon=True).start()
    return first


def start(spec: EngineSpec, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, env=ENVIRONMENT | os.environ | variables
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(spec) + b"\n")
    process.stdin.flush()
    return process


def exit_with(process: subprocess.Popen[bytes]) -> None:
    """Rank 0 is of no use without the others."""
    code = process.wait()
    if code != REFUSED:
        log.critical("another rank's process died: %s", describe_exit(code))
        os._exit(1)


def serve_rank(path: Path, config: EngineConfig) -> NoReturn:
    """On another host than rank 0's: one process after the other, until this one is ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as process 1 of a container, too
    spec = EngineSpec(model_path=str(path), config=config, requests_address="", reports_address="")
    while (code := _outlived(start(spec, {}))) != REFUSED:
        log.error("the rank's process died: %s; starting it again", describe_exit(code))
        time.sleep(RESTART_SECONDS)
    raise CommandError("this rank can't run the model")


def _outlived(process: subprocess.Popen[bytes]) -> int:
    with process:
        return process.wait()
