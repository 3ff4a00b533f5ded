import os
from pathlib import Path

import pytest

from model.host import available_memory, usable_cores

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 cores and 16 GiB free, whose files a test can add."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    write(
        tmp_path,
        "proc/meminfo",
        "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\nHugePages_Free: 0\n",
    )
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def write_v2_memory(root: Path, group: str, *, limit: str) -> None:
    folder = f"sys/fs/cgroup/{group}"
    write(root, f"{folder}memory.max", f"{limit}\n")
    write(root, f"{folder}memory.current", f"{3 * GIB}\n")
    write(root, f"{folder}memory.stat", f"anon {2 * GIB}\ninactive_file {GIB}\n")


def test_without_limits_all_counts(root: Path) -> None:
    assert usable_cores(root) == 8
    assert available_memory(root) == 16 * GIB


def test_affinity_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5})
    assert usable_cores(root) == 2


@pytest.mark.parametrize(
    ("quota", "cores"), [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 8)]
)
def test_cpu_quota_of_cgroup_v2(root: Path, quota: str, cores: int) -> None:
    write(root, "sys/fs/cgroup/cpu.max", f"{quota}\n")
    assert usable_cores(root) == cores


@pytest.mark.parametrize(("quota", "cores"), [("300000", 3), ("-1", 8)])
def test_cpu_quota_of_cgroup_v1(root: Path, quota: str, cores: int) -> None:
    write(root, "proc/self/cgroup", "4:cpu,cpuacct:/docker/1\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", f"{quota}\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cores(root) == cores


def test_memory_limit_of_cgroup_v2_leaves_cached_files_out(root: Path) -> None:
    write_v2_memory(root, "", limit=str(4 * GIB))
    assert available_memory(root) == 2 * GIB


def test_memory_limit_of_a_group_above(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/pods/ours\n")
    write_v2_memory(root, "pods/ours/", limit="max")
    write_v2_memory(root, "pods/", limit=str(5 * GIB))
    assert available_memory(root) == 3 * GIB


def test_memory_limit_of_cgroup_v1(root: Path) -> None:
    write(root, "proc/self/cgroup", "3:memory:/docker/1\n")
    group = "sys/fs/cgroup/memory/docker/1"
    write(root, f"{group}/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(root, f"{group}/memory.usage_in_bytes", f"{GIB}\n")
    write(root, f"{group}/memory.stat", "total_inactive_file 0\n")
    assert available_memory(root) == GIB


def test_more_used_than_allowed_leaves_nothing(root: Path) -> None:
    write_v2_memory(root, "", limit=str(GIB))
    assert available_memory(root) == 0


def test_this_machine_has_something_to_use() -> None:
    assert usable_cores() >= 1
    assert available_memory() > 1 << 20
