"""Drills from the console: each breaks servers of a cluster of its own, never of the one that is shown.

A drill is a process of its own, ``keelmq drill NAME`` as in a shell: it starts NameServers and a group on
loopback of the console's machine, and removes them at its end, also when it is stopped. One runs at a time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from model.errors import MqError
from model.installed import IMPORTED_FROM, module_name
from runtime.env import Env
from runtime.tasks import Tasks

KINDS: Final = {
    "kill-master": "SIGKILL the master; another broker takes over.",
    "stop-master": "SIGTERM the master: an orderly stop.",
    "freeze-master": "SIGSTOP the master; thaw it when another has taken over.",
    "handover": "Ask the Controller to make a slave master.",
    "kill-slave": "SIGKILL a slave; sends go on after it left the SyncStateSet.",
    "freeze-slave": "SIGSTOP a slave.",
    "kill-controller-leader": "SIGKILL the Controllers' leader: the data path must not notice.",
    "kill-leader-and-master": "SIGKILL the Controllers' leader and the master at once.",
    "kill-namesrv": "SIGKILL a NameServer that is not the Controllers' leader.",
}
"""Of processes, by what ``keelmq drill`` says of them; those of links need proxies."""
REPEAT_MAX: Final = 20
LINES_MAX: Final = 200
LINE_BYTES_MAX: Final = 400
STOP_S: Final = 30.0
"""How long a drill may take to end its servers before it is killed."""
VERDICTS: Final[dict[int | None, str]] = {0: "nothing was lost", 2: "a promise was broken"}
COMMAND: Final = (sys.executable, "-P", "-m", module_name("cli.main"), "drill")


class CannotDrill(MqError):
    """No drill is started; the text says why."""


@dataclass(slots=True)
class Run:
    """One drill. ``ended_ms`` is None while it runs; ``report``: its page's name in the directory."""

    kind: str
    repeat: int
    user: str
    began_ms: int
    ended_ms: int | None = None
    exit_code: int | None = None
    report: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_MAX))

    @property
    def verdict(self) -> str:
        """How it ended, in words."""
        return VERDICTS.get(self.exit_code, "it did not come to its end")


class Drills:
    """``directory``: where results and their pages go."""

    def __init__(self, env: Env, directory: Path, command: tuple[str, ...] = COMMAND) -> None:
        self._env = env
        self._directory = directory
        self._command = command
        self._tasks = Tasks("drills")
        self._process: asyncio.subprocess.Process | None = None
        self.last: Run | None = None

    @property
    def runs(self) -> bool:
        return self.last is not None and self.last.ended_ms is None

    def start(self, kind: str, repeat: int, user: str) -> Run:
        """Raises CannotDrill: one runs already, or there is no such kind."""
        if kind not in KINDS:
            raise CannotDrill(f"{kind[:40]} is no drill")
        if not 1 <= repeat <= REPEAT_MAX:
            raise CannotDrill(f"a drill is repeated 1 to {REPEAT_MAX} times")
        if self.runs:
            raise CannotDrill("a drill runs already: one at a time")
        self.last = run = Run(kind, repeat, user, self._env.now_ms())
        self._tasks.spawn(self._carry_out(run), name="drill")
        return run

    def interrupt(self) -> None:
        """Ask the drill that runs to end: it removes its servers first."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def stop(self) -> None:
        """End what runs, and wait for it."""
        self.interrupt()
        process = self._process
        if process is not None and process.returncode is None:
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
        await self._tasks.cancel()

    async def _carry_out(self, run: Run) -> None:
        moment = datetime.fromtimestamp(run.began_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")
        result = self._directory / f"drill-{run.kind}-{moment}.json"
        try:
            run.exit_code = await self._call(
                run, run.kind, "--repeat", str(run.repeat), "--json", str(result)
            )
            if result.exists():
                await self._call(run, "report", str(result))
                page = result.with_suffix(".html")
                run.report = page.name if page.exists() else ""
        except OSError as error:
            run.lines.append(str(error))
            run.exit_code = 3
        finally:
            run.ended_ms = self._env.now_ms()

    async def _call(self, run: Run, *arguments: str) -> int:
        path = os.pathsep.join(filter(None, [str(IMPORTED_FROM), os.environ.get("PYTHONPATH", "")]))
        plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is the console's, which ends the drill in order
            env={**os.environ, "PYTHONPATH": path, **plain},
        )
        self._process = process
        assert process.stdout is not None
        try:
            async for line in _lines(process.stdout):
                run.lines.append(line.decode(errors="backslashreplace").rstrip())
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines, each cut after LINE_BYTES_MAX bytes: of a longer one no more is held."""
    line, whole = b"", True
    while data := await stream.read(LINE_BYTES_MAX):
        for part in data.splitlines(keepends=True):
            line, whole = (line + part)[: LINE_BYTES_MAX + 1], part.endswith((b"\n", b"\r"))
            if whole:
                yield line[:LINE_BYTES_MAX]
                line = b""
    if not whole:
        yield line[:LINE_BYTES_MAX]
