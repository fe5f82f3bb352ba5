"""A long run over all targets: so many executions, by weight, with both engines, resumable.

    DIR/state.json          what was done, per target and engine; a run that was stopped goes on from there
    DIR/TARGET/corpus/      inputs that reached new code (guided engine)
    DIR/TARGET/crash-*      inputs that raised something that is not declared

Two engines share the targets. ``guided``: atheris, in a process of its own for each target; where it is not
installed its part is done by the other. ``plain``: inputs of the corpus, changed by chance, in this process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from bench.provenance import machine
from tests import ROOT
from tests.fuzz import corpus
from tests.fuzz.targets.registry import TARGETS
from tests.fuzz.targets.target import Target, execute

GUIDED: Final = "guided"
PLAIN: Final = "plain"
PIECE_MAX: Final = 100_000
"""Of the plain engine at once: the state is written after each piece."""
GUIDED_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``executions`` of all ``targets`` together."""

    executions: int
    targets: tuple[str, ...]
    directory: Path
    seed: int = 1
    guided_share: float = GUIDED_SHARE
    deadline_s: float | None = None
    guided_s: float | None = None  # no target begins with the guided engine after so long

    def shares(self) -> dict[tuple[str, str], int]:
        """(engine, target) -> executions; the sum is ``executions`` or a little more."""
        whole = sum(TARGETS[name].weight for name in self.targets)
        guided = self.guided_share if has_atheris() else 0.0
        found = {}
        for name in self.targets:
            share = -(-self.executions * TARGETS[name].weight // whole)
            found[GUIDED, name] = int(share * guided)
            found[PLAIN, name] = share - found[GUIDED, name]
        return found


def has_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


class Run:
    """``state``: per target and engine what was done; ``tell`` hears a line after each piece."""

    def __init__(self, plan: Plan, tell: Callable[[str], object]) -> None:
        self._plan = plan
        self._tell = tell
        self._file = plan.directory / "state.json"
        self._began = time.monotonic()
        plan.directory.mkdir(parents=True, exist_ok=True)
        self.state: dict[str, Any] = {"done": {}, "rss": [], "crashes": []}
        if self._file.exists():
            self.state = json.loads(self._file.read_text())

    def go(self) -> dict[str, Any]:
        """Do what is left of the plan. The result, JSON-ready."""
        logging.disable(logging.CRITICAL)
        try:
            for engine, name, count in self._left():
                if self._is_after(self._plan.deadline_s):
                    break
                (self._guided if engine == GUIDED else self._plain)(TARGETS[name], count)
                self._save()
        finally:
            logging.disable(logging.NOTSET)
        return self.result()

    def result(self) -> dict[str, Any]:
        done = self.state["done"]
        return {
            "executions": self.total(),
            "planned": self._plan.executions,
            "crashes": self.state["crashes"],
            "rssRunnerMiB": self.state["rss"],
            "targets": done,
            "machine": machine(),
        }

    def total(self) -> int:
        return sum(row["executions"] for engines in self.state["done"].values() for row in engines.values())

    def _left(self) -> Iterator[tuple[str, str, int]]:
        """All that is guided comes first: the plain engine begins with what it found, and does the rest."""
        shares = self._plan.shares()
        for name in self._plan.targets:
            left = shares[GUIDED, name] - self._row(GUIDED, name)["executions"]
            if left > 0 and not self._is_after(self._plan.guided_s):
                yield GUIDED, name, left
        for name in self._plan.targets:
            whole = shares[GUIDED, name] + shares[PLAIN, name] - self._row(GUIDED, name)["executions"]
            while (left := whole - self._row(PLAIN, name)["executions"]) > 0:
                yield PLAIN, name, min(left, PIECE_MAX)

    def _row(self, engine: str, name: str) -> dict[str, Any]:
        engines = self.state["done"].setdefault(name, {})
        row = engines.setdefault(engine, {"executions": 0, "decoded": 0, "seconds": 0.0})
        assert isinstance(row, dict)
        return row

    def _is_after(self, limit_s: float | None) -> bool:
        return limit_s is not None and time.monotonic() - self._began > limit_s

    def _guided(self, target: Target, count: int) -> None:
        directory = self._plan.directory / target.name
        directory.mkdir(exist_ok=True)
        told = directory / "told.json"
        told.unlink(missing_ok=True)
        arguments = [target.name, str(count), str(self._plan.seed), str(directory)]
        with (directory / "log").open("wb") as log:
            done = subprocess.run(
                [sys.executable, "-m", "tests.fuzz.guided", *arguments], cwd=ROOT, stdout=log, stderr=log
            )
        if not told.exists():
            raise RuntimeError(f"the guided engine did not begin: see {directory / 'log'}")
        found = json.loads(told.read_text())
        self._note(GUIDED, target.name, found)
        self._row(GUIDED, target.name)["rssMiB"] = [found["rssStart"] >> 20, found["rssEnd"] >> 20]
        if done.returncode:
            self._crash(GUIDED, target.name, found["crashed"] or f"ended with {done.returncode}")

    def _plain(self, target: Target, count: int) -> None:
        directory = self._plan.directory / target.name
        known = corpus.inputs(target)
        known += [path.read_bytes() for path in sorted((directory / "corpus").glob("*"))]
        chance = random.Random(
            f"{self._plan.seed} {target.name} {self._row(PLAIN, target.name)['executions']}"
        )
        began = time.monotonic()
        decoded = 0
        for _ in range(count):
            data = corpus.mutated(chance, known, target.bytes_max)
            try:
                decoded += execute(target, data)
            except Exception as error:  # noqa: BLE001  what is not declared is what is looked for
                self._keep(directory, data)
                self._crash(PLAIN, target.name, f"{type(error).__name__}: {error}"[:500])
        row = {"executions": count, "decoded": decoded, "seconds": round(time.monotonic() - began, 3)}
        self._note(PLAIN, target.name, row)

    def _keep(self, directory: Path, data: bytes) -> None:
        directory.mkdir(exist_ok=True)
        (directory / f"crash-{hashlib.sha1(data).hexdigest()}").write_bytes(data)

    def _crash(self, engine: str, name: str, error: str) -> None:
        known = [(crash["target"], crash["error"][:60]) for crash in self.state["crashes"]]
        if (name, error[:60]) not in known:
            self.state["crashes"].append({"target": name, "engine": engine, "error": error})
            self._tell(f"CRASH {name} ({engine}): {error}")

    def _note(self, engine: str, name: str, found: dict[str, Any]) -> None:
        row = self._row(engine, name)
        for member in ("executions", "decoded", "seconds"):
            row[member] = round(row[member] + found[member], 3)
        rate = found["executions"] / max(found["seconds"], 0.001)
        self._tell(f"{self.total():>10,} {name} ({engine}): {found['executions']:,} at {rate:,.0f}/s")

    def _save(self) -> None:
        rss = psutil.Process().memory_info().rss / 2**20
        self.state["rss"] = [*self.state["rss"], [self.total(), round(rss, 1)]]
        beside = self._file.with_suffix(".tmp")
        beside.write_text(json.dumps(self.state))
        beside.replace(self._file)
