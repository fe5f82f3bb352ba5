"""The promise of a broker that was elected and cannot begin: another one leads, if there is one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.membership import membership
from broker.role import beginning, manager
from broker.role.beginning import PAUSE_MAX_MS, PAUSE_MS, WAIT_MS, Beginning
from broker.role.machine import Event, RoleMachine
from broker.state.current_role import CurrentRole
from controller.groups.commands import ElectMaster
from model.codes import Request
from model.errors import DiskError, MqError
from model.ids import BrokerId, Epoch
from remoting.codec import Command
from tests.fakes.broker.role import GROUP, FakeControllers, Life
from tests.waiting import until

THIS, NEXT = Epoch(5), Epoch(6)


def test_it_asks_when_that_lasts_and_again_after_pauses_that_grow() -> None:
    tries = Beginning()
    assert not tries.asks(THIS, 0), "nothing failed"
    now_ms = 0.0
    for wait_ms in [WAIT_MS, *(min(PAUSE_MS * 2**n, PAUSE_MAX_MS) for n in range(7))]:
        tries.on_failed(THIS, now_ms)
        assert not tries.asks(THIS, now_ms + wait_ms - 1)
        now_ms += wait_ms
        assert tries.asks(THIS, now_ms)
        assert not tries.asks(THIS, now_ms)
    tries.on_lead()
    assert not tries.asks(THIS, now_ms + PAUSE_MAX_MS)


def test_the_first_try_in_another_epoch_is_made() -> None:
    tries = Beginning()
    tries.on_failed(THIS, 0)
    assert not tries.asks(NEXT, 2 * WAIT_MS), "what failed once, long ago, says nothing of it"
    tries.on_failed(NEXT, 2 * WAIT_MS)
    assert not tries.asks(NEXT, 2 * WAIT_MS)
    assert tries.asks(NEXT, 3 * WAIT_MS)


def test_its_pauses_grow_although_another_one_led_meanwhile() -> None:
    """Two that cannot begin followed each other, and asked once a second for ever."""
    machine, now_ms, pauses = RoleMachine(CurrentRole()), 0.0, []
    machine.on(Event.REGISTERED)
    for n in range(4):
        epoch, began_ms = Epoch(2 * n + 1), now_ms
        machine.beginning.on_failed(epoch, now_ms)
        while not machine.beginning.asks(epoch, now_ms):
            now_ms += 500
        pauses.append(now_ms - began_ms)
        machine.on_follow(BrokerId(1), Epoch(2 * n + 2), "other:1", None)
    assert pauses == [WAIT_MS, PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "WAIT_MS", 50.0)
    monkeypatch.setattr(manager, "RETRY_FIRST_MS", 10)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("noted", [False, True], ids=["", "the epoch is noted"])
async def test_one_that_cannot_begin_is_replaced_by_a_member(tmp_path: Path, noted: bool) -> None:
    async with FakeControllers() as controllers, Life(tmp_path / "1", controllers) as first:
        await first.becomes("master", 1)
        async with Life(tmp_path / "2", controllers) as second:
            await second.becomes("slave", 1)
            await controllers_take_both(controllers)
            second.host.fail_lead = 1_000_000
            if noted:
                second.store.epochs.append(2, 0)
            controllers.answers[Request.CONTROLLER_ELECT_MASTER] = lambda request: anew(controllers, request)
            vote = ElectMaster(group=GROUP, broker_id=2, designate=True, alive=(1, 2), all_ack=True)
            controllers.table._once(vote)
            assert controllers.group.master == 2
            await first.becomes("master", 3)
            await second.becomes("slave", 3)


async def hang() -> None:
    await asyncio.Event().wait()


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("what", ["its disk takes no tables", "its disk hangs"])
async def test_a_disk_that_takes_no_tables_or_hangs_cannot_begin_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(manager, "FORGET_S", 0.02)
    async with FakeControllers() as controllers, Life(tmp_path / "1", controllers) as first:
        await first.becomes("master", 1)
        async with Life(tmp_path / "2", controllers) as second:
            await second.becomes("slave", 1)
            await controllers_take_both(controllers)
            if what == "its disk hangs":
                monkeypatch.setattr(second.role._membership, "forget_suspicion", hang)
            else:
                second.host.fail_tables = DiskError("the disk takes no topics.json")
            controllers.answers[Request.CONTROLLER_ELECT_MASTER] = lambda request: anew(controllers, request)
            controllers.table._once(
                ElectMaster(group=GROUP, broker_id=2, designate=True, alive=(1, 2), all_ack=True)
            )
            await first.becomes("master", 3)
            monkeypatch.undo()


@pytest.mark.usefixtures("soon")
async def test_a_slave_whose_disk_hangs_as_it_notes_that_it_is_sound_hears_that_it_was_elected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at no view any more, sent heartbeats, and held the group for ever."""
    monkeypatch.setattr(manager, "FORGET_S", 0.02)
    monkeypatch.setattr(membership, "NOTE_S", 0.02)
    async with FakeControllers() as controllers, Life(tmp_path / "1", controllers) as first:
        await first.becomes("master", 1)
        async with Life(tmp_path / "2", controllers) as second:
            await second.becomes("slave", 1)
            place = second.role._membership
            place._reboot.suspect = True
            monkeypatch.setattr(place._notes, "_offload", lambda call: hang())
            await controllers_take_both(controllers)
            await until(lambda: place._notes.busy, "it is in the set, and notes that it is sound")
            controllers.answers[Request.CONTROLLER_ELECT_MASTER] = lambda request: anew(controllers, request)
            controllers.table._once(
                ElectMaster(group=GROUP, broker_id=2, designate=True, alive=(1, 2), all_ack=True)
            )
            await first.becomes("master", 3)
            assert place.suspect, "it says so until the disk does"
            monkeypatch.undo()


