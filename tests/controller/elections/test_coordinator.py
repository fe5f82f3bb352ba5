"""The promise of the elections of a whole Controller: what was decided is told, living masters stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.elections import election
from controller.elections.asking import SOON_S
from controller.elections.election import BACK_MS
from controller.elections.liveness import Heartbeat, Liveness
from model.codes import Request, Response
from model.errors import Unknown
from remoting.codec import Command
from remoting.service import Connection, RemotingClient
from runtime.os_env import OsEnv
from tests.fakes.controller.live import WAITS_FOR_ALL, Broker, World, run
from tests.fakes.controller.raft_sim import wait_for
from tests.fakes.controller.sim import World as SimWorld
from tests.fakes.controller.sim_brokers import Broker as SimBroker
from tests.fakes.controller.sim_brokers import master
from tests.fakes.controller.sim_brokers import run as on_three


def told(broker: Broker, epoch: int) -> bool:
    return any(notice.ext["masterEpoch"] == str(epoch) for notice in broker.notices)


def test_an_election_whose_outcome_was_unknown_is_told_when_it_turns_out_to_be_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that takes longer than it is waited for: the next try finds a master and changes nothing."""

    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3)
        leader = world.leader()
        assert leader is not None
        propose = leader.raft.propose

        async def late(command: bytes, timeout_s: float = 3.0) -> bytes:
            answer = await propose(command, timeout_s)
            if b"elect" in command:
                monkeypatch.undo()
                raise Unknown("no majority of the Controllers agreed in time")
            return answer

        monkeypatch.setattr(leader.raft, "propose", late)
        await one.die()
        await wait_for(lambda: world.group()["epoch"] == 2)
        await wait_for(lambda: told(two, 2) and told(three, 2), 5)

    run(tmp_path, main)


