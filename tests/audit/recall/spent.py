"""How much CPU did a process and all below it take? Spark's is in its JVM and that one's Python workers."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_PROC = Path("/proc")


def cpu_s() -> float:
    """Of this process and its descendants so far, those that ended too; of this one and its ended children
    where there is no ``/proc``."""
    ticks = os.sysconf("SC_CLK_TCK")
    own = sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    told = {pid: fields for pid, fields in map(_fields, _pids()) if fields}
    below = {os.getpid()}
    while more := {pid for pid, fields in told.items() if int(fields[1]) in below} - below:
        below |= more
    below.discard(os.getpid())
    # utime, stime, and those of children that were waited for
    return own + sum(sum(map(int, told[pid][11:15])) for pid in below if pid in told) / ticks


def _pids() -> list[int]:
    return [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()] if _PROC.is_dir() else []


def _fields(pid: int) -> tuple[int, list[str]]:
    """What stands behind the name in ``/proc/PID/stat``; nothing of a process that ended."""
    try:
        return pid, (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return pid, []
