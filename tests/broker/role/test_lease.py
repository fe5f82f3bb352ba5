"""The promise of broker.role.lease: held no longer than granted from the sending on, in its epoch only."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.membership.controllers import Granted
from broker.role import handover
from broker.role.lease import Lease
from model.codes import Request
from model.errors import Refused
from model.ids import Epoch
from remoting.codec import Command
from tests.fakes.broker.role import FakeControllers, Life
from tests.waiting import until


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1000.0

    def __call__(self) -> float:
        return self.now_ms


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(0, 400)), max_size=20))
def test_it_holds_exactly_until_the_latest_end_granted(steps: list[tuple[int, int, int]]) -> None:
    clock = Clock()
    lease = Lease(clock)
    lease.begin(Epoch(1))
    end_ms = 0.0
    for delay_ms, pause_ms, granted_ms in steps:
        asked_ms = clock.now_ms
        clock.now_ms += delay_ms  # the answer takes its time, and the lease does not begin with it
        lease.answered(Epoch(1), asked_ms, granted_ms)
        end_ms = max(end_ms, asked_ms + granted_ms)
        clock.now_ms += pause_ms
        assert lease.holds() is (clock.now_ms < end_ms)


def test_a_lease_of_another_epoch_says_nothing() -> None:
    clock = Clock()
    lease = Lease(clock)
    lease.begin(Epoch(1))
    lease.answered(Epoch(1), 1000, 500)
    assert lease.holds()
    lease.begin(Epoch(2))
    assert not lease.holds()
    lease.answered(Epoch(1), 1000, 500)
    assert not lease.holds()


def test_a_lease_given_up_does_not_come_back_with_a_late_answer() -> None:
    clock = Clock()
    lease = Lease(clock)
    lease.begin(Epoch(1))
    clock.now_ms = 1100
    lease.give_up()
    assert not lease.holds()
    lease.answered(Epoch(1), 1050, 500)
    assert not lease.holds()
    lease.answered(Epoch(1), 1101, 500)
    assert lease.holds()


async def test_a_master_hears_with_the_news_of_its_election_that_its_members_word_is_not_enough(
    tmp_path: Path,
) -> None:
    """It may be cut off before its first lease is answered."""
    async with FakeControllers() as controllers:
        controllers.lease_ms = 0
        async with Life(tmp_path, controllers) as life:
            await life.becomes("master", 1)
            controllers.group.epoch, controllers.group.needs_lease = 2, True
            await life.becomes("master", 2)
            assert not life.ha.conditions.acks_replace_lease()
            controllers.group.epoch, controllers.group.needs_lease = 3, False
            await life.becomes("master", 3)
            assert life.ha.conditions.acks_replace_lease(), "each epoch has its own rule"


async def test_a_master_that_heard_that_outsiders_may_be_elected_says_so_and_keeps_to_it_in_its_epoch(
    tmp_path: Path,
) -> None:
    async with FakeControllers() as controllers:
        controllers.lease_ms = 60_000
        async with Life(tmp_path, controllers) as life:
            await life.becomes("master", 1)
            assert life.ha.conditions.acks_replace_lease()
            assert not any("keepsToLeases" in ext for _, ext in controllers.beats)
            controllers.elects_outsiders = True
            await until(lambda: not life.ha.conditions.acks_replace_lease(), "it heard")
            await until(lambda: any("keepsToLeases" in ext for _, ext in controllers.beats), "it says so")
            controllers.elects_outsiders = False
            controllers.beats.clear()
            await until(lambda: any("keepsToLeases" in ext for _, ext in controllers.beats), "and again")
            assert not life.ha.conditions.acks_replace_lease(), "an outsider may be elected by what it said"


async def test_a_master_asked_to_hand_over_drains_gives_up_its_lease_and_says_how_far_its_log_is(
    tmp_path: Path,
) -> None:
    async with FakeControllers() as controllers:
        controllers.lease_ms, controllers.term = 60_000, 1
        async with Life(tmp_path, controllers) as life:
            await life.becomes("master", 1)
            ask = Command(Request.CONTROLLER_ELECT_MASTER, {"brokerId": "2", "masterEpoch": "1"})
            life.host.drains = False
            with pytest.raises(Refused, match="whole log"):
                await life.role.hand_over(ask)
            await until(lambda: life.host.calls[-2:] == [("drain", 2), ("resume",)], "it serves on")
            assert life.ha.conditions.holds_lease()
            with pytest.raises(Refused, match="not master of epoch 2"):
                await life.role.hand_over(Command(ask.code, {"brokerId": "2", "masterEpoch": "2"}))
            life.host.drains, controllers.lease_ms = True, 0
            assert await life.role.hand_over(ask) == life.store.log.end
            assert not life.ha.conditions.holds_lease()


async def test_a_handover_that_a_newer_epoch_overtook_takes_nothing_from_that(tmp_path: Path) -> None:
    async with FakeControllers() as controllers:
        controllers.lease_ms = 60_000
        async with Life(tmp_path, controllers) as life:
            await life.becomes("master", 1)

            async def overtaken(transfer_target: int, timeout_s: float) -> bool:
                controllers.group.epoch = 2
                await life.becomes("master", 2)
                await until(life.role.lease.holds, "the lease of epoch 2")
                life.host.calls.clear()
                return life.host.drains

            life.host.drain = overtaken  # type: ignore[method-assign]
            ask = Command(Request.CONTROLLER_ELECT_MASTER, {"brokerId": "2", "masterEpoch": "1"})
            with pytest.raises(Refused, match="not master of epoch 1 any more"):
                await life.role.hand_over(ask)
            assert life.role.lease.holds(), "that of epoch 2, which nobody asked to end"
            assert ("resume",) not in life.host.calls


async def test_a_master_whose_first_lease_is_late_says_so_when_it_comes_though_it_held_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registration of the group's address waits for that word."""

    async with FakeControllers() as controllers:
        controllers.lease_ms = 60_000
        async with Life(tmp_path, controllers) as life:
            await life.becomes("master", 1)
            await until(life.role.lease.holds, "the lease of epoch 1")
            ask = life.role._controllers.ask_lease
            silent = True

            async def late(ext: dict[str, str], timeout_s: float) -> Granted:
                if silent and ext["leaseEpoch"] == "2":
                    raise ConnectionError("the Controllers elect a leader of their own")
                return await ask(ext, timeout_s)

            monkeypatch.setattr(life.role._controllers, "ask_lease", late)
            controllers.group.epoch = 2
            await life.becomes("master", 2)
            assert not life.role.lease.holds()
            life.changes.clear()
            silent = False
            await until(life.role.lease.holds, "the lease of epoch 2")
            assert life.changes == [("master", 2)]