def test_a_new_leader_tells_what_the_former_one_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that stands still between the commit of an election and its notices."""

    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3, timeout_ms=60_000, says=WAITS_FOR_ALL)
        leader = world.leader()
        assert leader is not None
        monkeypatch.setattr(leader._brokers, "announce", lambda _name: None)
        await one.die()
        await wait_for(lambda: world.group()["epoch"] == 2)
        assert not told(two, 2)
        await world.kill(leader.status()["id"])
        await wait_for(lambda: world.leader() is not None)
        await wait_for(lambda: told(two, 2) and told(three, 2), 10)
        assert world.group()["epoch"] == 2

    run(tmp_path, main, count=3)


def test_a_master_whom_nobody_could_replace_is_given_a_moment_to_come_back(tmp_path: Path) -> None:
    """A request that waited while the whole machine stood still is given up, and the connection with it: by
    its master, and by slaves that would say that they hear it. Nobody is elected by taking its mastership."""

    async def main(world: World) -> None:
        one, two, _ = await world.brokers_up(3, timeout_ms=60_000, says=WAITS_FOR_ALL)
        for broker in world.brokers:
            await broker.die()
            broker.client = RemotingClient(OsEnv(), "again", handler=broker.on_request)
        await wait_for(lambda: world.named("master_lost"))
        await one.beat_once()
        await two.beat_once()
        await asyncio.sleep(2 * BACK_MS / 1000)
        assert (world.group()["master"], world.group()["epoch"]) == (1, 1)
        await one.die()
        await wait_for(lambda: world.group()["master"] == 2)

    run(tmp_path, main)


def test_one_that_could_replace_it_ends_that_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World) -> None:
        monkeypatch.setattr(election, "BACK_MS", 60_000.0)
        _, two, _ = await world.brokers_up(3, timeout_ms=60_000, says=WAITS_FOR_ALL)
        for broker in world.brokers:
            await broker.die()
        await wait_for(lambda: world.named("master_lost"))
        await asyncio.sleep(0.2)
        assert world.group()["master"] == 1
        two.client = RemotingClient(OsEnv(), "again", handler=two.on_request)
        await two.beat_once()
        await wait_for(lambda: world.group()["master"] == 2)

    run(tmp_path, main)


def test_what_was_long_on_its_way_on_an_old_connection_is_no_sign_of_life(tmp_path: Path) -> None:
    """After a cut the master beats on a new connection; then the network delivers what it had kept of the
    old one, heartbeats and its end."""

    async def main(world: World) -> None:
        one, _, _ = await world.brokers_up(3)
        old, one.client = one.client, RemotingClient(OsEnv(), "again", handler=one.on_request)
        await one.beat_once()
        await asyncio.sleep(0.2)
        for _ in range(3):
            await old.oneway(world.leader_address(), one.heartbeat(), 1)
        await old.close()
        await asyncio.sleep(0.5)
        assert world.named("master_lost") == []
        assert (world.group()["master"], world.group()["epoch"]) == (1, 1)

    run(tmp_path, main)


def test_the_newest_connection_counts_until_it_ends() -> None:
    live = Liveness()
    assert live.heartbeat("g", 1, Heartbeat(session=2, at_ms=0, timeout_ms=1000))
    assert not live.heartbeat("g", 1, Heartbeat(session=1, at_ms=500, timeout_ms=1000, max_offset=7))
    assert live.closed(1) == []
    assert live.ends("g")[1].max_offset == -1
    assert live.closed(2) == [("g", 1)]
    assert live.heartbeat("g", 1, Heartbeat(session=1, at_ms=600, timeout_ms=1000)), "it has no other"
    assert live.is_alive("g", 1, 700)
    assert live.heartbeat("g", 2, Heartbeat(session=5, at_ms=0, timeout_ms=1000))
    assert ("g", 2) in live.expired(1001)
    assert live.heartbeat("g", 2, Heartbeat(session=4, at_ms=1002, timeout_ms=1000)), "the other is silent"


def test_a_group_made_anew_waits_for_the_lease_of_the_master_it_had(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, _ = await world.brokers_up(3, timeout_ms=60_000, says=WAITS_FOR_ALL)
        for broker in world.brokers:
            broker.freeze()
        asked = one.heartbeat(leaseEpoch=1, leases="true", allAckInSyncStateSet="false")
        assert int((await one.client.call(world.leader_address(), asked, 3)).ext["leaseMs"]) > 0
        cleaned = await two.call(Request.CLEAN_BROKER_DATA, isCleanLivingBroker="true")
        assert cleaned.code == Response.SUCCESS
        again = await two.call(
            Request.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=4, registerCheckCode=f"{two.address};2"
        )
        assert again.code == Response.SUCCESS
        early = await two.call(Request.CONTROLLER_ELECT_MASTER, brokerId=4, designateElect="false")
        assert "lease" in (early.remark or "")
        assert world.group()["master"] is None

    run(tmp_path, main)


@pytest.mark.parametrize("late_s", [0.0, 2.5 * SOON_S])
def test_a_member_that_fell_silent_with_the_master_is_not_elected_while_another_answers(
    tmp_path: Path, late_s: float
) -> None:
    """A rack with two of three loses power: the silence of one is noticed first, and the other would have
    been elected for its smaller id. The third has all that was acknowledged, and would have waited for it."""

    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3, timeout_ms=60_000, says=WAITS_FOR_ALL)
        two.freeze()
        answer = three.on_request

        async def slowly(connection: Connection, request: Command) -> Command | None:
            await asyncio.sleep(late_s)
            return await answer(connection, request)

        three.end_now = 0
        three.client._endpoint.handler = slowly
        one.freeze()
        await asyncio.sleep(0.2)
        for broker in (one, two):
            beat = broker.heartbeat(allAckInSyncStateSet="true", maxOffset=7)
            await broker.client.oneway(world.leader_address(), beat, 1)
        await asyncio.sleep(0.2)
        await one.die()
        await wait_for(lambda: world.group()["epoch"] == 2)
        assert world.group()["master"] == 3

    run(tmp_path, main)


def lead_of(world: SimWorld) -> str:
    return next(name for name, (life, c) in world.controllers.items() if not life.paused and c.raft.is_leader)


@pytest.mark.sim
def test_a_master_that_falls_silent_with_the_controllers_leader_is_replaced_when_its_time_is_over() -> None:
    """A host with both of them loses power: no connection ends. The new leader gives the master the time to
    be heard, and looks at the end of that time, not with its next look at everything."""

    async def main(world: SimWorld, brokers: list[SimBroker]) -> None:
        loop = asyncio.get_running_loop()
        former = lead_of(world)
        assert brokers[0].life is not None
        world.loop.pause(world.controllers[former][0])
        world.loop.pause(brokers[0].life)
        del world.controllers[former]
        await wait_for(world.leader, 5)
        begun = loop.time()
        await wait_for(lambda: master(world) != 1, 20)
        heartbeat_timeout_s = 1.5
        assert loop.time() - begun < heartbeat_timeout_s + 0.1

    on_three(0.0, main)


@pytest.mark.sim
def test_when_everything_stood_still_no_master_is_taken_for_dead() -> None:
    async def main(world: SimWorld, brokers: list[SimBroker]) -> None:
        controllers = sorted(world.controllers.values(), key=lambda one: not one[1].raft.is_leader)
        lives = [life for life, _ in controllers]
        lives += [broker.life for broker in brokers if broker.life is not None]
        for life in lives:
            world.loop.pause(life)
        await asyncio.sleep(10)
        # Whoever decides is the first that goes on, and all of it takes less than a broker is waited for.
        for life in lives:
            world.loop.resume(life)
            await asyncio.sleep(0.15)
        await asyncio.sleep(5)
        assert (master(world), world.masters) == (1, {1: {1}})

    on_three(0.0, main)
