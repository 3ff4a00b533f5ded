"""An engine that gets no more memory: it ends, is started anew, and no answer shows it.

A kernel that ends it does so by SIGKILL, which tests/test_pressure.py sends. Here it asks for more
than it may have.
"""

import re
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.processes import Server, serving, wait_until
from tests.served import at_once

MOST_BYTES = 28 << 20
"""More than it has once all are computed, and a few steps take: 8 MiB each. What is left of it in
the end is enough to say so."""
BODIES = [{"prompt": [n, n + 1], "max_tokens": 60, "ignore_eos": True, "seed": n} for n in range(8)]


def address_space(pid: int) -> int:
    """In bytes."""
    found = re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def limit_memory(server: Server) -> None:
    """Of the engine's process that is there now, not of the next one."""
    size = address_space(server.engine_pid) + MOST_BYTES
    resource.prlimit(server.engine_pid, resource.RLIMIT_AS, (size, size))


def test_no_answer_shows_that_memory_ran_out(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fake_octavo", "growing", "serve"]
    with serving(command, tmp_path) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(at_once, server.url, BODIES)
        wait_until(lambda: server.metrics()["octavo_requests_running"] == len(BODIES))
        limit_memory(server)  # with all within: one that comes later is told to come back
        texts = asked.result()
        assert server.metrics()["octavo_engine_restarts_total"] == 1
        assert "MemoryError" in server.log.read_text()
        assert at_once(server.url, BODIES) == texts
        assert server.metrics()["octavo_engine_restarts_total"] == 1
        wait_until(server.is_idle)
