"""What operators, tools and other brokers send a broker: tables, progress, settings, users, its log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from bench.turn_cases.filled import (
    ENTRIES,
    HEAVY,
    LONG,
    MANY,
    MIB,
    STATS,
    WANTS,
    WIDE,
    BrokerSite,
    entries,
    heartbeater,
    json_bytes,
)
from bench.turn_cases.measure import Ask, Case
from broker.tables.topics import QUEUES_MAX
from model.acl.directory import ENTRIES_MAX
from model.codes import Request
from model.ids import Epoch, PhysicalOffset
from model.topic import SubscriptionGroupConfig, TopicConfig

CASES: Final[list[Case]] = []
Made = Ask | Awaitable[Ask]
BODY_MAX: Final = 15 * MIB
"""Of a frame of 16 MiB (frameMaxLength)."""


def case(what: str, *codes: Request) -> Callable[[Callable[[BrokerSite, int], Made]], Callable[..., Made]]:
    """Send what it gives for each of these codes."""

    def add(make: Callable[[BrokerSite, int], Made]) -> Callable[..., Made]:
        CASES.extend(Case(code, what, make) for code in codes)
        return make

    return add


def filled(site: BrokerSite, one: Callable[[int], dict[str, Any]], bytes_max: int = BODY_MAX) -> list[Any]:
    """So many of these as a body holds."""
    each = len(json_bytes(one(0))) + 2
    return [one(n) for n in range(site.size(bytes_max // each))]


# -- topics and groups


def topic_json(name: str) -> dict[str, Any]:
    return {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}


@case("a new topic beside 20,000, 65,535 queues", Request.UPDATE_AND_CREATE_TOPIC)
def put_topic(site: BrokerSite, run: int) -> Ask:
    numbers = {"readQueueNums": str(QUEUES_MAX), "writeQueueNums": str(QUEUES_MAX), "perm": "6"}
    return Ask({"topic": f"new{run}", "topicFilterType": "SINGLE_TAG", **numbers})


@case("attributes of 2 MiB", Request.UPDATE_AND_CREATE_TOPIC)
def put_attributes(site: BrokerSite, run: int) -> Ask:
    text = ",".join(f"-a{n:06}" for n in range(site.size(200_000)))
    return Ask(
        {"topic": "new9", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6", "attributes": text}
    )


@case("16 MiB of new topics", Request.UPDATE_AND_CREATE_TOPIC_LIST)
def put_topics(site: BrokerSite, run: int) -> Ask:
    # The same names in each run: the table grows once, by what one request may bring.
    return Ask({}, json_bytes({"topicConfigList": filled(site, lambda n: topic_json(f"put{n:06}"))}))


@case("10,000 topics", Request.UPDATE_AND_CREATE_TOPIC_LIST)
def put_fewer_topics(site: BrokerSite, run: int) -> Ask:
    count = site.size(10_000)
    return Ask({}, json_bytes({"topicConfigList": [topic_json(f"fewer{n:06}") for n in range(count)]}))


@case("a topic of 65,535 queues, which 10,000 groups have read", Request.DELETE_TOPIC_IN_BROKER)
def delete_wide(site: BrokerSite, run: int) -> Ask:
    name = f"doomed{run}"
    site.context.topics.put(TopicConfig(name, QUEUES_MAX, QUEUES_MAX))
    for n in range(site.size(10_000)):
        site.context.offsets.commit(f"group{n:05}", name, 0, 0)
    return Ask({"topic": name})


@case("all of 20,000, none written yet", Request.GET_ALL_TOPIC_CONFIG)
def all_topics(site: BrokerSite, run: int) -> Ask:
    site.context.topics.text.clear()
    site.context.topics.put(TopicConfig("changed", 1, 1))
    return Ask()


@case("one", Request.GET_TOPIC_CONFIG)
def one_topic(site: BrokerSite, run: int) -> Ask:
    return Ask({"topic": WIDE})


def group_json(name: str) -> dict[str, Any]:
    return {"groupName": name, "consumeEnable": True}


@case("16 MiB of attributes", Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
def put_group(site: BrokerSite, run: int) -> Ask:
    attributes = {f"-a{n:07}": "" for n in range(site.size(BODY_MAX // 14))}
    return Ask({}, json_bytes({**group_json("new"), "attributes": attributes}))


@case("16 MiB of new groups", Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
def put_groups(site: BrokerSite, run: int) -> Ask:
    return Ask({}, json_bytes({"groupConfigList": filled(site, lambda n: group_json(f"put{n:06}"))}))


@case("a group with offsets of 65,535 queues and 20,000 topics", Request.DELETE_SUBSCRIPTIONGROUP)
def delete_group(site: BrokerSite, run: int) -> Ask:
    offsets, name = site.context.offsets, f"doomed{run}"
    for queue_id in range(site.size(QUEUES_MAX)):
        offsets.commit(name, WIDE, queue_id, 0)
    for n in range(site.size(20_000)):
        offsets.commit(name, f"topic{n:05}", 0, 0)
    return Ask({"groupName": name, "cleanOffset": "true"})


@case("all of 10,000, none written yet", Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
def all_groups(site: BrokerSite, run: int) -> Ask:
    site.context.groups.text.clear()
    site.context.groups.set_epoch(0)
    return Ask()


@case("one", Request.GET_SUBSCRIPTIONGROUP_CONFIG)
def one_group(site: BrokerSite, run: int) -> Ask:
    return Ask({"group": MANY})


@case("one of 10,000 groups with something forbidden", Request.UPDATE_AND_GET_GROUP_FORBIDDEN)
def forbid(site: BrokerSite, run: int) -> Ask:
    return Ask({"group": MANY, "topic": f"topic{run:05}", "readable": "false"})


@case("100,000 modes", Request.GET_ALL_MESSAGE_REQUEST_MODE)
def modes(site: BrokerSite, run: int) -> Ask:
    return Ask()


# -- configuration, runtime


@case("16 MiB of comment lines", Request.UPDATE_BROKER_CONFIG)
def update_config(site: BrokerSite, run: int) -> Ask:
    return Ask({}, b"#\n" * site.size(BODY_MAX // 2) + b"deleteWhen=04\n")


@case("16 MiB of keys of RocketMQ", Request.UPDATE_BROKER_CONFIG)
def update_foreign(site: BrokerSite, run: int) -> Ask:
    return Ask({}, b"".join(b"k%d=1\n" % n for n in range(site.size(BODY_MAX // 12))))


@case(
    "as it is",
    Request.GET_BROKER_CONFIG,
    Request.GET_ALL_DELAY_OFFSET,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
)
@case(
    "as it is", Request.GET_BROKER_HA_STATUS, Request.EXCHANGE_BROKER_HA_INFO, Request.GET_TIMER_CHECK_POINT
)
def plain(site: BrokerSite, run: int) -> Ask:
    return Ask()


@case("with full tables", Request.GET_BROKER_RUNTIME_INFO)
def runtime(site: BrokerSite, run: int) -> Ask:
    return Ask()


@case("timers of 2,000 topics", Request.GET_TIMER_METRICS)
def timer_metrics(site: BrokerSite, run: int) -> Ask:
    return Ask()


@case("10,000 epochs", Request.GET_BROKER_EPOCH_CACHE)
def epochs(site: BrokerSite, run: int) -> Ask:
    site.config.enable_controller_mode = True
    kept = site.context.store.epochs
    if len(kept.entries) < site.size(10_000):
        kind = type(kept.entries[0]) if kept.entries else None
        if kind is not None:
            kept.entries[:] = [kind(Epoch(n + 1), PhysicalOffset(n)) for n in range(site.size(10_000))]
    return Ask()


@case("a notice without a Controller", Request.NOTIFY_BROKER_ROLE_CHANGED)
def role_changed(site: BrokerSite, run: int) -> Ask:
    site.config.enable_controller_mode = False
    members = list(range(site.size(700_000)))
    ext = {
        "masterAddress": site.config.address,
        "masterEpoch": "0",
        "syncStateSetEpoch": "0",
        "masterBrokerId": "0",
    }
    return Ask(ext, json_bytes({"syncStateSet": members, "syncStateSetEpoch": 0}))


@case("as it is", Request.NOTIFY_MIN_BROKER_ID_CHANGE)
def min_broker(site: BrokerSite, run: int) -> Ask:
    return Ask({"minBrokerId": "0", "brokerName": site.config.broker_name})


@case("as it is", Request.RESET_MASTER_FLUSH_OFFSET)
def flushed(site: BrokerSite, run: int) -> Ask:
    return Ask({"masterFlushOffset": "0"})


@case(
    "1,100 queues on disk, a log of 300 MB",
    Request.CLEAN_EXPIRED_CONSUMEQUEUE,
    Request.CLEAN_UNUSED_TOPIC,
    Request.DELETE_EXPIRED_COMMITLOG,
)
def clean(site: BrokerSite, run: int) -> Ask:
    return Ask()


@case("16 MiB of thresholds", Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG)
def thresholds(site: BrokerSite, run: int) -> Ask:
    return Ask({}, b"".join(b"g%07d=1\n" % n for n in range(site.size(BODY_MAX // 11))))


@case("a name of 15 MiB", Request.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)
def remove_threshold(site: BrokerSite, run: int) -> Ask:
    return Ask({}, b"g" * site.size(BODY_MAX))


@case("as it is", Request.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, Request.GET_COLD_DATA_FLOW_CTR_INFO)
@case("with full tables", Request.GET_BROKER_LITE_INFO)
@case("as it is", Request.POP_ROLLBACK)
def spared(site: BrokerSite, run: int) -> Ask:
    return Ask()


@case("a list of 1,000 characters", Request.EXPORT_ROCKSDB_CONFIG_TO_JSON)
def export_tables(site: BrokerSite, run: int) -> Ask:
    return Ask({"configType": "topics;" * 140})


@case("mode 0", Request.SET_COMMITLOG_READ_MODE)
def read_mode(site: BrokerSite, run: int) -> Ask:
    return Ask({"READ_AHEAD_MODE": "0"})


@case("the wheel", Request.SWITCH_TIMER_ENGINE)
def timer_engine(site: BrokerSite, run: int) -> Ask:
    return Ask({"E_T": "F"})


@case("of a topic and a group", Request.GET_PARENT_TOPIC_INFO, Request.GET_LITE_TOPIC_INFO)
@case("of a topic and a group", Request.GET_LITE_CLIENT_INFO, Request.GET_LITE_GROUP_INFO)
@case("of a group", Request.TRIGGER_LITE_DISPATCH)
def lite_of(site: BrokerSite, run: int) -> Ask:
    return Ask({"topic": WIDE, "parentTopic": WIDE, "group": MANY})


@case("one message", Request.POP_LITE_MESSAGE)
def pop_lite(site: BrokerSite, run: int) -> Ask:
    numbers = {"maxMsgNum": "1", "invisibleTime": "60000", "pollTime": "15000", "bornTime": "0"}
    return Ask({"clientId": "c", "consumerGroup": MANY, "topic": WIDE, **numbers})


@case("15 MiB of subscriptions to take away", Request.LITE_SUBSCRIPTION_CTL)
def lite_subscriptions(site: BrokerSite, run: int) -> Ask:
    gone = {"action": "COMPLETE_REMOVE", "clientId": "c", "group": MANY, "topic": WIDE}
    return Ask({}, json_bytes({"subscriptionSet": filled(site, lambda n: gone)}))


# -- progress


@case("65,535 queues", Request.GET_TOPIC_STATS_INFO)
def topic_stats_wide(site: BrokerSite, run: int) -> Ask:
    return Ask({"topic": WIDE})


@case("1,024 queues with a message each", Request.GET_TOPIC_STATS_INFO)
def topic_stats(site: BrokerSite, run: int) -> Ask:
    return Ask({"topic": STATS})


@case("28,000 queues of 3,500 topics (maxQueuesInStats)", Request.GET_CONSUME_STATS)
def consume_stats(site: BrokerSite, run: int) -> Ask:
    names = ";".join([STATS, *(f"topic{n:05}" for n in range(site.size(3500)))])
    return Ask({"consumerGroup": MANY, "topicList": names})


@case("a list of 200,000 topics that are not there", Request.GET_CONSUME_STATS)
def consume_stats_none(site: BrokerSite, run: int) -> Ask:
    return Ask({"consumerGroup": MANY, "topicList": ";".join(map(str, range(site.size(250_000))))})


@case("a topic that 10,000 groups read", Request.QUERY_TOPIC_CONSUME_BY_WHO)
def consumed_by(site: BrokerSite, run: int) -> Ask:
    return Ask({"topic": "topic00000"})


@case("a group of 20,000 topics", Request.QUERY_TOPICS_BY_CONSUMER)
def topics_of(site: BrokerSite, run: int) -> Ask:
    return Ask({"group": MANY})


@case("one of 5,000", Request.QUERY_SUBSCRIPTION_BY_CONSUMER)
def subscription_of(site: BrokerSite, run: int) -> Ask:
    return Ask({"group": WANTS, "topic": "topic00000"})


@case("codes of 10,900 tags (maxSubscriptionBytes)", Request.QUERY_SUBSCRIPTION_BY_CONSUMER)
async def subscription_codes(site: BrokerSite, run: int) -> Ask:
    peer = await heartbeater(site, "coded", "coder")
    wanted = {"topic": LONG, "subVersion": run + 2, "codeSet": list(range(site.size(10_900)))}
    data = [{"groupName": "coded", "subscriptionDataSet": [wanted]}]
    await site.ask(
        peer, Request.HEART_BEAT, Ask({}, json_bytes({"clientID": "coder", "consumerDataSet": data}))
    )
    return Ask({"group": "coded", "topic": LONG})


@case("65,535 queues", Request.QUERY_CONSUME_TIME_SPAN)
def time_span(site: BrokerSite, run: int) -> Ask:
    return Ask({"topic": WIDE, "group": MANY})


@case("a group of 20,000 topics, 65,535 queues", Request.CLONE_GROUP_OFFSET)
def clone(site: BrokerSite, run: int) -> Ask:
    return Ask({"srcGroup": MANY, "destGroup": f"cloned{run}"})


@case("65,535 queues, 10,000 members are told", Request.INVOKE_BROKER_TO_RESET_OFFSET)
def reset_wide(site: BrokerSite, run: int) -> Ask:
    return Ask({"topic": WIDE, "group": MANY, "timestamp": "0", "isForce": "true"})


@case("1,024 queues with a message each, a new group", Request.INVOKE_BROKER_TO_RESET_OFFSET)
def reset(site: BrokerSite, run: int) -> Ask:
    site.context.groups.put(SubscriptionGroupConfig(f"reset{run}"))
    return Ask({"topic": STATS, "group": f"reset{run}", "timestamp": "1", "isForce": "true"})


@case("a question of 15 MiB, answered with 15 MiB", Request.GET_CONSUMER_RUNNING_INFO)
async def running_info(site: BrokerSite, run: int) -> Ask:
    # Nobody reads at the client while it waits: what is measured is the question's way.
    await heartbeater(site, "asked", f"asked{run}")
    return Ask({"consumerGroup": "asked", "clientId": f"asked{run}"}, bytes(site.size(BODY_MAX)))


@case("10,000 entries of a queue", Request.QUERY_CONSUME_QUEUE)
def entries_of(site: BrokerSite, run: int) -> Ask:
    numbers = {"queueId": "0", "index": "0", "count": "1000000"}
    return Ask({"topic": LONG, "consumerGroup": WANTS, **numbers})


@case("a topic that 10,000 groups read", Request.QUERY_CORRECTION_OFFSET)
def correction(site: BrokerSite, run: int) -> Ask:
    return Ask({"topic": "topic00000", "compareGroup": MANY})


@case("65,535 queues", Request.QUERY_CORRECTION_OFFSET)
def correction_wide(site: BrokerSite, run: int) -> Ask:
    return Ask({"topic": WIDE, "compareGroup": MANY})


@case("10,000 groups, refused at 32,768 queues", Request.GET_BROKER_CONSUME_STATS)
def all_stats(site: BrokerSite, run: int) -> Ask:
    return Ask({"isOrder": "false"})


@case("10,000 groups, none of an ordered topic", Request.GET_BROKER_CONSUME_STATS)
def all_ordered_stats(site: BrokerSite, run: int) -> Ask:
    return Ask({"isOrder": "true"})


@case("a group with 10,000 members", Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
def consumer_status(site: BrokerSite, run: int) -> Ask:
    return Ask({"topic": STATS, "group": MANY})


@case("one of 100,000 counters", Request.VIEW_BROKER_STATS_DATA)
def stats(site: BrokerSite, run: int) -> Ask:
    return Ask({"statsName": "GROUP_GET_NUMS", "statsKey": f"topic00000@{MANY}"})


# -- between brokers


@case("1 MiB of the log", Request.READ_LOG_RANGE, Request.KEELMQ_LOG_DIGESTS)
def log_range(site: BrokerSite, run: int) -> Ask:
    site.context.ha.__class__.verified_epoch = property(lambda self: Epoch(0))  # type: ignore[method-assign,assignment]
    return Ask({"brokerName": site.config.broker_name, "offset": "0", "size": str(MIB)})


@case("all tables at once", Request.KEELMQ_COPY_TABLES)
def copy_tables(site: BrokerSite, run: int) -> Ask:
    return Ask({"brokerId": str(run + 5), "run": "x", "seen": "-1", "waitMs": "0", "parts": "true"})


@case("all tables, at a new master's request", Request.KEELMQ_GIVE_TABLES)
def give_tables(site: BrokerSite, run: int) -> Ask:
    return Ask()


# -- users and policies


@case("a user beside 2,000 with 50 entries each, 15 MiB of body", Request.AUTH_CREATE_USER)
def create_user(site: BrokerSite, run: int) -> Ask:
    return Ask({"username": f"new{run}"}, json_bytes({"password": "p", "x": "y" * site.size(BODY_MAX)}))


@case("16 MiB of numbers in the body", Request.AUTH_CREATE_USER)
def create_user_numbers(site: BrokerSite, run: int) -> Ask:
    body = b'{"password":"p","x":[' + b"1," * site.size(BODY_MAX // 2) + b"1]}"
    return Ask({"username": f"numbers{run}"}, body)


@case("one of 2,000", Request.AUTH_UPDATE_USER)
def update_user(site: BrokerSite, run: int) -> Ask:
    return Ask({"username": "user00000"}, json_bytes({"password": f"p{run}"}))


@case("one of 2,000 with 50 entries", Request.AUTH_DELETE_USER)
def delete_user(site: BrokerSite, run: int) -> Ask:
    return Ask({"username": f"user{run + 1:05}"})


@case("one of 2,000", Request.AUTH_GET_USER)
def get_user(site: BrokerSite, run: int) -> Ask:
    return Ask({"username": "user00000"})


@case("all of 2,000", Request.AUTH_LIST_USER)
def list_users(site: BrokerSite, run: int) -> Ask:
    return Ask({"filter": ""})


def acl_body(site: BrokerSite, count: int) -> bytes:
    policy = {"policyType": "Custom", "entries": entries(site.size(count))}
    return json_bytes({"subject": "User:user00000", "policies": [policy]})


PUTS: Final = (Request.AUTH_CREATE_ACL, Request.AUTH_UPDATE_ACL)


@case("500 entries of one user", *PUTS)
def put_acl(site: BrokerSite, run: int) -> Ask:
    return Ask({"subject": "User:user00000"}, acl_body(site, ENTRIES_MAX))


@case("180,000 entries of one user, refused once they are read", *PUTS)
def put_long_acl(site: BrokerSite, run: int) -> Ask:
    return Ask({"subject": "User:user00000"}, acl_body(site, 180_000))


@case("one of 50 entries", Request.AUTH_DELETE_ACL)
def delete_acl(site: BrokerSite, run: int) -> Ask:
    name = f"User:user{run + site.size(20) % 500:05}"
    return Ask({"subject": name, "policyType": "Custom", "resource": f"Topic:topic{ENTRIES - 1:05}"})


@case("one of 2,000", Request.AUTH_GET_ACL)
def get_acl(site: BrokerSite, run: int) -> Ask:
    return Ask({"subject": "User:user00000"})


@case("2,000 users with 50 entries each", Request.AUTH_LIST_ACL)
def list_acls(site: BrokerSite, run: int) -> Ask:
    return Ask()


@case("those of 2,000 users that name one resource", Request.AUTH_LIST_ACL)
def list_some_acls(site: BrokerSite, run: int) -> Ask:
    return Ask({"resourceFilter": HEAVY})
