"""The promise of a broker with peerCredentialsFile: strangers change none of its topics, groups, offsets and
settings, and get no piece of its log for repairs; clients notice nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.service import Broker
from model.codes import Request, Response
from model.config import BrokerConfig
from model.errors import ConfigError
from remoting import bodies
from remoting.auth import PEER_CODES, SIGNATURE
from remoting.codec import Command
from remoting.headers import PULL_SUBSCRIPTION, PullHeader
from remoting.service import Connection, RemotingClient
from runtime.os_env import OsEnv
from tests.broker.helpers import client_of, config_for, eventually, running
from tests.remoting.keys import KEY, WRONG, key_file

OF_CLIENTS = {
    *(
        Request.SEND_MESSAGE,
        Request.SEND_MESSAGE_V2,
        Request.SEND_BATCH_MESSAGE,
        Request.CONSUMER_SEND_MSG_BACK,
    ),
    *(Request.SEND_REPLY_MESSAGE, Request.SEND_REPLY_MESSAGE_V2, Request.RECALL_MESSAGE),
    *(Request.POP_MESSAGE, Request.ACK_MESSAGE, Request.BATCH_ACK_MESSAGE, Request.PEEK_MESSAGE),
    *(Request.CHANGE_MESSAGE_INVISIBLETIME, Request.NOTIFICATION, Request.POLLING_INFO),
    *(Request.QUERY_ASSIGNMENT, Request.GET_TIMER_CHECK_POINT, Request.GET_TIMER_METRICS),
    *(Request.END_TRANSACTION, Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE),
    *(Request.QUERY_CONSUMER_OFFSET, Request.UPDATE_CONSUMER_OFFSET, Request.SEARCH_OFFSET_BY_TIMESTAMP),
    *(Request.GET_MAX_OFFSET, Request.GET_MIN_OFFSET, Request.GET_EARLIEST_MSG_STORETIME),
    *(Request.VIEW_MESSAGE_BY_ID, Request.QUERY_MESSAGE, Request.HEART_BEAT, Request.UNREGISTER_CLIENT),
    *(Request.GET_CONSUMER_LIST_BY_GROUP, Request.CHECK_CLIENT_CONFIG),
    *(Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ),
    *(Request.POP_LITE_MESSAGE, Request.LITE_SUBSCRIPTION_CTL),
}
READS = {
    *(Request.GET_ALL_CONSUMER_OFFSET, Request.GET_ALL_TOPIC_CONFIG, Request.GET_TOPIC_CONFIG),
    *(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Request.GET_SUBSCRIPTIONGROUP_CONFIG),
    *(Request.GET_CONSUMER_CONNECTION_LIST, Request.GET_PRODUCER_CONNECTION_LIST),
    *(Request.GET_ALL_PRODUCER_INFO, Request.GET_BROKER_CONFIG, Request.GET_BROKER_RUNTIME_INFO),
    *(Request.GET_ALL_DELAY_OFFSET, Request.GET_ALL_MESSAGE_REQUEST_MODE, Request.GET_CONSUMER_RUNNING_INFO),
    *(Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Request.GET_TOPIC_STATS_INFO, Request.GET_CONSUME_STATS),
    *(Request.QUERY_TOPIC_CONSUME_BY_WHO, Request.QUERY_TOPICS_BY_CONSUMER),
    *(Request.QUERY_SUBSCRIPTION_BY_CONSUMER, Request.QUERY_CONSUME_TIME_SPAN),
    *(Request.GET_BROKER_HA_STATUS, Request.GET_BROKER_EPOCH_CACHE),
    *(Request.QUERY_CONSUME_QUEUE, Request.QUERY_CORRECTION_OFFSET, Request.VIEW_BROKER_STATS_DATA),
    *(Request.GET_BROKER_CONSUME_STATS, Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS),
    *(Request.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, Request.EXPORT_ROCKSDB_CONFIG_TO_JSON),
    *(Request.GET_COLD_DATA_FLOW_CTR_INFO, Request.GET_BROKER_LITE_INFO, Request.GET_PARENT_TOPIC_INFO),
    *(Request.GET_LITE_TOPIC_INFO, Request.GET_LITE_CLIENT_INFO, Request.GET_LITE_GROUP_INFO),
}


TOPIC = {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
GROUP = b'{"groupName": "new-group", "consumeEnable": true}'
CHANGES: dict[int, tuple[dict[str, str], bytes]] = {
    Request.UPDATE_AND_CREATE_TOPIC: (TOPIC, b""),
    Request.UPDATE_AND_CREATE_TOPIC_LIST: ({}, b'{"topicConfigList": [{"topicName": "New2"}]}'),
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ({}, GROUP),
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ({}, b'{"groupConfigList": [%s]}' % GROUP),
    Request.UPDATE_BROKER_CONFIG: ({}, b"brokerPermission=4"),
    Request.CLONE_GROUP_OFFSET: ({"srcGroup": "cg", "destGroup": "cg2", "topic": "T"}, b""),
    Request.INVOKE_BROKER_TO_RESET_OFFSET: (
        {"topic": "T", "group": "cg", "timestamp": "0", "isForce": "true"},
        b"",
    ),
    Request.DELETE_SUBSCRIPTIONGROUP: ({"groupName": "cg", "cleanOffset": "true"}, b""),
    Request.DELETE_TOPIC_IN_BROKER: ({"topic": "T"}, b""),
}


def seen(broker: Broker) -> object:
    tables = (broker.topics.to_json(), broker.groups.to_json(), broker.offsets.to_json())
    return bodies.dumps(list(tables)), broker.config.to_mapping(), broker.store.log.end


async def test_strangers_change_nothing_and_signed_requests_do(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    async with (
        running(tmp_path / "store", peerCredentialsFile=key_file(tmp_path)) as broker,
        client_of(broker) as client,
    ):
        await client.send("T")
        await client.pull_until("T", 0, 1, group="cg")
        offset = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "1"}
        assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, offset)).code == 0
        await eventually(lambda: broker.store.dispatched == broker.store.log.end, "dispatched")
        handled = {Request(code) for code in broker.processors.handlers}
        assert handled - PEER_CODES == OF_CLIENTS | READS, (
            "a new code: is it open to strangers? If not, put it into PEER_CODES (remoting/auth.py), else"
            " into READS or OF_CLIENTS here"
        )
        before = seen(broker)
        for credentials in (None, WRONG):
            stranger = RemotingClient(broker.env, "stranger", credentials=credentials)
            for code in sorted(handled & PEER_CODES):
                ext, data = CHANGES.get(code, ({}, b""))
                answer = await stranger.call(client.address, Command(code, ext, data))
                assert answer.code == Response.NO_PERMISSION, Request(code).name
                assert seen(broker) == before, Request(code).name
            await stranger.close()
        operator = RemotingClient(broker.env, "operator", credentials=KEY)
        for change, (ext, data) in CHANGES.items():
            before = seen(broker)
            answer = await operator.call(client.address, Command(change, ext, data))
            assert answer.code == 0, (Request(change).name, answer.remark)
            assert seen(broker) != before, Request(change).name
        assert broker.config.broker_permission == 4
        assert broker.topics.get("New") is not None
        assert broker.topics.get("T") is None
        await operator.close()


async def test_a_broker_signs_nothing_that_a_client_gets(tmp_path: Path) -> None:
    """A signature says nothing of the code: a client could ask for something else with it."""
    heard: list[Command] = []

    async def hear(connection: Connection, request: Command) -> Command | None:
        heard.append(request)
        return None

    async with (
        running(tmp_path, peerCredentialsFile=key_file(tmp_path)) as broker,
        client_of(broker, hear) as one,
        client_of(broker) as two,
    ):
        for number, client in enumerate((one, two)):
            consumer = {
                "groupName": "cg",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [],
            }
            beat = {"clientID": f"c{number}", "consumerDataSet": [consumer], "producerDataSet": []}
            assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(beat))).code == 0
        await eventually(lambda: heard, "a notice to the first consumer")
    assert {request.code for request in heard} == {Request.NOTIFY_CONSUMER_IDS_CHANGED}
    assert all(SIGNATURE not in request.ext for request in heard)


def test_beyond_loopback_it_wants_a_key_or_to_be_told_to_trust(tmp_path: Path) -> None:
    for address in ("0.0.0.0", "::", "10.0.0.1", "127.example.org"):
        with pytest.raises(ConfigError, match=r"not loopback.*peerCredentialsFile.*trustPeers"):
            config_for(tmp_path, bindAddress=address)
        config_for(tmp_path, bindAddress=address, trustPeers="true")
    for address in ("127.0.0.1", "127.0.0.2", "localhost", "::1"):
        config_for(tmp_path, bindAddress=address)
    secret = tmp_path / "ha.secret"
    secret.write_text("0" * 64)
    beyond = {"bindAddress": "0.0.0.0", "haSecretFile": str(secret)}
    with pytest.raises(ConfigError, match=r"not loopback.*peerCredentialsFile"):
        config_for(tmp_path, **beyond)
    config: BrokerConfig = config_for(tmp_path, **beyond, peerCredentialsFile="/none/at/all")
    with pytest.raises(ConfigError, match="peerCredentialsFile=/none"):
        Broker(OsEnv(), config)


async def test_what_no_consumer_may_see_yet_only_operators_read(tmp_path: Path) -> None:
    key = key_file(tmp_path)
    async with running(tmp_path / "store", peerCredentialsFile=key) as broker, client_of(broker) as client:
        half = "RMQ_SYS_TRANS_HALF_TOPIC"
        assert (await client.send("T")).code == 0
        assert (await client.send("T", b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01pg\x02")).code == 0
        await broker.store.caught_up()
        for hidden in (half, "TRANS_CHECK_MAX_TIME_TOPIC"):
            broker.context.topics.ensure(hidden, 1)
            assert (await client.pull(hidden, 0)).code == Response.NO_PERMISSION
        assert (await client.pull("T", 0)).code == 0
        operator = RemotingClient(broker.env, "operator", credentials=KEY)
        header = PullHeader("TOOLS_CONSUMER", half, 0, 0, 1, sys_flag=PULL_SUBSCRIPTION, subscription="*")
        try:
            answer = await operator.call(client.address, Command(Request.PULL_MESSAGE, header.to_ext()))
        finally:
            await operator.close()
        assert answer.code == 0
