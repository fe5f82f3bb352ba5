"""The promise of broker.role.machine: the epoch never goes back, a broken store never leads, and a master
fences itself when the Controllers forget a decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.membership.view import View
from broker.role import machine as role_machine
from broker.role.machine import (
    FINAL,
    TRANSITIONS,
    Adopt,
    AskAnew,
    CannotBecome,
    Event,
    Facts,
    Fence,
    Follow,
    IllegalEventError,
    Lead,
    RoleMachine,
    State,
    Stay,
    mermaid,
)
from broker.state.current_role import CurrentRole
from broker.state.role_state import RoleState
from model.codes import Request
from model.errors import BrokenInvariantError, Refused
from model.ids import BrokerId, Epoch
from remoting.codec import Command
from tests import ROOT
from tests.fakes.broker.role import FakeControllers, Life
from tests.waiting import until

ME, OTHER = BrokerId(1), BrokerId(2)
PAGE = ROOT / "docs" / "role.md"


def view(epoch: int, master: BrokerId | None = ME, *, set_epoch: int = 1, asked_ms: float = 0.0) -> View:
    address = None if master is None else f"10.0.0.{master}:10911"
    ha_address = None if master is None else f"10.0.0.{master}:10912"
    return View(Epoch(epoch), master, address, ha_address, frozenset({ME, OTHER}), set_epoch, asked_ms)


def leading(epoch: int = 1) -> RoleMachine:
    machine = RoleMachine(CurrentRole())
    machine.on(Event.REGISTERED)
    machine.on_lead(ME, Epoch(epoch), "10.0.0.1:10911")
    return machine


def test_the_page_draws_the_table() -> None:
    assert f"```mermaid\n{mermaid()}\n```" in PAGE.read_text()


def test_every_state_can_be_reached_and_only_the_last_two_cannot_be_left_for_a_role() -> None:
    reached = {after for (before, _), after in TRANSITIONS.items() if before is not after}
    assert reached == set(State) - {State.UNREGISTERED}
    for state in FINAL:
        assert {after for (before, _), after in TRANSITIONS.items() if before is state} <= FINAL


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_a_move_that_is_not_in_the_table_is_a_mistake(state: State, event: Event) -> None:
    machine = RoleMachine(CurrentRole())
    machine.state = state
    machine.on_change()
    if (state, event) in TRANSITIONS:
        machine.on(event)
        assert machine.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalEventError) as refused:
            machine.on(event)
        assert (refused.value.state, refused.value.event) == (state, event)
        assert machine.state is state


REACHED: set[tuple[State, Event]] = set()


class NotedMachine(RoleMachine):
    """Remembers each transition that a test made."""

    def on(self, event: Event) -> None:
        before = self.state
        super().on(event)
        REACHED.add((before, event))


class Broker:
    """Carries out what the machine says, as the manager does; notes what must never happen."""

    def __init__(self) -> None:
        self.machine = NotedMachine(CurrentRole())
        self.epochs: list[int] = []
        self.broken = False
        self.failing = False  # the host's changes fail half way
        self.now_ms = 0.0

    def look(self, seen: View, facts: Facts) -> None:
        machine = self.machine
        action = machine.decide(seen, facts)
        if isinstance(action, AskAnew):
            machine.on_examined(machine.losses)
            action = machine.decide(seen, facts)
            assert not isinstance(action, AskAnew), "asked once"
        if isinstance(action, Lead):
            assert seen.master_id == ME
            assert facts.must_copy is None
            machine.on_set(seen.epoch, seen.set_epoch, self.now_ms)
            if self.failing:
                machine.on_change()
                return
            machine.on_lead(ME, seen.epoch, "me")
        elif isinstance(action, Follow):
            self.host_sets(RoleState("slave", ME, seen.epoch, seen.master_address))
            if self.failing:
                return
            machine.on_follow(ME, seen.epoch, seen.master_address, action.ha_address)
        elif isinstance(action, Fence):
            assert machine.is_master
            machine.on_fence()
        elif isinstance(action, Adopt):
            machine.on_set(seen.epoch, seen.set_epoch, self.now_ms)

    def host_sets(self, state: RoleState) -> None:
        """As a host does, in the middle of a change."""
        self.machine.on_change()
        self.machine._holder.set(state)

    def step(self, name: str, epoch: int, master: BrokerId | None, set_epoch: int, flag: bool) -> None:
        machine = self.machine
        self.now_ms += 1
        if name == "disk":
            self.failing = flag
        if name == "look" and not machine.over:
            seen = view(epoch, master, set_epoch=set_epoch, asked_ms=self.now_ms - (2 if flag else 0))
            self.look(seen, Facts(ME, last_epoch=machine.epoch, suspect=flag, leases_supported=not flag))
        elif name == "break" and not machine.over:
            machine.on(Event.BREAK)
            machine.on_fence()
            self.broken = True
        elif name in ("register", "hand over", "resume", "stop"):
            events = {
                "register": Event.REGISTERED,
                "hand over": Event.HAND_OVER,
                "resume": Event.RESUME,
                "stop": Event.STOP,
            }
            if (machine.state, events[name]) in TRANSITIONS:
                machine.on(events[name])
        self.epochs.append(machine.epoch)
        machine.check_invariants()
        if self.broken:
            assert machine.role == "fenced"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["look", "look", "look", "register", "hand over", "resume", "disk", "break", "stop"]),
        st.integers(0, 4),
        st.sampled_from([ME, OTHER, None]),
        st.integers(1, 4),
        st.booleans(),
    ),
    max_size=30,
)


@given(STEPS)
def test_whatever_comes_in_any_order_the_promises_hold(
    steps: list[tuple[str, int, BrokerId | None, int, bool]],
) -> None:
    broker = Broker()
    for step in steps:
        broker.step(*step)
    assert broker.epochs == sorted(broker.epochs)
    if not broker.failing and not broker.machine.over and broker.epochs:
        # A change that failed half way is made again with the next view.
        epoch = broker.machine.epoch + 1
        broker.look(view(epoch, OTHER, asked_ms=1e9), Facts(ME, Epoch(0)))
        assert broker.machine.current == RoleState("slave", ME, Epoch(epoch), "10.0.0.2:10911")


def test_each_transition_is_made_by_some_sequence_of_legal_events(
    record_property: Callable[[str, object], None],
) -> None:
    """From the first state along the table, the machine itself doing each step."""
    paths: dict[State, list[Event]] = {State.UNREGISTERED: []}
    todo = [State.UNREGISTERED]
    for state in todo:
        for (before, event), after in TRANSITIONS.items():
            if before is state and after not in paths:
                paths[after] = [*paths[state], event]
                todo.append(after)
    REACHED.clear()
    for before, event in TRANSITIONS:
        machine = NotedMachine(CurrentRole())
        for step in [*paths[before], event]:
            take(machine, step)
            machine.check_invariants()
    record_property("transitions", len(REACHED))
    print(f"{len(REACHED)} of {len(TRANSITIONS)} transitions made")
    assert set(TRANSITIONS) == REACHED


def take(machine: RoleMachine, event: Event) -> None:
    """The input that has this event."""
    if event is Event.LEAD:
        machine.on_lead(ME, Epoch(machine.epoch + 1), "me")
    elif event is Event.FOLLOW:
        machine.on_follow(ME, Epoch(machine.epoch + 1), "other", None)
    elif event is Event.FENCE:
        machine.on_fence()
    else:
        machine.on(event)


def test_a_handover_ends_leading_until_it_is_resumed() -> None:
    machine = leading()
    assert machine.state is State.LEADING
    machine.on(Event.HAND_OVER)
    assert machine.is_master
    assert machine.state is not State.LEADING
    machine.on(Event.RESUME)
    assert machine.state is State.LEADING
    machine.on_fence()
    assert machine.state is not State.LEADING


def test_what_is_lost_here_is_copied_before_it_leads() -> None:
    slave = RoleMachine(CurrentRole())
    slave.on(Event.REGISTERED)
    slave.on_follow(ME, Epoch(1), "10.0.0.2:10911", None)
    for machine, epoch in ((RoleMachine(CurrentRole()), 1), (slave, 2), (leading(), 2)):
        action = machine.decide(view(epoch), Facts(ME, Epoch(0), must_copy="topics.json"))
        assert isinstance(action, CannotBecome), "in its first epoch or any later one"
        assert "topics.json" in action.reason


def test_a_master_that_may_lack_something_asks_once() -> None:
    machine = RoleMachine(CurrentRole())
    assert isinstance(machine.decide(view(1), Facts(ME, Epoch(1))), AskAnew)
    machine.on_examined(machine.losses)
    assert isinstance(machine.decide(view(2), Facts(ME, Epoch(1))), Lead)


def test_a_master_of_a_new_epoch_asks_too_when_the_end_of_its_log_may_be_missing() -> None:
    machine = RoleMachine(CurrentRole())
    assert isinstance(machine.decide(view(2), Facts(ME, Epoch(1))), Lead), "nothing is missing"
    assert isinstance(machine.decide(view(2), Facts(ME, Epoch(1), suspect=True)), AskAnew)
    machine.on_examined(machine.losses)
    assert isinstance(machine.decide(view(3), Facts(ME, Epoch(1), suspect=True)), Lead)


def test_a_master_that_was_elected_before_this_start_asks_as_well() -> None:
    """Elected for bytes that only its memory had, and that went with the power: nothing makes it suspect."""
    machine, facts = RoleMachine(CurrentRole()), Facts(ME, Epoch(1))
    machine.on_known(Epoch(2))
    assert isinstance(machine.decide(view(2), facts), AskAnew)
    machine.on_known(Epoch(3))  # it registers again later: that is no other start
    assert isinstance(machine.decide(view(3), facts), Lead), "elected for what it says now"


def test_one_whose_log_was_put_aside_asks_although_it_followed_a_master() -> None:
    """It may have been elected for the log that it had before the Controllers heard."""
    machine = RoleMachine(CurrentRole())
    machine.on(Event.REGISTERED)
    machine.on_follow(BrokerId(2), Epoch(1), "10.0.0.2:10911", None)
    machine.on_lost()
    assert isinstance(machine.decide(view(2), Facts(ME, Epoch(1), suspect=True)), AskAnew)
    machine.on_examined(machine.losses)
    assert isinstance(machine.decide(view(3), Facts(ME, Epoch(1), suspect=True)), Lead)


def test_an_answer_about_a_log_that_was_put_aside_since_counts_for_nothing() -> None:
    machine, facts = RoleMachine(CurrentRole()), Facts(ME, Epoch(1), suspect=True)
    asked_after = machine.losses
    machine.on_lost()
    machine.on_examined(asked_after)
    assert isinstance(machine.decide(view(2), facts), AskAnew)
    machine.on_examined(machine.losses)
    assert isinstance(machine.decide(view(3), facts), Lead)


def test_one_that_cannot_begin_asks_and_leads_no_epoch_before_it_is_answered() -> None:
    machine, facts = RoleMachine(CurrentRole()), Facts(ME, Epoch(1))
    machine.on(Event.REGISTERED)
    machine.on_examined(machine.losses)
    machine.on_cannot_begin()
    for _ in range(2):
        assert isinstance(machine.decide(view(2), facts), AskAnew)
    machine.on_examined(machine.losses)
    assert isinstance(machine.decide(view(3), facts), Lead), "nobody else can: it tries on"


def test_a_master_that_cannot_begin_its_next_epoch_stops_before_it_asks() -> None:
    machine, facts = leading(), Facts(ME, Epoch(1))
    machine.on_cannot_begin()
    assert isinstance(machine.decide(view(2), facts), Fence)
    machine.on_fence()
    assert isinstance(machine.decide(view(2), facts), AskAnew)


def test_a_set_epoch_that_goes_back_fences_the_master_until_the_controllers_decide_anew() -> None:
    machine, facts = leading(), Facts(ME, Epoch(1), leases_supported=True)
    machine.on_set(Epoch(1), 5, 100.0)
    assert isinstance(machine.decide(view(1, set_epoch=4, asked_ms=100.0), facts), Adopt), "asked before"
    action = machine.decide(view(1, set_epoch=4, asked_ms=101.0), facts)
    assert isinstance(action, Fence)
    assert "epoch 1 has SyncStateSet 4, it had 5" in action.reason
    machine.on_fence()
    assert isinstance(machine.decide(view(1, set_epoch=4, asked_ms=102.0), facts), CannotBecome)
    assert isinstance(machine.decide(view(2, OTHER, set_epoch=4, asked_ms=103.0), facts), Follow)


def test_a_refused_election_in_a_newer_epoch_fences_the_master_and_nobody_else() -> None:
    machine = leading(3)
    assert isinstance(machine.on_not_elected(view(3, None), "nobody is alive"), Stay), "its own epoch"
    action = machine.on_not_elected(view(4, None), "nobody is alive")
    assert action == Fence("no master since epoch 4: nobody is alive")
    machine.on_fence()
    assert isinstance(machine.on_not_elected(view(4, None), "nobody is alive"), Stay)


def test_a_broker_that_stops_takes_up_no_role_and_can_still_be_fenced() -> None:
    machine, stopping = leading(), Facts(ME, Epoch(1), leases_supported=True, stopping=True)
    assert isinstance(machine.decide(view(2, OTHER), stopping), Stay)
    assert isinstance(RoleMachine(CurrentRole()).decide(view(1), stopping), Stay), "it would ask anew"
    assert isinstance(machine.decide(view(1), stopping), Adopt)
    machine.on_set(Epoch(1), 5, 100.0)
    assert isinstance(machine.decide(view(1, set_epoch=4, asked_ms=101.0), stopping), Fence)


def test_a_view_of_a_real_controller_may_be_an_old_one() -> None:
    machine = leading()
    machine.on_set(Epoch(1), 5, 100.0)
    action = machine.decide(view(1, set_epoch=4, asked_ms=101.0), Facts(ME, Epoch(1)))
    assert action == Adopt(None), "it settles no proposal that is in doubt"
    current = Facts(ME, Epoch(1), leases_supported=True)
    assert machine.decide(view(1, set_epoch=5, asked_ms=101.0), current) == Adopt(101.0)


def test_an_older_epoch_moves_nothing() -> None:
    assert isinstance(leading(3).decide(view(2, OTHER), Facts(ME, Epoch(3))), Stay)


async def test_a_master_whose_controllers_went_back_fences_itself_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeControllers() as controllers:
        controllers.lease_ms, controllers.term = 60_000, 1
        async with Life(tmp_path, controllers) as life:
            await life.becomes("master", 1)
            controllers.group.members_epoch = 7
            await until(lambda: life.role.machine._set_known[1] == 7, "the view is known")
            controllers.group.members_epoch = 3
            await life.becomes("fenced")
            assert life.host.calls[-1] == ("fence",)
            views = len(controllers.requests)
            await until(lambda: len(controllers.requests) > views + 3, "it goes on looking")
            assert life.role.role == "fenced"
            assert life.role.reason is not None
            assert "SyncStateSet 3, it had 7" in life.role.reason
            alarms = [r for r in caplog.records if "fences itself" in r.message]
            assert len(alarms) == 1
            controllers.group.epoch = 2
            await life.becomes("master", 2)


async def test_an_illegal_event_fences_the_broker_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        # Only a master can be fenced by a view: the event is illegal the second time.
        monkeypatch.setattr(life.role.machine, "decide", lambda seen, facts: Fence("planted"))
        await until(lambda: life.role.machine.state is State.BROKEN, "it noticed the illegal event")
        await life.becomes("fenced")
        await until(lambda: life.role.reason is not None and "cannot have" in life.role.reason, "its reason")
        expected = (
            "fenced until a restart: internal error: a broker that is deposed cannot have the event: fenced"
        )
        assert life.role.reason == expected
        assert [r.getMessage() for r in caplog.records if "internal error" in r.getMessage()] == [
            f"{life.config.broker_name}: {expected}"
        ]
        assert life.role.registration_id == -1
        await until(lambda: not controllers.alive, "its connection ended, and brought what was under way")
        beats = len(controllers.beats)
        await asyncio.sleep(0.15)
        assert len(controllers.beats) == beats, "the Controllers take it for dead"


async def test_a_handover_that_no_state_allows_fences_the_broker_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        less = {
            move: after for move, after in TRANSITIONS.items() if move != (State.LEADING, Event.HAND_OVER)
        }
        monkeypatch.setattr(role_machine, "TRANSITIONS", less)  # put back, a row would be the last one
        ask = Command(Request.CONTROLLER_ELECT_MASTER, {"brokerId": "2", "masterEpoch": "1"})
        with pytest.raises(Refused, match="fenced itself"):
            await life.role.hand_over(ask)
        await life.becomes("fenced")
        assert life.role.machine.state is State.BROKEN


@pytest.mark.parametrize("ours", [True, False])
async def test_a_broken_promise_of_ours_fences_and_an_assertion_of_somebody_elses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        looks = []

        def decide(seen: View, facts: Facts) -> Stay:
            looks.append(seen)
            raise BrokenInvariantError("planted") if ours else AssertionError("planted")

        monkeypatch.setattr(life.role.machine, "decide", decide)
        if ours:
            await life.becomes("fenced")
            assert life.role.machine.state is State.BROKEN
            expected = "fenced until a restart: internal error: planted"
            assert life.role.reason == expected
        else:
            await until(lambda: len(looks) > 1, "it looks again")
            assert life.role.machine.state is State.LEADING
