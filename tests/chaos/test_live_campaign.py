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
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from admin import ending
from admin.exits import FAILED
from chaos.drills.live.campaign import commands, goals, runs
from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.campaign.page import page
from chaos.drills.live.campaign.runs import Runs, alone
from chaos.drills.live.campaign.state import Campaign, Cell
from chaos.drills.live.kept import kept_code
from chaos.drills.live.names import OURS, SWITCH, THEIRS, TOXIPROXY
from chaos.drills.measure import Drill
from chaos.live import releases
from chaos.live.releases import Code
from chaos.partitions import SHAPES
from chaos.scenarios.matrix import MODES, THEIR_MODES, plan
from model.errors import ConfigError
from tests.chaos.campaigns import KILLS, THEIR_KILLS, begun, put, result, same
from tests.live.commands import Shell

WIPES = Row(goal="wipes", kind="wipe", mode="counted", strikes=2, per_run=2)
CUTS = Row(
    goal="partitions", kind="partition", mode="default", strikes=2, per_run=2, links=TOXIPROXY, seed=101
)


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
    found.add(result(KILLS, 3, 2, broken={"lost": 1}, unfinished_total=1))  # that proves something
    found.add(result(KILLS, 4, 2, drills=[asdict(Drill(stall_ms=80.0))]))  # nobody read it back
    assert (found.counted(KILLS), found.missing(KILLS)) == (3, 2)
    for seed in range(5, KILLS.runs_max + 1):
        assert found.next([KILLS]) == Cell(KILLS, seed, 2)
        found.add(result(KILLS, seed, 0))
    assert found.next([KILLS]) is None
    assert found.missing(KILLS) == 2, "and that is told"


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_side_by_side_no_more_runs_are_begun_than_one_by_one(jobs: int, tmp_path: Path) -> None:
    row = Row(goal="upgrades", kind="upgrade", mode="default", strikes=4, per_run=1)
    found, running, count = begun(tmp_path, row), list[Cell](), 0
    while True:
        while len(running) < jobs and (cell := found.next([row], running)) is not None:
            running.append(cell)
            count += 1
        if not running:
            break
        found.add(result(row, running.pop(0).seed, 0, unfinished_total=1))
    assert count == row.runs_max


def test_two_commits_are_never_in_one_campaign(tmp_path: Path) -> None:
    begun(tmp_path, KILLS)
    with pytest.raises(ConfigError, match="a campaign of v1, and this is v2"):
        Campaign.open(tmp_path, [KILLS]).begin("v2")
    for seed, release in ((1, "v1"), (2, "v2"), (3, "")):
        put(tmp_path, f"{KILLS.name}-{seed}", result(KILLS, seed, 2, release=release))
    again = Campaign.open(tmp_path, [KILLS])
    assert again.counted(KILLS) == 2
    assert again.refused == [
        f"runs/{KILLS.name}-2.json: it is of v2",
        f"runs/{KILLS.name}-3.json: its code has no name",
    ]
    assert again.next([KILLS]) == Cell(KILLS, 2, 2), (
        "one stray result stops nothing: its seed is struck again"
    )


def test_a_run_counts_once_and_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    begun(tmp_path, KILLS)
    put(tmp_path, f"{KILLS.name}-1", result(KILLS, 1, 2))
    put(tmp_path, f"{KILLS.name}-1.before", result(KILLS, 1, 2))
    put(tmp_path, "notes", [])
    found = Campaign.open(tmp_path, [KILLS])
    assert found.counted(KILLS) == 2
    assert [text.partition(":")[0] for text in found.refused] == [
        f"runs/{KILLS.name}-1.before.json",
        "runs/notes.json",
    ]
    assert "- not counted: runs/notes.json: " in page(found, "x")


def test_what_is_left_is_told_by_what_such_strikes_took(tmp_path: Path) -> None:
    found = begun(tmp_path, KILLS, WIPES)
    assert found.left_s([KILLS]) is None
    found.add(result(KILLS, 1, 2))
    assert found.left_s([KILLS]) == pytest.approx(15.0)
    assert found.left_s([KILLS, WIPES]) is None


