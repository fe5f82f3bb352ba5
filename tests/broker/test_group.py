"""The promises of a broker group: what is answered is on the slave, with all that is needed to take over."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from ha.slave.master_link import MasterLink
from model.codes import Request
from model.errors import Refused
from model.ids import BrokerId, Epoch, PhysicalOffset
from tests.broker.helpers import client_of, elected, eventually, log_records, pair, running
from tests.plain import broker_ids


async def test_an_answer_means_the_slave_has_the_message(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as client:
        for number in range(20):
            assert (await client.send("T", b"m%d" % number)).code == 0
            assert two.store.log.end == one.store.log.end
        assert log_records(two) == log_records(one)


async def test_a_slave_serves_confirmed_messages_and_wakes_its_waiting_consumers(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as producer, client_of(two) as consumer:
        await producer.send("T", b"first")
        await eventually(lambda: two.topics.get("T") is not None, "the slave has the topic")
        assert [r.body for r in await consumer.pull_until("T", 0, 1)] == [b"first"]
        waiting = asyncio.ensure_future(consumer.pull_until("T", 1, 1))
        await eventually(lambda: two.status()["heldPulls"] == 1, "the pull is held")
        await producer.send("T", b"second")
        assert [r.body for r in await waiting] == [b"second"]


async def test_topics_groups_and_offsets_reach_the_slave(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as client:
        await client.send("T")
        await client.pull_until("T", 0, 1, group="readers")
        ext = {"consumerGroup": "readers", "topic": "T", "queueId": "0", "commitOffset": "1"}
        assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, ext)).code == 0
        await client.send("T", properties="DELAY\x011\x02")
        await eventually(lambda: two.offsets.get("readers", "T", 0) == 1, "the offset is copied")
        await eventually(lambda: two.delays.table == {1: 1}, "the delay offset is copied")
        assert two.topics.table == one.topics.table
        assert two.topics.version == one.topics.version
        assert two.groups.table == one.groups.table


async def test_the_successor_goes_on_where_the_master_ended(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(two) as client:
        async with client_of(one) as old:
            for number in range(5):
                await old.send("T", b"m%d" % number)
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        answer = await client.send("T", b"m5")
        assert (answer.code, answer.ext["queueOffset"]) == (0, "5")
        assert [r.body for r in await client.pull_until("T", 0, 6)] == [b"m%d" % n for n in range(6)]
        assert two.topics.version.state_version == 2
        await one.follow(BrokerId(1), Epoch(2), two.config.address, two.config.ha_address)
        await eventually(lambda: one.store.log.end == two.store.log.end, "the old master is level again")
        assert log_records(one) == log_records(two)


async def test_a_topic_the_old_master_never_handed_on_is_known_to_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, slaveSyncMetadataPeriod="3600000") as (one, two), client_of(one) as client:
        await eventually(lambda: two.topics.version == one.topics.version, "the first copy")
        monkeypatch.setattr(one.context.copies, "changed", lambda name: None)
        assert (await client.send("JustMade", b"kept")).code == 0
        assert two.topics.get("JustMade") is None
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await eventually(lambda: two.topics.get("JustMade") is not None, "its log names the topic")
        async with client_of(two) as other:
            assert [r.body for r in await other.pull_until("JustMade", 0, 1)] == [b"kept"]


async def test_a_demoted_master_closes_connections_instead_of_saying_ok(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as client:
        await client.send("T")
        await two.fence()
        connection = await client.connection()
        sending = asyncio.ensure_future(client.send("T", b"in between"))
        await eventually(lambda: one.status()["parked"] == 1, "the answer waits for the slave")
        await one.fence()
        result = (await asyncio.gather(sending, return_exceptions=True))[0]
        assert isinstance(result, Exception), "neither yes nor no"
        assert connection.closed


async def test_a_delayed_message_survives_the_change_of_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as client:
        assert (await client.send("T", b"later", properties="DELAY\x011\x02")).code == 0
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await eventually(lambda: two.topics.get("T") is not None, "the message was delivered")
        async with client_of(two) as other:
            assert [r.body for r in await other.pull_until("T", 0, 1)] == [b"later"]


async def test_a_delayed_message_the_old_master_delivered_unnoted_is_not_delivered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = "3600000"
    async with pair(tmp_path, slaveSyncMetadataPeriod=never) as (one, two), client_of(one) as client:
        await eventually(lambda: two.topics.version == one.topics.version, "the first copy")
        monkeypatch.setattr(one.context.copies, "changed", lambda name: None)
        for number in range(3):
            answer = await client.send("T", b"m%d" % number, properties="DELAY\x011\x02")
            assert answer.code == 0
        await client.pull_until("T", 0, 3)
        # A fourth is due only after the change of master.
        assert (await client.send("T", b"m3", properties="DELAY\x011\x02")).code == 0
        await eventually(lambda: one.delays.table.get(1) == 3, "the old master noted them")
        await eventually(lambda: two.store.log.end == one.store.log.end, "the copies are on the slave")
        assert two.delays.table == {}
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await eventually(lambda: two.delays.table.get(1) == 4, "all are delivered")
        async with client_of(two) as other:
            found = await other.pull_until("T", 0, 4)
            assert [record.body for record in found] == [b"m0", b"m1", b"m2", b"m3"]
            assert two.store.max_queue_offset("T", 0) == 4


async def test_a_delayed_message_that_is_due_while_replicas_are_missing_is_delivered_once_they_are_back(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path, minInSyncReplicas="2") as (one, _), client_of(one) as client:
        assert (await client.send("T", b"later", properties="DELAY\x011\x02")).code == 0
        one.ha.adopt(broker_ids({1}), 3)
        assert (await client.send("T", b"now")).code != 0
        await asyncio.sleep(1.3)
        assert one.store.max_queue_offset("T", 0) == 0
        one.ha.adopt(broker_ids({1, 2}), 4)
        assert [record.body for record in await client.pull_until("T", 0, 1)] == [b"later"]
        await eventually(lambda: one.delays.table == {1: 1}, "it is noted")
        assert one.store.max_queue_offset("T", 0) == 1


async def test_an_orderly_stop_answers_what_is_under_way(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as client:
        await client.send("T")
        sends = [asyncio.ensure_future(client.send("T", b"%d" % n)) for n in range(50)]
        await asyncio.sleep(0)
        await one.stop()
        answers = await asyncio.gather(*sends, return_exceptions=True)
        acked = {
            int(a.ext["queueOffset"]) for a in answers if not isinstance(a, BaseException) and a.code == 0
        }
        assert acked <= {r.queue_offset for r in log_records(two)}


async def test_an_orderly_stop_hands_on_what_consumers_committed(tmp_path: Path) -> None:
    async with pair(tmp_path, slaveSyncMetadataPeriod="3600000") as (one, two), client_of(one) as client:
        one.groups.find("cg")
        for number in range(3):
            await client.send("T", b"m%d" % number)
        await eventually(lambda: two.topics.get("T") is not None, "the slave has the topic")
        for offset in (1, 2):
            ext = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
            assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, ext)).code == 0
        assert two.offsets.get("cg", "T", 0) != 2, "it waits for others to travel with it"
        await one.stop()
        assert two.offsets.get("cg", "T", 0) == 2


async def test_a_commit_that_comes_while_a_master_drains_is_not_answered_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is handed on is settled by then: it waits for the outcome."""
    async with pair(tmp_path, slaveSyncMetadataPeriod="3600000") as (one, two), client_of(one) as client:
        one.groups.find("cg")
        for number in range(3):
            await client.send("T", b"m%d" % number)
        await eventually(lambda: two.topics.get("T") is not None, "the slave has the topic")
        drained, late = one.roles.wait_drained, list[asyncio.Future[Any]]()

        def commit(offset: int) -> Any:
            ext = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
            return client.call(Request.UPDATE_CONSUMER_OFFSET, ext)

        async def draining(transfer_target: BrokerId | None, timeout_s: float) -> bool:
            done = await drained(transfer_target, timeout_s)
            late.append(asyncio.ensure_future(commit(2)))
            await asyncio.sleep(0.05)
            assert not late[0].done()
            return done

        monkeypatch.setattr(one.roles, "wait_drained", draining)
        assert (await commit(1)).code == 0
        await one.stop()
        assert two.offsets.get("cg", "T", 0) == 1
        assert (await late[0]).code != 0


