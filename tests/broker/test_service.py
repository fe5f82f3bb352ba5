"""The promise of broker.service: a client of the real thing cannot tell the difference."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from broker.service import Broker
from broker.upkeep.acting import ONLY_FORWARD
from model.codes import Request, Response
from model.errors import DiskError
from model.ids import BrokerId, Epoch
from model.message import message_id, property_of
from remoting import bodies
from remoting.codec import Command, decode
from remoting.headers import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PullHeader, SendBackHeader, SendHeader
from remoting.service import Connection
from remoting.transport.connection import UNSENT_BYTES_HIGH
from runtime import native
from runtime.os_env import OsEnv
from tests.broker.helpers import (
    Client,
    batch_body,
    client_of,
    config_for,
    elected,
    eventually,
    golden_exchanges,
    heartbeat,
    log_records,
    running,
)
from tests.ports import free_port


async def test_what_is_sent_is_pulled_in_order(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for number in range(40):
            answer = await client.send("T", b"m%d" % number, properties="TAGS\x01A\x02")
            assert (answer.code, answer.ext["queueOffset"]) == (0, str(number))
        found = await client.pull_until("T", 0, 40)
        assert [r.body for r in found] == [b"m%d" % n for n in range(40)]
        assert [r.queue_offset for r in found] == list(range(40))
        assert property_of(found[0].properties, "CLUSTER") == "DefaultCluster"
        assert broker.status()["putTotal"] == 40
        assert broker.status()["sendPath"] == native.describe()


async def test_a_first_send_creates_its_topic_and_the_file_has_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("Fresh", default_topic_queues=4)).code == 0
        topic = broker.topics.get("Fresh")
        assert topic is not None
        assert topic.write_queues == 4
        refused = await client.send("Fresh2", default_topic="Nothing")
        assert (refused.code, broker.topics.get("Fresh2")) == (17, None)
    stored = json.loads((tmp_path / "config" / "topics.json").read_text())
    assert stored["topicConfigTable"]["Fresh"]["writeQueueNums"] == 4


async def test_a_restart_keeps_messages_offsets_and_topics(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for number in range(10):
            await client.send("T", b"m%d" % number)
        await client.pull_until("T", 0, 10)
        ext = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "7"}
        assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, ext)).code == 0
    async with running(tmp_path) as broker, client_of(broker) as client:
        ext = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
        assert (await client.call(Request.QUERY_CONSUMER_OFFSET, ext)).ext == {"offset": "7"}
        assert [r.body for r in await client.pull_until("T", 7, 3)] == [b"m7", b"m8", b"m9"]
        assert (await client.send("T", b"m10")).ext["queueOffset"] == "10"


async def test_commits_and_resets_make_no_group(tmp_path: Path) -> None:
    """As in RocketMQ, also with autoCreateSubscriptionGroup; what a slave hands on is kept."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        told = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "1"}
        missing = Response.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, told)).code == missing
        assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, {**told, "topic": "U"})).code == missing
        reset = {"topic": "T", "group": "cg", "timestamp": "0", "isForce": "true"}
        assert (await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == missing
        assert "cg" not in broker.groups.table
        handed_on = {**told, ONLY_FORWARD: "true"}
        assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, handed_on)).code == 0
        assert broker.offsets.get("cg", "T", 0) == 1


@pytest.mark.parametrize("how", ["told", "with a pull"])
async def test_a_group_that_read_more_at_a_former_master_skips_nothing_of_what_is_sent_next(
    tmp_path: Path, how: str
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        broker.groups.find("cg")
        await client.send("T", b"m0")
        ext = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "5"}
        if how == "told":
            assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, ext)).code == 0
        else:
            pull = PullHeader(
                "cg",
                "T",
                0,
                5,
                32,
                sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET,
                commit_offset=5,
                subscription="*",
            )
            assert (await client.call(Request.PULL_MESSAGE, pull.to_ext())).code == 21
        for number in range(1, 8):
            await client.send("T", b"m%d" % number)
        answer = await client.call(Request.QUERY_CONSUMER_OFFSET, ext)
        assert answer.ext == {"offset": "1"}


