"""The promises of copied tables: what was answered about topics and groups is on the in-sync slaves, and no
consumer's progress goes back. How soon it follows is measured under virtual time: tests/sim."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from broker.service import Broker
from broker.tables import copies
from broker.tables.modes import RequestMode
from broker.tables.topics import EXPIRED
from broker.upkeep.table_sync import MetadataSync
from model.acl.policies import User
from model.codes import Request, Response
from model.ids import BrokerId, Epoch
from model.topic import SubscriptionGroupConfig, TopicConfig
from remoting import bodies
from remoting.codec import FRAME_BYTES_MAX, Command, encode
from remoting.headers import SendHeader
from remoting.service import Connection
from remoting.slices import joined
from runtime.turns import Slice
from tests.broker.helpers import (
    Client,
    client_of,
    commit,
    elected,
    eventually,
    log_records,
    pair,
    records,
    role_state,
    running,
    topic,
)
from tests.broker.turn_meter import counted_slices
from tests.fakes.broker.send_path import HAS_COMPILED
from tests.fakes.broker.store import FakeConnection
from tests.plain import broker_ids
from tests.remoting.support import serving

NEVER = "3600000"
"""A period so long that nothing a test sees comes from it."""


@contextlib.asynccontextmanager
async def copied(path: Path, **keys: str) -> AsyncIterator[tuple[Broker, Broker, Client]]:
    """A pair whose slave has the master's tables, and a client of the master."""
    keys = {"slaveSyncMetadataPeriod": NEVER, **keys}
    async with pair(path, **keys) as (one, two), client_of(one) as client:
        await eventually(lambda: two.topics.version == one.topics.version, "the first copy")
        yield one, two, client


async def test_a_topic_created_right_before_a_failover_exists_on_the_new_master(tmp_path: Path) -> None:
    async with copied(tmp_path) as (one, two, client):
        for number in range(20):
            answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(f"T{number}"))
            assert answer.code == 0
            assert two.topics.table[f"T{number}"] == one.topics.table[f"T{number}"]
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        assert two.topics.table["T19"].write_queues == 3


async def test_changes_and_deletions_of_topics_and_groups_are_on_the_slave_when_they_are_answered(
    tmp_path: Path,
) -> None:
    async with copied(tmp_path) as (one, two, client):
        group = bodies.dumps({"groupName": "readers", "retryMaxTimes": 3})
        listed = bodies.dumps({"topicConfigList": [{"topicName": "L1"}, {"topicName": "L2"}]})
        steps = [
            (Request.UPDATE_AND_CREATE_TOPIC, topic("T"), b""),
            (Request.UPDATE_AND_CREATE_TOPIC, topic("T", 5), b""),
            (Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, listed),
            (Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group),
            (Request.DELETE_TOPIC_IN_BROKER, {"topic": "L1"}, b""),
            (Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers", "cleanOffset": "true"}, b""),
        ]
        for code, ext, data in steps:
            assert (await client.call(code, ext, data)).code == 0
            assert two.topics.table == one.topics.table
            assert two.groups.table == one.groups.table
        assert "L1" not in two.topics.table
        assert "readers" not in two.groups.table
        async with client_of(two) as at_slave:  # as mqadmin deleteSubGroup does, at each broker of the group
            assert (await at_slave.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
            only = await at_slave.call(
                Request.DELETE_TOPIC_IN_BROKER, {"topic": "T", "keelmqMasterOnly": "true"}
            )
            assert only.code == Response.SYSTEM_ERROR
            assert "not the master" in (only.remark or "")
        assert "T" in two.topics.table, "its master has it: the slave's table comes from there"
        only = await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T", "keelmqMasterOnly": "true"})
        assert only.code == 0
        assert "T" not in one.topics.table
        assert "T" not in two.topics.table


async def test_a_change_an_in_sync_slave_does_not_confirm_is_not_answered_ok(tmp_path: Path) -> None:
    async with copied(tmp_path, slaveTimeout="600") as (one, two, client):
        table = one.context.copies
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("Before"))).code == 0
        # The slave's log follows on, but it asks for no tables any more.
        two.client.drop(one.config.address)
        two.role_state.set(role_state("slave", 2, 1))
        answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        assert answer.code == Response.SYSTEM_ERROR
        assert "in-sync slaves [2]" in (answer.remark or "")
        one.ha.adopt(broker_ids({1}), 3)
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert table.revision > 0


