"""The files that tests make are kept in memory where there is room for them.

Stores sync what they append, thousands of times in a run, and a test removes its store a moment later: on a
disk the processors waited for that up to a third of the time. A sync costs nothing there. So a test of slow,
failing or lying syncs uses a disk of its own making (``chaos.sim.disk``, ``chaos.live``), never this folder.
Without such a place, or without room, files lie where they always did. A run that failed leaves the folders
of its failed tests until the next run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")
ROOM_BYTES: Final = 8 << 30
"""A whole run holds up to 3 GiB at once. The rest is for the programs."""
PREFIX: Final = "keelmq-tests-"


def use_memory(config: pytest.Config) -> None:
    """Does nothing in a worker, which inherits ``TMPDIR``, nor where the caller chose a place."""
    chosen = "TMPDIR" in os.environ or getattr(config.option, "basetemp", None)
    if chosen or hasattr(config, "workerinput") or not _has_room():
        return
    _remove_those_of_runs_that_ended()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.add_cleanup(lambda: _leave(folder, held))


def _has_room() -> bool:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = shutil.disk_usage(MEMORY).free
    except OSError:
        return False
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
    return os.access(MEMORY, os.W_OK) and min(available, free) >= ROOM_BYTES


def _remove_those_of_runs_that_ended() -> None:
    """A run holds a lock on its folder; the kernel lets it go, however the run ended."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        with suppress(OSError):  # of another user, or gone meanwhile
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)


def _leave(folder: Path, held: int) -> None:
    """What pytest kept of failed tests stays; of a run without them, nothing."""
    if not any(folder.glob("pytest-of-*/pytest-*/*")):
        shutil.rmtree(folder, ignore_errors=True)
    os.close(held)