def test_the_page_counts_and_says_what_is_missing(tmp_path: Path) -> None:
    found = begun(tmp_path, KILLS, CUTS, THEIR_KILLS)
    broken, counts = {"lost": 3, "producer_order": 1}, "lost 3, producer_order 1"
    told = [{"checker": "lost", "text": "k1 is gone\nmore"}]
    unread = [asdict(Drill(unfinished="not full"))]
    kept = [
        result(KILLS, 1, 2, broken=broken, violations=told),
        result(KILLS, 2, 2, availability=0.8, rto_strikes_ms=[4000.0], at="2026-12-01T09:00:00+00:00"),
    ]
    shapes = {"done": {"partition": 2}, "shapes": {"ring": 2}}
    kept.append(result(CUTS, 101, 2, faults=shapes, proxies="relay"))
    peer = {"version": "5.5.0", "java": "openjdk 17", "options": "-Dx"}
    kept.append(result(THEIR_KILLS, 1, 2, peer=peer))
    kept.append(result(THEIR_KILLS, 2, 2, drills=unread, unfinished_total=1, acked_total=50_000))
    found.begin("v1", "keelmq drill campaign DIR --jobs 3")
    found = Campaign.open(tmp_path, found.rows)
    for told_of in kept:
        found.add(told_of)
    text = page(found, "now", ["live-2026-11.md"])
    assert "All runs are of commit v1: 5 runs, 1 min in all" in text
    assert "Carried out by `keelmq drill campaign DIR --jobs 3`; this page was written by `now`." in text
    assert "2 cores; its load average at the runs' ends: median 2.5, at most 2.5" in text
    assert "RocketMQ 5.5.0, openjdk 17, -Dx." in text
    assert "| keelmq | kills | 5 | 4 | 1 | 4 default | 3 |" in text
    numbers = "| 2 | 4 | 4 | 3,000 | 3 | 1 | 0 | 0 | 0 | 0 | 0 | 85.0% | 80 | 20 | 4,000 | 4,000 |"
    assert f"| kill | default {numbers}" in text
    theirs = "| 2 | 4 | 2 | 1,500 | 0 | 0 | 0 | - | 0 | 50,000 | 1 | 90.0% | 80 | 20 | 300 | 300 |"
    assert f"| kill | all-ack {theirs}" in text, "what nobody judged stands beside no zero"
    assert "The first ended at 2026-11-30 08:00, the last at 2026-12-01 09:00 UTC." in text
    assert "| keelmq | Toxiproxy | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 2 |" in text
    assert f"- violations, keelmq matrix/kill/default seed 1: {counts}; the first: lost: k1 is gone\n" in text
    assert "- 1 runs had the relay in the place of Toxiproxy" in text
    assert "**Of 1,500 messages acknowledged under 2 judged strikes 0 were lost" in text
    assert "50,000 more were acknowledged in runs that could not be judged" in text
    assert "rehearsal" not in text
    assert "**A rehearsal: at most 2 strikes" in page(found, "x", at_most=2)
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
    print("no room")
    sys.exit({code})
"""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that end at once, the second of each row without a result."""
    stand_in(monkeypatch, 0.0)
    return []


def stand_in(monkeypatch: pytest.MonkeyPatch, sleep_s: float, code: int = 1) -> None:
    real = runs.command

    def command(*files: Path) -> list[str]:
        return [sys.executable, "-c", RUN.format(sleep_s=sleep_s, code=code), *real(*files)[6:]]

    monkeypatch.setattr(runs, "command", command)
    monkeypatch.setattr(runs, "POLL_S", 0.02)


def test_a_run_without_a_result_is_told_and_another_takes_its_place(told: list[str], tmp_path: Path) -> None:
    found = begun(tmp_path, KILLS)
    with alone(tmp_path) as lock, ending.in_order():
        Runs(found, 2, lock, told.append, code=same).carry_out([KILLS])
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


def test_a_run_that_told_of_a_violation_and_left_nothing_stays_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, 0.0, code=FAILED)
    found = begun(tmp_path, KILLS)
    with alone(tmp_path) as lock, ending.in_order():
        Runs(found, 2, lock, print, code=same).carry_out([KILLS])
    (told,) = (one for one in Campaign.open(tmp_path, [KILLS]).results() if one["seed"] == 2)
    assert kept_code(told) == FAILED
    assert "no room" in told["violations"][0]["text"]
    assert "1 other violations" in page(found, "x")


def test_a_run_during_which_the_code_was_written_to_is_put_aside_and_not_tried_for_ever(
    told: list[str], tmp_path: Path
) -> None:
    """Also when it reads as before at the end: servers that were started meanwhile loaded what was there."""
    row = replace(KILLS, strikes=2)
    found, asked = begun(tmp_path, row), iter(range(1000))
    with alone(tmp_path) as lock, ending.in_order():
        Runs(found, 1, lock, told.append, code=lambda: Code("v1", str(next(asked)))).carry_out([row])
    assert found.counted(row) == 0
    assert len(found.refused) == row.runs_max
    again = Campaign.open(tmp_path, [row])
    assert sorted(again.refused) == sorted(found.refused)
    assert f"refused/{row.name}-1.json: the code was written to while it ran" in again.refused
    assert not list((tmp_path / "runs").iterdir())


