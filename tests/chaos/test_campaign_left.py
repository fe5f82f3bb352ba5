"""The promise of a campaign beside what is not its own: it undoes what its runs left, and nothing else."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from admin import ending
from chaos.drills.live.campaign import left, runs
from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.campaign.runs import Runs, alone
from chaos.drills.live.campaign.state import Campaign, Cell
from chaos.live.noted import CAMPAIGN_ENV, DRILL, LEDGER, Noted, boot, pid_namespace
from chaos.live.releases import Code
from model.errors import MqError

KILLS = Row(goal="kills", kind="kill", mode="default", strikes=5, per_run=2)
IS_KILLED = """
import json, os, pathlib, signal, sys
sys.path.insert(0, {root!r})
from chaos.live.noted import Noted
place = pathlib.Path({place!r})
place.mkdir()
Noted.of_this_process().write(place)
os.kill(os.getpid(), signal.SIGKILL)
"""
ENDS_SLOWLY = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(1)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(runs, "POLL_S", 0.02)


def killed(name: str, campaign: str | None, pid: int = 4_000_000) -> Path:
    """The folder of a drill that was killed."""
    place = Path(tempfile.gettempdir()) / f"{DRILL}{name}"
    place.mkdir()
    told = Noted(pid=pid, began=1, boot=boot(), pid_namespace=pid_namespace(), campaign=campaign)
    told.write(place)
    return place


def test_a_campaign_undoes_what_its_own_runs_left_and_no_one_elses_evidence(tmp_path: Path) -> None:
    here = str(tmp_path / "c")
    own, others = killed("a", here), [killed("b", str(tmp_path / "d")), killed("c", None)]
    (odd := Path(tempfile.gettempdir()) / f"{DRILL}d").mkdir()
    (odd / LEDGER).write_text("{")
    left.heal(tmp_path / "c", lambda text: None)
    assert not own.exists()
    assert all(place.exists() for place in (*others, odd))


def test_what_one_run_left_is_undone_without_a_look_at_the_others(tmp_path: Path) -> None:
    here = str(tmp_path / "c")
    one, other = killed("a", here, 4_000_001), killed("b", here, 4_000_002)
    left.heal(tmp_path / "c", lambda text: None, 4_000_001)
    assert (one.exists(), other.exists()) == (False, True)


def test_a_drill_notes_whose_run_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAMPAIGN_ENV, left.named(tmp_path / "c"))
    assert Noted.of_this_process().campaign == str(tmp_path / "c")


def same() -> Code:
    return Code("v1", "")


def begun(directory: Path) -> Campaign:
    found = Campaign.open(directory, [KILLS])
    found.begin("v1")
    return found


def work(directory: Path, said: list[str], lock: int) -> Runs:
    return Runs(begun(directory), 2, lock, said.append, code=same)


def test_a_heal_that_failed_ends_the_campaign_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = killed("a", str(tmp_path))
    (place / "cluster.json").write_text("{")
    with pytest.raises(MqError, match=f"keelmq drill heal {place}, then the same command"):
        left.heal(tmp_path, lambda text: None)
    assert place.exists()
    monkeypatch.setattr(runs, "command", lambda *_: [sys.executable, "-S", "-E", "-c", ""])

    def heal(directory: Path, *_: Any) -> None:
        raise MqError("a mount stays")

    monkeypatch.setattr(left, "heal", heal)
    with alone(tmp_path) as lock, ending.in_order(), pytest.raises(MqError, match="a mount stays"):
        work(tmp_path, [], lock).carry_out([KILLS])


def test_what_a_killed_run_left_is_undone_before_another_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, seen, said = Path(tempfile.gettempdir()) / f"{DRILL}a", list[bool](), list[str]()
    source = IS_KILLED.format(root=str(Path.cwd()), place=str(place))
    real = runs.command

    def command(*files: Path) -> list[str]:
        assert real(*files)
        seen.append(place.exists())
        return [sys.executable, "-c", source if len(seen) == 1 else ""]

    monkeypatch.setattr(runs, "command", command)
    with alone(tmp_path) as lock, ending.in_order():
        found = work(tmp_path, said, lock)
        found.jobs = 1
        found.carry_out([KILLS])
    assert len(seen) > 1
    assert not any(seen)
    assert any("removed its directory" in text for text in said)


class Fails(Runs):
    """It meets an error once two runs are under way, and a signal while they end."""

    there: Sequence[Path] = ()

    def _next(self, rows: Sequence[Row]) -> Cell | None:
        if len(self._running) < 2:
            return super()._next(rows)
        until_s = time.monotonic() + 60
        while not all(path.exists() for path in self.there) and time.monotonic() < until_s:
            time.sleep(0.01)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        raise ValueError("a result of another release")


def test_a_signal_while_an_error_ends_a_campaign_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [tmp_path / "1", tmp_path / "2"]
    files = iter(there)
    monkeypatch.setattr(runs, "command", lambda *_: [sys.executable, "-c", ENDS_SLOWLY, str(next(files))])
    children: list[Any] = []
    with alone(tmp_path) as lock, ending.in_order(quiet=True):
        found = Fails(begun(tmp_path), 3, lock, lambda text: None, code=same)
        monkeypatch.setattr(Fails, "there", there)
        real = Runs._end_all

        def end_all(self: Runs) -> None:
            children.extend(self._running.values())
            real(self)

        monkeypatch.setattr(Runs, "_end_all", end_all)
        with pytest.raises(KeyboardInterrupt):
            found.carry_out([KILLS])
    assert [child.poll() for child in children] == [0, 0]
