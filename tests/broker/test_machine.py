"""The promise of broker.role.machine: the epoch never goes back, a broken store never leads, and a master
fences itself when the Controllers forget a decision."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.membership.view import View
from broker.role.machine import (
    FINAL,
    TRANSITIONS,
    Adopt,
    AskAnew,
    Event,
    Facts,
    Fence,
    Follow,
    Lead,
    RoleMachine,
    State,
    Stay,
    Wait,
    mermaid,
)
from tests.fakes.broker.role import FakeControllers, Life
from tests.waiting import until

ME, OTHER = 1, 2
PAGE = Path(__file__).parents[2] / "docs" / "role.md"


def view(epoch: int, master: int | None = ME, *, set_epoch: int = 1, asked_ms: float = 0.0) -> View:
    address = None if master is None else f"10.0.0.{master}:10911"
    ha_address = None if master is None else f"10.0.0.{master}:10912"
    return View(epoch, master, address, ha_address, frozenset({ME, OTHER}), set_epoch, asked_ms)


def leading(epoch: int = 1) -> RoleMachine:
    machine = RoleMachine()
    machine.on(Event.REGISTERED)
    machine.on_lead(ME, epoch, "10.0.0.1:10911")
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
    machine = RoleMachine()
    machine.state = state
    if (state, event) in TRANSITIONS:
        machine.on(event)
        assert machine.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(AssertionError, match="cannot have"):
            machine.on(event)


class Broker:
    """Carries out what the machine says, as the manager does; notes what must never happen."""

    def __init__(self) -> None:
        self.machine = RoleMachine()
        self.epochs: list[int] = []
        self.broken = False
        self.now_ms = 0.0

    def look(self, seen: View, facts: Facts) -> None:
        machine = self.machine
        action = machine.decide(seen, facts)
        if isinstance(action, AskAnew):
            machine.examined = True
            action = machine.decide(seen, facts)
            assert not isinstance(action, AskAnew), "asked once"
        if isinstance(action, Lead):
            assert seen.master_id == ME
            assert facts.lacks is None
            machine.on_set(seen.epoch, seen.set_epoch, self.now_ms)
            machine.on_lead(ME, seen.epoch, "me")
        elif isinstance(action, Follow):
            machine.on_follow(ME, seen.epoch, seen.master_address, action.ha_address)
        elif isinstance(action, Fence):
            assert machine.leads
            machine.on_fence()
        elif isinstance(action, Adopt):
            machine.on_set(seen.epoch, seen.set_epoch, self.now_ms)

    def step(self, name: str, epoch: int, master: int | None, set_epoch: int, flag: bool) -> None:
        machine = self.machine
        self.now_ms += 1
        if name == "look" and not machine.over:
            seen = view(epoch, master, set_epoch=set_epoch, asked_ms=self.now_ms - (2 if flag else 0))
            self.look(seen, Facts(ME, recorded=machine.epoch, unsure=flag, leases=not flag))
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
        st.sampled_from(["look", "look", "look", "register", "hand over", "resume", "break", "stop"]),
        st.integers(0, 4),
        st.sampled_from([ME, OTHER, None]),
        st.integers(1, 4),
        st.booleans(),
    ),
    max_size=30,
)


@given(STEPS)
def test_whatever_comes_in_any_order_the_promises_hold(
    steps: list[tuple[str, int, int | None, int, bool]],
) -> None:
    broker = Broker()
    for step in steps:
        broker.step(*step)
    assert broker.epochs == sorted(broker.epochs)


def test_a_handover_ends_leading_until_it_is_resumed() -> None:
    machine = leading()
    assert machine.state is State.LEADING
    machine.on(Event.HAND_OVER)
    assert machine.leads
    assert machine.state is not State.LEADING
    machine.on(Event.RESUME)
    assert machine.state is State.LEADING
    machine.on_fence()
    assert machine.state is not State.LEADING


def test_what_is_lost_here_is_copied_before_it_leads() -> None:
    action = RoleMachine().decide(view(1), Facts(ME, 0, lacks="topics.json"))
    assert isinstance(action, Wait)
    assert "topics.json" in action.reason


def test_a_master_that_may_lack_something_asks_once() -> None:
    machine = RoleMachine()
    assert isinstance(machine.decide(view(1), Facts(ME, 1)), AskAnew)
    machine.examined = True
    assert isinstance(machine.decide(view(2), Facts(ME, 1)), Lead)


def test_a_set_epoch_that_goes_back_fences_the_master_until_the_controllers_decide_anew() -> None:
    machine, facts = leading(), Facts(ME, 1, leases=True)
    machine.on_set(1, 5, 100.0)
    assert isinstance(machine.decide(view(1, set_epoch=4, asked_ms=100.0), facts), Adopt), "asked before"
    action = machine.decide(view(1, set_epoch=4, asked_ms=101.0), facts)
    assert isinstance(action, Fence)
    assert "epoch 1 has SyncStateSet 4, it had 5" in action.reason
    machine.on_fence()
    assert isinstance(machine.decide(view(1, set_epoch=4, asked_ms=102.0), facts), Wait)
    assert isinstance(machine.decide(view(2, OTHER, set_epoch=4, asked_ms=103.0), facts), Follow)


def test_a_view_of_a_real_controller_may_be_an_old_one() -> None:
    machine = leading()
    machine.on_set(1, 5, 100.0)
    assert isinstance(machine.decide(view(1, set_epoch=4, asked_ms=101.0), Facts(ME, 1)), Adopt)


def test_an_older_epoch_moves_nothing() -> None:
    assert isinstance(leading(3).decide(view(2, OTHER), Facts(ME, 3)), Stay)


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