async def test_a_member_that_has_not_asked_for_the_tables_yet_is_waited_for_like_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an election a slave is in the set once its log is level; its first question may come later."""
    asking = asyncio.Event()
    once = MetadataSync.once

    async def late(self: MetadataSync) -> bool:
        await asking.wait()
        return await once(self)

    monkeypatch.setattr(MetadataSync, "once", late)

    async with pair(tmp_path, slaveTimeout="600") as (one, two), client_of(one) as client:
        answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        assert "T" not in two.topics.table
        assert answer.code == Response.SYSTEM_ERROR
        assert "in-sync slaves [2]" in (answer.remark or "")
        assert not await one.drain(BrokerId(2), 0.05), "nor is it fit to take over"
        one.resume()
        asking.set()
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert "T" in two.topics.table
        assert await one.drain(BrokerId(2), 5.0)
        one.resume()


async def test_a_member_that_is_not_connected_is_waited_for_too(tmp_path: Path) -> None:
    """A restarted master: its members are in the set before they found it again, and could be elected."""
    async with copied(tmp_path, slaveTimeout="600") as (one, _, client):
        one.ha.adopt(broker_ids({1, 2, 3}), 3)
        answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        assert answer.code == Response.SYSTEM_ERROR
        assert "in-sync slaves [3]" in (answer.remark or "")


async def test_a_change_is_answered_as_soon_as_the_member_it_waited_for_leaves_the_set(
    tmp_path: Path,
) -> None:
    async with copied(tmp_path, slaveTimeout="60000") as (one, _, client):
        one.ha.adopt(broker_ids({1, 2, 3}), 3)
        asking = asyncio.create_task(client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T")))
        await asyncio.sleep(0.1)
        assert not asking.done()
        one.ha.adopt(broker_ids({1, 2}), 4)
        async with asyncio.timeout(5):
            assert (await asking).code == 0


async def test_a_receipt_counts_for_one_link_only(tmp_path: Path) -> None:
    async with copied(tmp_path) as (one, _, _):
        copies = one.context.copies
        await eventually(lambda: copies.has(BrokerId(2), copies.revision), "the receipt")
        assert copies.ready(BrokerId(2))
        one.ha.on_connected[0](BrokerId(2), True)
        assert not copies.ready(BrokerId(2))
        assert not copies.has(BrokerId(2), 0)
        await eventually(lambda: copies.ready(BrokerId(2)), "the tables are copied anew, and confirmed")


async def test_a_real_slave_joins_without_asking_for_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a keelmq broker had its id before: it copies whole tables, as of any master."""
    async with copied(tmp_path) as (one, _, client):
        copies = one.context.copies
        link = one.ha.links.by_id[BrokerId(2)]
        monkeypatch.setattr(link, "slave", link.slave._replace(answers_heartbeats=False))
        one.ha.on_connected[0](BrokerId(2), False)
        assert copies.ready(BrokerId(2))
        assert copies.has(BrokerId(2), copies.revision + 1)
        assert "2" not in copies.status()["slaves"]
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0


async def test_a_planned_change_waits_for_what_consumers_committed_before_it(tmp_path: Path) -> None:
    async with copied(tmp_path) as (one, two, client):
        one.groups.find("readers")
        for number in range(8):
            await client.send("T", b"m%d" % number)
        await eventually(lambda: two.store.log.end == one.store.log.end, "the slave has the log")
        for offset in range(1, 9):
            # The slave got the one before just now, so this one would wait for others to travel with it.
            await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("readers", "T", offset))
            assert two.offsets.get("readers", "T", 0) != offset
            assert await one.drain(BrokerId(2), 5.0)
            assert two.offsets.get("readers", "T", 0) == offset
            one.resume()


