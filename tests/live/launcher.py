"""Starts servers as real processes without a new interpreter each: 200 power failures need 300 starts.

The parent imports everything once, and forks for each line ``role<TAB>conf<TAB>log`` it reads. Told
``no-sync`` it plants a mistake into all: the CommitLog is never synced.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from admin.local import processes
from model.installed import IMPORTED_FROM

IMPORTED: Final = ("admin.host.serve", "broker.service", "namesrv.service", "controller.service", "uvloop")


class Forked:
    """What ``admin.local.processes`` asks of a child it started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            self.returncode = 0  # its parent knows better, and nobody asks it
        return self.returncode


class Launcher:
    """Takes the place of ``admin.local.processes.start_server`` while entered."""

    def __init__(self, *plants: str) -> None:
        self._plants = plants

    def __enter__(self) -> Self:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.live.launcher", *self._plants],
            cwd=IMPORTED_FROM,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(processes, "start_server", self._start_server)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patch.undo()
        self._parent.communicate(timeout=10)

    def _start_server(
        self, role: str, conf: Path, log: Path, wrap: Sequence[str] = (), code: str = ""
    ) -> int:
        assert not wrap, "a fork is no new command"
        assert not code, "a fork has the code of its parent"
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(f"{role}\t{conf}\t{log}\n")
        self._parent.stdin.flush()
        pid = int(self._parent.stdout.readline())
        child: Any = Forked(pid)
        processes._children[pid] = (child, conf)
        return pid


def main() -> None:
    for name in IMPORTED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # uvloop is not there on every system
    if "no-sync" in sys.argv[1:]:
        _skip_syncs()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children: they leave no zombies
    while line := sys.stdin.readline():
        role, conf, log = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            os._exit(_child(role, conf, log))
        print(pid, flush=True)


def _skip_syncs() -> None:
    from runtime.os_env import OsFile

    sync = OsFile.sync

    def skipped(self: OsFile) -> None:
        if "/commitlog/" not in self.path:
            sync(self)

    OsFile.sync = skipped  # type: ignore[method-assign]


def _child(role: str, conf: str, log: str) -> int:
    from admin.host.serve import serve

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    return serve(role, conf, [])


if __name__ == "__main__":
    main()