async def test_the_end_of_one_handovers_wait_reopens_no_writes_during_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "RESUME_S", 0.02)

    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        ask = Command(Request.CONTROLLER_ELECT_MASTER, {"brokerId": "2", "masterEpoch": "1"})
        drain, seen = life.host.drain, []

        async def slow_drain(transfer_target: int, timeout_s: float) -> bool:
            await asyncio.sleep(0.1)  # the timer of the first one would have rung by then
            seen.append(("resume",) in life.host.calls)
            return await drain(transfer_target, timeout_s)

        await life.role.hand_over(ask)
        life.host.drain = slow_drain  # type: ignore[method-assign]
        await life.role.hand_over(ask)
        assert seen == [False]
        life.host.drains = False
        with pytest.raises(Refused, match="whole log"):
            await life.role.hand_over(ask)
        assert seen == [False, False]
        assert ("resume",) not in life.host.calls, "the transfer target of the second one may still come"
        await until(lambda: ("resume",) in life.host.calls, "nobody came")
        # A new role ends the wait as well, and so does the end of the broker.
        life.host.drains, life.host.drain = True, drain  # type: ignore[method-assign]
        await life.role.hand_over(ask)
        controllers.group.epoch = 2
        await life.becomes("master", 2)
        await life.role.hand_over(Command(ask.code, {"brokerId": "2", "masterEpoch": "2"}))
        life.host.calls.clear()
        await life.role.stop()
        await asyncio.sleep(0.1)
        assert life.host.calls == []