async def test_a_commit_during_a_handover_that_comes_to_nothing_is_taken_after_it(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, _), client_of(one) as client:
        one.groups.find("cg")
        await client.send("T", b"m")
        assert await one.roles.drain(BrokerId(2), 1.0)
        ext = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "1"}
        commit = asyncio.ensure_future(client.call(Request.UPDATE_CONSUMER_OFFSET, ext))
        await asyncio.sleep(0.05)
        assert not commit.done()
        one.roles.resume()
        assert (await commit).code == 0
        assert one.offsets.get("cg", "T", 0) == 1


async def test_a_broker_told_to_stop_in_the_middle_of_its_promotion_takes_no_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "one") as one:
        await one.fence()
        begun, go_on = asyncio.Event(), asyncio.Event()
        seen: list[Refused | None] = []
        become, drained = one.ha.become_master, one.roles.wait_drained

        async def slow(*role: Any) -> None:
            begun.set()
            await go_on.wait()
            await become(*role)

        async def draining(transfer_target: BrokerId | None, timeout_s: float) -> bool:
            go_on.set()
            await promotion
            seen.append(one.context.refuse_write())
            return await drained(transfer_target, timeout_s)

        monkeypatch.setattr(one.ha, "become_master", slow)
        monkeypatch.setattr(one.roles, "wait_drained", draining)
        promotion = asyncio.ensure_future(one.lead(elected(1, 1, {1}, 1)))
        await begun.wait()
        await one.stop()
        assert [refused is not None for refused in seen] == [True]