@pytest.mark.usefixtures("soon")
async def test_one_that_finds_nobody_with_the_tables_waits_for_them(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        life.host.fail_tables = MqError("nobody of the last SyncStateSet answers")
        await until(lambda: life.host.tries_of_tables > 10)
        assert not life.role.machine.cannot_begin
        life.host.fail_tables = None
        await life.becomes("master", 1)


@pytest.mark.usefixtures("soon")
async def test_a_master_that_cannot_begin_its_next_epoch_asks_as_soon_as_it_is_fenced(tmp_path: Path) -> None:
    """It waited for its next look at the view, with a master for nobody."""
    async with (
        FakeControllers() as controllers,
        Life(tmp_path / "1", controllers, sync_broker_metadata_ms=3_600_000) as life,
    ):
        await life.becomes("master", 1)
        life.host.fail_lead = 1_000_000
        controllers.answers[Request.CONTROLLER_ELECT_MASTER] = lambda request: anew(controllers, request)
        await until(lambda: set(controllers.alive) == {1})
        controllers.table._once(
            ElectMaster(group=GROUP, broker_id=1, restarted=True, log_epoch=1, alive=(1,), all_ack=True)
        )
        await controllers.notify()
        await until(lambda: ("fence",) in life.host.calls)
        life.host.fail_lead = 0
        await life.becomes("master", 3)


@pytest.mark.usefixtures("soon")
async def test_one_that_cannot_begin_after_a_time_without_controllers_has_noted_no_epoch(
    tmp_path: Path,
) -> None:
    """What is noted counts as led, also after a restart."""
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        life.store.grow(b"written without Controllers")
        life.host.fail_lead = 1_000_000
        await until(lambda: life.host.fail_lead < 1_000_000)
        assert life.store.epochs.entries == []
        life.host.fail_lead = 0
        await life.becomes("master", controllers.group.epoch)
        assert life.store.epochs.entries == [(controllers.group.epoch, 0)]


async def controllers_take_both(controllers: FakeControllers) -> None:
    group = controllers.group
    await until(lambda: set(controllers.alive) == {1, 2})
    group.members = [1, 2]


def anew(controllers: FakeControllers, request: Command) -> Command:
    ext = request.ext
    assert (ext["restarted"], ext["cannotBegin"], ext["masterEpoch"]) == ("true", "true", "2")
    answer = controllers.table._once(
        ElectMaster(
            group=GROUP,
            broker_id=int(ext["brokerId"]),
            restarted=True,
            log_epoch=int(ext["logEpoch"]),
            alive=tuple(controllers.alive),
            all_ack=True,
        )
    )
    answer.ext["masterHaAddress"] = controllers.group.replicas[1].ha_address
    return request.reply(answer.code, ext=answer.ext)
