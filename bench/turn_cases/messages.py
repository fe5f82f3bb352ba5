"""What clients send a broker: messages, pulls, pops, offsets, heartbeats, locks."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bench.turn_cases.filled import (
    BODY_BYTES,
    HEAVY,
    KEY,
    LONG,
    MANY,
    MIB,
    PROPERTIES,
    STATS,
    WANTS,
    WIDE,
    BrokerSite,
    filler,
    heartbeater,
    json_bytes,
    message,
    subscription,
)
from bench.turn_cases.measure import Ask, Case
from broker.requests.send import LIGHT_MESSAGES_MAX
from model.codes import Request
from model.message import message_id
from model.pop import ExtraInfo
from model.recall import RecallHandle
from model.topic import SubscriptionGroupConfig
from remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader, SendHeader
from remoting.pop_headers import AckHeader, LookHeader, PopHeader

CASES: Final[list[Case]] = []
Made = Ask | Awaitable[Ask]
HELD: Final = 8192
"""maxHeldPullsPerConnection."""
BATCH: Final = 4096


def case(what: str, *codes: Request) -> Callable[[Callable[[BrokerSite, int], Made]], Callable[..., Made]]:
    """Send what it gives for each of these codes."""

    def add(make: Callable[[BrokerSite, int], Made]) -> Callable[..., Made]:
        CASES.extend(Case(code, what, make) for code in codes)
        return make

    return add


# -- sends


def send(topic: str, properties: str = PROPERTIES, queue_id: int = 0, **more: Any) -> SendHeader:
    return SendHeader("pg", topic, queue_id, 1, properties=properties, **more)


@case("a body of maxMessageSize, properties of 31 KiB", Request.SEND_MESSAGE)
def full_v1(site: BrokerSite, run: int) -> Ask:
    ext = send(LONG, PROPERTIES + filler(31 << 10), 1).to_ext(full_names=True)
    return Ask(ext, bytes(BODY_BYTES))


@case("a body of maxMessageSize, properties of 31 KiB", Request.SEND_MESSAGE_V2)
def full_v2(site: BrokerSite, run: int) -> Ask:
    return Ask(send(LONG, PROPERTIES + filler(31 << 10), 1).to_ext(), bytes(BODY_BYTES))


@case(
    "a header of 2 MiB with 1,000 fields", Request.SEND_MESSAGE_V2, Request.PULL_MESSAGE, Request.POP_MESSAGE
)
def long_header(site: BrokerSite, run: int) -> Ask:
    ext = {**send(LONG, PROPERTIES, 1).to_ext(), **pull_ext(LONG), **pop_ext(LONG), "queueId": "0"}
    return Ask(ext | {f"field{n}": "x" * 2000 for n in range(970)}, b"x")


@case("a message that 8,192 held pulls of one connection wait for", Request.SEND_MESSAGE_V2)
async def awaited(site: BrokerSite, run: int) -> Ask:
    peer = site.peer()
    site.held.append(peer)
    ends = site.context.store.max_queue_offset(LONG, 2)
    for _ in range(site.size(HELD)):
        await asyncio.to_thread(peer.send, Request.PULL_MESSAGE, Ask(pull_ext(LONG, 2, ends, held=True)))
    return Ask(send(LONG, queue_id=2).to_ext(), b"x")


def packed(count: int, body: bytes, properties: bytes) -> bytes:
    size = 22 + len(body) + len(properties)
    head = b"".join(n.to_bytes(4, "big") for n in (size, 0, 0, 0, len(body)))
    return (head + body + len(properties).to_bytes(2, "big") + properties) * count


@case("4,096 messages of 1 KB (maxMessagesInBatch, maxMessageSize)", Request.SEND_BATCH_MESSAGE)
def long_batch(site: BrokerSite, run: int) -> Ask:
    body = packed(site.size(BATCH), b"x" * 800, PROPERTIES.encode())
    return Ask(send(LONG, queue_id=3, batch=True).to_ext(), body[: BODY_BYTES - BODY_BYTES % 1])


@case("4,096 messages that imitate a broker's own properties", Request.SEND_BATCH_MESSAGE)
def forged_batch(site: BrokerSite, run: int) -> Ask:
    own = PROPERTIES + "__CRC32#\x010000000000\x02REAL_TOPIC\x01X\x02INNER_BASE\x015\x02" + filler(600)
    return Ask(send(LONG, queue_id=3, batch=True).to_ext(), packed(site.size(BATCH), b"x", own.encode()))


@case("4,096 messages, of which as many name light queues as may", Request.SEND_BATCH_MESSAGE)
def light_batch(site: BrokerSite, run: int) -> Ask:
    named = PROPERTIES + "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b,%LMQ%c\x02" + filler(300)
    light = packed(min(LIGHT_MESSAGES_MAX, site.size(BATCH) // 2), b"x", named.encode())
    plain = packed(site.size(BATCH) - LIGHT_MESSAGES_MAX, b"x" * 800, PROPERTIES.encode())
    return Ask(send(LONG, queue_id=3, batch=True).to_ext(), light + plain)


@case("a message of maxMessageSize with properties of 31 KiB", Request.CONSUMER_SEND_MSG_BACK)
def send_back(site: BrokerSite, run: int) -> Ask:
    ext = {"offset": str(site.heavy[0]), "group": "group00000", "delayLevel": "3", "maxReconsumeTimes": "16"}
    return Ask(ext)


def _reply(full_names: bool) -> Callable[[BrokerSite, int], Made]:
    async def make(site: BrokerSite, run: int) -> Ask:
        # The client that asked does not answer: the rest comes when its time is over.
        client_id = f"asking{run}{full_names}"
        await heartbeater(site, "pg", client_id)
        text = f"{PROPERTIES}REPLY_TO_CLIENT\x01{client_id}\x02{filler(30 << 10)}"
        topic = f"{site.config.cluster_name}_REPLY_TOPIC"
        return Ask(send(topic, text).to_ext(full_names=full_names), bytes(BODY_BYTES))

    return make


case("a reply of maxMessageSize", Request.SEND_REPLY_MESSAGE)(_reply(True))
case("a reply of maxMessageSize", Request.SEND_REPLY_MESSAGE_V2)(_reply(False))


@case("the commit of a half message of maxMessageSize", Request.END_TRANSACTION)
def end(site: BrokerSite, run: int) -> Ask:
    text = f"{PROPERTIES}TRAN_MSG\x01true\x02PGROUP\x01pg\x02REAL_TOPIC\x01{LONG}\x02REAL_QID\x014\x02"
    half = message("RMQ_SYS_TRANS_HALF_TOPIC", 0, bytes(BODY_BYTES - 64), text + filler(30 << 10))
    (put,) = site.context.store.put([half])
    return Ask(
        {
            "producerGroup": "pg",
            "tranStateTableOffset": str(put.queue_offset),
            "commitLogOffset": str(put.physical_offset),
            "commitOrRollback": "8",
        }
    )


@case("a message of maxMessageSize that was given up", Request.RESUME_CHECK_HALF_MESSAGE)
def resume(site: BrokerSite, run: int) -> Ask:
    return Ask({"msgId": message_id(site.context.store_host, site.discarded)})


@case("a recall whose id is 15 KB long", Request.RECALL_MESSAGE)
def recall(site: BrokerSite, run: int) -> Ask:
    due = str(site.env.now_ms() + 3_600_000)
    handle = RecallHandle(LONG, site.config.broker_name, due, "0" * 15_000).encode()
    return Ask({"topic": LONG, "recallHandle": handle, "producerGroup": "pg"})


# -- pulls and questions


def pull_ext(
    topic: str, queue_id: int = 0, offset: int = 0, *, held: bool = False, wants: str = "*", kind: str = "TAG"
) -> dict[str, str]:
    flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if held else 0)
    header = PullHeader(
        MANY, topic, queue_id, offset, 10_000, flags, suspend_timeout_ms=60_000, subscription=wants
    )
    header.expression_type = kind
    return header.to_ext()


PULLS: Final = (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE)
NO_TAG: Final = " || ".join(f"n{n:05}" for n in range(3200))
NO_SQL: Final = " AND ".join(f"p{n:06} IS NULL" for n in range(800)) + " AND KEYS = 'none'"


@case("a message of maxMessageSize", *PULLS)
def pull_heavy(site: BrokerSite, run: int) -> Ask:
    return Ask(pull_ext(HEAVY))


@case("10,000 of 100,000 short messages", *PULLS)
def pull_long(site: BrokerSite, run: int) -> Ask:
    return Ask(pull_ext(LONG))


@case("32 KiB of tags that none of 100,000 messages has", *PULLS)
def pull_tags(site: BrokerSite, run: int) -> Ask:
    return Ask(pull_ext(LONG, wants=NO_TAG))


@case("16 KiB of SQL92 that takes none of 100,000 messages", *PULLS)
def pull_sql(site: BrokerSite, run: int) -> Ask:
    return Ask(pull_ext(LONG, wants=NO_SQL, kind="SQL92"))


@case("16 KiB of SQL92 over messages of maxMessageSize with 3,000 properties", *PULLS)
def pull_sql_heavy(site: BrokerSite, run: int) -> Ask:
    return Ask(pull_ext(HEAVY, wants=NO_SQL, kind="SQL92"))


@case("SQL92 with brackets, 5,000 words and signs", *PULLS)
def pull_nested(site: BrokerSite, run: int) -> Ask:
    return Ask(pull_ext(LONG, wants="(a=1 or b>2) and " * 490 + "c is null", kind="SQL92"))


@case("a pull that waits, 32 KiB of tags", *PULLS)
def pull_held(site: BrokerSite, run: int) -> Ask:
    end = site.context.store.max_queue_offset(LONG, 5)
    ext = pull_ext(LONG, 5, end, held=True, wants=NO_TAG)
    return Ask({**ext, "suspendTimeoutMillis": "300"})


@case("a message of maxMessageSize", Request.VIEW_MESSAGE_BY_ID)
def view(site: BrokerSite, run: int) -> Ask:
    return Ask({"offset": str(site.heavy[-1])})


@case("a message of maxMessageSize, for who is not there", Request.CONSUME_MESSAGE_DIRECTLY)
def directly(site: BrokerSite, run: int) -> Ask:
    asked = message_id(site.context.store_host, site.heavy[-1])
    return Ask({"consumerGroup": "asked", "clientId": f"none{run}", "msgId": asked})


def query_ext(topic: str) -> dict[str, str]:
    times = {"beginTimestamp": "0", "endTimestamp": str(2**62)}
    return {"topic": topic, "key": KEY, "maxNum": "64", **times}


@case("64 messages of maxMessageSize by one key", Request.QUERY_MESSAGE)
def query(site: BrokerSite, run: int) -> Ask:
    return Ask(query_ext(HEAVY))


@case("a key that 100,000 messages of another time have", Request.QUERY_MESSAGE)
def query_others(site: BrokerSite, run: int) -> Ask:
    return Ask({**query_ext(LONG), "endTimestamp": str(site.env.now_ms() - 86_400_000)})


# -- offsets


def queue_ext(topic: str, queue_id: int = 0, **more: str) -> dict[str, str]:
    return {"consumerGroup": MANY, "topic": topic, "queueId": str(queue_id), **more}


@case("the last queue of 65,535", Request.QUERY_CONSUMER_OFFSET)
def offset_of(site: BrokerSite, run: int) -> Ask:
    return Ask(queue_ext(WIDE, 65_534))


@case("the first commit of a new group", Request.UPDATE_CONSUMER_OFFSET)
def commit(site: BrokerSite, run: int) -> Ask:
    name = f"{'n' * 200}{run}"
    site.context.groups.put(SubscriptionGroupConfig(name))
    return Ask({**queue_ext(LONG, commitOffset="1"), "consumerGroup": name})


@case(
    "a queue of 100,000 messages",
    Request.SEARCH_OFFSET_BY_TIMESTAMP,
    Request.GET_MAX_OFFSET,
    Request.GET_MIN_OFFSET,
    Request.GET_EARLIEST_MSG_STORETIME,
)
def in_long(site: BrokerSite, run: int) -> Ask:
    return Ask(queue_ext(LONG, timestamp=str(site.env.now_ms()), boundaryType="UPPER"))


@case("all of about 97,000 offsets", Request.GET_ALL_CONSUMER_OFFSET)
def all_offsets(site: BrokerSite, run: int) -> Ask:
    site.context.offsets.text.clear()
    return Ask()


@case("all, when one of them changed", Request.GET_ALL_CONSUMER_OFFSET)
def all_offsets_again(site: BrokerSite, run: int) -> Ask:
    site.context.offsets.commit(MANY, WIDE, 7, run + 1)
    return Ask()


# -- clients


def beat(site: BrokerSite, consumers: list[Any], producers: list[Any] | None = None) -> Ask:
    body = {"clientID": "beating", "consumerDataSet": consumers, "producerDataSet": producers or []}
    return Ask({}, json_bytes(body))


@case("1,000 consumer groups (maxGroupsInHeartbeat), 1 MiB", Request.HEART_BEAT)
def beat_groups(site: BrokerSite, run: int) -> Ask:
    count = site.size(1000)
    each = [subscription(f"topic{n:05}") for n in range(7)]
    return beat(site, [{"groupName": f"group{n:05}", "subscriptionDataSet": each} for n in range(count)])


@case("1,000 producer groups", Request.HEART_BEAT)
def beat_producers(site: BrokerSite, run: int) -> Ask:
    return beat(site, [], [{"groupName": f"producer{run}-{n}" + "x" * 990} for n in range(site.size(1000))])


@case("one group with 9,000 subscriptions, 1 MiB", Request.HEART_BEAT)
def beat_subscriptions(site: BrokerSite, run: int) -> Ask:
    wanted = [{"topic": f"t{run}{n:06}", "subVersion": run} for n in range(site.size(9000) * 2)]
    return beat(site, [{"groupName": "group00001", "subscriptionDataSet": wanted}])


@case("codes of 10,900 tags (maxSubscriptionBytes)", Request.HEART_BEAT)
def beat_codes(site: BrokerSite, run: int) -> Ask:
    wanted = {**subscription(LONG), "codeSet": list(range(site.size(10_900)))}
    return beat(site, [{"groupName": "group00002", "subscriptionDataSet": [wanted]}])


@case("1 MiB of fastjson's JSON (integer keys)", Request.HEART_BEAT)
def beat_dialect(site: BrokerSite, run: int) -> Ask:
    members = b",".join(b"%d:1" % n for n in range(site.size(120_000)))
    return Ask({}, b'{"clientID":"d","producerDataSet":[],"x":{' + members + b"}}")


@case("a client of 1,000 groups leaves one", Request.UNREGISTER_CLIENT)
def unregister(site: BrokerSite, run: int) -> Ask:
    return Ask({"clientID": "beating", "producerGroup": MANY, "consumerGroup": MANY})


@case(
    "a group with 10,000 members",
    Request.GET_CONSUMER_LIST_BY_GROUP,
    Request.GET_CONSUMER_CONNECTION_LIST,
    Request.GET_PRODUCER_CONNECTION_LIST,
)
def members(site: BrokerSite, run: int) -> Ask:
    return Ask({"consumerGroup": MANY, "producerGroup": MANY})


@case("a group with 5,000 subscriptions", Request.GET_CONSUMER_CONNECTION_LIST)
def subscriptions(site: BrokerSite, run: int) -> Ask:
    return Ask({"consumerGroup": WANTS})


@case("10,000 producer groups, one with 10,000 members", Request.GET_ALL_PRODUCER_INFO)
def producers(site: BrokerSite, run: int) -> Ask:
    return Ask()


@case("16 MiB of numbers beside a tag expression", Request.CHECK_CLIENT_CONFIG)
def check_numbers(site: BrokerSite, run: int) -> Ask:
    numbers = b"1," * site.size(7 * MIB)
    return Ask({}, b'{"subscriptionData":{},"x":[' + numbers + b"1]}")


@case("15 MiB of SQL92", Request.CHECK_CLIENT_CONFIG)
def check_sql(site: BrokerSite, run: int) -> Ask:
    text = "a=1 or " * site.size(2 * MIB) + "b=2"
    return Ask(
        {}, json_bytes({"subscriptionData": {"expressionType": "SQL92", "subString": text, "topic": LONG}})
    )


@case("16 KiB of SQL92", Request.CHECK_CLIENT_CONFIG)
def check_short_sql(site: BrokerSite, run: int) -> Ask:
    data = {"expressionType": "SQL92", "subString": NO_SQL, "topic": LONG}
    return Ask({}, json_bytes({"subscriptionData": data}))


LOCKS: Final = (Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ)


@case("4,096 queues (maxQueuesInLock) beside 92,000 locked ones", *LOCKS)
def lock(site: BrokerSite, run: int) -> Ask:
    queues = [{"brokerName": "b" * 200, "topic": "T" * 200, "queueId": n} for n in range(site.size(BATCH))]
    return Ask({}, json_bytes({"consumerGroup": "holder2", "clientId": "c", "mqSet": queues}))


@case("2 MiB of fastjson's JSON (integer keys)", *LOCKS)
def lock_dialect(site: BrokerSite, run: int) -> Ask:
    members = b",".join(b"%d:1" % n for n in range(site.size(230_000)))
    return Ask({}, b'{"consumerGroup":"g","clientId":"c","mqSet":[],"x":{' + members + b"}}")


# -- pops


def pop_ext(
    topic: str, queue_id: int = -1, *, group: str = MANY, wants: str = "*", kind: str = "TAG"
) -> dict[str, str]:
    header = PopHeader(group, topic, queue_id, 32, 60_000, 0, 0, 0, kind, wants)
    return header.to_ext()


@case("of 65,535 queues, new to the group", Request.POP_MESSAGE)
def pop_wide(site: BrokerSite, run: int) -> Ask:
    return Ask(pop_ext(WIDE, group=f"group{run:05}"))


@case("of 1,024 queues with a message each", Request.POP_MESSAGE)
def pop_stats(site: BrokerSite, run: int) -> Ask:
    return Ask(pop_ext(STATS, group=f"group{run + 10:05}"))


@case("16 KiB of SQL92 that takes none of 100,000 messages", Request.POP_MESSAGE)
def pop_sql(site: BrokerSite, run: int) -> Ask:
    return Ask(pop_ext(LONG, 0, group=f"group{run + 20:05}", wants=NO_SQL, kind="SQL92"))


LOOKS: Final = (Request.PEEK_MESSAGE, Request.NOTIFICATION, Request.POLLING_INFO)


@case("of 65,535 queues", *LOOKS)
def look_wide(site: BrokerSite, run: int) -> Ask:
    return Ask({**_look(WIDE), "maxMsgNums": "32", "pollTime": "0"})


@case("of 1,024 queues with a message each", *LOOKS)
def look_stats(site: BrokerSite, run: int) -> Ask:
    return Ask({**_look(STATS), "maxMsgNums": "32", "pollTime": "0"})


def _look(topic: str) -> dict[str, str]:
    header = LookHeader("group00030", topic, -1)
    return {"consumerGroup": header.group, "topic": header.topic, "queueId": str(header.queue_id)}


def _info(site: BrokerSite, queue_id: int, offset: int) -> str:
    name = site.config.broker_name
    return ExtraInfo(offset, site.env.now_ms(), 60_000, 0, "0", name, queue_id, offset).to_text()


@case("one of 100,000 messages", Request.ACK_MESSAGE)
def ack(site: BrokerSite, run: int) -> Ask:
    return Ask(AckHeader("group00000", LONG, 0, _info(site, 0, 50), 50).to_ext())


@case("one of 100,000 messages", Request.CHANGE_MESSAGE_INVISIBLETIME)
def change_time(site: BrokerSite, run: int) -> Ask:
    return Ask(AckHeader("group00000", LONG, 0, _info(site, 0, 60), 60, 60_000).to_ext())


@case("1,024 pops of 32 messages", Request.BATCH_ACK_MESSAGE)
def ack_batch(site: BrokerSite, run: int) -> Ask:
    bits = base64.b64encode(bytes([255] * 4)).decode()
    now_ms = site.env.now_ms()
    acks = [
        {
            "c": "group00000",
            "t": LONG,
            "r": "0",
            "so": 32 * n,
            "q": 0,
            "rq": n % 8,
            "pt": now_ms,
            "it": 60_000,
        }
        | {"b": bits}
        for n in range(site.size(1024))
    ]
    return Ask({}, json_bytes({"brokerName": site.config.broker_name, "acks": acks}))


@case("1 MiB of fastjson's JSON (integer keys)", Request.BATCH_ACK_MESSAGE)
def ack_dialect(site: BrokerSite, run: int) -> Ask:
    members = b",".join(b"%d:1" % n for n in range(site.size(110_000)))
    return Ask({}, b'{"brokerName":"b","acks":[{}],"x":{' + members + b"}}")


@case("65,535 queues among 10,000 members", Request.QUERY_ASSIGNMENT)
def assignment(site: BrokerSite, run: int) -> Ask:
    return Ask({}, json_bytes({"topic": WIDE, "consumerGroup": MANY, "clientId": "client00000"}))


@case("65,535 queues among 10,000 members that pop", Request.QUERY_ASSIGNMENT)
async def assignment_pop(site: BrokerSite, run: int) -> Ask:
    body = {"topic": WIDE, "consumerGroup": MANY, "mode": "POP", "popShareQueueNum": 9000}
    setter = site.peer()
    await site.ask(setter, Request.SET_MESSAGE_REQUEST_MODE, Ask({}, json_bytes(body)))
    setter.close()
    return Ask({}, json_bytes({"topic": WIDE, "consumerGroup": MANY, "clientId": "client00000"}))


@case("one of 100,000", Request.SET_MESSAGE_REQUEST_MODE)
def set_mode(site: BrokerSite, run: int) -> Ask:
    body = {"topic": "topic00001", "consumerGroup": "group00000", "mode": "POP", "popShareQueueNum": run}
    return Ask({}, json_bytes(body))
