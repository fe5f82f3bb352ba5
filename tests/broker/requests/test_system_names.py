"""What the broker keeps under names of its own is no client's to change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.requests.transactions import GROUP
from broker.tables.topics import OP_HALF_TOPIC
from model.codes import Request, Response
from model.pop import ORDER_REVIVE_QUEUE, ExtraInfo
from remoting import bodies
from remoting.headers import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PullHeader
from remoting.pop_acks import BatchAck, encode_batch_acks
from remoting.pop_headers import AckHeader
from tests.broker.halves import COMMIT, HALVES, begin, end, of_topic
from tests.broker.helpers import client_of, eventually, running, topic
from tests.broker.pop.support import pop

FORGED = "1000000"


@pytest.mark.parametrize("group", [GROUP, "CID_RMQ_SYS_REVIVE_GROUP"])
async def test_a_client_commits_no_offset_of_a_system_group(tmp_path: Path, group: str) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await begin(client)
        ext = {"consumerGroup": group, "topic": HALVES, "queueId": "0", "commitOffset": FORGED}
        assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, ext)).code == 16
        header = PullHeader(
            group,
            HALVES,
            0,
            0,
            1,
            sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET,
            commit_offset=int(FORGED),
            subscription="*",
        )
        await client.call(Request.PULL_MESSAGE, header.to_ext())
        reset = {"topic": HALVES, "group": group, "timestamp": "-1", "isForce": "true"}
        assert (await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 16
        broker.offsets.commit("mine", HALVES, 0, 1)
        clone = {"srcGroup": "mine", "destGroup": group, "topic": HALVES}
        assert (await client.call(Request.CLONE_GROUP_OFFSET, clone)).code == 16
        gone = {"groupName": group, "cleanOffset": "true"}
        assert (await client.call(Request.DELETE_SUBSCRIPTIONGROUP, gone)).code == 16
        assert broker.offsets.queues(group, HALVES) == {}


@pytest.mark.parametrize("order", [False, True])
async def test_a_client_pops_and_acknowledges_nothing_as_a_system_group(
    tmp_path: Path, *, order: bool
) -> None:
    """What the revive group has done is not brought back again by a successor."""
    group, name = "CID_RMQ_SYS_REVIVE_GROUP", "rmq_sys_REVIVE_LOG_DefaultCluster"
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"x")
        assert (await pop(client, "T")).code == 0
        assert (await pop(client, name, group=group, order=order)).code == 16
        queue_id = ORDER_REVIVE_QUEUE if order else 0
        info = ExtraInfo(0, 1, 1, queue_id, "0", "broker-t", 0, 0).to_text()
        for code, invisible_ms in (
            (Request.ACK_MESSAGE, None),
            (Request.CHANGE_MESSAGE_INVISIBLETIME, 1000),
        ):
            header = AckHeader(group, name, 0, info, 0, invisible_ms)
            assert (await client.call(code, header.to_ext())).code == 16
        body = encode_batch_acks("b", [BatchAck(group, name, "0", 0, 0, queue_id, 1, 1, [0])])
        assert (await client.call(Request.BATCH_ACK_MESSAGE, {}, body)).code == 16
        assert broker.offsets.queues(group, name) == {}


async def test_a_transaction_whose_progress_was_forged_is_committed_all_the_same(tmp_path: Path) -> None:
    """What a broker before this rule may have stored: the log says what ended, no number does."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        done, half, other = [await begin(client, body=body) for body in (b"done", b"open", b"second")]
        await end(client, done, COMMIT)
        await broker.store.caught_up()
    async with running(tmp_path) as broker, client_of(broker) as client:
        broker.processors.transactions._next_half = 3
        answers = await asyncio.gather(
            *(end(client, one, COMMIT) for one in (done, half, half, other, other, done))
        )
        assert [answer.code for answer in answers] == [0] * 6
        await client.pull_until("T", 0, 3)
        assert sorted(record.body for record in of_topic(broker, "T")) == [b"done", b"open", b"second"]


async def test_the_first_op_behind_a_half_is_found(tmp_path: Path) -> None:
    async with running(tmp_path, transactionCheckInterval="20") as broker, client_of(broker) as client:
        for _ in range(9):
            await end(client, await begin(client), COMMIT)
        await eventually(lambda: broker.offsets.get(GROUP, HALVES, 0) == 9, "all have ended")
        transactions = broker.processors.transactions
        for half in of_topic(broker, HALVES):
            assert transactions._first_behind(OP_HALF_TOPIC, half.physical_offset) == half.queue_offset
            # Nothing is written again for an end that comes again, however late.
            assert half.queue_offset < transactions._next_half
        before = broker.store.log.end
        for half in of_topic(broker, HALVES):
            assert await transactions._op_of(await client.connection(), half) is not None
        assert broker.store.log.end == before


@pytest.mark.parametrize(
    ("keys", "name"), [({}, "RMQ_SYS_TRACE_TOPIC"), ({"msgTraceTopicName": "Told"}, "Told")]
)
async def test_the_trace_topic_is_there_from_the_start_when_it_is_asked_for(
    tmp_path: Path, keys: dict[str, str], name: str
) -> None:
    async with (
        running(tmp_path, autoCreateTopicEnable="false", **keys) as broker,
        client_of(broker) as client,
    ):
        assert (await client.send(name)).code == Response.TOPIC_NOT_EXIST
    keys = {**keys, "autoCreateTopicEnable": "false", "traceTopicEnable": "true"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        made = broker.context.topics.table[name]
        assert (made.read_queues, made.write_queues) == (1, 1)
        assert (await client.send(name)).code == Response.SUCCESS
        answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(name))
        assert answer.remark == f"The topic[{name}] is conflict with system topic."


async def test_the_originals_system_topics_are_told_and_kept_also_those_that_are_not_there(
    tmp_path: Path,
) -> None:
    absent = {"TBW102", "RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "CHECKPOINT_TOPIC"}
    async with running(tmp_path, autoCreateTopicEnable="false") as broker, client_of(broker) as client:
        answer = await client.call(Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        assert absent <= set(bodies.loads(answer.body)["topicList"])
        for name in absent:
            refused = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(name))
            assert (refused.code, refused.remark) == (29, f"The topic[{name}] is conflict with system topic.")
