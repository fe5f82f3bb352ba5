"""The promise of the cluster under whatever a seed draws; schedules are values that can be run again."""

from __future__ import annotations

import asyncio
import json
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos import extras
from chaos.bugs import BUGS, planted
from chaos.drills.simulated import run as simulated_run
from chaos.drills.simulated.commands import sim
from chaos.drills.simulated.run import run_plan, run_seed, shrink
from chaos.drills.swarm_report import NOT_DRAWN, SwarmReport
from chaos.drills.swarm_report import main as write_page
from chaos.extras import Promise, not_kept
from chaos.faults import FAULTS, Kill, Restart, Step, SyncError
from chaos.history import History
from chaos.scenarios import SCENARIOS, Plan, find, swarm
from chaos.scenarios.lost_epochs import LoseEpochs
from chaos.scenarios.old_disks import PUT_BACK
from chaos.scenarios.swarm import KINDS
from chaos.sim.operator import Operator
from chaos.sim.settled import HALF_OPEN_MS, Serving
from chaos.sim.story import Story
from client.consuming.pull import PullConsumer
from controller.elections.coordinator import ElectionCoordinator
from ha.slave.follower import Follower
from tests.sim.world import World, simulated

SWARM = "swarm"
SEEDS = 6
BUG_SEEDS_MAX = 300
BUGS_FOUND = Path(__file__).parents[2] / "docs/results/swarm-bugs.json"
FOUND_BY: dict[str, int | None] = {
    bug: found["seed"] for bug, found in json.loads(BUGS_FOUND.read_text()).items()
}
"""A seed that found a bug is tried first, only to save time: what it meets shifts when the code changes."""
OF_THE_SWARM = [name for name, bug in BUGS.items() if bug.scenario is not PUT_BACK]
"""It draws no old disk."""
QUICKLY_FOUND = ("tables_not_copied", "one_record_cut_off")


@pytest.mark.sim
@pytest.mark.seeds
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_is_drawn_loses_nothing_that_was_promised(seed: int) -> None:
    result = run_seed(SWARM, seed)
    assert result.violations == [], result.replay
    assert result.coverage["send.ok"] > 5


UNCLEAN = {"enableElectUncleanMaster": "true"}
ALL = {"allAckInSyncStateSet": "true", "flushDiskType": "SYNC_FLUSH"}
MAJORITY = {"allAckInSyncStateSet": "false", "majorityAck": "true", "flushDiskType": "SYNC_FLUSH"}


@pytest.mark.sim
def test_an_unclean_election_gives_up_what_its_master_lacks_and_the_operator_decides() -> None:
    steps = [
        Step(300, Kill("b2")),
        Step(1500, Restart("b2")),
        Step(1501, Kill("b1")),
        Step(4500, Restart("b1")),
    ]
    kept: list[Story] = []
    plan = Plan(steps, load_ms=5500, brokers=2, broker=ALL, controller=UNCLEAN, swarm=True)
    result = run_plan(SWARM, 1, plan, None, kept.append)
    assert result.violations == []
    assert result.coverage["event.cut_refused"] > 0
    assert result.coverage["event.log_given_up"] == 1
    assert kept[0].evidence.forgiven.gone


@pytest.mark.sim
def test_a_broker_whose_sync_failed_is_restarted_by_the_operator() -> None:
    plan = Plan(
        [Step(400, SyncError("b2", count=3))], load_ms=900, broker=ALL, errors_expected=True, swarm=True
    )
    result = run_plan(SWARM, 1, plan, None, None)
    assert result.violations == []
    assert result.coverage["event.restarted"] == 1


@pytest.mark.sim
def test_where_unclean_elections_are_allowed_and_none_was_needed_nothing_is_forgiven() -> None:
    steps = [Step(400, Kill("master"), "first"), Step(900, Restart("=first"))]
    plan = Plan(steps, load_ms=1500, broker=ALL, controller=UNCLEAN, swarm=True)
    kept: list[Story] = []
    result = run_plan(SWARM, 1, plan, None, kept.append)
    assert result.violations == []
    assert not kept[0].losses.any_allowed
    with planted("reuse_offset"):
        assert run_plan(SWARM, 1, plan, "reuse_offset", None).violations


