"""The promise of queue offsets: none is given twice, also of a queue whose messages have all expired."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.service import Broker
from broker.tables.topics import Topics
from broker.timers.core import Note
from broker.upkeep.expired_queues import note_expired
from model.codes import Request
from model.ids import BrokerId, Epoch
from model.message import TIMER_TOPIC
from runtime.turns import Slice
from store.files.damage import DamagedRange
from store.flow.dispatching.dispatch import FAR_ENTRIES
from store.flow.upkeep import retention
from tests.broker.helpers import client_of, commit, config_for, elected, eventually, running, topic
from tests.plain import broker_ids

SENT = 3
KEYS = {
    "slaveSyncMetadataPeriod": "30",
    "slaveTimeout": "5000",
    "mappedFileSizeCommitLog": str(1 << 18),
    "commitLogMegabytesMax": "1",
}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAUSE_S", 0)


async def expire(one: Broker) -> None:
    """All that was sent so far, by messages of another topic."""
    end = one.store.log.end
    async with client_of(one) as client:
        while one.store.log.min_offset < end:
            for _ in range(8):
                assert (await client.send("Later", bytes(60_000))).code == 0
            one.store.log.sync()
            await one.store.retention.round()


@contextlib.asynccontextmanager
async def joined_late(path: Path, one: Broker) -> AsyncIterator[Broker]:
    """A broker that begins empty beside the master ``one``, and is in its SyncStateSet."""
    async with running(path / "two", **KEYS) as two:
        await two.fence()
        await two.follow(BrokerId(2), Epoch(1), one.config.address, one.config.ha_address)
        await eventually(lambda: bool(one.status()["slaves"]), "the slave is connected")
        one.ha.adopt(broker_ids({1, 2}), 2)
        await eventually(lambda: two.store.log.end == one.store.log.end, "it is level")
        await eventually(lambda: two.topics.version == one.topics.version, "it has the tables")
        yield two


async def test_a_replica_that_began_empty_goes_on_behind_what_expired(tmp_path: Path) -> None:
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        for _ in range(SENT):
            assert (await client.send("Idle")).code == 0
        await client.pull_until("Idle", 0, SENT)
        ended = await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("cg", "Idle", SENT))
        assert ended.code == 0
        await expire(one)
        async with joined_late(tmp_path, one) as two, client_of(two) as other:
            assert two.store.files.queues.get("Idle", 0) is None
            await one.fence()
            await two.lead(elected(2, 2, {2}, 3))
            assert two.offsets.get("cg", "Idle", 0) == SENT, "a consumer's offset is not cut"
            ext = {"topic": "Idle", "queueId": "0"}
            for code in (Request.GET_MAX_OFFSET, Request.GET_MIN_OFFSET):
                assert (await other.call(code, ext)).ext["offset"] == str(SENT)
            pulled = await other.pull("Idle", SENT)
            assert (pulled.code, pulled.ext["nextBeginOffset"]) == (19, str(SENT))
            sent = await other.send("Idle", b"next")
            assert (sent.code, sent.ext["queueOffset"]) == (0, str(SENT))
            assert [r.body for r in await other.pull_until("Idle", SENT, 1)] == [b"next"]


async def test_what_a_replica_was_told_outlives_its_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        for _ in range(SENT):
            assert (await client.send("Idle")).code == 0
        await expire(one)
        async with joined_late(tmp_path, one):
            pass
    async with running(tmp_path / "two", **KEYS) as two, client_of(two) as client:
        await two.lead(elected(2, 2, {2}, 3))
        assert (await client.send("Idle")).ext["queueOffset"] == str(SENT)


async def test_the_name_of_a_deleted_topic_goes_on_behind_what_it_held(tmp_path: Path) -> None:
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        for _ in range(SENT):
            assert (await client.send("Idle")).code == 0
        ext = {"topic": "Idle"}
        assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, ext)).code == 0
        await expire(one)
        async with joined_late(tmp_path, one) as two, client_of(two) as other:
            await one.fence()
            await two.lead(elected(2, 2, {2}, 3))
            made = await other.call(Request.UPDATE_AND_CREATE_TOPIC, topic("Idle"))
            assert made.code == 0, made.remark
            sent = await other.send("Idle", b"again")
            assert (sent.code, sent.ext["queueOffset"]) == (0, str(SENT))
            pulled = await other.pull_until("Idle", SENT, 1)
            assert [r.body for r in pulled] == [b"again"]


async def test_ends_are_noted_before_the_log_begins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that joins in the moment between would copy neither the records nor the note."""
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        assert (await client.send("Idle")).code == 0
        noted: list[int] = []
        forget = one.store.log.forget_first

        def forgot() -> None:
            noted.append(one.topics.starts.get("Idle", {}).get(0, 0))
            forget()

        monkeypatch.setattr(one.store.log, "forget_first", forgot)
        await expire(one)
        assert noted
        assert set(noted) == {1}