async def test_an_orderly_stop_yields_to_nobody_who_lacks_what_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slaves are level when the stop begins. Then one stalls; the other is enough for an answer."""
    keys = {"allAckInSyncStateSet": "false", "inSyncReplicas": "2", "slaveSyncMetadataPeriod": "30"}
    targets: list[int] = []
    stalled: set[str] = set()
    say = MasterLink._say

    def stalling(self: MasterLink, end: PhysicalOffset, now_ms: float) -> None:
        if self._store.root not in stalled:
            say(self, end, now_ms)

    async with contextlib.AsyncExitStack() as stack:
        one, two, three = [
            await stack.enter_async_context(running(tmp_path / name, **keys)) for name in ("1", "2", "3")
        ]
        for slave in (two, three):
            await slave.fence()
        await one.lead(elected(1, 1, {1}, 1))
        for broker_id, slave in ((2, two), (3, three)):
            await slave.follow(BrokerId(broker_id), Epoch(1), one.config.address, one.config.ha_address)
        await eventually(lambda: len(one.ha.slaves()) == 2, "both are connected")
        one.ha.adopt(broker_ids({1, 2, 3}), 2)
        client = await stack.enter_async_context(client_of(one))
        assert (await client.send("T", b"first")).code == 0
        await eventually(lambda: {s["lagBytes"] for s in one.ha.slaves()} == {0}, "both are level")

        async def hand_over_at_stop(transfer_target: int) -> None:
            targets.append(transfer_target)

        monkeypatch.setattr(one.role, "hand_over_at_stop", hand_over_at_stop)
        monkeypatch.setattr(MasterLink, "_say", stalling)
        stalled.update({two.store.root, three.store.root})
        answer = asyncio.ensure_future(client.send("T", b"second"))
        await eventually(lambda: len(one.pending_acks) == 1, "it waits for a second replica")
        stop = asyncio.ensure_future(one.stop())
        await asyncio.sleep(0.05)
        one.resume()  # the end of an earlier handover's wait
        assert one.context.refuse_write() is not None
        stalled.remove(three.store.root)
        assert (await answer).code == 0
        await stop
        assert targets == [3], "who has what was answered"


async def test_a_slave_that_lost_its_epochs_learns_them_though_what_is_confirmed_ends_inside_of_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its acknowledgements end where a piece of the stream did, and what is confirmed may, too."""

    async with pair(tmp_path) as (one, two), client_of(one) as client:
        for number in range(3):
            await client.send("T", b"m%d" % number)
        await eventually(lambda: two.store.dispatched == one.store.log.end, "the slave has all")
        await two.fence()
        last = log_records(two)[-1]
        two.store.flow.dispatcher.start_at(last.physical_offset, two.store.log.end - 7)
        two.store.epochs.entries, two.store.epochs.unreadable = [], "both copies are damaged"
        await two.follow(BrokerId(2), Epoch(1), one.config.address, one.config.ha_address)
        await eventually(lambda: two.ha.follows and log_records(two) == log_records(one), "it goes on")
        assert two.store.epochs.entries == one.store.epochs.entries
        assert "our epochs were lost, and what lies behind is copied again" in caplog.text
        assert "that a master confirmed" not in caplog.text, "nothing was lost: no error"


