"""Wall clocks that differ, of servers on one machine: libfaketime is loaded before a server's own code.

It reads the offset from a file at each look at the clock; monotonic clocks stay. A process that is killed
leaves two names of it under ``/dev/shm``.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

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
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROBE], env=env, capture_output=True, text=True, timeout=30
        )
        moved = done.returncode == 0 and int(done.stdout) == PROBED
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"{path} cannot be loaded: {error}"
    finally:
        sweep()
    return None if moved else f"{path} moves no clock here: {done.stderr.strip()[:200] or 'it says nothing'}"


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
        return ["env", *(f"{key}={value}" for key, value in values.items())]

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


def sweep(shared: Path = SHARED) -> int:
    """Remove the names that processes left which are gone; how many there were."""
    removed = 0
    for name in NAMES:
        for path in shared.glob(f"{name}*"):
            pid = path.name.removeprefix(name)
            if pid.isdigit() and not Path("/proc", pid).exists():
                path.unlink(missing_ok=True)
                removed += 1
    return removed
