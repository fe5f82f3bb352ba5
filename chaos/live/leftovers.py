"""Servers of drills that nobody looks after: the drill ended, or was killed, and they go on.

They are known by their command line, which names a drill's directory, by their parent: whoever started them
ended, so it is the system's; and by the directory, which says that a drill made it and is gone, or is gone
itself. A directory without a ledger is no drill's, or was kept: whoever runs servers there looks after them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

from chaos.live.noted import PROC, Noted, Process, began, is_ours, pid_namespace, runs
from model.errors import ConfigError

REAPERS: Final = frozenset({"systemd", "init", "tini", "dumb-init", "docker-init"})
"""Names of processes that take in those whose parent ended, besides the first of all."""
CONF: Final = b"-c"
HOME: Final = b"-Duser.home="
"""How a server of ours, and one of RocketMQ, names its directory."""
END_S: Final = 10.0
KILLED_S: Final = 2.0
POLL_S: Final = 0.05


def found(prefix: Path) -> dict[Process, Path]:
    """The directory of each forgotten server of this user. ``prefix``: how the paths of drills' directories
    begin."""
    servers = _orphans(os.fsencode(prefix))
    return {server: place for server, place in servers.items() if not is_looked_after(place)}


def of(directory: Path) -> list[Process]:
    """The servers of one directory that nobody's process started, also those that no state file names."""
    place = directory.resolve()
    return [server for server, at in _orphans(os.fsencode(place)).items() if at == place]


def _orphans(prefix: bytes) -> dict[Process, Path]:
    servers, own = {}, pid_namespace()
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or (since := began(pid := int(entry.name))) is None:
            continue
        directory = _directory(_words(pid), prefix)
        if directory is None or not _is_orphan(pid) or not _is_of(os.geteuid(), entry):
            continue
        if pid_namespace(pid) == own:  # else it is a container's, which has other folders
            servers[Process(pid, since)] = directory
    return servers


def is_looked_after(directory: Path) -> bool:
    """Whether a drill works there, or none made it, or it was kept, or it is another user's. A drill that is
    the first of all processes, as in a container, is the parent of its servers as it is of all orphans: its
    ledger tells."""
    if not os.path.lexists(directory):
        return False
    if not is_ours(directory):
        return True
    try:
        noted = Noted.read(directory)
    except ConfigError:
        return True  # nobody knows
    return noted is None or noted.works


def _is_of(uid: int, process: Path) -> bool:
    try:
        return process.stat().st_uid == uid
    except OSError:
        return False


def end_noted(process: Process, number: int, *words: bytes) -> str | None:
    """Send what a drill that is gone noted a signal; why it was left alone, or None. A pid without its start,
    as an earlier release noted it, may be another's since: it has to have one of ``words`` on its command
    line, to be of this user, and an orphan, as what a drill leaves is: that of a drill that runs is none."""
    if process.began is not None:
        process.send(number)
        return None
    if not any(runs(process.pid, word) for word in words):
        return None  # it has ended
    if not _is_orphan(process.pid) or not _is_of(os.geteuid(), PROC / str(process.pid)):
        return f"left process {process.pid} alone: an earlier release noted it, and it may be another drill's"
    Process.of(process.pid).send(number)
    return None


def end(servers: Iterable[Process]) -> None:
    """SIGTERM, also to those that stand still; SIGKILL after ``END_S``, which is waited for."""
    left = set(servers)
    for number in (signal.SIGTERM, signal.SIGCONT):
        _signal(left, number)
    left = _still(left, END_S)
    _signal(left, signal.SIGKILL)
    _still(left, KILLED_S)


def _still(servers: Iterable[Process], within_s: float) -> set[Process]:
    """Which of them run after that time, or none before."""
    left, until_s = set(servers), time.monotonic() + within_s
    while (left := {server for server in left if server.runs}) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    return left


def _signal(servers: Iterable[Process], number: int) -> None:
    for server in servers:
        server.send(number)


def _words(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []  # it ended, or is somebody else's


def _directory(words: list[bytes], prefix: bytes) -> Path | None:
    """The drill's directory that a server's command line names."""
    named = [after for word, after in pairwise(words) if word == CONF]
    named += [word.removeprefix(HOME) for word in words if word.startswith(HOME)]
    for path in named:
        if path.startswith(prefix):
            first = path[len(prefix) :].partition(b"/")[0]
            return Path(os.fsdecode(prefix + first))
    return None


def _is_orphan(pid: int) -> bool:
    parent = _parent(pid)
    if parent <= 1:
        return parent == 1
    try:
        return (PROC / str(parent) / "comm").read_text().strip() in REAPERS
    except OSError:
        return False


def _parent(pid: int) -> int:
    try:
        # The name in brackets may hold anything, brackets too.
        return int((PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
