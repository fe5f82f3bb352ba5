"""The promise of controller.elections.lease: who is elected is elected after the lease has ended."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.elections import brokers
from controller.elections.lease import DRIFT, Leases, matters
from controller.elections.liveness import Heartbeat
from controller.raft.codec import Ack, AppendEntries
from model.codes import Request, Response
from model.leases import DURATION_MAX_MS, SHARE, duration_ms
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests.fakes.controller.live import World, run
from tests.fakes.controller.node import Lab
from tests.fakes.controller.node import run as alone
from tests.fakes.controller.raft_sim import wait_for

ONE = ("g", 1)
BEAT = Heartbeat(session=1, at_ms=0, timeout_ms=3000, leases=True, all_ack=True)


@given(
    followed=st.floats(0, 1000),
    heard=st.floats(0, 3000),
    transit=st.floats(0, 2000),
    led=st.floats(0, 3000),
    slow=st.floats(1 - DRIFT / 2, 1 + DRIFT / 2),
)
def test_no_lease_outlives_what_this_leader_or_the_next_one_waits_for(
    followed: float, heard: float, transit: float, led: float, slow: float
) -> None:
    """A question sent at ``now - transit``, answered with a proof of ``followed``; the next leader leads
    after that proof; the broker's clock runs at another speed."""
    now = followed + heard
    mine, next_one = Leases(), Leases()
    mine.lead(0)
    granted_ms = mine.grant(ONE, 3000, followed_ms=followed, now_ms=now)
    if granted_ms == 0:
        return
    ends = now - transit + granted_ms * slow
    assert ends <= mine.until_ms(ONE, BEAT) + 0.001
    next_one.lead(followed + led)
    assert ends <= next_one.until_ms(ONE, BEAT) + 0.001


def test_a_silent_masters_lease_ends_before_its_silence_counts() -> None:
    for timeout_ms in (100, 3000, 10_000, 600_000):
        assert duration_ms(timeout_ms) * (1 + DRIFT) < timeout_ms
    assert duration_ms(600_000) == DURATION_MAX_MS


def test_nothing_is_granted_without_a_recent_majority() -> None:
    leases = Leases()
    leases.lead(0)
    assert leases.grant(ONE, 3000, followed_ms=None, now_ms=10) == 0
    assert leases.grant(ONE, 3000, followed_ms=0, now_ms=3000 * SHARE) == 0
    assert leases.grant(ONE, 3000, followed_ms=0, now_ms=3000 * SHARE - 50) == 50


def test_a_new_leader_assumes_the_longest_lease_and_a_release_ends_it() -> None:
    leases = Leases()
    leases.lead(1000)
    assert leases.until_ms(ONE, None) == 1000 + DURATION_MAX_MS * (1 + DRIFT)
    assert leases.until_ms(ONE, replace(BEAT, leases=False)) < 0, "a broker of the real RocketMQ has none"
    leases.release(ONE)
    assert leases.until_ms(ONE, BEAT) < 0


@pytest.mark.parametrize(
    ("beat", "chosen", "expected"),
    [
        (BEAT, 2, False),
        (BEAT, 3, True),  # unclean: the old master does not wait for it
        (replace(BEAT, all_ack=False), 2, True),
        (None, 2, True),
    ],
)
def test_a_lease_matters_where_the_old_master_needs_no_word_of_the_new_one(
    beat: Heartbeat | None, chosen: int, expected: bool
) -> None:
    assert matters(beat, [1, 2], chosen) is expected


def test_a_leader_counts_itself_followed_since_what_the_answers_answer_was_sent() -> None:
    async def main() -> None:
        lab = Lab()
        await lab.lead()
        node = lab.node
        assert node.followed_ms() is None
        first = next(m for _, m in lab.said if isinstance(m, AppendEntries))
        assert first.sent_us > 0
        await asyncio.sleep(0.01)
        node.received("b", Ack(first.term, 2, False, True, first.sent_us))
        assert node.followed_ms() == first.sent_us / 1000
        node.received("c", Ack(first.term, 2, False, True, 10**15))
        assert node.followed_ms() == first.sent_us / 1000, "nothing is believed that was not sent yet"

    alone(main)