async def test_consumer_offsets_survive_a_failover_and_do_not_go_back_when_it_comes_after_the_bound(
    tmp_path: Path,
) -> None:
    async with copied(tmp_path) as (one, two, client):
        one.groups.find("readers")
        for number in range(10):
            await client.send("T", b"m%d" % number)
        await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("readers", "T", 10))
        await eventually(lambda: two.offsets.get("readers", "T", 0) == 10, "the offset is copied")
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        async with client_of(two) as other:
            asked = {"consumerGroup": "readers", "topic": "T", "queueId": "0"}
            answer = await other.call(Request.QUERY_CONSUMER_OFFSET, asked)
            assert (answer.code, answer.ext["offset"]) == (0, "10")
        # And the way back: the former master takes what was committed at its successor.
        await one.follow(BrokerId(1), Epoch(2), two.config.address, two.config.ha_address)
        async with client_of(two) as other:
            await other.send("T", b"m10")
            await other.call(Request.UPDATE_CONSUMER_OFFSET, commit("readers", "T", 11))
        await eventually(lambda: one.offsets.get("readers", "T", 0) == 11, "copied back")


async def test_a_reset_of_offsets_is_on_the_slave_when_it_is_answered(tmp_path: Path) -> None:
    async with copied(tmp_path) as (one, two, client):
        one.groups.find("readers")
        await client.send("T")
        await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("readers", "T", 1))
        ext = {"topic": "T", "group": "readers", "timestamp": "0", "isForce": "true", "offset": "0"}
        answer = await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, {**ext, "queueId": "0"})
        assert answer.code == 0
        assert two.offsets.get("readers", "T", 0) == 0


async def test_what_the_slave_was_told_before_the_wait_began_is_on_its_disk_when_it_is_over(
    tmp_path: Path,
) -> None:
    """The loop runs between a change and the wait: a search by time, or many queues, take several turns."""
    async with copied(tmp_path) as (one, _, _):
        copies = one.context.copies

        def is_written(group: str) -> bool:
            files = (tmp_path / "two" / "config").glob("consumerOffset*")
            return any(group.encode() in file.read_bytes() for file in files)

        for number in range(20):  # a young slave writes now and then by itself
            group = f"readers{number:02}"
            one.offsets.reset(group, "T", 0, 7)
            await eventually(lambda: copies.has(BrokerId(2), copies.revision), "the receipt of the change")
            if not is_written(group):
                break
        else:
            pytest.fail("none was in memory alone")
        await copies.wait_for_copies("offsets")
        assert is_written(group)


async def test_after_an_unclean_election_no_consumer_offset_lies_beyond_its_queue(tmp_path: Path) -> None:
    async with copied(tmp_path) as (one, two, client):
        one.groups.find("readers")
        for number in range(5):
            await client.send("T", b"m%d" % number)
        await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("readers", "T", 5))
        await eventually(lambda: two.offsets.get("readers", "T", 0) == 5, "the offset is copied")
        await one.fence()
        await two.fence()
        # Two messages of the five never reached the broker that leads now.
        fourth = log_records(two)[3]
        two.store.truncate(fourth.physical_offset)
        await two.lead(elected(2, 2, {2}, 3))
        assert two.offsets.get("readers", "T", 0) == 3


