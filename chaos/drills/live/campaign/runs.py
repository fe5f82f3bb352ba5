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
from itertools import count
from pathlib import Path
from typing import Any, Final

from admin import ending
from admin.exits import FAILED, INTERRUPTED, UNFINISHED
from admin.outfile import write_whole
from chaos.drills.live.campaign import left
from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.campaign.state import PUT_ASIDE, REFUSED, Campaign, Cell, with_verdict
from chaos.drills.live.counted import Counted
from chaos.drills.live.kept import kept_code, never_began
from chaos.drills.live.names import THEIRS
from chaos.drills.live.results import NAME, broke, read_one
from chaos.drills.live.scenario import DrillSpec
from chaos.live.noted import CAMPAIGN_ENV
from chaos.live.releases import Code, code
from chaos.scenarios.matrix import plan
from model.errors import ConfigError, MqError
from model.installed import IMPORTED_FROM, module_name

POLL_S: Final = 0.2
ENDS_S: Final = 120.0
"""A run that was told to end takes its cluster down meanwhile."""
LOG_LINES: Final = 5
LOCK: Final = "lock"
NEXT: Final = "next"
PLAN: Final = "json"
RESULT: Final = "result"
HISTORY: Final = "jsonl"
WRITTEN: Final = "written"
"""The member of a plan with what ``Code.written`` was."""

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
    code: Callable[[], Code] = code
    _running: dict[Cell, subprocess.Popen[bytes]] = field(default_factory=dict)

    def carry_out(self, rows: Sequence[Row]) -> None:
        """What is missing of ``rows``. Interrupted, it ends the runs under way, which leave nothing, and are
        begun again the next time. Raises MqError when what a run left cannot be undone."""
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
                        # One that was killed left its servers: no other is measured beside them.
                        left.heal(self.campaign.directory, self.say, run.pid)
        finally:
            # A signal may come between what ended the loop and that block: there it only hurries.
            try:
                with ending.uncut():
                    self._end_all()
            except KeyboardInterrupt:
                self._end_all()
                raise

    def _next(self, rows: Sequence[Row]) -> Cell | None:
        if self.begin_until_s is not None and self.clock_s() >= self.begin_until_s:
            return None
        return self.campaign.next(rows, self._running)

    def _begin(self, cell: Cell) -> None:
        """Raises ConfigError when the code is another one now, NoRelease when it has no name any more."""
        code = self.code()
        if code.name != self.campaign.release:
            raise ConfigError(f"the code is {code.name} now, and the campaign is of {self.campaign.release}")
        path = self._path(NEXT, cell.name, PLAN)
        write_whole(path, json.dumps({**self.spec(cell).to_json(), WRITTEN: code.written}) + "\n")
        found = os.pathsep.join(filter(None, [str(IMPORTED_FROM), os.environ.get("PYTHONPATH", "")]))
        out, history = self._path(NEXT, cell.name, RESULT), self._path(NEXT, cell.name, HISTORY)
        out.unlink(missing_ok=True)
        history.unlink(missing_ok=True)
        with ending.uncut(), self._path("log", cell.name, "log").open("wb") as log:
            self._running[cell] = subprocess.Popen(
                command(path, out, history),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": found, CAMPAIGN_ENV: left.named(self.campaign.directory)},
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
        out = self._path(NEXT, cell.name, RESULT)
        why = MqError(f"it ended with exit code {code}: {self._last(cell)}")
        try:
            result = read_one(out)
        except ConfigError:
            result = never_began(self.spec(cell), why)
        if code == FAILED and not broke(result):  # its words are in the log; what it is worth stays
            result["violations"] = [{"checker": "exit_code", "text": str(why)}]
            result["broken"] = {"exit_code": 1}
        write_whole(out, json.dumps(result) + "\n")
        if self._taken_in(cell.name):
            self.say(f"{cell.name}: {line(result)}{self._left(rows)}")

    def take_in(self) -> None:
        """What runs left whose campaign was killed."""
        for out in sorted((self.campaign.directory / NEXT).glob(f"*.{RESULT}")):
            self._taken_in(out.name.removesuffix(f".{RESULT}"))
        for path in (self.campaign.directory / NEXT).iterdir():
            path.unlink()

    def _taken_in(self, name: str) -> bool:
        """Whether a result is one of the campaign's: it is counted then, else put aside, and that is said."""
        out, path = self._path(NEXT, name, RESULT), self._path(NEXT, name, PLAN)
        result: dict[str, Any] | None = None
        try:
            result = read_one(out)
            why = self.campaign.why_not(result, name) or self._why_touched(path)
        except ConfigError as error:
            why = str(error)
        if result is not None and why is None:
            self._make_room(name)
            self._move(name, "runs", name, history=broke(result))
            self.campaign.add(result)
            return True
        why, file = why or "put aside", self._free(name)
        if result is not None:
            write_whole(out, json.dumps({**result, PUT_ASIDE: with_verdict(why, result)}) + "\n")
        self._move(name, REFUSED, file, history=True)
        self.campaign.put_aside(name, why, result, file)
        self.say(f"not counted: {self.campaign.refused[-1]}")
        return False

    def _move(self, name: str, into: str, file: str, *, history: bool) -> None:
        """What a run left; ``history``: that, too, which goes else."""
        own = self._path(NEXT, name, HISTORY)
        if history and own.exists():
            os.replace(own, self._path(into, file, HISTORY))
        own.unlink(missing_ok=True)
        os.replace(self._path(NEXT, name, RESULT), self._path(into, file, "json"))
        self._path(NEXT, name, PLAN).unlink(missing_ok=True)

    def _free(self, name: str) -> str:
        """What a result that is put aside is called: none that was replaces another."""
        (self.campaign.directory / REFUSED).mkdir(exist_ok=True)
        names = (name if number == 1 else f"{name}.{number}" for number in count(1))
        parts = ("json", HISTORY)
        return next(n for n in names if not any(self._path(REFUSED, n, p).exists() for p in parts))

    def _make_room(self, name: str) -> None:
        """A file that lies under the name of a run and is none of the campaign's is put aside."""
        if any(self._path("runs", name, part).exists() for part in ("json", HISTORY)):
            free = self._free(name)
            for part in ("json", HISTORY):
                if self._path("runs", name, part).exists():
                    os.replace(self._path("runs", name, part), self._path(REFUSED, free, part))

    def _why_touched(self, path: Path) -> str | None:
        """Whether a file of the code was written since the run was to begin: it may have loaded that."""
        written = json.loads(path.read_text(encoding="utf-8")).get(WRITTEN) if path.exists() else None
        return None if written == self.code().written else "the code was written to while it ran"

    def _last(self, cell: Cell) -> str:
        text = self._path("log", cell.name, "log").read_text(encoding="utf-8", errors="replace")
        return " ".join(" ".join(text.splitlines()[-LOG_LINES:]).split())

    def _left(self, rows: Sequence[Row]) -> str:
        left_s = self.campaign.left_s(rows)
        return "" if left_s is None else f"; about {left_s / self.jobs / 60:.0f} min left"

    def _path(self, folder: str, name: str, ending: str) -> Path:
        return self.campaign.directory / folder / f"{name}.{ending}"

    def _end_all(self) -> None:
        """Each takes its cluster down in order; who does not is killed, and what it left is undone."""
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
                run.wait()
                self.say(f"{cell.name} did not end and was killed")
            try:
                left.heal(self.campaign.directory, self.say, run.pid)
            except MqError as error:
                self.say(f"{cell.name}: {error}")
        self._running.clear()


def command(spec: Path, out: Path, history: Path) -> list[str]:
    """Carries out one run, in a process of its own."""
    files = [str(spec), "--json", str(out), "--history", str(history)]
    return [sys.executable, "-P", "-m", module_name("cli.main"), "drill", "replay", *files]


def line(result: dict[str, Any]) -> str:
    """What came of a run."""
    found = Counted.of([result])
    told = f"{found.strikes} struck, {found.acked + found.unjudged:,} acknowledged"
    if kept_code(result) in (FAILED, UNFINISHED):
        reasons = [str(one.get("text", "")) for one in result.get("violations") or ()]
        reasons += [str(drill["unfinished"]) for drill in result["drills"] if drill.get("unfinished")]
        told += f", NOT FINE: {(reasons or [str(result.get('broken'))])[0].partition(chr(10))[0]}"
    return f"{told}; {sum(result.get('spent_s', {}).values()):.0f} s"