@pytest.mark.parametrize(("lease_ms", "settles"), [(None, False), (60_000, True)])
async def test_a_view_of_controllers_without_leases_settles_no_proposal_in_doubt(
    tmp_path: Path, lease_ms: int | None, settles: bool
) -> None:
    async with FakeControllers() as controllers:
        controllers.lease_ms = lease_ms
        async with Life(tmp_path, controllers) as life:
            asked: list[float | None] = []

            def adopt(members: object, set_epoch: int, asked_ms: float | None = None) -> None:
                asked.append(asked_ms)

            await life.becomes("master", 1)
            life.ha.adopt = adopt  # type: ignore[method-assign]
            await until(lambda: len(asked) >= 2, "views come")
            assert [one is not None for one in asked] == [settles] * len(asked)


def test_a_controller_without_leases_is_told_once_and_asks_for_nothing() -> None:
    lease = Lease(Clock())
    lease.begin(Epoch(1))
    assert not lease.holds(), "nobody answered yet"
    assert lease.answered(Epoch(1), 1000, None)
    assert not lease.answered(Epoch(1), 1500, None)
    assert lease.holds()


def test_a_master_of_a_real_controller_serves_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
            await life.becomes("master")
            beats = len(controllers.beats)
            await until(lambda: len(controllers.beats) > beats + 3, "it beats on")
            assert life.ha.conditions.holds_lease()

    asyncio.run(body())
    assert sum("grant no leases" in record.message for record in caplog.records) == 1


async def test_a_master_asks_for_leases_and_loses_its_own_without_answers(tmp_path: Path) -> None:
    async with FakeControllers() as controllers:
        controllers.lease_ms = 200
        async with Life(tmp_path, controllers, controller_heartbeat_timeout_ms=250) as life:
            await life.becomes("master")
            await until(life.ha.conditions.holds_lease, "it is granted")
            asked = [ext for _, ext in controllers.beats if "leaseEpoch" in ext]
            assert asked[0]["leaseEpoch"] == "1"
            assert (asked[0]["leases"], asked[0]["allAckInSyncStateSet"]) == ("true", "true")
            controllers.lease_ms = 0
            await until(lambda: not life.ha.conditions.holds_lease(), "the lease ends")
            assert life.role.role == "master"
            controllers.lease_ms = 200
            await until(life.ha.conditions.holds_lease, "it is granted again")


def test_a_lease_of_a_former_leader_says_nothing_to_a_master_that_steps_down_for_a_newer_one() -> None:
    """It may go on granting for a while, and the newer one waits for no lease that was given up."""
    clock = Clock()
    lease = Lease(clock)
    lease.begin(Epoch(1))
    lease.give_up(term=7)
    clock.now_ms = 1100
    lease.answered(Epoch(1), 1050, 500, 6)
    assert not lease.holds()
    lease.answered(Epoch(1), 1050, 500, 7)
    assert lease.holds()


async def test_a_master_that_stepped_down_for_nobody_serves_on_as_soon_as_a_lease_says_so(
    tmp_path: Path,
) -> None:
    async with FakeControllers() as controllers:
        controllers.lease_ms = 60_000
        async with Life(tmp_path, controllers) as life:
            await life.becomes("master", 1)
            ext = {"brokerId": "2", "masterEpoch": "1", "term": "7"}
            controllers.term = 6
            await life.role.hand_over(Command(Request.CONTROLLER_ELECT_MASTER, ext))
            asked = len(controllers.beats)
            await until(lambda: len(controllers.beats) > asked + 3, "it asks")
            assert ("resume",) not in life.host.calls, "a former leader knows nothing of the election"
            controllers.term = 7
            await until(lambda: ("resume",) in life.host.calls, "nobody is being elected")
            assert life.role.lease.holds()