async def test_only_changed_entries_travel_and_dropped_ones_disappear(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for group in ("one", "two"):
            broker.offsets.commit(group, "T", 0, 1)
        ask = {"brokerId": "7", "run": "none", "seen": "-1", "waitMs": "1000"}
        first = await client.call(Request.KEELMQ_COPY_TABLES, ask)
        assert set(json.loads(first.body.replace(b"{0:", b'{"0":'))["offsets"]["offsetTable"]) == {
            "T@one",
            "T@two",
        }
        ask |= {"run": first.ext["run"], "seen": first.ext["revision"]}
        waiting = asyncio.ensure_future(client.call(Request.KEELMQ_COPY_TABLES, ask))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "nothing changed"
        broker.offsets.commit("one", "T", 0, 2)
        broker.offsets.drop_group("two")
        second = bodies.loads_object((await waiting).body)
        assert set(second) == {"offsets"}
        assert second["offsets"]["part"] is True
        assert {k: dict(v) for k, v in second["offsets"]["offsetTable"].items()} == {
            "T@one": {"0": 2},
            "T@two": {},
        }


async def test_of_a_master_that_does_not_know_the_question_whole_tables_are_copied(tmp_path: Path) -> None:
    async with pair(tmp_path, slaveSyncMetadataPeriod="50") as (one, two), client_of(one) as client:
        del one.processors.handlers[int(Request.KEELMQ_COPY_TABLES)]
        two.upkeep.metadata.soon()
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code in (0, 1)
        await eventually(lambda: two.topics.get("T") is not None, "copied the old way")


async def test_a_question_with_nonsense_is_refused_and_moves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for ext in (
            {},
            {"brokerId": "x", "run": "r", "seen": "0", "waitMs": "1"},
            {"brokerId": "1", "run": "r", "seen": "0", "waitMs": "99999999"},
        ):
            assert (await client.call(Request.KEELMQ_COPY_TABLES, ext)).code != 0
        # A receipt for what was never told is none.
        forged = {"brokerId": "1", "run": "r", "seen": "999999", "waitMs": "0"}
        assert (await client.call(Request.KEELMQ_COPY_TABLES, forged)).code == 0
        assert broker.context.copies.status()["slaves"]["1"]["seen"] == -1


async def test_a_broker_that_is_not_master_answers_no_question(tmp_path: Path) -> None:
    async with copied(tmp_path) as (_, two, _client), client_of(two) as client:
        ask = {"brokerId": "7", "run": "none", "seen": "-1", "waitMs": "0"}
        answer = await client.call(Request.KEELMQ_COPY_TABLES, ask)
        assert answer.code == Response.SYSTEM_ERROR


async def test_a_deleted_topic_does_not_come_back_with_its_last_messages_or_the_next_master(
    tmp_path: Path,
) -> None:
    async with copied(tmp_path) as (one, two, client):
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert (await client.send("T")).code == 0
        await two.fence()
        # This one is stored, and waits for the slave while its topic is deleted.
        end = one.store.log.end
        sent = asyncio.create_task(client.send("T"))
        await eventually(lambda: one.store.log.end > end, "the message is stored")
        deleted = asyncio.create_task(client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T"}))
        await eventually(lambda: "T" not in one.topics.table, "the topic is deleted")
        assert one.topics.first_offset("T", 0) == 1, "a failover may take the second back"
        await two.follow(BrokerId(2), Epoch(1), one.config.address, one.config.ha_address)
        assert ((await sent).code, (await deleted).code) == (0, 0)
        await one.store.caught_up()
        assert one.store.max_queue_offset("T", 0) == one.topics.first_offset("T", 0) == 2
        assert "T" not in one.topics.table
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await two.store.caught_up()
        assert "T" not in two.topics.table


async def test_a_topic_made_again_after_it_was_deleted_is_known_to_a_master_who_was_not_told(
    tmp_path: Path,
) -> None:
    async with copied(tmp_path) as (one, two, client):
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert (await client.send("T")).code == 0
        assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        two.client.drop(one.config.address)
        two.role_state.set(role_state("slave", 2, 1))
        assert (await client.send("T", default_topic="TBW102")).code == 0
        assert "T" not in two.topics.table
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await two.store.caught_up()
        assert "T" in two.topics.table


async def test_a_deleted_topic_does_not_come_back_with_a_delayed_message(tmp_path: Path) -> None:
    async with copied(tmp_path, messageDelayLevel="1s") as (one, two, client):
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert (await client.send("T", properties="DELAY\x011\x02")).code == 0
        assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        await eventually(lambda: one.store.max_queue_offset("T", 0) == 1, "it was delivered")
        assert "T" not in one.topics.table
        await eventually(lambda: two.topics.version == one.topics.version, "the slave has the table")
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await two.store.caught_up()
        assert two.store.max_queue_offset("T", 0) == two.topics.first_offset("T", 0) == 1
        assert "T" not in two.topics.table


@pytest.mark.skipif(not HAS_COMPILED, reason="Python's path stores each read at once")
async def test_a_deleted_topic_does_not_come_back_with_what_waited_for_the_end_of_the_turn(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert (await client.send("T")).code == 0
        fast = broker.server._endpoint.fast
        assert fast is not None
        text = f"UNIQ_KEY\x01{0:032X}\x02WAIT\x01true\x02"
        send = encode(Command(310, SendHeader("pg", "T", 0, 1_700_000_000_000, properties=text).to_ext()))
        other = cast(Connection, FakeConnection())
        assert fast.process(other, bytearray(send), 0, len(send)) == (len(send), [])
        assert broker.store.next_offset("T", 0) == 1, "the second waits"
        deleted = await broker._handle(other, Command(int(Request.DELETE_TOPIC_IN_BROKER), {"topic": "T"}))
        assert deleted is not None
        assert deleted.code == 0
        await broker.store.caught_up()
        assert broker.store.max_queue_offset("T", 0) == broker.topics.first_offset("T", 0) == 2
        assert "T" not in broker.topics.table


async def test_a_deleted_topic_does_not_come_back_with_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    async with running(tmp_path) as broker:
        assert "T" not in broker.topics.table


async def test_a_name_given_again_begins_empty(tmp_path: Path) -> None:
    """Deleting a topic and making it anew is how operators empty it; its queues and their offsets go on."""

    async with copied(tmp_path) as (one, two, client):
        made = topic("T", 1)
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, made)).code == 0
        for _ in range(3):
            await client.send("T", b"old")
        one.groups.find("g")
        await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("g", "T", 3))
        await one.store.caught_up()
        assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, made)).code == 0
        assert (await client.send("T", b"new")).ext["queueOffset"] == "3"
        await eventually(lambda: two.topics.version == one.topics.version, "the slave has the table")
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await two.store.caught_up()
        async with client_of(two) as other:
            queue = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
            assert (await other.call(Request.QUERY_CONSUMER_OFFSET, queue)).ext["offset"] == "3"
            assert (await other.call(Request.GET_MIN_OFFSET, queue)).ext["offset"] == "3"
            by_time = await other.call(Request.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": "0"})
            assert by_time.ext["offset"] == "3"
            moved = await other.pull("T", 0)
            assert (moved.code, moved.ext["nextBeginOffset"]) == (Response.PULL_OFFSET_MOVED, "3")
            found = await other.pull("T", 3)
            assert [record.body for record in records(found.body)] == [b"new"]
            assert found.ext["minOffset"] == "3"
            stats = bodies.loads((await other.call(Request.GET_CONSUME_STATS, {**queue, "topic": "T"})).body)
            assert [q["consumerOffset"] for q in stats["offsetTable"].values()] == [3]
            back = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
            await other.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, back)
            assert two.offsets.get("g", "T", 0) == 3