async def test_every_real_client_request_gets_the_answer_the_real_broker_gave(tmp_path: Path) -> None:
    """Same code, same remark, same ext names; values where they do not depend on the run."""

    sends = golden_exchanges("send.jsonl")
    others = golden_exchanges("pull.jsonl") | golden_exchanges("client.jsonl")
    exchanges = sends | {n: e for n, e in others.items() if e[2] is not None}
    async with running(tmp_path) as broker, client_of(broker) as client:
        for number in range(10):
            await client.send("cf_pull_offsets_v1", b"m%d" % number)
        await client.send("cf_pull_long_poll_v1", b"early")
        await client.send("cf_pull_long_poll_v1", b"late")
        await client.call(Request.HEART_BEAT, {}, heartbeat("192.0.2.2@i13@STREAM", "g_pull_long_poll_c_v1"))
        await broker.store.caught_up()
        checked = []
        for name, (_, request, answer) in exchanges.items():
            if answer is None or name in ("consumer_send_msg_back", "max_offset"):
                continue
            ours = await client.remoting.call(client.address, request)
            assert ours.code == answer.code, (name, ours.remark)
            assert ours.remark == answer.remark, name
            assert set(ours.ext) == set(answer.ext), name
            if name == "consumer_list":
                assert bodies.loads(ours.body) == bodies.loads(answer.body)
            checked.append(name)
        assert set(checked) >= {"send_v1", "send_v2", "send_batch", "pull_found", "query_offset"}


