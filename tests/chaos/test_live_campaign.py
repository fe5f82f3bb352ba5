"""The promises of ``keelmq drill campaign``: all that is asked is struck, once, on one code, and counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from admin import ending
from chaos.drills.live.campaign import commands, goals, runs
from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.campaign.page import page
from chaos.drills.live.campaign.runs import Runs, alone
from chaos.drills.live.campaign.state import Campaign, Cell
from chaos.drills.live.scenario import OURS, SWITCH, THEIRS, TOXIPROXY
from chaos.drills.measure import Drill
from chaos.partitions import SHAPES
from chaos.scenarios.matrix import MODES, THEIR_MODES, plan
from model.errors import ConfigError
from tests.live.commands import Shell

KILLS = Row(goal="kills", kind="kill", mode="default", strikes=5, per_run=2)
WIPES = Row(goal="wipes", kind="wipe", mode="counted", strikes=2, per_run=2)
CUTS = Row(
    goal="partitions", kind="partition", mode="default", strikes=2, per_run=2, links=TOXIPROXY, seed=101
)
THEIR_KILLS = Row(goal="kills", kind="kill", mode="all-ack", strikes=2, per_run=2, target=THEIRS)


def result(row: Row, seed: int, strikes: int, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "scenario": f"matrix/{row.kind}/{row.mode}",
        "seed": seed,
        "target": row.target,
        "links": row.links,
        "drills": [asdict(Drill(stall_ms=80.0, judged=True))],
        "faults": {"done": {row.kind: strikes}, "missed": {}, "refused": [], "shapes": {}},
        "acked_total": 1500,
        "availability": 0.9,
        "rto_strikes_ms": [10.0, 20.0, 300.0],
        "release": "v1",
        "at": "2026-11-30T08:00:00+00:00",
        "machine": {"cpus": 2, "load_1_min": 2.5},
        "spent_s": {"starting the cluster": 4.0, "load runs, faults strike": 6.0},
    }
    return found | more


def begun(directory: Path, *rows: Row) -> Campaign:
    found = Campaign.open(directory, rows)
    found.begin("v1")
    return found


def test_exactly_what_is_asked_is_shared_out_over_every_mode() -> None:
    asked: Counter[str] = Counter()
    modes: dict[str, set[str]] = {}
    for row in goals.ours():
        asked[row.goal] += row.strikes
        modes.setdefault(row.goal, set()).add(row.mode)
    assert asked == {
        "kills": 200,
        "freezes": 100,
        "partitions": 100,
        "clock faults": 40,
        "disk errors": 40,
        "full disks": 20,
        "power losses": 100,
        "wipes": 40,
        "rolling restarts": 20,
        "upgrades": 10,
    }
    assert all(found == set(MODES) for found in modes.values())
    links = Counter({row.links: 0 for row in goals.ours()})
    for row in goals.ours():
        links[row.links] += row.strikes if row.kind == "partition" else 0
    assert links == {SWITCH: 50, TOXIPROXY: 50}
    assert len({row.name for row in [*goals.ours(), *goals.theirs()]}) == len(goals.ours()) + len(
        goals.theirs()
    )


def test_the_same_drills_are_asked_of_rocketmq_in_both_of_its_modes() -> None:
    assert {row.kind for row in goals.theirs()} == {"kill", "pause", "partition", "wipe"}
    for kind in ("kill", "pause", "partition", "wipe"):
        assert {row.mode for row in goals.theirs() if row.kind == kind} == set(THEIR_MODES)
    for mode in THEIR_MODES:
        assert plan("kill", mode, 3, 4, THEIRS).steps == plan("kill", "default", 3, 4).steps


@pytest.mark.parametrize("links", [SWITCH, TOXIPROXY])
def test_the_planned_partitions_have_every_shape_by_either_means(links: str) -> None:
    shapes = set()
    for row in goals.ours():
        if row.kind == "partition" and row.links == links:
            left, seed = row.strikes, row.seed
            while left > 0:
                steps = plan(row.kind, row.mode, seed, min(left, row.per_run)).steps
                shapes |= {step.fault.to_json().get("shape") for step in steps}
                left, seed = left - row.per_run, seed + 1
    assert shapes - {None} == set(SHAPES)


def test_rows_are_met_alike_and_no_strike_is_planned_twice(tmp_path: Path) -> None:
    found = begun(tmp_path, KILLS, WIPES)
    running: list[Cell] = []
    while (cell := found.next(found.rows, running)) is not None:
        running.append(cell)
    assert [(cell.name, cell.strikes) for cell in running] == [
        ("keelmq-kill-default-1", 2),
        ("keelmq-wipe-counted-1", 2),
        ("keelmq-kill-default-2", 2),
        ("keelmq-kill-default-3", 1),
    ]


def test_what_a_stopped_campaign_has_is_not_struck_again(tmp_path: Path) -> None:
    begun(tmp_path, KILLS)
    for seed in (1, 3):  # the second was under way
        path = tmp_path / "runs" / f"{KILLS.name}-{seed}.json"
        path.write_text(json.dumps(result(KILLS, seed, 2)))
    found = Campaign.open(tmp_path, [KILLS])
    assert found.missing(KILLS) == 1
    assert found.next([KILLS]) == Cell(KILLS, 2, 1)


def test_strikes_of_runs_that_prove_nothing_are_struck_again_but_not_for_ever(tmp_path: Path) -> None:
    found = begun(tmp_path, KILLS)
    found.add(result(KILLS, 1, 2, unfinished_total=1))
    found.add(result(KILLS, 2, 1))  # one had no target
    found.add(result(KILLS, 3, 2, broken={"lost": 1}))
    assert (found.counted(KILLS), found.missing(KILLS)) == (3, 2)
    for seed in range(4, KILLS.runs_max + 1):
        assert found.next([KILLS]) == Cell(KILLS, seed, 2)
        found.add(result(KILLS, seed, 0))
    assert found.next([KILLS]) is None
    assert found.missing(KILLS) == 2, "and that is told"


def test_two_commits_are_never_in_one_campaign(tmp_path: Path) -> None:
    found = begun(tmp_path, KILLS)
    with pytest.raises(ConfigError, match="a campaign of v1, and this is v2"):
        Campaign.open(tmp_path, [KILLS]).begin("v2")
    with pytest.raises(ConfigError, match="is of v2"):
        found.add(result(KILLS, 1, 2, release="v2"))
    (tmp_path / "runs" / f"{KILLS.name}-1.json").write_text(json.dumps(result(KILLS, 1, 2, release="v2")))
    with pytest.raises(ConfigError, match="is of v2"):
        Campaign.open(tmp_path, [KILLS])


def test_what_is_left_is_told_by_what_such_strikes_took(tmp_path: Path) -> None:
    found = begun(tmp_path, KILLS, WIPES)
    assert found.left_s([KILLS]) is None
    found.add(result(KILLS, 1, 2))
    assert found.left_s([KILLS]) == pytest.approx(15.0)
    assert found.left_s([KILLS, WIPES]) is None


def test_the_page_counts_and_says_what_is_missing(tmp_path: Path) -> None:
    found = begun(tmp_path, KILLS, CUTS, THEIR_KILLS)
    broken = {"lost": 3, "producer_order": 1}
    told = [{"checker": "lost", "text": "k1 is gone\nmore"}]
    found.add(result(KILLS, 1, 2, broken=broken, violations=told))
    found.add(result(KILLS, 2, 2, availability=0.8, rto_strikes_ms=[4000.0]))
    shapes = {"done": {"partition": 2}, "shapes": {"ring": 2}}
    found.add(result(CUTS, 101, 2, faults=shapes, proxies="relay"))
    peer = {"version": "5.5.0", "java": "openjdk 17", "options": "-Dx"}
    found.add(result(THEIR_KILLS, 1, 2, peer=peer))
    text = page(found, "keelmq drill campaign DIR", ["live-2026-11.md"])
    assert "All runs are of commit v1" in text
    assert "of commit v1: 4 runs, 1 min in all" in text
    assert "2 cores; its load average at the runs' ends: median 2.5, at most 2.5" in text
    assert "RocketMQ 5.5.0, openjdk 17, -Dx." in text
    assert "| keelmq | kills | 5 | 4 | 1 | 4 default | 3 |" in text
    numbers = "| 2 | 4 | 0 | 3,000 | 3 | 1 | 0 | 0 | 0 | 85.0% | 80 | 20 | 4,000 | 4,000 |"
    assert f"| kill | default {numbers}" in text
    assert f"| kill | keelmq, default {numbers}" in text
    theirs = "| 1 | 2 | 0 | 1,500 | 0 | 0 | 0 | - | 0 | 90.0% | 80 | 20 | 300 | 300 |"
    assert f"| kill | RocketMQ, all-ack {theirs}" in text
    assert "| keelmq | Toxiproxy | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 2 |" in text
    assert "- violation, keelmq matrix/kill/default seed 1: lost: k1 is gone\n" in text
    assert "- 1 runs had the relay in the place of Toxiproxy" in text
    assert "**RocketMQ**: 2 strikes, 1,500 acknowledged, 0 lost" in text
    assert "[live-2026-11](live-2026-11.md)" in text


RUN = """
import json, pathlib, sys, time
spec, out, history = (sys.argv[n] for n in (1, 3, 5))
told = json.load(open(spec))
time.sleep({sleep_s})
pathlib.Path(history).write_text("")
told |= dict(drills=[dict(stall_ms=1, judged=True)], faults=dict(done=dict(kill=2)), release="v1")
if told["seed"] != 2:
    pathlib.Path(out).write_text(json.dumps(told))