async def test_a_name_given_again_before_the_last_messages_are_confirmed_loses_none(tmp_path: Path) -> None:
    """To hide what is not confirmed yet would hide what a successor without it stores at its offsets: it is
    read as the new topic's."""
    async with copied(tmp_path) as (one, two, client):
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))).code == 0
        assert (await client.send("T", b"old")).code == 0
        await two.fence()
        end = one.store.log.end
        waits = asyncio.create_task(client.send("T", b"waits"))
        await eventually(lambda: one.store.log.end > end, "the message is stored")
        deleted = asyncio.create_task(client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T"}))
        await eventually(lambda: "T" not in one.topics.table, "the topic is deleted")
        new = asyncio.create_task(client.send("T", b"new", default_topic="TBW102"))
        await eventually(lambda: "T" in one.topics.table, "its name is given again")
        await two.follow(BrokerId(2), Epoch(1), one.config.address, one.config.ha_address)
        assert [(await sent).code for sent in (waits, deleted, new)] == [0, 0, 0]
        assert [(await sent).ext["queueOffset"] for sent in (waits, new)] == ["1", "2"]
        await eventually(lambda: two.topics.version == one.topics.version, "the slave has the table")
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await two.store.caught_up()
        assert two.topics.first_offset("T", 0) == 1
        async with client_of(two) as other:
            found = await other.pull("T", 1)
            assert [record.body for record in records(found.body)] == [b"waits", b"new"]
            assert (await other.send("T", b"next")).ext["queueOffset"] == "3"


async def test_all_tables_are_told_as_of_one_moment_and_written_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changes while the answer is written is not in it, and is told next."""
    async with running(tmp_path) as broker:
        context, count = broker.context, 600
        context.topics.put(*(TopicConfig(f"T{n}") for n in range(count)))
        context.groups.put(*(SubscriptionGroupConfig(f"g{n}") for n in range(count)))
        for n in range(count):
            context.offsets.commit(f"g{n}", f"T{n}", 0, n)
            context.groups.modes.put(f"T{n}", "g", RequestMode("POP", 1))
            context.trust.directory.users[f"u{n}"] = User(f"u{n}", "p")
        await eventually(lambda: context.offsets.pops_to is not None, "what was popped before is read")
        before = told_of(broker)
        slices = counted_slices(monkeypatch)
        connection = cast(Connection, FakeConnection())
        ext = {"brokerId": "7", "run": "none", "seen": "-1", "waitMs": "0", "parts": "true"}

        async def late(pieces: Iterator[str], slice_: Slice) -> bytes:
            if not context.topics.get("Late"):
                context.topics.put(TopicConfig("Late"))
                context.groups.put(SubscriptionGroupConfig("late"))
                context.offsets.commit("g1", "T1", 0, 10_000)
                context.groups.modes.put("T1", "late", RequestMode("POP", 1))
                del context.trust.directory.users["u1"]
            return await joined(pieces, slice_)

        monkeypatch.setattr(copies, "joined", late)
        question = Command(int(Request.KEELMQ_COPY_TABLES), ext)
        answer = await context.copies.question(connection, question)
        found = bodies.believed_object(answer.body)
        assert {name: found[name] for name in before} == before
        assert slices.looks >= 5 * count
        ext |= {"run": answer.ext["run"], "seen": answer.ext["revision"]}
        answer = await context.copies.question(connection, Command(int(Request.KEELMQ_COPY_TABLES), ext))
        found = bodies.believed_object(answer.body)
        assert found["topics"]["part"] == ["Late"]
        assert found["groups"]["part"] == ["late"]
        assert found["offsets"]["offsetTable"]["T1@g1"] == {"0": 10_000}
        assert "late" in found["modes"]["messageRequestModeMap"]["T1"]


def told_of(broker: Broker) -> dict[str, Any]:
    """All tables as a slave reads them."""
    context = broker.context
    tables = {
        "topics": {EXPIRED: {}, **context.topics.to_json()},
        "groups": context.groups.to_json(),
        "offsets": context.offsets.to_json(),
        "modes": context.groups.modes.to_json(),
        "auth": context.trust.directory.to_json(),
    }
    return bodies.believed_object(bodies.dumps_dialect(tables))


async def test_an_answer_of_all_tables_may_be_longer_than_a_request(tmp_path: Path) -> None:
    """Tables at their limits are 35 MB: a slave that took 16 MiB would lose its link again and again."""
    body = bytes(FRAME_BYTES_MAX + 1)

    async def handle(connection: Connection, request: Command) -> Command:
        return request.reply(body=body)

    async with serving(handle) as (_, address), running(tmp_path) as broker:
        answer = await broker.client.call(address, Command(int(Request.KEELMQ_COPY_TABLES)), 10)
        assert len(answer.body) == len(body)


async def test_a_slave_whose_answer_was_lost_asks_again_and_gets_the_change_not_the_tables(
    tmp_path: Path,
) -> None:
    """All of 20,000 topics would take it longer than who makes a group is made to wait."""
    async with running(tmp_path) as broker:
        context, connection = broker.context, cast(Connection, FakeConnection())
        context.topics.put(*(TopicConfig(f"T{n}") for n in range(5)))
        ext = {"brokerId": "7", "run": "none", "seen": "-1", "waitMs": "0", "parts": "true"}

        async def ask() -> tuple[dict[str, str], dict[str, Any]]:
            answer = await context.copies.question(connection, Command(int(Request.KEELMQ_COPY_TABLES), ext))
            return answer.ext, bodies.believed_object(answer.body) if answer.body else {}

        told, tables = await ask()
        assert "part" not in tables["topics"]
        ext |= {"run": told["run"], "seen": told["revision"]}
        context.topics.put(TopicConfig("A"))
        context.groups.put(SubscriptionGroupConfig("g"))
        await ask()  # which does not reach it
        context.topics.put(TopicConfig("B"))
        context.topics.delete("T1", {}, {})
        context.offsets.commit("g", "B", 0, 1)
        again, tables = await ask()
        assert tables["topics"]["part"] == ["A", "B", "T1"]
        assert tables["groups"]["part"] == ["g"]
        assert tables["offsets"]["part"] is True
        ext["seen"] = again["revision"]
        context.topics.put(TopicConfig("C"))
        _, tables = await ask()
        assert set(tables) == {"topics"}
        assert tables["topics"]["part"] == ["C"]
        ext["seen"] = told["revision"]
        _, tables = await ask()
        assert "part" not in tables["topics"], "a receipt for an older state than its last one says nothing"