def test_only_the_master_of_the_epoch_is_granted_a_lease_by_the_leader(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, _ = await world.brokers_up(3)

        async def lease(broker_id: int, epoch: int, address: str) -> str:
            broker = {1: one, 2: two}[broker_id]
            asked = broker.heartbeat(leaseEpoch=epoch, leases="true")
            return (await broker.client.call(address, asked, 3)).ext["leaseMs"]

        leader = world.leader_address()
        await wait_for(lambda: world.leader() is not None)
        assert 0 < int(await lease(1, 1, leader)) <= 3000 * SHARE
        assert await lease(1, 2, leader) == "0"
        assert await lease(2, 1, leader) == "0"
        other = next(a for a in world.addresses.values() if a != leader)
        assert await lease(1, 1, other) == "0"
        assert (await two.elect(designate=True)).code == Response.SUCCESS
        assert await lease(1, 1, leader) == "0", "deposed"

    run(tmp_path, main, count=3)


def test_the_lease_of_a_living_master_that_was_removed_still_counts(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, _ = await world.brokers_up(3, timeout_ms=60_000)
        one.freeze()
        asked = one.heartbeat(leaseEpoch=1, leases="true", allAckInSyncStateSet="false")
        assert int((await one.client.call(world.leader_address(), asked, 3)).ext["leaseMs"]) > 0
        removed = await two.call(
            Request.CLEAN_BROKER_DATA, brokerControllerIdsToClean="1", isCleanLivingBroker="true"
        )
        assert removed.code == Response.SUCCESS
        early = await two.call(Request.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="false")
        assert "lease" in (early.remark or "")
        assert world.group()["master"] is None

    run(tmp_path, main)


@pytest.mark.parametrize("retired_first", [False, True])
def test_the_next_leader_waits_for_the_lease_of_a_living_master_that_was_removed(
    tmp_path: Path, retired_first: bool
) -> None:
    """It granted none, and the table names the removed one no more. ``retired_first``: the group had lost its
    master already, which may not have heard of it."""

    async def main(world: World) -> None:
        one, two = await world.brokers_up(2, timeout_ms=60_000)
        for broker in (one, two):
            broker.freeze()
            broker.says = {"leases": "true", "allAckInSyncStateSet": "false"}
            await broker.beat_once()
        leader = world.leader_address()
        asked = one.heartbeat(leaseEpoch=1)
        assert int((await one.client.call(leader, asked, 3)).ext["leaseMs"]) > 0
        if retired_first:
            await one.client.close()
            await two.client.close()
            await wait_for(lambda: world.group()["master"] is None)
            one.client, two.client = (RemotingClient(OsEnv(), f"again.{n}") for n in (1, 2))
        removed = await two.call(
            Request.CLEAN_BROKER_DATA, brokerControllerIdsToClean="1", isCleanLivingBroker="true"
        )
        assert removed.code == Response.SUCCESS
        await world.kill(next(n for n, address in world.addresses.items() if address == leader))
        await wait_for(lambda: world.leader() is not None)
        await two.client.oneway(world.leader_address(), two.heartbeat(), 1)
        early = await two.call(Request.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="false")
        assert "lease" in (early.remark or "")
        assert world.group()["master"] is None

    run(tmp_path, main, count=3)


def test_an_election_waits_for_the_lease_of_a_master_that_may_count_alone(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, _ = await world.brokers_up(3, timeout_ms=2000)
        one.freeze()
        asked = one.heartbeat(leaseEpoch=1, leases="true", allAckInSyncStateSet="false")
        granted = int((await one.client.call(world.leader_address(), asked, 3)).ext["leaseMs"])
        begun = asyncio.get_running_loop().time()
        await one.die()
        await wait_for(lambda: bool(world.named("master_lost")))
        early = await two.call(Request.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="false")
        assert early.code == Response.CONTROLLER_ELECT_MASTER_FAILED
        assert "lease" in (early.remark or "")
        await wait_for(lambda: world.group()["master"] in (2, 3))
        assert asyncio.get_running_loop().time() - begun > granted / 1000 * 0.9

    run(tmp_path, main)


@pytest.mark.parametrize(
    "late", [{"brokerId": 1, "restarted": "true"}, {"brokerId": 2, "designateElect": "true", "yields": 1}]
)
def test_a_request_of_an_earlier_epoch_ends_no_lease(tmp_path: Path, late: dict[str, object]) -> None:
    async def main(world: World) -> None:
        one, two, _ = await world.brokers_up(3, timeout_ms=60_000)
        one.steps_down = int(Response.SUCCESS)
        one.freeze()
        asked = one.heartbeat(leaseEpoch=1, leases="true", allAckInSyncStateSet="false")
        assert int((await one.client.call(world.leader_address(), asked, 3)).ext["leaseMs"]) > 0
        answer = await one.call(Request.CONTROLLER_ELECT_MASTER, masterEpoch=0, logEpoch=0, **late)
        assert answer.code == Response.CONTROLLER_FENCED_MASTER_EPOCH
        assert one.asked_to_step_down == []
        await one.die()
        await wait_for(lambda: bool(world.named("master_lost")))
        early = await two.call(Request.CONTROLLER_ELECT_MASTER, brokerId=2, designateElect="false")
        assert "lease" in (early.remark or "")
        assert world.group()["master"] == 1

    run(tmp_path, main)


def test_a_successor_that_lacks_what_another_member_has_is_not_elected_for_a_master_that_did_not_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master confirmed with the further one alone, and does not answer when it is asked to step down."""
    monkeypatch.setattr(brokers, "STEP_DOWN_S", 0.1)

    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3, timeout_ms=1500)
        one.says = {"leases": "true", "allAckInSyncStateSet": "false"}
        await one.beat_once()
        one.max_offset = one.end_now = 300
        two.max_offset = two.end_now = 100

        async def designated() -> Command:
            async with asyncio.timeout(10):
                while True:
                    answer = await two.elect(designate=True)
                    if "lease" not in (answer.remark or ""):
                        return answer
                    await asyncio.sleep(0.05)

        silent = await designated()
        assert silent.code == Response.CONTROLLER_ELECT_MASTER_FAILED
        assert "broker 3 of broker-a does not say how far" in (silent.remark or "")
        three.max_offset = three.end_now = 200
        behind = await designated()
        assert behind.code == Response.CONTROLLER_ELECT_MASTER_FAILED
        assert "broker 2 lacks what broker 1 has: " in (behind.remark or "")
        one.end_now = None
        behind = await designated()
        assert "broker 2 lacks what broker 3 has: its log ends at 100 of epoch 1" in (behind.remark or "")
        assert world.group()["master"] == 1
        two.max_offset = two.end_now = 200
        assert (await designated()).ext["masterBrokerId"] == "2"

    run(tmp_path, main)


def test_a_master_that_handed_over_is_taken_at_its_word(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, three = await world.brokers_up(3, timeout_ms=60_000)
        one.says = {"leases": "true", "allAckInSyncStateSet": "false"}
        one.steps_down = int(Response.SUCCESS)
        await one.beat_once()
        three.end_now = 200  # two's own answer may be late: that it has everything, one has said
        assert (await two.elect(designate=True)).ext["masterBrokerId"] == "2"

    run(tmp_path, main)