async def test_a_successor_notes_what_expired_at_itself_alone(tmp_path: Path) -> None:
    """The former master kept its segments longer, and noted nothing."""
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        assert (await client.send("Idle")).code == 0
        hooks = one.store.retention.before_expiry
        hooks.clear()
        await expire(one)
        assert "Idle" not in one.topics.starts
        await one.fence()
        await one.lead(elected(1, 2, {1}, 2))
        assert one.topics.starts["Idle"] == {0: 1}


async def test_a_queue_that_has_messages_goes_on_behind_them_whatever_was_noted(tmp_path: Path) -> None:
    """The note was ahead of a log that was lost, or a RocketMQ master that knew nothing led meanwhile."""
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        live = [b"live%d" % number for number in range(SENT)]
        for body in live:
            assert (await client.send("Idle", body)).code == 0
        await client.pull_until("Idle", 0, SENT)
        await one.fence()
        one.topics.note_expired({"Idle": {0: 5000}})  # files have 1000 entries
        await one.lead(elected(1, 2, {1}, 2))
        assert one.topics.starts["Idle"] == {0: SENT}
        assert (await client.send("Idle", b"next")).ext["queueOffset"] == str(SENT)
        found = await client.pull_until("Idle", 0, SENT + 1)
        assert [record.body for record in found] == [*live, b"next"]


async def test_the_first_message_far_behind_nothing_is_read(tmp_path: Path) -> None:
    """A queue of which this short log has nothing, and that is known to have ended far away."""
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        await one.fence()
        one.topics.note_expired({"Idle": {0: 20_000}})
        await one.lead(elected(1, 2, {1}, 2))
        assert (await client.send("Idle", b"first")).ext["queueOffset"] == "20000"
        assert [record.body for record in await client.pull_until("Idle", 20_000, 1)] == [b"first"]


async def test_a_replica_that_has_no_note_yet_enters_both_as_soon_as_a_second_one_comes(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        await one.fence()
        one.topics.note_expired({"Idle": {0: 20_000}})
        await one.lead(elected(1, 2, {1}, 2))
        one.store.begin_queues({})
        for body in (b"first", b"second"):
            assert (await client.send("Idle", body)).code == 0
        found = await client.pull_until("Idle", 20_000, 2)
        assert [record.body for record in found] == [b"first", b"second"]


async def test_the_ends_of_queues_that_a_topic_has_no_more_are_kept_with_its_deletion(tmp_path: Path) -> None:
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("Idle", 8))).code == 0
        assert (await client.send("Idle", queue_id=7)).code == 0
        await expire(one)
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("Idle", 4))).code == 0
        async with joined_late(tmp_path, one) as two, client_of(two) as other:
            await one.fence()
            await two.lead(elected(2, 2, {2}, 3))
            assert (await other.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "Idle"})).code == 0
            assert two.topics.starts["Idle"] == {7: 1}


async def test_offsets_that_a_damaged_range_may_have_held_are_noted_with_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        for _ in range(SENT):
            assert (await client.send("Idle")).code == 0
        begin = one.store.log.end
        assert (await client.send("Lost", bytes(1200))).code == 0
        await one.fence()
        until = one.store.log.end
        one.store.damage.note([DamagedRange(begin, until, "unreadable", 0, ())])
        await one.lead(elected(1, 2, {1}, 2))
        following = one.store.next_offset("Idle", 0)
        assert following > SENT
        await expire(one)
        assert not one.store.damage.ranges
        await one.fence()
        await one.lead(elected(1, 3, {1}, 3))
        assert one.store.next_offset("Idle", 0) == following