@pytest.mark.sim
def test_a_member_that_is_behind_is_not_kept_in_place_of_one_that_has_what_was_answered() -> None:
    """Master and slave stopped while the other slave was cut off. That one was kept in the set, the first
    left it, and what both had was cut off when it led (20 violations): SyncSet.desired_members."""
    result = run_seed(SWARM, 4182)
    assert result.violations == []
    assert result.coverage["fault.cut"] == 1
    assert result.coverage["fault.stop"] >= 2


@pytest.mark.sim
def test_a_half_record_that_a_slave_gives_back_is_nothing_that_was_confirmed() -> None:
    """Its master died within a piece of the log that ended inside of a record of 11 KB."""
    assert run_seed(SWARM, 12317).violations == []


@pytest.mark.sim
def test_a_log_without_epochs_that_an_unclean_election_left_is_compared_before_it_goes_on() -> None:
    assert run_seed(SWARM, 14242).violations == []


@pytest.mark.sim
def test_a_disk_that_lied_may_have_lost_entries_of_the_index() -> None:
    """They were synced by its word, so a start does not look there."""
    assert run_seed(SWARM, 2526).violations == []


@pytest.mark.sim
@pytest.mark.parametrize("seed", [633, 638])
@simulated(lambda seed: World(seed, MAJORITY, brokers=2))
async def test_a_broker_that_was_declared_gone_without_a_role_comes_back(world: World, seed: int) -> None:
    """It must copy from a master what its disk lost, and was half of a majority of two. Given up by the
    operator, it is not waited for: the other one leads, and has what it lost."""
    cluster = world.cluster
    name = cluster.master()
    assert name is not None
    node = cluster.nodes[name]
    await asyncio.sleep(6.0)  # its tables are on the disk
    cluster.power_fail(name)
    tables = [path for path in node.machine.paths("/store/config/") if "/subscriptionGroup.json" in path]
    assert len(tables) > 1, "both copies"
    for path in tables:
        for bit in range(8):
            node.machine.flip(path, bit)
    cluster.power_on(name)
    cluster.start(name)
    operator = Operator(cluster)
    mending = asyncio.create_task(operator.look_after_stores(lambda: True, lambda: False))
    await operator.forget_the_dead()
    assert await cluster.until(cluster.converged, 10.0) is None
    mending.cancel()
    assert cluster.master() not in (None, name)
    assert name in cluster.members()
    assert [event.node for event in cluster.history.happened() if event.name == "log_given_up"] == []


@pytest.mark.sim
@simulated(lambda: World(634))
async def test_a_process_whose_start_failed_is_started_again(world: World) -> None:
    cluster = world.cluster
    cluster.kill("b2")
    cluster.nodes["b2"].machine.faults.read_errors = 1
    cluster.start("b2")
    assert await cluster.until(lambda: None if cluster.errors else "it starts", 5.0) is None
    mending = asyncio.create_task(Operator(cluster).look_after_stores(lambda: False, lambda: False))
    assert await cluster.until(cluster.converged, 10.0) is None
    mending.cancel()


@pytest.mark.sim
@simulated(lambda: World(635))
async def test_controllers_whose_disks_refused_are_restarted_when_all_is_healed(world: World) -> None:
    """Two of three at once: nobody leads, so nobody is elected, until the operator has been there."""
    cluster = world.cluster
    leader = cluster.leader()
    assert leader is not None
    for name in {"n0", "n1", "n2"} - {leader}:
        cluster.nodes[name].machine.faults.write_errors = 1
    cluster.kill(leader)  # who stands for election writes a vote
    assert (
        await cluster.until(lambda: None if cluster.failed_controllers() else "all take part", 10.0) is None
    )
    mending = asyncio.create_task(Operator(cluster).look_after_stores(lambda: False, lambda: False))

    def restarted() -> str | None:
        return None if "restarted" in {e.name for e in cluster.history.happened()} else "nobody is restarted"

    assert await cluster.until(restarted, 20.0) is None
    assert await cluster.until(cluster.converged, 20.0) is None
    # One that stood for nothing meets its error later.
    failed = lambda: "one takes no part" if cluster.failed_controllers() else None  # noqa: E731
    assert await cluster.until(failed, 20.0) is None
    mending.cancel()