async def test_a_slave_whose_master_does_not_know_the_secret_says_so_in_its_health(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("what the brokers share")
    async with (
        running(tmp_path / "one") as one,
        running(tmp_path / "two", haSecretFile=str(path)) as two,
    ):
        await one.lead(elected(1, 1, {1}, 1))
        await two.follow(BrokerId(2), Epoch(1), one.config.address, one.config.ha_address)
        await eventually(lambda: two.ha.unproven is not None, "it tells")
        assert two.health() == (
            "does not follow its master: the master has no haSecretFile, so it cannot prove that it is of"
            " this group"
        )
        assert two.status()["life"]["following"]["state"] == "unproven"
        assert one.status()["turnedAway"] > 0
        assert one.status()["slaves"] == []


async def test_with_auto_reseed_a_log_whose_masters_begins_behind_it_is_put_aside_and_copied_anew(
    tmp_path: Path,
) -> None:
    keys = {"slaveSyncMetadataPeriod": "30", "mappedFileSizeCommitLog": "65536"}
    async with running(tmp_path / "one", **keys) as one, running(tmp_path / "two", **keys) as two:
        await one.lead(elected(1, 8, {1}, 1))
        where = BrokerId(2), Epoch(8), one.config.address, one.config.ha_address
        async with client_of(one) as client:
            await client.send("Elsewhere", b"it was here")
            await two.follow(*where)
            await eventually(lambda: two.store.log.end == one.store.log.end, "it follows")
            await two.fence()
            await client.send("Elsewhere", bytes(60_000))
            for number in range(5):
                await client.send("T", bytes(20_000) + b"m%d" % number)
            await one.store.caught_up()
            one.store.log.forget_first()
            await one.store.background.retention.follow_log_start()
        await two.follow(*where)
        await eventually(lambda: two.ha.needs_reseed is not None, "it tells")
        assert (two.health() or "").startswith("needs a re-seed: ")
        kept = log_records(two)
        two.config.auto_reseed = True
        await eventually(lambda: two.store.log.end == one.store.log.end, "it copied the master's log")
        assert two.store.log.min_offset == one.store.log.min_offset == 65536
        assert two.health() is None
        (aside,) = two.status()["life"]["following"]["putAside"]
        segment = (Path(aside) / "commitlog" / f"{0:020d}").read_bytes()
        assert kept[0].body in segment
        async with client_of(two) as client:
            await eventually(lambda: two.topics.get("T") is not None, "the tables came, too")
            assert len(await client.pull_until("T", 0, 5)) == 5


async def test_auto_reseed_keeps_a_log_of_which_its_master_lacks_what_is_confirmed(tmp_path: Path) -> None:
    """However long the master's is by now: it may be another history."""
    keys = {"slaveSyncMetadataPeriod": "30", "autoReseed": "true"}
    async with running(tmp_path / "one", **keys) as one, running(tmp_path / "two", **keys) as two:
        async with client_of(two) as client:
            await two.lead(elected(2, 7, {2}, 1))
            await client.send("Elsewhere", b"another history")
        await two.fence()
        await one.lead(elected(1, 8, {1}, 1))
        async with client_of(one) as client:
            for number in range(5):
                await client.send("T", b"m%d" % number)
        assert one.store.log.end > two.store.log.end
        kept = log_records(two)
        await two.follow(BrokerId(2), Epoch(8), one.config.address, one.config.ha_address)
        await eventually(lambda: "not put aside" in (two.health() or ""), "it tells")
        assert (two.health() or "").startswith("needs a re-seed: no consistent point")
        assert log_records(two) == kept