async def test_after_much_damage_the_next_message_is_read(tmp_path: Path) -> None:
    """No queue steps over more offsets than who dispatches the next record believes."""
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        for _ in range(SENT):
            assert (await client.send("Idle")).code == 0
        await client.pull_until("Idle", 0, SENT)
        await one.fence()
        one.topics.note_expired({"Elsewhere": {0: 10}})
        begin = one.store.log.end
        async with client_of(one):
            await one.lead(elected(1, 2, {1}, 2))
        for _ in range(10):
            assert (await client.send("Lost", bytes(60_000))).code == 0
        await one.fence()
        one.store.damage.note([DamagedRange(begin, one.store.log.end, "unreadable", 0, ())])
        await one.lead(elected(1, 3, {1}, 3))
        for name, end in (("Idle", SENT), ("Elsewhere", 10)):
            sent = await client.send(name, b"next")
            offset = int(sent.ext["queueOffset"])
            assert offset == end + FAR_ENTRIES
            assert [r.body for r in await client.pull_until(name, offset, 1)] == [b"next"]


async def test_damage_is_stepped_over_once_however_often_a_broker_is_elected(tmp_path: Path) -> None:
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        for _ in range(SENT):
            assert (await client.send("Idle")).code == 0
        begin = one.store.log.end
        for _ in range(10):
            assert (await client.send("Lost", bytes(60_000))).code == 0
        await one.fence()
        one.store.damage.note([DamagedRange(begin, one.store.log.end, "unreadable", 0, ())])
        one.topics.note_expired({"Elsewhere": {0: 10}})
        for epoch in (2, 3, 4):
            await one.lead(elected(1, epoch, {1}, epoch))
            assert one.store.next_offset("Idle", 0) == SENT + FAR_ENTRIES
            assert one.store.next_offset("Elsewhere", 0) == 10 + FAR_ENTRIES
            await one.fence()


async def test_a_first_message_that_is_not_confirmed_yet_is_before_no_end(tmp_path: Path) -> None:
    """What was acknowledged by the former master, and is not dispatched here."""
    async with running(tmp_path / "one", **KEYS) as one, client_of(one) as client:
        await one.lead(elected(1, 1, {1}, 1))
        await one.fence()
        one.topics.note_expired({"Idle": {0: SENT}})
        await one.lead(elected(1, 2, {1}, 2))
        one.ha.adopt(broker_ids({1, 2}), 2)  # nothing is confirmed without the other one
        pending = asyncio.ensure_future(client.send("Idle", b"first"))
        await eventually(lambda: one.store.next_offset("Idle", 0) == SENT + 1, "it is in the log")
        await note_expired(one.context, one.store.log.min_offset, Slice(one.env.monotonic_ms))
        assert one.topics.starts["Idle"] == {0: SENT}
        pending.cancel()


async def test_a_timer_topic_that_expired_as_a_whole_holds_nothing_up(tmp_path: Path) -> None:
    async with running(tmp_path / "one", **KEYS) as one:
        await one.lead(elected(1, 1, {1}, 1))
        await one.fence()
        one.topics.note_expired({TIMER_TOPIC: {0: 100}})
        one.tables.timed.set(Note(1, 100, 50))
        await one.lead(elected(1, 2, {1}, 2))
        await eventually(lambda: one.processors.timers.begun, "the wheel has what waited")


def test_names_of_expired_queues_are_remembered_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.tables.topics.EXPIRED_MAX", 3)
    topics = Topics(config_for(tmp_path), lambda: 1)
    topics.note_expired({f"T{number}": {0: 1} for number in range(5)})
    assert list(topics.starts) == ["T0", "T1", "T2"]
    topics.note_expired({"T4": {0: 1}, "T1": {0: 2}})
    assert topics.starts == {"T0": {0: 1}, "T1": {0: 2}, "T2": {0: 1}}
    topics.check_invariants()
