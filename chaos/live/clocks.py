"""Wall clocks that differ, of servers on one machine: libfaketime is loaded before a server's own code.

It reads the offset from a file at each look at the clock; monotonic clocks stay. A process that is killed
leaves two names of it under ``/dev/shm``, with nothing but its pid in them: containers may share that folder,
and not their pids. So only names of pids that were noted here are taken away.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from chaos.live.noted import PROC, is_our_file

DISTRIBUTED: Final = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
)
"""Where distributions put it."""

PACKAGED: Final = "vendor/libfaketime/src/libfaketime.so.1"
"""Where the Python package of that name has it."""

SHARED: Final = Path("/dev/shm")
NAMES: Final = ("faketime_shm_", "sem.faketime_sem_")
"""Of what it makes there; the pid follows."""

HOWEVER: Final = "libfaketime (pip install 'keelmq[clock]', or Debian: apt install faketime)"
PROBE: Final = "import time; print(time.gmtime().tm_year)"
PROBED: Final = 2001
PROBE_S: Final = 30.0
PIDS: Final = ".pids"
"""How the file ends in which the processes of one server are noted, each before it has a clock."""
NOTES_PID: Final = 'echo $$ >> "$0" && exec "$@"'


def library() -> Path | None:
    """``KEELMQ_FAKETIME`` says where it is, else the Python package has it, else the distribution."""
    named = os.environ.get("KEELMQ_FAKETIME")
    if named:
        return Path(named) if Path(named).exists() else None
    package = importlib.util.find_spec("libfaketime")
    packaged = [Path(package.origin).parent / PACKAGED] if package and package.origin else []
    return next((path for path in (*packaged, *map(Path, DISTRIBUTED)) if path.exists()), None)


def unavailable() -> str | None:
    """Why no clock can be moved on this machine; None: it can."""
    path = library()
    return f"needs {HOWEVER}" if path is None else _why_it_does_nothing(path)


@functools.cache
def _why_it_does_nothing(path: Path) -> str | None:
    """It may be of another processor, or of a newer libc: the loader says so and goes on without it."""
    env = {**os.environ, "LD_PRELOAD": str(path), "FAKETIME": f"@{PROBED}-06-01 00:00:00"}
    command = [sys.executable, "-I", "-c", PROBE]
    try:
        probe = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        return f"{path} cannot be loaded: {error}"
    try:
        said, wrong = probe.communicate(timeout=PROBE_S)
        moved = probe.returncode == 0 and int(said) == PROBED
    except (ValueError, subprocess.TimeoutExpired) as error:
        return f"{path} cannot be loaded: {error}"
    finally:
        probe.kill()
        probe.communicate()
        sweep([probe.pid])
    return None if moved else f"{path} moves no clock here: {wrong.strip()[:200] or 'it says nothing'}"


class Clock:
    """The wall clock of one server. ``path``: of its offset."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def command(self) -> list[str]:
        """What comes before the server's own command. Raises RuntimeError where ``unavailable`` says why."""
        path = library()
        if path is None:
            raise RuntimeError(f"needs {HOWEVER}")
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text("+0.000\n", encoding="ascii")
        values = {
            "LD_PRELOAD": str(path),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Else each wait for Python's lock ends at once, and two threads keep each other from working.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }
        notes = ["sh", "-c", NOTES_PID, str(self._path.with_name(self._path.name + PIDS))]
        return [*notes, "env", *(f"{key}={value}" for key, value in values.items())]

    def jump(self, by_ms: int) -> None:
        """By what it is off already and ``by_ms``. The process sees it at its next look."""
        off_s, rate = self._read()
        self._write(off_s + by_ms / 1000, rate)

    def drift(self, rate: float) -> bool:
        """So many times as fast, counted from the process's start; whether that is another rate."""
        off_s, before = self._read()
        self._write(off_s, rate)
        return rate != before

    def _read(self) -> tuple[float, float]:
        off_s, _, rate = self._path.read_text(encoding="ascii").strip().partition(" x")
        return float(off_s), float(rate or 1)

    def _write(self, off_s: float, rate: float) -> None:
        # A rate that is left out is the one before.
        draft = self._path.with_suffix(".new")
        draft.write_text(f"{off_s:+.3f} x{rate}\n", encoding="ascii")
        draft.replace(self._path)


def noted(directory: Path) -> set[int]:
    """Pids of the processes whose clocks lie in ``directory``, also of those that are gone."""
    words = [word for path in directory.glob(f"*{PIDS}") for word in path.read_text("ascii").split()]
    return {int(word) for word in words if word.isdigit()}


def sweep(pids: Iterable[int], shared: Path = SHARED) -> int:
    """Remove the names that these processes left, if they are gone, and the names this user's; how many there
    were."""
    removed = 0
    for pid in pids:
        if (PROC / str(pid)).exists():
            continue
        for path in (shared / f"{name}{pid}" for name in NAMES):
            if is_our_file(path):
                path.unlink(missing_ok=True)
                removed += 1
    return removed
