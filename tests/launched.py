"""A command with a fake engine, as a process: its address, its log, and how it ends."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import ROOT, Server, wait_until
from tests.served import SECONDS


@dataclass(frozen=True, slots=True)
class Launched(Server):
    process: subprocess.Popen[bytes]

    def wait_for(self, text: str) -> None:
        """Until the log has it."""
        wait_until(lambda: text in self.log.read_text())

    def exit_code(self) -> int:
        return self.process.wait(timeout=SECONDS)


@contextmanager
def launched(
    folder: Path,
    *arguments: str,
    module: str = "tests.endless_octavo",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Launched]:
    """A server that is ready; killed in the end, if it is there still."""
    log = folder / "server.log"
    address = () if "--uds" in arguments else ("--port", "0")
    command = [sys.executable, "-m", *module.split(), "serve", *address, *arguments]
    with (
        log.open("wb") as file,
        subprocess.Popen(command, cwd=ROOT, stderr=file, env=environment) as process,
    ):
        try:
            wait_until(lambda: process.poll() is not None or "model: ready" in log.read_text())
            found = re.search(r"listening on (\S+?)[\s\"]", log.read_text())
            assert found is not None, log.read_text()
            yield Launched(found[1], process.pid, log, process)
        finally:
            process.kill()