else:
    sys.exit("no room")
"""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that end at once, the second of each row without a result."""
    stand_in(monkeypatch, 0.0)
    return []


def stand_in(monkeypatch: pytest.MonkeyPatch, sleep_s: float) -> None:
    real = runs.command

    def command(*files: Path) -> list[str]:
        return [sys.executable, "-c", RUN.format(sleep_s=sleep_s), *real(*files)[6:]]

    monkeypatch.setattr(runs, "command", command)
    monkeypatch.setattr(runs, "POLL_S", 0.02)


def test_a_run_without_a_result_is_told_and_another_takes_its_place(told: list[str], tmp_path: Path) -> None:
    found = begun(tmp_path, KILLS)
    with alone(tmp_path) as lock, ending.in_order():
        Runs(found, 2, lock, told.append).carry_out([KILLS])
    assert found.missing(KILLS) == 0
    again = Campaign.open(tmp_path, [KILLS])
    assert {one["seed"]: one.get("unfinished_total", 0) for one in again.results()} == {
        1: 0,
        2: 1,
        3: 0,
        4: 0,
    }
    assert any("no room" in line for line in told)
    assert not list((tmp_path / "next").iterdir())
    assert not list((tmp_path / "runs").glob("*.jsonl")), "histories without a violation are not kept"


