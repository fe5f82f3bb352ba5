"""Is that process still ours, and how is it started and ended?

A pid alone proves nothing: it may have been given to someone else since. A process counts as ours only when
its command line also holds the path of the configuration we started it with.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from admin import ending
from model.installed import IMPORTED_FROM, module_name

POLL_S: Final = 0.05
GRACE_S: Final = 15.0
"""So long after SIGTERM a server of a cluster that is taken down is killed."""
LOG_BYTES_MAX: Final = 20_000_000
"""Of what a server printed; at its next start a longer file is put aside, as NAME.log.1."""

_children: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
_codes: dict[int, int] = {}
"""How children ended that were seen to."""


def start_server(role: str, conf: Path, log: Path, wrap: Sequence[str] = (), code: str = "") -> int:
    """Start ``keelmq ROLE -c conf`` in its own session, output appended to ``log``; returns the pid.

    ``wrap``: a command that execs what is put behind it. ``code``: the folder of another release, a checkout
    or what a wheel holds, that is started instead of this one."""
    module = module_name("admin")
    if code:
        module = "keelmq.admin" if (Path(code) / "keelmq" / "admin").is_dir() else "admin"
    here = code or str(IMPORTED_FROM)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    command = [*wrap, sys.executable, "-P", "-m", module, role, "-c", str(conf)]
    return start(command, conf, log, {"PYTHONPATH": path})


def start(command: Sequence[str], conf: Path, log: Path, more: Mapping[str, str] | None = None) -> int:
    """Start a server by a command that names ``conf``, with ``more`` variables; returns the pid."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_name(f"{log.name}.1"))
    with log.open("ab") as out:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(more or {})},
        )
    _children[child.pid] = (child, conf)
    _codes.pop(child.pid, None)
    return child.pid


def is_ours(pid: int | None, conf: Path) -> bool:
    """Whether ``pid`` runs (a zombie does not) and is the server started with ``conf``."""
    if not pid:
        return False
    started = _children.get(pid)
    if started is not None:
        # Our own child needs no look at its command line, which is empty for a moment after the start; and
        # only asking for its exit code frees the pid of one that ended.
        child, child_conf = started
        if child.poll() is None:
            return child_conf == conf
        del _children[pid]
        _codes[pid] = child.returncode
        return False
    arguments, state = _look(pid)
    return state not in ("", "Z", "X") and str(conf) in arguments


def exit_code(pid: int | None) -> int | None:
    """How a child of ours ended, that was seen to have: as of ``Popen``. None: it runs, or is nobody's."""
    return None if pid is None else _codes.get(pid)


def _look(pid: int) -> tuple[list[str], str]:
    """(arguments, state letter) of a process; empty when there is none."""
    proc = Path(f"/proc/{pid}")
    if proc.parent.joinpath("self").exists():
        try:
            arguments = proc.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
            # "pid (name) state ...": the name may hold anything, so the state is what follows the last ")".
            state = proc.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return [], ""
        return arguments, state
    listed = subprocess.run(
        ["ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, command = listed.stdout.strip().partition(" ")
    return command.split(), state[:1]


def send_signal(pid: int | None, conf: Path, number: int) -> bool:
    """Signal the process if it is ours; False when it is not there."""
    if pid is None or not is_ours(pid, conf):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def end_all(processes: Sequence[tuple[int | None, Path]], *, grace_s: float = GRACE_S) -> list[int]:
    """SIGTERM to all of ours at once, SIGKILL to those still there after ``grace_s``, or at once when
    somebody is in a hurry; returns the killed."""
    ours = [(pid, conf) for pid, conf in processes if pid is not None and is_ours(pid, conf)]
    for pid, conf in ours:
        send_signal(pid, conf, signal.SIGCONT)  # a frozen process cannot hear SIGTERM
        send_signal(pid, conf, signal.SIGTERM)
    if not wait_gone(ours, grace_s, hurried=ending.hurried):
        left = [(pid, conf) for pid, conf in ours if is_ours(pid, conf)]
        for pid, conf in left:
            send_signal(pid, conf, signal.SIGKILL)
        wait_gone(left, grace_s)
        return [pid for pid, _ in left]
    return []


def wait_gone(
    processes: Sequence[tuple[int, Path]], timeout_s: float, *, hurried: Callable[[], bool] = lambda: False
) -> bool:
    deadline = time.monotonic() + timeout_s
    while any(is_ours(pid, conf) for pid, conf in processes):
        if time.monotonic() > deadline or hurried():
            return False
        time.sleep(POLL_S)
    return True