def test_no_run_is_begun_of_other_code(told: list[str], tmp_path: Path) -> None:
    found = begun(tmp_path, KILLS)
    with alone(tmp_path) as lock, ending.in_order(), pytest.raises(ConfigError, match="the code is v2 now"):
        Runs(found, 1, lock, told.append, code=lambda: Code("v2", "")).carry_out([KILLS])
    assert not list((tmp_path / "next").iterdir())


def test_what_runs_left_whose_campaign_was_killed_is_taken_in_if_the_code_is_untouched(
    told: list[str], tmp_path: Path
) -> None:
    found = begun(tmp_path, KILLS)
    for seed, written in ((1, same().written), (2, "before")):
        name = f"{KILLS.name}-{seed}"
        (tmp_path / "next" / f"{name}.json").write_text(json.dumps({"written": written}))
        (tmp_path / "next" / f"{name}.result").write_text(json.dumps(result(KILLS, seed, 2)))
    with alone(tmp_path) as lock:
        Runs(found, 1, lock, told.append, code=same).take_in()
    assert found.counted(KILLS) == Campaign.open(tmp_path, [KILLS]).counted(KILLS) == 2
    assert told == [f"not counted: refused/{KILLS.name}-2.json: the code was written to while it ran"]
    assert not list((tmp_path / "next").iterdir())


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
        work = Runs(found, 2, lock, said.append, code=same)
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


def test_what_was_not_chosen_is_not_missing(tmp_path: Path) -> None:
    where = ["drill", "campaign", str(tmp_path / "c"), "--at-most", "1", "--limit", "0"]
    said = Shell()(*where, "--only", "keelmq,kill,pause", code=3)
    assert "disk_full" not in said
    assert "rocketmq" not in said
    assert said.count("missing: ") == 6
    assert "0 of 6 strikes are done" in said
    kills = replace(KILLS, strikes=1)
    found = begun(tmp_path / "d", kills, WIPES, CUTS)
    found.add(result(CUTS, 101, 2))
    found.narrow([kills])
    assert [(row.kind, row.strikes) for row in found.rows] == [("kill", 1), ("partition", 0)]
    told = page(found, "keelmq drill campaign DIR")
    assert "and 1 of the 1 strikes asked are missing" in told
    assert "| partition, Toxiproxy | default |" in told, "what has results is shown"
    assert found.next(found.rows) == Cell(kills, kills.seed, 1)
    assert "| wipe" not in told


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


def test_what_was_given_up_is_no_reason_to_run_the_command_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(goals, "ours", lambda: [KILLS])
    monkeypatch.setattr(goals, "theirs", list)
    begun(tmp_path, KILLS)
    command = ("drill", "campaign", str(tmp_path), "--at-most", "3", "--limit")
    put(tmp_path, f"{KILLS.name}-1", result(KILLS, 1, 2))
    Shell()(*command, "0", code=3)
    put(tmp_path, f"{KILLS.name}-2", result(KILLS, 2, 1))
    monkeypatch.setattr(goals, "theirs", lambda: [THEIR_KILLS])
    put(tmp_path, f"{THEIR_KILLS.name}-1", result(THEIR_KILLS, 1, 2, broken={"lost": 1}))
    Shell()(*command, "0")  # what RocketMQ broke is told, and is no fault of ours
    for seed in range(2, 9):
        put(tmp_path, f"{KILLS.name}-{seed}", result(KILLS, seed, 0, unfinished_total=1))
    monkeypatch.setattr(commands, "_ready", lambda rows: pytest.fail("nothing is left to begin"))
    said = Shell()(*command, "60", code=1)
    assert "missing: keelmq-kill-default: 1 of 3, given up" in said
    text = (tmp_path / "campaign.md").read_text()
    assert "written by `keelmq drill campaign DIR --at-most 3 --limit 60`" in text
    assert "**A rehearsal: at most 3 strikes" in text


def test_code_without_a_name_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commands, "_ready", lambda rows: None)
    monkeypatch.setattr(releases, "PACKAGES", tmp_path)
    said = Shell()("drill", "campaign", str(tmp_path / "c"), code=3)
    assert "is no clone: nobody can say which commit" in said
    assert not (tmp_path / "c").exists()


def test_results_are_counted_without_what_draws_screens_or_starts_servers() -> None:
    """Who only reads results needs none of the commands."""
    asks = "import sys, chaos.drills.live.campaign.state, chaos.drills.live.counted; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True).stdout
    assert {"click", "rich", "chaos.links.server", "chaos.drills.live.commands"}.isdisjoint(loaded.split())
