"""What does a hostile client ask for? A well-formed frame of every request code there is.

``DRAWS`` has a row for each code whose header or body is known; all others get fields of every sort.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from model.codes import Request
from remoting.codec import FLAG_ONEWAY, JSON, LANGUAGES, ROCKETMQ, Command
from remoting.headers import EndTransactionHeader, PullHeader, SendBackHeader, SendHeader
from tests.fuzz.hostile.draws import (
    json_body,
    name,
    number,
    plain,
    properties,
    spoil,
    text,
)

Ext = dict[str, str]
Drawn = tuple[Ext, bytes]
Draw = Callable[[random.Random], Drawn]

NOW_MS: Final = 1_800_000_000_000
BODY_BYTES: Final = (0, 1, 100, 1000, 1000, 4000, 60_000)
BODY_BYTES_USUAL: Final = 20_000
BODY_BYTES_MAX: Final = 5 << 20
KNOWN_BROKER: Final = "broker-a"


def _send(chance: random.Random, *, full_names: bool = False, batch: bool = False) -> Drawn:
    header = SendHeader(
        name(chance),
        name(chance),
        chance.choice((-1, 0, 1, 3, 7)),
        NOW_MS,
        sys_flag=chance.choice((0, 0, 0, 1, 4, 8, 12, 0x10, 0x20, 0x80, 0x301, 0x101, 0x7FFFFFFF)),
        properties=properties(chance),
        reconsume_times=chance.choice((0, 0, 1, 17, 1000)),
        unit_mode=chance.random() < 0.05,
        batch=batch or chance.random() < 0.02,
    )
    body = batch_body(chance) if batch else plain(chance, chance.choice(BODY_BYTES) + 1)
    return header.to_ext(full_names=full_names), body


def _reply(chance: random.Random, *, full_names: bool = False) -> Drawn:
    """Mostly to one of the clients that a heartbeat of this kind made up."""
    ext, body = _send(chance, full_names=full_names)
    field = "properties" if full_names else "i"
    if chance.random() < 0.8:
        ext[field] += f"REPLY_TO_CLIENT\x01hostile@{chance.randrange(200)}\x02"
    return ext, body


def batch_body(chance: random.Random) -> bytes:
    """Messages of a batch: whole, empty, cut off, of a wrong size, or with properties of their own."""
    out = bytearray()
    sizes = (0, 1, 2, 5, 10, 30) if chance.random() < 0.97 else (300, 5000)
    for _ in range(chance.choice(sizes)):
        body = plain(chance, 20)
        own = properties(chance) if chance.random() < 0.05 else "TAGS\x01a\x02"
        raw = own.encode("utf-8", "ignore")[:32767]
        size = (
            20 + len(body) + 2 + len(raw) + (chance.choice((-1, 1, 1 << 20)) if chance.random() < 0.01 else 0)
        )
        out += struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(raw)) + raw
    return bytes(out[: chance.randrange(len(out))] if out and chance.random() < 0.1 else out)


def _pull(chance: random.Random) -> Drawn:
    header = PullHeader(
        name(chance),
        name(chance),
        chance.choice((-1, 0, 1, 3, 7, 1000)),
        chance.choice((0, 0, 5, 1000, -1, 2**62)),
        chance.choice((1, 32, 1000, -1, 2**31 - 1)),
        sys_flag=chance.choice((0, 1, 2, 3, 4, 6, 7, 8, 15, 2**31 - 1)),
        commit_offset=chance.choice((0, 10, -1, 2**62)),
        suspend_timeout_ms=chance.choice((0, 100, 2000, 15_000, 2**62)),
        subscription=chance.choice(("*", "a||b", "||".join("t" * 3 for _ in range(900)), name(chance))),
        sub_version=chance.randrange(3),
        expression_type=chance.choice(("TAG", "TAG", "SQL92", name(chance))),
    )
    return header.to_ext(), b""


def _send_back(chance: random.Random) -> Drawn:
    header = SendBackHeader(
        chance.choice((0, 1, 4096, 2**62)),
        name(chance),
        chance.choice((0, 1, 3, -1, 99)),
        text(chance),
        name(chance),
    )
    return header.to_ext(), b""


def _end_transaction(chance: random.Random) -> Drawn:
    header = EndTransactionHeader(
        name(chance),
        chance.choice((0, 1, 100, 2**62)),
        chance.choice((0, 1, 20, 4096, chance.randrange(1 << 24), 2**62)),
        chance.choice((0, 4, 8, 12, 3)),
        f"7F000001{chance.getrandbits(32):08X}{chance.getrandbits(24):016X}",
        text(chance),
        chance.random() < 0.3,
        name(chance),
    )
    return header.to_ext(), b""


def _heartbeat(chance: random.Random) -> Drawn:
    groups = chance.choice((1, 1, 3, 10)) if chance.random() < 0.95 else chance.choice((300, 1001))
    consumers = [
        {
            "groupName": name(chance)[: 65536 // groups],
            "consumeType": chance.choice(("CONSUME_PASSIVELY", "CONSUME_ACTIVELY", "x")),
            "messageModel": chance.choice(("CLUSTERING", "BROADCASTING", "x")),
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [
                {"topic": name(chance), "subString": text(chance), "subVersion": n, "expressionType": "TAG"}
                for n in range(chance.choice((0, 1, 3)))
            ],
        }
        for _ in range(groups if chance.random() < 0.7 else 0)
    ]
    body = {
        "clientID": f"hostile@{chance.randrange(200)}" if chance.random() < 0.9 else name(chance),
        "producerDataSet": [{"groupName": name(chance)} for _ in range(chance.choice((0, 1, 5)))],
        "consumerDataSet": consumers,
        "heartbeatFingerprint": chance.choice((0, 1)),
    }
    return {}, json_body(chance, body)


def _queues(chance: random.Random, most: int) -> list[dict[str, Any]]:
    count = chance.choice((0, 1, 1, 8, 8, 100, most))
    topic = name(chance) if count < 10 else name(chance)[:100]
    return [{"brokerName": KNOWN_BROKER, "topic": topic, "queueId": queue_id} for queue_id in range(count)]


def _lock(chance: random.Random) -> Drawn:
    body = {
        "consumerGroup": name(chance),
        "clientId": f"hostile@{chance.randrange(200)}",
        "mqSet": _queues(chance, 4097),
    }
    return {}, json_body(chance, body)


def _topic_fields(chance: random.Random) -> Drawn:
    count = chance.choice(("1", "4", "1024", number(chance)))
    return {
        "topic": name(chance),
        "defaultTopic": "TBW102",
        "readQueueNums": count,
        "writeQueueNums": count,
        "perm": chance.choice(("6", "0", "7", number(chance))),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": text(chance),
    }, b""


def _group_body(chance: random.Random) -> Drawn:
    return {}, json_body(chance, {"groupName": name(chance), "consumeEnable": True, "retryQueueNums": 1})


def _client_config(chance: random.Random) -> Drawn:
    data = {
        "topic": name(chance),
        "subString": text(chance),
        "expressionType": chance.choice(("TAG", "SQL92")),
    }
    body = {"clientId": text(chance), "group": name(chance), "subscriptionData": data}
    return {}, json_body(chance, body)


def _registration(chance: random.Random) -> Drawn:
    ext = {
        "clusterName": "DefaultCluster",
        "brokerName": KNOWN_BROKER,
        "brokerAddr": f"127.0.0.1:{chance.randrange(1, 65536)}",
        "brokerId": chance.choice(("0", "1", "7")),
        "haServerAddr": "127.0.0.1:1",
        "compressed": chance.choice(("true", "false")),
        "epoch": number(chance),
        "masterEpoch": number(chance),
    }
    table = {name(chance)[:200]: {"readQueueNums": 4, "perm": 6} for _ in range(chance.choice((0, 1, 50)))}
    wrapper = {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 0}, "topicConfigTable": table}
    return ext, json_body(chance, {"topicConfigSerializeWrapper": wrapper, "filterServerList": []})


def _settings(chance: random.Random) -> Drawn:
    lines = [f"{chance.choice(_SETTINGS)}={text(chance)}" for _ in range(chance.choice((0, 1, 5)))]
    return {}, "\n".join(lines).encode("utf-8", "replace") if chance.random() < 0.9 else plain(chance)


_SETTINGS: Final = (
    "brokerPermission",
    "flushDiskType",
    "haTransferBatchSize",
    "storePathRootDir",
    "x",
    "",
    "brokerId",
)


def _topic_list(chance: random.Random) -> Drawn:
    topics = [
        {"topicName": name(chance), "readQueueNums": chance.choice((1, 8, -1, 2**31)), "perm": 6}
        for _ in range(chance.choice((0, 1, 5)))
    ]
    return {}, json_body(chance, {"topicConfigList": topics})


def _group_list(chance: random.Random) -> Drawn:
    groups = [{"groupName": name(chance)} for _ in range(chance.choice((0, 1, 5)))]
    return {}, json_body(chance, {"groupConfigList": groups})


def _route(chance: random.Random) -> Drawn:
    queues = [{"brokerName": name(chance), "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}]
    return {"topic": name(chance)}, json_body(chance, {"queueDatas": queues, "brokerDatas": []})


def _sync_state_set(chance: random.Random) -> Drawn:
    ext, _ = _of_broker("#masterBrokerId", "#masterEpoch")(chance)
    return ext, json_body(chance, {"syncStateSet": [1, 2], "syncStateSetEpoch": chance.randrange(4)})


def _of_broker(*fields: str) -> Draw:
    """``_fields``, mostly of the broker group there is."""

    def draw(chance: random.Random) -> Drawn:
        ext, body = _fields("clusterName", "brokerName", *fields)(chance)
        if chance.random() < 0.7:
            ext["brokerName"] = KNOWN_BROKER
        return ext, body

    return draw


def _fields(*fields: str) -> Draw:
    """A header of texts (names) and numbers (with # before their name); no body."""

    def draw(chance: random.Random) -> Drawn:
        ext = {
            field.lstrip("#"): number(chance) if field.startswith("#") else name(chance) for field in fields
        }
        return ext, b""

    return draw


def _repeated(field: str, *others: str) -> Draw:
    """``field`` is a list of names, some given thousands of times."""

    def draw(chance: random.Random) -> Drawn:
        ext, body = _fields(*others)(chance)
        ext[field] = ";".join([name(chance)[:30]] * chance.choice((1, 2, 100, 5000)))
        return ext, body

    return draw


def _lite_subscriptions(chance: random.Random) -> Drawn:
    wanted = [
        {
            "action": chance.choice(("PARTIAL_ADD", "COMPLETE_ADD", "COMPLETE_REMOVE", text(chance))),
            "clientId": name(chance),
            "group": name(chance),
            "topic": name(chance),
        }
        for _ in range(chance.choice((0, 1, 3)))
    ]
    return {}, json_body(chance, {"subscriptionSet": wanted})


def _any(chance: random.Random) -> Drawn:
    ext = {field: text(chance) for field in chance.sample(_ALL_FIELDS, chance.randrange(len(_ALL_FIELDS)))}
    return ext, json_body(chance, {"topic": name(chance)}) if chance.random() < 0.5 else b""


_ALL_FIELDS: Final = (
    *(
        "topic",
        "group",
        "consumerGroup",
        "queueId",
        "offset",
        "clientId",
        "clientID",
        "brokerName",
        "timestamp",
    ),
    *("namespace", "key", "value", "clusterName", "brokerId", "masterEpoch", "invisibleTime", "extraInfo"),
    *(
        "maxMsgNums",
        "pollTime",
        "bornTime",
        "initMode",
        "exp",
        "expType",
        "order",
        "attemptId",
        "deleteTopic",
    ),
)

DRAWS: Final[dict[Request, Draw]] = {
    Request.SEND_MESSAGE: lambda chance: _send(chance, full_names=True),
    Request.SEND_MESSAGE_V2: _send,
    Request.SEND_BATCH_MESSAGE: lambda chance: _send(chance, batch=True),
    Request.SEND_REPLY_MESSAGE: lambda chance: _reply(chance, full_names=True),
    Request.SEND_REPLY_MESSAGE_V2: _reply,
    Request.CONSUMER_SEND_MSG_BACK: _send_back,
    Request.END_TRANSACTION: _end_transaction,
    Request.PULL_MESSAGE: _pull,
    Request.LITE_PULL_MESSAGE: _pull,
    Request.QUERY_CONSUMER_OFFSET: _fields("consumerGroup", "topic", "#queueId", "setZeroIfNotFound"),
    Request.UPDATE_CONSUMER_OFFSET: _fields("consumerGroup", "topic", "#queueId", "#commitOffset"),
    Request.SEARCH_OFFSET_BY_TIMESTAMP: _fields("topic", "#queueId", "#timestamp", "boundaryType"),
    Request.GET_MAX_OFFSET: _fields("topic", "#queueId", "committed"),
    Request.GET_MIN_OFFSET: _fields("topic", "#queueId"),
    Request.GET_EARLIEST_MSG_STORETIME: _fields("topic", "#queueId"),
    Request.VIEW_MESSAGE_BY_ID: _fields("#offset", "topic"),
    Request.QUERY_MESSAGE: _fields(
        "topic", "key", "#maxNum", "#beginTimestamp", "#endTimestamp", "_UNIQUE_KEY_QUERY", "indexType"
    ),
    Request.HEART_BEAT: _heartbeat,
    Request.UNREGISTER_CLIENT: _fields("clientID", "producerGroup", "consumerGroup"),
    Request.GET_CONSUMER_LIST_BY_GROUP: _fields("consumerGroup"),
    Request.CHECK_CLIENT_CONFIG: _client_config,
    Request.GET_CONSUMER_CONNECTION_LIST: _fields("consumerGroup"),
    Request.GET_PRODUCER_CONNECTION_LIST: _fields("producerGroup"),
    Request.LOCK_BATCH_MQ: _lock,
    Request.UNLOCK_BATCH_MQ: _lock,
    Request.UPDATE_AND_CREATE_TOPIC: _topic_fields,
    Request.DELETE_TOPIC_IN_BROKER: _fields("topic", "keelmqMasterOnly"),
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_body,
    Request.DELETE_SUBSCRIPTIONGROUP: _fields("groupName", "cleanOffset"),
    Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _fields("#groupSeq", "#maxGroupNum", "dataVersion"),
    Request.GET_ALL_TOPIC_CONFIG: _fields("#topicSeq", "#maxTopicNum", "dataVersion"),
    Request.GET_TOPIC_CONFIG: _fields("topic", "lo"),
    Request.GET_SUBSCRIPTIONGROUP_CONFIG: _fields("group"),
    Request.GET_TOPIC_STATS_INFO: _fields("topic"),
    Request.GET_CONSUME_STATS: _repeated("topicList", "consumerGroup", "topic"),
    Request.QUERY_TOPIC_CONSUME_BY_WHO: _fields("topic"),
    Request.QUERY_TOPICS_BY_CONSUMER: _fields("group"),
    Request.QUERY_SUBSCRIPTION_BY_CONSUMER: _fields("group", "topic"),
    Request.QUERY_CONSUME_TIME_SPAN: _fields("topic", "group"),
    Request.CLONE_GROUP_OFFSET: _fields("srcGroup", "destGroup", "topic", "offline"),
    Request.INVOKE_BROKER_TO_RESET_OFFSET: _fields(
        "topic", "group", "#timestamp", "isForce", "#queueId", "#offset"
    ),
    Request.GET_CONSUMER_RUNNING_INFO: _fields("consumerGroup", "clientId", "jstackEnable"),
    Request.CONSUME_MESSAGE_DIRECTLY: _fields("consumerGroup", "clientId", "msgId", "topic"),
    Request.REGISTER_BROKER: _registration,
    Request.UNREGISTER_BROKER: _registration,
    Request.QUERY_DATA_VERSION: _registration,
    Request.BROKER_HEARTBEAT: _registration,
    Request.GET_ROUTEINFO_BY_TOPIC: _fields("topic", "acceptStandardJsonOnly"),
    Request.GET_BROKER_MEMBER_GROUP: _fields("clusterName", "brokerName"),
    Request.NOTIFY_BROKER_ROLE_CHANGED: _fields(
        "masterAddress", "#masterEpoch", "#syncStateSetEpoch", "#masterBrokerId"
    ),
    Request.CONTROLLER_ELECT_MASTER: _of_broker("#brokerId", "designateElect", "#masterEpoch", "yields"),
    Request.CONTROLLER_ALTER_SYNC_STATE_SET: _sync_state_set,
    Request.CONTROLLER_REGISTER_BROKER: _of_broker("#brokerId", "brokerAddress", "haServerAddr"),
    Request.CONTROLLER_GET_NEXT_BROKER_ID: _of_broker(),
    Request.CONTROLLER_APPLY_BROKER_ID: _of_broker("#appliedBrokerId", "registerCheckCode"),
    Request.CONTROLLER_GET_SYNC_STATE_DATA: lambda chance: (
        {},
        json_body(chance, [KNOWN_BROKER, name(chance)]),
    ),
    Request.CLEAN_BROKER_DATA: _of_broker("brokerControllerIdsToClean", "isCleanLivingBroker"),
    Request.UPDATE_BROKER_CONFIG: _settings,
    Request.UPDATE_NAMESRV_CONFIG: _settings,
    Request.UPDATE_CONTROLLER_CONFIG: _settings,
    Request.UPDATE_AND_CREATE_TOPIC_LIST: _topic_list,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_list,
    Request.REGISTER_TOPIC_IN_NAMESRV: _route,
    Request.DELETE_TOPIC_IN_NAMESRV: _fields("topic", "clusterName"),
    Request.PUT_KV_CONFIG: _fields("namespace", "key", "value"),
    Request.GET_KV_CONFIG: _fields("namespace", "key"),
    Request.DELETE_KV_CONFIG: _fields("namespace", "key"),
    Request.GET_KVLIST_BY_NAMESPACE: _fields("namespace"),
    Request.WIPE_WRITE_PERM_OF_BROKER: _fields("brokerName"),
    Request.ADD_WRITE_PERM_OF_BROKER: _fields("brokerName"),
    Request.GET_TOPICS_BY_CLUSTER: _fields("cluster"),
    Request.KEELMQ_COPY_TABLES: _fields("#topics", "#groups", "#offsets", "names"),
    Request.KEELMQ_LOG_DIGESTS: _fields("#offset", "#end", "#size"),
    Request.KEELMQ_GIVE_TABLES: _fields(),
    Request.KEELMQ_TRANSFER_LEADERSHIP: _fields("target"),
    Request.KEELMQ_SET_MAINTENANCE: _fields("brokerName", "#brokerId", "maintenance"),
    Request.KEELMQ_REPLACE_CONTROLLER: _fields("id", "address", "raftAddress", "#incarnation"),
    Request.CONTROLLER_GET_REPLICA_INFO: _fields("brokerName"),
    Request.READ_LOG_RANGE: _fields("#offset", "#size"),
    Request.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _fields("topic", "#checkStoreTime"),
    Request.EXPORT_ROCKSDB_CONFIG_TO_JSON: _fields("configType"),
    Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _settings,
    Request.SET_COMMITLOG_READ_MODE: _fields("#READ_AHEAD_MODE"),
    Request.SWITCH_TIMER_ENGINE: _fields("E_T"),
    Request.POP_LITE_MESSAGE: _fields(
        "clientId", "consumerGroup", "topic", "#maxMsgNum", "#invisibleTime", "#pollTime", "#bornTime"
    ),
    Request.LITE_SUBSCRIPTION_CTL: _lite_subscriptions,
    Request.GET_PARENT_TOPIC_INFO: _fields("topic"),
    Request.GET_LITE_TOPIC_INFO: _fields("parentTopic", "liteTopic"),
    Request.GET_LITE_CLIENT_INFO: _fields("parentTopic", "group", "clientId", "#maxCount"),
    Request.GET_LITE_GROUP_INFO: _fields("group", "liteTopic", "#topK"),
    Request.TRIGGER_LITE_DISPATCH: _fields("group", "clientId"),
}
"""What is asked of brokers, NameServers and Controllers alike."""

CODES: Final[Sequence[int]] = [int(code) for code in Request]
NO_CODES: Final = (0, -1, 9, 999, 32767)
OFTEN: Final = (
    *(Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE, Request.PULL_MESSAGE, Request.HEART_BEAT),
    *(Request.LOCK_BATCH_MQ, Request.END_TRANSACTION, Request.UPDATE_CONSUMER_OFFSET),
    *(Request.GET_CONSUME_STATS, Request.CONSUMER_SEND_MSG_BACK, Request.QUERY_MESSAGE),
)


def _sized(chance: random.Random, draw: Draw) -> Drawn:
    """Mostly small: a megabyte is a rare thing, and a frame that no server would take is none."""
    most = BODY_BYTES_USUAL if chance.random() < 0.97 else BODY_BYTES_MAX
    for _ in range(8):
        ext, body = draw(chance)
        if len(body) <= most:
            break
    return ext, body[:BODY_BYTES_MAX]


def draw(chance: random.Random, code: int | None = None) -> Command:
    """A request as it goes out: of ``code``, or of any."""
    if code is None:
        code = int(chance.choice(OFTEN) if chance.random() < 0.4 else chance.choice(CODES))
        if chance.random() < 0.02:
            code = chance.choice(NO_CODES)
    ext, body = _sized(chance, DRAWS.get(Request(code), _any) if code in CODES else _any)
    ext = {key: value.encode("utf-8", "replace").decode() for key, value in spoil(chance, ext).items()}
    if chance.random() < 0.02:
        ext |= {"AccessKey": "peers", "Signature": text(chance)}
    serialize = ROCKETMQ if -32768 <= code <= 32767 and chance.random() < 0.4 else JSON
    if serialize == ROCKETMQ and any(len(key.encode()) > 32767 for key in ext):
        serialize = JSON
    return Command(
        code,
        ext,
        body,
        chance.randrange(-(2**31), 2**31),
        FLAG_ONEWAY if chance.random() < 0.1 else 0,
        chance.choice((None, None, None, "r" * 1000)),
        chance.choice(LANGUAGES),
        chance.choice((479, 0, 399, -1, 32767)),
        serialize,
    )