def test_an_interrupted_campaign_ends_its_runs_and_begins_them_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, 60.0)
    found = begun(tmp_path, KILLS)
    said: list[str] = []
    children: list[subprocess.Popen[bytes]] = []

    def interrupt() -> None:
        until_s = time.monotonic() + 30
        while len(work._running) < 2 and time.monotonic() < until_s:
            time.sleep(0.01)
        children.extend(work._running.values())
        os.kill(os.getpid(), signal.SIGTERM)

    with alone(tmp_path) as lock, ending.in_order():
        work = Runs(found, 2, lock, said.append)
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            work.carry_out([KILLS])
    assert [child.poll() for child in children] == [-signal.SIGTERM] * 2
    assert Campaign.open(tmp_path, [KILLS]).next([KILLS]) == Cell(KILLS, 1, 2)


def test_two_campaigns_do_not_work_in_one_directory(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(ConfigError, match="works in"), alone(tmp_path):
        pass


def test_the_command_says_what_is_missing_and_what_the_machine_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where = tmp_path / "c"
    said = Shell()("drill", "campaign", str(where), "--limit", "0", code=3)
    assert "missing: keelmq-kill-default: 67 of 67" in said
    assert "0 of 766 strikes are done" in said
    assert not where.exists()
    monkeypatch.setattr(commands, "find_toxiproxy", lambda: None)
    monkeypatch.setattr(commands, "refusal", lambda kind: None)
    said = Shell()("drill", "campaign", str(where), "--only", "keelmq", code=64)
    assert "make toxiproxy" in said
    said = Shell()("drill", "campaign", str(where), "--only", "meteor", code=64)
    assert "nothing is called meteor" in said


def test_the_command_writes_the_page_and_the_worst_exit_code(tmp_path: Path) -> None:
    begun(tmp_path, KILLS)
    bad = result(KILLS, 1, 2, broken={"lost": 1})
    (tmp_path / "runs" / f"{KILLS.name}-1.json").write_text(json.dumps(bad))
    (tmp_path / "live-before.md").write_text("# before\n")
    out = tmp_path / "live.md"
    Shell()("drill", "campaign", str(tmp_path), "--limit", "0", "--page", str(out), code=2)
    text = out.read_text()
    assert "| keelmq | kills | 200 | 2 | 198 |" in text
    assert "[live-before](live-before.md)" in text
    assert [row.strikes for row in goals.at_most([KILLS], 2)] == [2]
    assert OURS in text