async def test_a_message_sent_back_returns_after_its_delay_and_then_is_a_dead_letter(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", b"try me", properties="TAGS\x01R\x02")
        (first,) = await client.pull_until("T", 0, 1)
        header = SendBackHeader(first.physical_offset, "cg", 1, max_reconsume_times=1)
        assert (await client.call(Request.CONSUMER_SEND_MSG_BACK, header.to_ext())).code == 0
        (again,) = await client.pull_until("%RETRY%cg", 0, 1)
        assert (again.body, again.reconsume_times) == (b"try me", 1)
        assert property_of(again.properties, "RETRY_TOPIC") == "T"
        assert property_of(again.properties, "DELAY") == "1", "as RocketMQ leaves it"
        origin = message_id(first.store_host, first.physical_offset)
        assert property_of(again.properties, "ORIGIN_MESSAGE_ID") == origin
        header = SendBackHeader(again.physical_offset, "cg", 1, max_reconsume_times=1)
        assert (await client.call(Request.CONSUMER_SEND_MSG_BACK, header.to_ext())).code == 0
        (dead,) = await client.pull_until("%DLQ%cg", 0, 1)
        assert (dead.body, dead.reconsume_times) == (b"try me", 2)
        assert property_of(dead.properties, "RETRY_TOPIC") == "T"
        await eventually(lambda: broker.delays.table == {1: 1}, "what was delivered is noted")
        modes = await client.call(Request.GET_ALL_MESSAGE_REQUEST_MODE)
        assert modes.body == b'{"messageRequestModeMap":{}}', "real slaves copy it, too"
        delays = await client.call(Request.GET_ALL_DELAY_OFFSET)
        assert bodies.loads(delays.body)["offsetTable"] == {"1": 1}


@pytest.mark.parametrize(("made", "queues"), [("true", 4), ("false", 1)])
async def test_a_first_send_makes_a_retry_topic_as_wide_as_any(
    tmp_path: Path, made: str, queues: int
) -> None:
    """A consumer that cannot send back sends itself, to any queue of the default topic."""
    async with running(tmp_path, autoCreateTopicEnable=made) as broker, client_of(broker) as client:
        answer = await client.send("%RETRY%cg", b"again", queue_id=queues - 1, default_topic_queues=4)
        assert answer.code == 0, answer.remark
        topic = broker.topics.get("%RETRY%cg")
        assert topic is not None
        assert (topic.read_queues, topic.write_queues) == (queues, queues)


async def test_a_delayed_message_waits_in_the_schedule_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        answer = await client.send("T", b"later", queue_id=2, properties="DELAY\x011\x02")
        assert answer.code == 0
        (held,) = log_records(broker)
        assert (held.topic, held.queue_id) == ("SCHEDULE_TOPIC_XXXX", 0)
        assert property_of(held.properties, "REAL_TOPIC") == "T"
        (found,) = await client.pull_until("T", 0, 1, queue_id=2)
        assert found.body == b"later"
        assert found.store_timestamp_ms - held.store_timestamp_ms >= 1000


async def test_members_of_a_group_hear_of_each_other(tmp_path: Path) -> None:
    heard: list[str] = []

    async def handler(connection: Connection, request: Command) -> None:
        assert request.code == Request.NOTIFY_CONSUMER_IDS_CHANGED
        heard.append(request.ext["consumerGroup"])

    async with running(tmp_path) as broker, client_of(broker, handler) as one, client_of(broker) as two:
        answer = await one.call(Request.HEART_BEAT, {}, heartbeat("c1", "g", "T", producer="p"))
        assert answer.ext["IS_SUPPORT_HEART_BEAT_V2"] == "true"
        assert broker.topics.get("%RETRY%g") is not None
        await two.call(Request.HEART_BEAT, {}, heartbeat("c2", "g", "T"))
        await eventually(lambda: len(heard) >= 2, "the first member is told of the second")
        listed = await one.call(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
        assert bodies.loads(listed.body) == {"consumerIdList": ["c1", "c2"]}
        shown = await one.call(Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        assert len(bodies.loads(shown.body)["connectionSet"]) == 2
        count = len(heard)
        await two.remoting.close()
        await eventually(lambda: len(heard) > count, "the first member is told that the second left")
        listed = await one.call(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
        assert bodies.loads(listed.body) == {"consumerIdList": ["c1"]}


async def test_who_does_not_read_is_told_of_a_group_once_and_again_when_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that come and go by the thousand filled what a slow one left unread."""
    heard: list[str] = []

    async def handler(connection: Connection, request: Command) -> None:
        heard.append(request.ext["consumerGroup"])

    async with running(tmp_path) as broker, client_of(broker, handler) as client:
        for group in ("g", "h"):
            await client.call(Request.HEART_BEAT, {}, heartbeat("c", group, "T"))
        await eventually(lambda: heard == ["g", "h"], "it is told of itself")
        heard.clear()
        (connection,) = broker.context.clients.connections()
        clients = broker.processors.clients
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "untaken", UNSENT_BYTES_HIGH + 1)
            for group in ("g", "g", "h", "g"):
                clients._tell_one(connection, group)
            await clients.expire()
        await eventually(lambda: heard == ["g", "h"], "once each")
        clients._tell_one(connection, "h")
        await eventually(lambda: heard == ["g", "h", "g", "h"], "what it is owed, too")
        await clients.expire()
        clients._tell_one(connection, "h")
        await eventually(lambda: heard == ["g", "h", "g", "h", "h"], "nothing else")
        assert clients._behind == {}


async def test_who_broadcasts_has_no_queues_to_share_anew(tmp_path: Path) -> None:
    """Hundreds of members would each rebalance whenever one of them comes or goes."""

    heard: list[str] = []

    async def handler(connection: Connection, request: Command) -> None:
        heard.append(request.ext["consumerGroup"])

    async with running(tmp_path) as broker, client_of(broker, handler) as one, client_of(broker) as two:
        everyone = heartbeat("c1", "all", "T").replace(b"CLUSTERING", b"BROADCASTING")
        for client in (one, two):
            await client.call(Request.HEART_BEAT, {}, everyone)
        assert broker.context.clients.consumers["all"].message_model == "BROADCASTING"
        await one.call(Request.HEART_BEAT, {}, heartbeat("c1", "some", "T"))
        await eventually(lambda: bool(heard), "the other group is told")
        assert set(heard) == {"some"}


async def test_a_member_whose_subscriptions_another_replaced_is_asked_for_them_again(tmp_path: Path) -> None:
    """Heartbeats of version 2 leave out what did not change: only the broker knows that the group's did."""

    def beat(client_id: str, topic: str, fingerprint: int, *, whole: bool) -> bytes:
        data = bodies.loads(heartbeat(client_id, "g", *([topic] if whole else [])))
        return bodies.dumps({**data, "heartbeatFingerprint": fingerprint, "withoutSub": not whole})

    async with running(tmp_path) as broker, client_of(broker) as one, client_of(broker) as two:

        async def is_asked(client: Client, data: bytes) -> bool:
            answer = await client.call(Request.HEART_BEAT, {}, data)
            return answer.ext["IS_SUB_CHANGE"] == "true"

        assert await is_asked(one, beat("c1", "T1", 7, whole=True))
        assert not await is_asked(one, beat("c1", "T1", 7, whole=True))
        assert not await is_asked(one, beat("c1", "T1", 7, whole=False))
        assert await is_asked(two, beat("c2", "T2", 8, whole=True))
        await two.remoting.close()
        await eventually(lambda: broker.context.clients.consumers["g"].ids() == ["c1"], "c2 is gone")
        assert broker.context.clients.subscription("g", "T1") is None
        assert await is_asked(one, beat("c1", "T1", 7, whole=False))
        assert not await is_asked(one, beat("c1", "T1", 7, whole=True))
        assert broker.context.clients.subscription("g", "T1") is not None
        assert not await is_asked(one, beat("c1", "T1", 7, whole=False))


async def test_a_queue_is_locked_by_one_client_at_a_time(tmp_path: Path) -> None:
    queue = {"brokerName": "broker-t", "queueId": 0, "topic": "T"}

    async def lock(client: Client, code: int, client_id: str) -> Any:
        data = {"clientId": client_id, "consumerGroup": "g", "mqSet": [queue], "onlyThisBroker": False}
        answer = await client.call(code, {}, bodies.dumps(data))
        assert answer.code == 0
        return bodies.loads(answer.body)["lockOKMQSet"] if answer.body else None

    async with running(tmp_path) as broker, client_of(broker) as client:
        assert await lock(client, Request.LOCK_BATCH_MQ, "c1") == [queue]
        assert await lock(client, Request.LOCK_BATCH_MQ, "c2") == []
        await lock(client, Request.UNLOCK_BATCH_MQ, "c1")
        assert await lock(client, Request.LOCK_BATCH_MQ, "c2") == [queue]


async def test_a_batch_gets_one_answer_with_all_ids(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        packed = batch_body([(b"b%d" % n, f"UNIQ_KEY\x01AA{n}\x02", n) for n in range(4)])
        ext = SendHeader("pg", "T", 0, 1, properties="UNIQ_KEY\x01AB\x02", batch=True).to_ext()
        answer = await client.call(Request.SEND_BATCH_MESSAGE, ext, packed)
        assert (answer.code, answer.ext["queueOffset"], answer.ext["msgId"].count(",")) == (0, "1", 3)
        found = await client.pull_until("T", 1, 4)
        assert [(r.body, r.flag) for r in found] == [(b"b%d" % n, n) for n in range(4)]


async def test_transactions_can_be_forbidden(tmp_path: Path) -> None:
    async with running(tmp_path, rejectTransactionMessage="true") as broker, client_of(broker) as client:
        answer = await client.send("T", properties="TRAN_MSG\x01true\x02PGROUP\x01pg\x02")
        assert (answer.code, "forbidden" in (answer.remark or "")) == (16, True)
        assert log_records(broker) == []


async def test_a_fenced_broker_and_a_slave_take_no_writes_but_serve_reads(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", b"kept")
        await broker.store.caught_up()
        await broker.fence()
        refused = await client.send("T")
        assert refused.code == 14
        assert [r.body for r in await client.pull_until("T", 0, 1)] == [b"kept"]
        assert broker.health() is not None
        await broker.follow(BrokerId(2), Epoch(1), "127.0.0.1:1", None)
        refused = await client.send("T")
        assert refused.code == 2
        assert (refused.remark or "").startswith("[REJECTREQUEST]")
        assert [r.body for r in await client.pull_until("T", 0, 1)] == [b"kept"]
        assert (await client.pull("T", 5)).code == 20
        assert len(log_records(broker)) == 1


async def test_with_sync_flush_an_answer_means_the_disk_has_it(tmp_path: Path) -> None:
    async with running(tmp_path, flushDiskType="SYNC_FLUSH") as broker, client_of(broker) as client:
        answers = await asyncio.gather(*(client.send("T", b"x" * 100) for _ in range(20)))
        assert {a.code for a in answers} == {0}
        assert broker.store.log.flushed == broker.store.log.end


async def test_while_slaves_are_missing_answers_wait_and_then_say_so(tmp_path: Path) -> None:
    async with running(tmp_path, slaveTimeout="50") as broker, client_of(broker) as client:
        await broker.lead(elected(1, 1, {1, 2}, 1))
        answer = await client.send("T", b"alone")
        assert answer.code == 12
        assert set(answer.ext) >= {"msgId", "queueId", "queueOffset"}
        assert (await client.pull("T", 0)).code != 0, "what no slave has is not shown to consumers"


async def test_without_enough_replicas_a_write_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    async with running(tmp_path, minInSyncReplicas="2") as broker, client_of(broker) as client:
        answer = await client.send("T")
        assert (answer.code, "in-sync replicas not enough" in (answer.remark or "")) == (1, True)
        assert log_records(broker) == []


async def test_a_full_disk_is_answered_with_service_not_available_by_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        monkeypatch.setattr(
            type(broker.store), "why_not_writable", property(lambda store: "the disk is full")
        )
        for properties in ("", "DELAY\x011\x02"):
            answer = await client.send("T", properties=properties)
            assert (answer.code, "the disk is full" in (answer.remark or "")) == (14, True)
        assert len(log_records(broker)) == 1


async def test_a_message_over_the_limit_is_illegal(tmp_path: Path) -> None:
    async with running(tmp_path, maxMessageSize="1000") as broker, client_of(broker) as client:
        assert (await client.send("T", b"x" * 1000)).code == 0
        assert (await client.send("T", b"x" * 1001)).code == 13
        assert (await client.send("T", properties="p\x01" + "v" * 33000 + "\x02")).code == 13


async def test_the_fast_port_serves_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        client.address = f"127.0.0.1:{broker.config.listen_port - 2}"
        assert (await client.send("T")).code == 0


async def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as broker:
        taken = config_for(tmp_path / "b", listenPort=broker.config.listen_port)
        taken.ha_listen_port = free_port()
        second = Broker(OsEnv(), taken)
        with pytest.raises(OSError, match="in use"):
            await second.start()
        async with running(tmp_path / "b") as third, client_of(third) as client:
            assert (await client.send("T")).code == 0


async def test_a_table_file_that_is_none_stops_the_start_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    damaged = tmp_path / "config" / "topics.json"
    damaged.write_text('{"topicConfigTable": 7}')
    with pytest.raises(DiskError, match="config"):
        async with running(tmp_path):
            raise AssertionError("it started")
    assert damaged.read_text() == '{"topicConfigTable": 7}'


async def test_one_broken_frame_ends_one_connection_only(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client, client_of(broker) as other:
        bad = await client.connection()
        await other.send("T")
        bad.write(b"\x00\x00\x00\x08\x00\x00\x00\x04nope")
        await eventually(lambda: bad.closed, "the broken connection ends")
        assert (await other.send("T")).code == 0


async def test_an_answer_to_nothing_is_ignored(tmp_path: Path) -> None:
    """A response frame with a send's code must not be taken for a send."""

    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        frame, _, _ = golden_exchanges("send.jsonl")["send_v2"]
        odd = decode(frame)
        odd.flag = 1
        connection = await client.connection()
        connection.send(odd)
        assert (await client.send("T")).ext["queueOffset"] == "1"
        assert len(log_records(broker)) == 2
