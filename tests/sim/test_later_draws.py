"""What the swarm draws after all the rest is drawn in some seeds, changes no other, and is judged."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable

import pytest

from broker.requests.operators.admin import AdminProcessor
from broker.requests.transactions import Transactions
from chaos import waits
from chaos.drills.simulated.run import run_plan
from chaos.faults import ClockJump, Kill, PowerFail, Reconfigure, Restart, Step
from chaos.history import Happened
from chaos.pops import Account, Move
from chaos.scenarios import Plan, find, later_draws, swarm
from chaos.scenarios.later_draws import (
    ANY_TIME,
    ASKS_SOON,
    HOUR_MS,
    OFTEN,
    ORDERLY,
    RETENTION,
    with_changed_keys,
)
from chaos.scenarios.lost_epochs import COPIES, HOW, LoseEpochs
from chaos.sim.more import keeps_offsets, second_copies_excused
from chaos.sim.story import Story
from chaos.waits import AT_ONCE_MS, Wait
from chaos.waits import Account as WaitAccount
from model.config.broker import BrokerConfig
from remoting.codec import Command
from tests.sim.kept import Kept
from tests.sim.world import simulated

SEEDS = 400
CONTROLLED = {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:9878", "totalReplicas": "3"}
ALL = {"allAckInSyncStateSet": "true", "flushDiskType": "ASYNC_FLUSH"}
DRAWN: dict[str, tuple[Callable[[Plan], bool], float]] = {
    "CLOCKS_SHARE": (lambda plan: any(step.bind.startswith("set") for step in plan.steps), 0.12),
    "KEYS_SHARE": (lambda plan: any(_keys_of(step) for step in plan.steps), 0.12),
    "LOST_EPOCHS_SHARE": (lambda plan: any(isinstance(s.fault, LoseEpochs) for s in plan.steps), 0.05),
    "POPS_SHARE": (lambda plan: bool(plan.pops), 0.16),
    "WAITS_SHARE": (lambda plan: plan.waits, 0.16),
}


def _keys_of(step: Step) -> bool:
    values = dict(getattr(step.fault, "values", {}))
    others = [dict(one) for one in (*ANY_TIME, *ORDERLY, RETENTION)]
    return values in others or "minInSyncReplicas" in values


@pytest.mark.parametrize("share", DRAWN)
def test_each_is_drawn_in_some_seeds(share: str) -> None:
    is_drawn, about = DRAWN[share]
    count = sum(is_drawn(find("swarm").drawn(seed)) for seed in range(SEEDS))
    assert about / 2 < count / SEEDS < about * 2


def test_a_seed_that_draws_none_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [find("swarm").drawn(seed) for seed in range(SEEDS)]
    monkeypatch.setattr(swarm, "draw_later", lambda plan, rest: None)
    former = [find("swarm").drawn(seed) for seed in range(SEEDS)]
    same = 0
    for plan, other in zip(plans, former, strict=True):
        if any(is_drawn(plan) for is_drawn, _ in DRAWN.values()):
            steps = [step.to_json() for step in plan.steps]
            assert all(step.to_json() in steps for step in other.steps), "nothing is left out"
        else:
            same += 1
            assert plan.to_json() == other.to_json()
    assert same > SEEDS / 2


def test_a_group_that_has_to_be_kept_is_given_nothing_that_ends_a_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan([Step(300, Kill("b1"), "k"), Step(900, Restart("=k"))], set_kept=True)
    before = plan.to_json()
    monkeypatch.setattr(later_draws, "CLOCKS_SHARE", 1.0)
    later_draws.draw_later(plan, 0.5)
    assert plan.to_json() == before


def test_each_key_that_is_drawn_is_one_that_a_broker_starts_with() -> None:
    for values in (*ANY_TIME, *ORDERLY, RETENTION, ASKS_SOON, OFTEN):
        BrokerConfig.from_mapping({"brokerName": "b", **values})
    for brokers in (2, 3):
        for values, _ in later_draws._modes(brokers):
            BrokerConfig.from_mapping({"brokerName": "b", **CONTROLLED, **values})


def test_a_retention_of_an_hour_is_drawn_only_where_no_clock_goes_ahead_by_one() -> None:
    steps = [Step(300, Kill("b1"), "k"), Step(900, Restart("=k"))]
    ahead = [*steps, Step(400, ClockJump("b2", 3_600_000))]
    for given, some in ((steps, True), (ahead, False)):
        drawn = []
        for seed in range(60):
            plan = Plan(list(given), load_ms=2000, broker=dict(ALL))
            with_changed_keys(plan, random.Random(seed))
            drawn += [step for step in plan.steps if "fileReservedTime" in getattr(step.fault, "values", {})]
        assert bool(drawn) == some


def test_keys_and_epochs_of_a_second_group_and_of_controllers_are_left_alone() -> None:
    """Seed 121332: a neighbour of two was told to wait for three."""
    for seed in range(SEEDS * 3):
        plan = find("swarm").drawn(seed)
        targets = {step.bind: step.fault.target for step in plan.steps if step.bind}
        for step in plan.steps:
            if isinstance(step.fault, LoseEpochs) or (_keys_of(step) and step.fault.name == "reconfigure"):
                assert targets[step.fault.target[1:]] in ("master", "slave", "b1", "b2", "b3")


def test_keys_that_need_an_orderly_restart_are_drawn_only_for_one() -> None:
    for seed in range(SEEDS * 3):
        for step in find("swarm").drawn(seed).steps:
            if any(dict(getattr(step.fault, "values", {})) == dict(values) for values in ORDERLY):
                assert step.fault.name == "rolling_change"


@pytest.mark.sim
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("how", HOW)
@simulated(lambda how, copies: Kept(21, {}))
async def test_the_epochs_of_a_broker_that_is_down_are_lost_and_of_one_that_runs_are_not(
    world: Kept, how: str, copies: str
) -> None:
    cluster = world.cluster
    machine = cluster.nodes["b1"].machine
    epochs = {path: machine.content(path) for path in COPIES["both"]}
    assert not LoseEpochs("b1", copies, how).simulated(cluster, "b1")
    cluster.kill("b1")
    assert LoseEpochs("b1", copies, how).simulated(cluster, "b1")
    kept = {path: machine.content(path) for path in COPIES["both"] if machine.find(path)}
    assert {path for path in epochs if kept.get(path) != epochs[path]} == set(COPIES[copies])
    cluster.power_fail("b1")
    after = {path: machine.content(path) for path in COPIES["both"] if machine.find(path)}
    assert after == kept, "on the disk, too"


@pytest.mark.sim
def test_where_one_without_epochs_is_waited_for_the_operator_goes_on_without_them() -> None:
    """Nobody leads whom it could copy them from (docs/operations.md)."""
    names = ("b1", "b2", "b3")
    steps = [
        *(Step(900, PowerFail(name)) for name in names),
        Step(1000, LoseEpochs("b2")),
        *(Step(1001, Restart(name)) for name in names),
    ]
    broker = {**ALL, "allAckInSyncStateSet": "false", "majorityAck": "true"}
    kept: list[Story] = []
    plan = Plan(steps, load_ms=1500, broker=broker, errors_expected=True, swarm=True)
    result = run_plan("swarm", 3, plan, None, kept.append)
    assert result.violations == []
    own = {node.name: node.own for node in kept[0].cluster.of("broker")}
    assert own == {"b1": {}, "b2": {"startWithDamagedTables": "true"}, "b3": {}}


def _moved(*moves: Move, given: dict[str, list[float]]) -> list[str]:
    account = Account()
    for number in range(4):
        account.stored[f"m{number}"] = (0, number)
    account.moves[0] += moves
    for key, times in given.items():
        for at_ms in times:
            account.on_given(key, at_ms, own=True)
    there = {(key, queue_id, at) for key, (queue_id, at) in account.stored.items()}
    return [text.split(" ", 1)[0] for text in account.lacking(there)]


ONCE = {f"m{number}": [10.0] for number in range(4)}


def test_what_was_stored_has_to_be_given_unless_somebody_may_have_skipped_it() -> None:
    assert _moved(given={}) == ["m0", "m1", "m2", "m3"]
    assert _moved(given=ONCE) == []
    assert _moved(Move(2, 20.0), given={}) == ["m2", "m3"], "a move without an answer may have been done"
    assert _moved(Move(2, 20.0, 30.0, sure=True), given={}) == ["m2", "m3"]


def test_where_an_operator_surely_had_the_group_go_on_it_is_given_again() -> None:
    back = Move(1, 20.0, 25.0, sure=True)
    assert _moved(back, given=ONCE) == ["m1", "m2", "m3"]
    assert _moved(back, given={"m1": [21.0], "m2": [22.0], "m3": [30.0]}) == []
    assert _moved(back, Move(3, 40.0), given=ONCE) == ["m3"], "perhaps it was moved on"
    assert _moved(Move(3, 5.0, 6.0), back, given=ONCE) == ["m1", "m2", "m3"], "that was over before"
    assert _moved(Move(3, 5.0), back, given=ONCE) == ["m3"], "that may be done at any time"


def test_what_lies_there_no_more_has_not_to_be_given() -> None:
    account = Account()
    account.stored["m"] = (0, 3)
    assert list(account.lacking(set())) == []
    assert list(account.lacking({("other", 0, 3)})) == []


def test_what_was_acknowledged_is_not_given_from_its_queue_again_unless_the_group_was_moved() -> None:
    account = Account()
    account.on_given("m", 1.0, own=True)
    account.acked["m"] = 2.0
    account.on_given("m", 3.0, own=False)
    assert list(account.given_again()) == [], "a copy in the retry topic may come twice"
    account.on_given("m", 4.0, own=True)
    assert len(list(account.given_again())) == 1
    account.moves[0].append(Move(0, 2.0))
    assert list(account.given_again()) == []


def test_what_waits_comes_once_not_before_its_time_and_not_after_it() -> None:
    account = WaitAccount()
    account.wait("t", "kept", Wait(1, 1000, 1000))
    account.wait("t", "early", Wait(1, 1000, 1000))
    account.wait("t", "twice", Wait(1, 0, 0))
    account.wait("t", "gone", Wait(1, 0, 5000))
    account.wait("t", "by which clock", Wait(1, None, 5000))
    account.hidden.add("recalled")
    stored = {"t": {"kept": [1000], "early": [990], "twice": [1, 2], "by which clock": [1], "recalled": [5]}}
    assert list(account.not_kept(stored, 9000)) == [
        "early came into t 10 ms before its time",
        "gone was answered OK, not in t",
        "twice is 2 times in t, not 1",
        "recalled was recalled or rolled back, and is in t",
    ]
    told = list(account.not_kept(stored, 6000, once=False))
    assert [text.split()[0] for text in told] == ["early", "recalled"], "not late yet, and twice is excused"
    assert account.waits_on(6000)
    assert not account.waits_on(9000)


def test_only_a_level_is_delivered_at_once_by_a_clock_that_is_far_behind() -> None:
    due_ms = 10 * AT_ONCE_MS
    assert not Wait(1, due_ms, due_ms, at_once=True).is_early(due_ms - AT_ONCE_MS)
    assert Wait(1, due_ms, due_ms, at_once=True).is_early(due_ms - AT_ONCE_MS + 1)
    assert Wait(1, due_ms, due_ms).is_early(due_ms - AT_ONCE_MS)


def test_a_topic_that_was_deleted_is_nowhere_and_one_that_was_made_everywhere() -> None:
    account = WaitAccount(gone={"g"}, made={"m"})
    assert list(account.tables_unlike({"b1": frozenset("m"), "b2": frozenset("g")})) == [
        "topic g was deleted and is at b2",
        "topic m was made and is not at b2",
    ]


def _jump(at_ms: float, by_ms: int) -> Happened:
    return Happened(at_ms, "b1", "clock_jump", {"by_ms": by_ms})


def test_second_copies_are_excused_where_the_page_says_so_and_nowhere_else() -> None:
    ahead, back = _jump(0.0, 70_000), _jump(100.0, -70_000)
    plan = Plan([])
    assert second_copies_excused([ahead, back, Happened(200.0, "b1", "kill", {})], plan)
    assert not second_copies_excused([ahead, back, Happened(200.0, "b2", "kill", {})], plan)
    assert not second_copies_excused([ahead, back, Happened(5000.0, "b1", "kill", {})], plan)
    assert not second_copies_excused([ahead, Happened(200.0, "b1", "kill", {})], plan)
    assert not second_copies_excused([back, Happened(200.0, "b1", "kill", {})], plan)
    assert not second_copies_excused(
        [_jump(0.0, 2000), _jump(1.0, -2000), Happened(2.0, "b1", "kill", {})], plan
    )


def test_a_plan_keeps_offsets_in_the_mode_all_alone() -> None:
    assert keeps_offsets(Plan([], broker=ALL))
    for values in (
        {"brokerRole": "ASYNC_MASTER"},
        {"majorityAck": "true"},
        {"allAckInSyncStateSet": "false"},
    ):
        assert not keeps_offsets(Plan([], broker={**ALL, **values}))
        changed = Plan([Step(1, Reconfigure("b1", values))], broker=ALL)
        assert not keeps_offsets(changed)


@pytest.mark.sim
def test_a_clock_that_was_set_and_is_right_again_tells_nothing_of_when_extras_came() -> None:
    """Seed 40054: a day back and ahead again; what was delivered in between has times of then."""
    steps = [Step(500, ClockJump("master", -86_400_000), "c"), Step(2500, ClockJump("=c", 86_400_000))]
    plan = Plan(steps, load_ms=4000, broker=ALL, extras=True, swarm=True)
    result = run_plan("swarm", 1, plan, None, None)
    assert result.violations == []
    assert result.coverage["extra.delayed"] > 0


KILL = [Step(1500, Kill("master"), "k"), Step(2500, Restart("=k"))]


def _pops(*parts: str) -> Plan:
    return Plan(KILL, load_ms=4000, broker={**ALL, **OFTEN}, pops=["pop", *parts], swarm=True)


def _waits() -> Plan:
    return Plan(KILL, load_ms=4000, broker={**ALL, **ASKS_SOON}, waits=True, swarm=True)


@pytest.mark.sim
def test_pops_are_kept_over_a_failover_and_met_in_each_way() -> None:
    result = run_plan("swarm", 5, _pops("reset", "delete", "pull", "hide"), None, None)
    assert result.violations == []
    for what in ("sent", "given", "acked", "reset", "deleted", "pulled", "hidden"):
        assert result.coverage[f"pop.{what}"] > 0, what


@pytest.mark.sim
def test_a_reset_that_is_answered_and_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: AdminProcessor, connection: object, request: Command) -> Command:
        await asyncio.sleep(0)
        return request.reply(body=json.dumps({"offsetTable": {}}).encode())

    monkeypatch.setattr(AdminProcessor, "reset_offset", nothing)
    result = run_plan("swarm", 5, _pops("reset"), None, None)
    assert {violation.checker for violation in result.violations} == {"pops"}


@pytest.mark.sim
def test_what_waits_is_kept_over_a_failover_and_met_in_each_way() -> None:
    result = run_plan("swarm", 6, _waits(), None, None)
    assert result.violations == []
    for what in ("timer", "level", "recall", "topic", "check", "checked", "made_again"):
        assert result.coverage[f"wait.{what}"] > 0, what


@pytest.mark.sim
def test_a_half_that_nobody_is_asked_about_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transactions, "_is_due", lambda self, half: False)
    result = run_plan("swarm", 6, _waits(), None, None)
    assert {violation.checker for violation in result.violations} == {"waits"}


@pytest.mark.sim
@pytest.mark.parametrize("asks", [True, False])
def test_what_was_stored_by_a_clock_that_was_far_ahead_has_to_come_without_it(
    monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    monkeypatch.setattr(waits, "KINDS", ("check",))
    if not asks:
        monkeypatch.setattr(Transactions, "_is_due", lambda self, half: False)
    steps = [Step(300, ClockJump("master", HOUR_MS), "c"), Step(1500, ClockJump("=c", -HOUR_MS))]
    plan = Plan(steps, load_ms=2500, broker={**ALL, **ASKS_SOON}, waits=True, swarm=True)
    result = run_plan("swarm", 1, plan, None, None)
    assert bool(result.violations) != asks
    assert not result.coverage.get("wait.late_by_a_clock")


@pytest.mark.sim
def test_a_message_that_comes_before_its_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "LEVEL_MS_MIN", 5000)
    result = run_plan("swarm", 6, _waits(), None, None)
    assert {violation.checker for violation in result.violations} == {"waits"}
    assert any("before its time" in violation.text for violation in result.violations)
