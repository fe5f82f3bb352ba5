"""The files that tests make lie in memory where there is room for them.

Stores sync what they append, thousands of times in a run, and a test removes its store a moment later: on a
disk both cores waited for that up to a third of the time. Without such a place, or without room, they lie
where they always did. A run that failed leaves the folders of its failed tests until the next run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")
ROOM_BYTES: Final = 8 << 30
"""A whole run holds up to 3 GiB at once. The rest is for the programs."""
PREFIX: Final = "keelmq-tests-"


def use_memory(config: pytest.Config) -> None:
    """Does nothing in a worker, which inherits it, nor where the caller chose a place."""
    chosen = "TMPDIR" in os.environ or getattr(config.option, "basetemp", None)
    if chosen or hasattr(config, "workerinput") or not _room():
        return
    _remove_those_of_runs_that_ended()
    folder = MEMORY / f"{PREFIX}{os.getpid()}"
    folder.mkdir(mode=0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.add_cleanup(lambda: _leave(folder))


def _room() -> bool:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = shutil.disk_usage(MEMORY).free
    except OSError:
        return False
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
    return os.access(MEMORY, os.W_OK) and min(available, free) >= ROOM_BYTES


def _remove_those_of_runs_that_ended() -> None:
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(PREFIX)).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _leave(folder: Path) -> None:
    """What pytest kept of failed tests stays; of a run without them, nothing."""
    if not any(folder.glob("pytest-of-*/pytest-*/*")):
        shutil.rmtree(folder, ignore_errors=True)