def test_a_masters_silence_counts_from_when_clients_know_that_their_connections_ended() -> None:
    serving = Serving(History())
    assert serving.look(0, "b1") == 0
    assert serving.look(3100, "b1") == 3100
    serving.on_power_failure(3100)
    assert serving.look(5000, "b1") == 0
    assert serving.look(3100 + HALF_OPEN_MS, "b1") == 0
    assert serving.look(4100 + HALF_OPEN_MS, "b1") == 1000


@pytest.mark.sim
def test_where_nobody_could_make_the_topic_of_the_extras_nothing_is_read_back() -> None:
    steps = [Step(0, Kill(name)) for name in ("b1", "b2", "b3")]
    kept: list[Story] = []
    result = run_plan(
        SWARM, 1, Plan(steps, load_ms=500, broker=ALL, extras=True, swarm=True), None, kept.append
    )
    assert result.violations == []
    assert kept[0].extras is not None
    assert not kept[0].extras.done


def test_an_extra_must_be_there_no_more_than_once_and_not_before_its_time() -> None:
    promised = {
        "kept": Promise(1, 1000),
        "gone": Promise(),
        "doubled": Promise(),
        "early": Promise(1, 1000),
        "sent_twice": Promise(2),
    }
    stored = {
        "kept": [1000],
        "doubled": [5, 7],
        "early": [990],
        "sent_twice": [5, 7],
    }
    assert list(not_kept(promised, stored, "T", clocks_true=True)) == [
        "doubled is 2 times in T, not 1",
        "early came into T 10 ms before its time",
        "gone was answered OK, not in T",
    ]
    assert "early" not in " ".join(not_kept(promised, stored, "T", clocks_true=False))


@pytest.mark.sim
def test_a_run_says_which_delayed_message_came_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan([], load_ms=2500, broker=ALL, extras=True, swarm=True)
    assert run_plan(SWARM, 1, plan, None, None).violations == []
    monkeypatch.setattr(extras, "DELAY_MS", 5000)
    found = run_plan(SWARM, 1, plan, None, None).violations
    assert found
    assert {violation.checker for violation in found} == {"extras"}
    assert any("before its time" in violation.text for violation in found)


@pytest.mark.sim
def test_a_deletion_that_an_old_route_sent_to_a_slave_is_not_answered_ok() -> None:
    result = run_seed(SWARM, 291)
    assert result.violations == [], result.replay


async def _no_queue(self: object, queue: object) -> list[object]:
    return []


@pytest.mark.sim
def test_a_final_reading_that_finds_nothing_has_lost_what_was_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PullConsumer, "read_all", _no_queue)
    result = run_plan(SWARM, 1, Plan([], load_ms=800, broker=ALL, swarm=True), None, None)
    assert {violation.checker for violation in result.violations} >= {"lost", "read_then_gone"}


@pytest.mark.sim
def test_a_learner_that_copies_nothing_has_lost_what_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Follower._link_to

    async def no_learner(self: Follower, address: str) -> None:
        if self._parts[2].async_learner:
            await asyncio.sleep(3600)
        await copy(self, address)

    monkeypatch.setattr(Follower, "_link_to", no_learner)
    plan = Plan([], load_ms=800, learners=1, broker=ALL, swarm=True)
    result = run_plan(SWARM, 1, plan, None, None)
    assert {(v.checker, "l1" in v.text) for v in result.violations} == {
        ("liveness", True),
        ("lost", True),
        ("read_then_gone", True),
    }


