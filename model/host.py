"""What the machine, or the container around us, leaves us of cores and memory. Linux only.

A container sees the whole machine in /proc, so the limits of its control group count as well, and
those of the groups that it is part of: cgroup v2 (docs.kernel.org/admin-guide/cgroup-v2.html), and
v1 where that is still mounted.
"""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
FREE_MEMORY_SHARE = 0.5
"""What a cache of automatic size takes of the memory that the weights leave free; activations, the
API process and the rest of the machine need some as well."""

V2_MEMORY = ("memory.max", "memory.current", "inactive_file")
V1_MEMORY = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""The limit, what is used, and the key in memory.stat of what of it is but cached files."""


def usable_cores(root: Path = ROOT) -> int:
    """A quota is rounded down: a thread that gets half a core would keep the others waiting."""
    quotas = (quota for group in _groups("cpu", root) for quota in _cpu_quota(group))
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def available_memory(root: Path = ROOT) -> int:
    """Bytes that can be taken before anything is swapped out or killed."""
    meminfo = _pairs(root / "proc/meminfo")
    left = (left for group in _groups("memory", root) for left in _memory_left(group))
    return max(0, min([meminfo["MemAvailable:"] * 1024, *left]))


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Our group's folder and those of the groups above it, as far as we can see them."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / (controller if controllers else "")
            own = mount / path.lstrip("/")
            yield from (group for group in (own, *own.parents) if group.is_relative_to(mount))


def _cpu_quota(group: Path) -> Iterator[float]:
    if (group / "cpu.max").exists():
        quota, period = (group / "cpu.max").read_text().split()
    elif (group / "cpu.cfs_quota_us").exists():
        quota = (group / "cpu.cfs_quota_us").read_text().strip()
        period = (group / "cpu.cfs_period_us").read_text()
    else:
        return
    if quota not in ("max", "-1"):
        yield int(quota) / int(period)


def _memory_left(group: Path) -> Iterator[int]:
    for limit, usage, cached in (V2_MEMORY, V1_MEMORY):
        if (group / limit).exists() and (text := (group / limit).read_text().strip()) != "max":
            used = int((group / usage).read_text()) - _pairs(group / "memory.stat")[cached]
            yield int(text) - used


def _pairs(path: Path) -> dict[str, int]:
    """A file with a name and a number on each line."""
    fields = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number, *_ in fields}
