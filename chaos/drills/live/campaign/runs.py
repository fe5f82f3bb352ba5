"""How is a campaign carried out? Several runs side by side, each ``keelmq drill replay`` in a process of its
own, on a cluster with ports, namespaces and disks of its own."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from admin import ending
from admin.exits import FAILED, INTERRUPTED, UNFINISHED
from admin.outfile import write_whole
from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.campaign.state import Campaign, Cell
from chaos.drills.live.counted import Counted
from chaos.drills.live.matrix import NAME, kept_code, never_began
from chaos.drills.live.scenario import THEIRS, DrillSpec
from chaos.scenarios.matrix import plan
from model.errors import ConfigError, MqError
from model.installed import IMPORTED_FROM, module_name

POLL_S: Final = 0.2
ENDS_S: Final = 120.0
"""A run that was told to end takes its cluster down meanwhile."""
LOG_LINES: Final = 5
LOCK: Final = "lock"

Say = Callable[[str], object]


@contextmanager
def alone(directory: Path) -> Iterator[int]:
    """One campaign at a time in a directory: also while runs go on whose campaign was killed, which have what
    this gives. Raises ConfigError."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"a campaign works in {directory}, or runs of one that was killed do") from None
        yield file.fileno()


@dataclass(slots=True)
class Runs:
    """The runs under way. ``lock``: a descriptor that each of them holds; ``previous``: what upgrades begin
    with."""

    campaign: Campaign
    jobs: int
    lock: int
    say: Say
    previous: Path | None = None
    begin_until_s: float | None = None
    """No run is begun after it."""
    clock_s: Callable[[], float] = time.monotonic
    _running: dict[Cell, subprocess.Popen[bytes]] = field(default_factory=dict)

    def carry_out(self, rows: Sequence[Row]) -> None:
        """What is missing of ``rows``. Interrupted, it ends the runs under way, which leave nothing, and are
        begun again the next time."""
        try:
            while True:
                while len(self._running) < self.jobs and (cell := self._next(rows)) is not None:
                    self._begin(cell)
                if not self._running:
                    return
                time.sleep(POLL_S)
                for cell, run in list(self._running.items()):
                    if run.poll() is not None:
                        del self._running[cell]
                        self._ended(cell, run.returncode, rows)
        finally:
            self._end_all()

    def _next(self, rows: Sequence[Row]) -> Cell | None:
        if self.begin_until_s is not None and self.clock_s() >= self.begin_until_s:
            return None
        return self.campaign.next(rows, self._running)

    def _begin(self, cell: Cell) -> None:
        path = self._path("next", cell, "json")
        write_whole(path, json.dumps(self.spec(cell).to_json()) + "\n")
        found = os.pathsep.join(filter(None, [str(IMPORTED_FROM), os.environ.get("PYTHONPATH", "")]))
        out, history = self._path("runs", cell, "json"), self._path("runs", cell, "jsonl")
        with ending.uncut(), self._path("log", cell, "log").open("wb") as log:
            self._running[cell] = subprocess.Popen(
                command(path, out, history),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": found},
                start_new_session=True,
                pass_fds=(self.lock,),
            )

    def spec(self, cell: Cell) -> DrillSpec:
        row = cell.row
        return DrillSpec(
            scenario=NAME.format(row.kind, row.mode),
            seed=cell.seed,
            plan=plan(row.kind, row.mode, cell.seed, cell.strikes, row.target),
            one_by_one=True,
            previous=self.previous,
            links=row.links,
            target=row.target,
            # RocketMQ breaks what its mode does not promise: every strike is to be had all the same.
            go_on=row.target == THEIRS,
        )

    def _ended(self, cell: Cell, code: int, rows: Sequence[Row]) -> None:
        """Keep what a run left; of one that never began why. Raises KeyboardInterrupt where somebody
        interrupted it."""
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        out, history = self._path("runs", cell, "json"), self._path("runs", cell, "jsonl")
        if not out.exists():
            why = MqError(f"it ended with exit code {code}: {self._last(cell)}")
            write_whole(out, json.dumps(never_began(self.spec(cell), why)) + "\n")
        result = json.loads(out.read_text(encoding="utf-8"))
        if not (result.get("violations") or result.get("broken")):
            history.unlink(missing_ok=True)
        self._path("next", cell, "json").unlink(missing_ok=True)
        self.campaign.add(result)
        self.say(f"{cell.name}: {line(result)}{self._left(rows)}")

    def _last(self, cell: Cell) -> str:
        text = self._path("log", cell, "log").read_text(encoding="utf-8", errors="replace")
        return " ".join(" ".join(text.splitlines()[-LOG_LINES:]).split())

    def _left(self, rows: Sequence[Row]) -> str:
        left_s = self.campaign.left_s(rows)
        return "" if left_s is None else f"; about {left_s / self.jobs / 60:.0f} min left"

    def _path(self, folder: str, cell: Cell, ending: str) -> Path:
        return self.campaign.directory / folder / f"{cell.name}.{ending}"

    def _end_all(self) -> None:
        """Each takes its cluster down in order; who does not is killed, and ``keelmq drill heal`` is left."""
        for run in self._running.values():
            run.send_signal(signal.SIGTERM)
        until_s, hurried = time.monotonic() + ENDS_S, False
        while any(run.poll() is None for run in self._running.values()) and time.monotonic() < until_s:
            if ending.hurried() and not hurried:
                hurried = True
                for run in self._running.values():
                    run.send_signal(signal.SIGTERM)
            time.sleep(POLL_S)
        for cell, run in self._running.items():
            if run.poll() is None:
                run.kill()
                self.say(f"{cell.name} did not end and was killed: keelmq drill heal")
        self._running.clear()


def command(spec: Path, out: Path, history: Path) -> list[str]:
    """Carries out one run, in a process of its own."""
    files = [str(spec), "--json", str(out), "--history", str(history)]
    return [sys.executable, "-P", "-m", module_name("cli.main"), "drill", "replay", *files]


def line(result: dict[str, Any]) -> str:
    """What came of a run."""
    found = Counted.of([result])
    told = f"{found.strikes} struck, {found.acked:,} acknowledged"
    if kept_code(result) in (FAILED, UNFINISHED):
        reasons = [str(one.get("text", "")) for one in result.get("violations") or ()]
        reasons += [str(drill["unfinished"]) for drill in result["drills"] if drill.get("unfinished")]
        told += f", NOT FINE: {(reasons or [str(result.get('broken'))])[0].partition(chr(10))[0]}"
    return f"{told}; {sum(result.get('spent_s', {}).values()):.0f} s"