@pytest.mark.sim
def test_a_run_that_goes_round_in_circles_within_one_call_is_ended_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Virtual time stands still, and no count of calls grows. Two such seeds held a whole swarm."""

    async def circles(coordinator: ElectionCoordinator) -> float:
        while True:
            with suppress(Exception):
                coordinator.state.mandate.check()

    monkeypatch.setattr(ElectionCoordinator, "_turn", circles)
    monkeypatch.setattr(simulated_run, "RUN_CPU_S_MAX", 0.3)
    found = [violation for violation in run_seed(SWARM, 1).violations if violation.checker == "simulation"]
    assert len(found) == 1
    assert "no end after" in found[0].text


@pytest.mark.sim
def test_a_learners_queues_are_looked_at_when_all_of_its_log_is_in_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 3294: its log was whole, and what was confirmed of it had not reached it yet."""
    monkeypatch.setattr(swarm, "draw_later", lambda plan, rest: None)  # as it was drawn then
    assert run_seed(SWARM, 3294).violations == []


@pytest.mark.sim
def test_an_index_that_is_made_up_behind_a_start_is_waited_for() -> None:
    """Seed 2036: 7 MB of log, read again in small pieces."""
    assert run_seed(SWARM, 2036).violations == []


@pytest.mark.sim
def test_a_wrong_queue_entry_hides_no_message_before_the_scrub_comes_to_it() -> None:
    """Seed 7700: a bit of a queue changed while its broker was down, and it was read within a second."""
    result = run_seed(SWARM, 7700)
    assert result.violations == []
    assert result.coverage["fault.flip_bit"] == 1


def test_every_kind_of_fault_is_drawn() -> None:
    plans = [plan_of(seed) for seed in range(300)]
    drawn = {step.fault.name for plan in plans for step in plan.steps}
    assert drawn >= (set(KINDS) - {"stand_still"}) | {"write_error", "read_error", LoseEpochs.name}
    assert drawn <= set(FAULTS) - NOT_DRAWN | {LoseEpochs.name}
    # Standing still is no fault of its own: all Controllers are paused.
    paused = [{step.fault.target for step in plan.steps if step.fault.name == "pause"} for plan in plans]
    assert any(targets >= {"n0", "n1", "n2"} for targets in paused)


def _one_without_power(plan: Plan) -> tuple[int, int, list[tuple[int, int]]] | None:
    """When the one broker that loses power does and is back, and so of all others, which are killed once."""
    back = {step.fault.target[1:]: step.at_ms for step in plan.steps if isinstance(step.fault, Restart)}
    gone = [step for step in plan.steps if step.fault.name in ("power_fail", "kill")]
    off = [step for step in gone if step.fault.name == "power_fail"]
    brokers = {f"b{number}" for number in range(1, plan.brokers + 1)}
    if len(off) != 1 or {step.fault.target for step in gone} != brokers or len(gone) != len(brokers):
        return None
    times = {step.fault.target: (step.at_ms, back.get(step.bind or "", 1 << 30)) for step in gone}
    at, until = times.pop(off[0].fault.target)
    return at, until, list(times.values())


def test_the_schedules_that_once_lost_messages_are_among_what_is_drawn() -> None:
    met = set()
    for seed in range(6000):
        found = _one_without_power(plan_of(seed))
        if found is None:
            continue
        at, until, others = found
        if all(at <= killed <= back < until and back <= at + 1500 for killed, back in others):
            met.add("processes are back before a dead master is missed, then it is")
        if all(at - 400 <= killed < at for killed, _ in others):
            met.add(f"power goes behind all kills, {'first' if until < others[0][1] else 'last'} back")
    assert len(met) == 3, met


