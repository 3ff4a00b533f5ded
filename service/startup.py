"""How long ago this process began, as the kernel has it: before anything of ours could look at a
clock. Linux only."""

import os
import time
from pathlib import Path


def seconds_since_start() -> float:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[19])  # man 5 proc_pid_stat: starttime, counted from the state
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