def plan_of(seed: int) -> Plan:
    return find(SWARM).plan(random.Random(f"{SWARM}:{seed}"))


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_a_plan_comes_back_whole_from_its_json(scenario: str) -> None:
    for seed in range(20):
        plan = find(scenario).plan(random.Random(seed))
        data = json.loads(json.dumps(plan.to_json()))
        again = Plan.from_json(data)
        assert again.to_json() == plan.to_json()
        assert [type(step.fault) for step in again.steps] == [type(step.fault) for step in plan.steps]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"steps": [{"fault": "kill"}]},
        {"steps": [{"at_ms": 1, "fault": "shout"}]},
        {"steps": [], "pace": 1},
    ],
    ids=["empty", "no time", "no such fault", "no such field"],
)
def test_what_is_no_plan_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not a plan|no step"):
        Plan.from_json(data)


@pytest.mark.sim
def test_a_schedule_in_a_file_runs_as_its_seed_did(tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.json"
    first = CliRunner().invoke(sim, ["--replay", "3", "--scenario", SWARM, "--schedule", str(schedule)])
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(sim, ["--replay", str(schedule)])
    assert again.exit_code == 0, again.output
    trace = [line.split(",")[0] for line in first.output.splitlines() if line.startswith("trace ")]
    assert trace == [line.split(",")[0] for line in again.output.splitlines() if line.startswith("trace ")]


def test_what_is_neither_a_seed_nor_a_schedule_is_wrong_usage(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("[]")
    for name in (str(other), str(tmp_path / "missing.json")):
        done = CliRunner().invoke(sim, ["--replay", name])
        assert done.exit_code == 64
        assert "neither a seed nor a schedule" in done.output


@pytest.mark.sim
def test_a_schedule_is_shrunk_to_the_steps_and_the_time_it_needs() -> None:
    steps = [
        Step(200, Kill("slave")),
        Step(300, Kill("master"), "two"),
        Step(800, Restart("=two")),
    ]
    lines: list[str] = []
    plan, result = shrink(SWARM, 1, "reuse_offset", plan=Plan(steps, load_ms=1000), tell=lines.append)
    assert result.violations
    assert any(line.endswith("steps left") for line in lines)
    assert any(line.endswith("ms left") for line in lines)
    assert {step.fault.name for step in plan.steps} <= {"kill", "restart"}
    assert len(plan.steps) < len(steps)
    assert plan.load_ms < 1000


def test_the_page_knows_of_every_planted_bug_whether_it_was_found() -> None:
    assert set(FOUND_BY) == set(OF_THE_SWARM)


@pytest.mark.sim
@pytest.mark.parametrize(
    "bug", OF_THE_SWARM if os.environ.get("KEELMQ_SWARM_BUGS") == "all" else QUICKLY_FOUND
)
def test_each_planted_bug_is_found_by_the_swarm(bug: str) -> None:
    seeds = sorted(range(BUG_SEEDS_MAX), key=lambda seed: (seed != FOUND_BY.get(bug), seed))
    if not any(run_seed(SWARM, seed, bug).violations for seed in seeds):
        pytest.fail(f"{bug} was not found by any of {BUG_SEEDS_MAX} seeds of the swarm")


@pytest.mark.sim
def test_a_report_grows_from_part_to_part_and_runs_no_seed_twice(tmp_path: Path) -> None:
    out = tmp_path / "swarm.json"
    for first in ("0", "1"):
        arguments = ["--swarm", "--seeds", "2", "--seed-from", first, "--json", str(out)]
        done = CliRunner().invoke(sim, arguments)
        assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["seeds"] == 3
    assert found["ranges"] == [[0, 3]]
    assert found["violations"] == []
    assert found["cpu_s"] > 0
    assert found["schedules_per_cpu_second"] > 0
    assert "fault.flip_bit" in {*found["coverage"], *found["not_met"]}


def test_the_page_of_a_long_run_names_parts_violations_and_planted_bugs(tmp_path: Path) -> None:
    part = SwarmReport()
    part.ranges, part.wall_s, part.cpu_s = [(0, 10)], 5.0, 4.0
    part.violations = [{"seed": 7, "checker": "lost", "text": "gone | for good", "replay": "..."}]
    part.coverage.update({"fault.kill": 3, "role.slave>master": 1, "send.ok": 20})
    part.write(tmp_path / "a.json")
    (tmp_path / "bugs.json").write_text('{"skip_sync": {"seed": 4, "tried": 2, "checker": "lost"}}')
    out = ["--bugs", str(tmp_path / "bugs.json"), "--note", "7=the checker's fault", "--out", str(tmp_path)]
    write_page([f"abc={tmp_path / 'a.json'}", *out])
    page = (tmp_path / "swarm.md").read_text()
    assert "| abc | 10 | 0..9 | 2.0 | 2.5 |" in page
    assert "| 7 | lost | gone / for good | the checker's fault |" in page
    assert "| kill | 3 |" in page
    assert "| skip_sync | 4 | 2 | lost |" in page
    assert "fault.power_fail" in page.split("Not met: ")[1].splitlines()[0]
    found = json.loads((tmp_path / "swarm.json").read_text())
    assert found["seeds"] == 10
    assert "**On the newest commit here, abc: 10 seeds (0..9), 1 with violations.**" in page
    assert "1 of 1 that were tried are found ([swarm-bugs.json](swarm-bugs.json))." in page
    assert f"Not tried in the swarm: {', '.join(sorted(BUGS.keys() - {'skip_sync'}))}." in page
    assert found["bugs"]["skip_sync"]["seed"] == 4
    (tmp_path / "swarm.json").rename(tmp_path / "former.json")
    part.violations, part.ranges = [], [(5, 15)]
    part.write(tmp_path / "b.json")
    former = ["--former", str(tmp_path / "former.json"), "--bugs", str(tmp_path / "bugs.json")]
    write_page([f"def={tmp_path / 'b.json'}", *former, "--out", str(tmp_path)])
    page = (tmp_path / "swarm.md").read_text()
    assert "| abc | 10 | 0..9 | 2.0 | 2.5 |" in page
    assert "| def | 10 | 5..14 | 2.0 | 2.5 |" in page
    assert "| all | 20 |  | 2.0 | 2.5 |" in page
    assert "**On the newest commit here, def: 10 seeds (5..14), 0 with violations.**" in page
    assert "Over all commits: 15 distinct seeds in 20 schedules" in page
    merged = json.loads((tmp_path / "swarm.json").read_text())
    assert (merged["seeds"], merged["schedules"]) == (15, 20)
    assert "| 7 | lost | gone / for good | the checker's fault |" in page
    assert "| kill | 6 |" in page


def test_a_part_stands_under_its_own_commit_and_one_without_under_the_one_that_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = SwarmReport("abcdef012345-changed.11111111")
    part.ranges = [(0, 10)]
    part.write(tmp_path / "a.json")
    old = SwarmReport()
    old.ranges = [(0, 5)]
    data = {name: value for name, value in old.to_json().items() if name != "commit"}
    (tmp_path / "old.json").write_text(json.dumps(data))
    write_page([f"abcdef0={tmp_path / 'a.json'}", f"777={tmp_path / 'old.json'}", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "swarm.json").read_text())
    assert [(one["commit"], one["seeds"]) for one in found["parts"]] == [("abcdef0", 10), ("777", 5)]
    with pytest.raises(SystemExit):
        write_page([f"999={tmp_path / 'a.json'}", "--out", str(tmp_path)])
    assert "a.json is of abcdef012345-changed.11111111, not of 999" in capsys.readouterr().err


def test_a_file_that_is_no_report_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "other.json"
    out.write_text('{"kind": "something else"}')
    with pytest.raises(ValueError, match="no report of the swarm"):
        SwarmReport.load(out)
    done = CliRunner().invoke(sim, ["--swarm", "--seeds", "1", "--json", str(out)])
    assert done.exit_code == 64
    assert out.read_text() == '{"kind": "something else"}'
