"""What do the ext fields of a request say, and are the mandatory ones there?

Every field travels as text. A missing or unreadable mandatory field is ``Refused`` with SYSTEM_ERROR (1), as
the original answers it. Field names and the short names of SEND_MESSAGE_V2 are RocketMQ's
(``remoting/protocol/header``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from model.codes import Request, Response
from model.errors import Refused
from model.message import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK

Ext = Mapping[str, str]

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

MASTER_ONLY: Final = "keelmqMasterOnly"
"""``true`` in a request of keelmq's tools that a slave answers OK without effect: it refuses it then."""

NOW_MS: Final = "keelmqNowMs"
"""In a question of ``keelmq doctor``: the answer is to tell the server's clock, in ms since 1970."""

# bits of a pull's sysFlag
PULL_COMMIT_OFFSET: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4


def need(ext: Ext, name: str) -> str:
    """The text of a mandatory field. Raises Refused."""
    value = ext.get(name)
    if not value:
        raise Refused(f"the request has no {name}")
    return value


def need_int(ext: Ext, name: str, low: int = -LONG_MAX - 1, high: int = LONG_MAX) -> int:
    """The number in a mandatory field, between ``low`` and ``high``. Raises Refused."""
    return _int(name, need(ext, name), low, high)


def opt_int(ext: Ext, name: str, default: int, low: int = -LONG_MAX - 1, high: int = LONG_MAX) -> int:
    """The number in an optional field. Raises Refused when it is there and not such a number."""
    text = ext.get(name)
    return _int(name, text, low, high) if text else default


def opt_bool(ext: Ext, name: str, default: bool = False) -> bool:
    """``true`` in any case is True, as Java's ``Boolean.parseBoolean`` has it; anything else is False."""
    text = ext.get(name)
    return text.lower() == "true" if text else default


def flag(value: bool) -> str:
    """How a boolean travels."""
    return "true" if value else "false"


def told_clock(ext: Ext, now_ms: int) -> dict[str, str]:
    """What an answer carries when its question asks for the clock."""
    return {NOW_MS: str(now_ms)} if NOW_MS in ext else {}


def _int(name: str, text: str, low: int, high: int) -> int:
    # int() alone would also take blanks, underscores and the digits of other scripts.
    if len(text) > 20 or not (text.isascii() and text.removeprefix("-").isdigit()):
        raise Refused(f"{name}={text[:40]!r} is not a whole number")
    value = int(text)
    if not low <= value <= high:
        raise Refused(f"{name}={value} is not between {low} and {high}")
    return value


def _int32(ext: Ext, name: str) -> int:
    return _int(name, need(ext, name), -INT_MAX - 1, INT_MAX)


def _opt_int32(ext: Ext, name: str, default: int) -> int:
    return opt_int(ext, name, default, -INT_MAX - 1, INT_MAX)


@dataclass(slots=True)
class SendHeader:
    """SEND_MESSAGE (10, 324) by full names; SEND_MESSAGE_V2 and batches (310, 320, 325) by letters."""

    producer_group: str
    topic: str
    queue_id: int  # negative: the broker chooses
    born_timestamp_ms: int
    default_topic: str = "TBW102"
    default_topic_queues: int = 8
    sys_flag: int = 0
    flag: int = 0
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: int | None = None
    broker_name: str = ""

    @classmethod
    def parse(cls, code: int, ext: Ext) -> "SendHeader":
        """Raises Refused."""
        v1 = code in (Request.SEND_MESSAGE, Request.SEND_REPLY_MESSAGE)
        name = SEND_V1_NAMES if v1 else SEND_V2_NAMES
        maximum = ext.get(name["max_reconsume_times"])
        return cls(
            producer_group=need(ext, name["producer_group"]),
            topic=need(ext, name["topic"]),
            queue_id=_int32(ext, name["queue_id"]),
            born_timestamp_ms=need_int(ext, name["born_timestamp_ms"]),
            default_topic=need(ext, name["default_topic"]),
            default_topic_queues=_int32(ext, name["default_topic_queues"]),
            sys_flag=_int32(ext, name["sys_flag"]),
            flag=_int32(ext, name["flag"]),
            properties=ext.get(name["properties"], ""),
            reconsume_times=_opt_int32(ext, name["reconsume_times"], 0),
            unit_mode=opt_bool(ext, name["unit_mode"]),
            batch=opt_bool(ext, name["batch"]) or code == Request.SEND_BATCH_MESSAGE,
            max_reconsume_times=_opt_int32(ext, name["max_reconsume_times"], 0) if maximum else None,
            broker_name=ext.get(name["broker_name"], ""),
        )

    def to_ext(self, *, full_names: bool = False) -> dict[str, str]:
        """The letters of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, or the full names of SEND_MESSAGE."""
        name = SEND_V1_NAMES if full_names else SEND_V2_NAMES
        ext = {
            name["producer_group"]: self.producer_group,
            name["topic"]: self.topic,
            name["default_topic"]: self.default_topic,
            name["default_topic_queues"]: str(self.default_topic_queues),
            name["queue_id"]: str(self.queue_id),
            name["sys_flag"]: str(self.sys_flag),
            name["born_timestamp_ms"]: str(self.born_timestamp_ms),
            name["flag"]: str(self.flag),
            name["properties"]: self.properties,
            name["reconsume_times"]: str(self.reconsume_times),
            name["unit_mode"]: flag(self.unit_mode),
            name["batch"]: flag(self.batch),
        }
        if self.max_reconsume_times is not None:
            ext[name["max_reconsume_times"]] = str(self.max_reconsume_times)
        if self.broker_name:
            ext[name["broker_name"]] = self.broker_name
        return ext


SEND_NAMES: Final = {
    "producer_group": ("producerGroup", "a"),
    "topic": ("topic", "b"),
    "default_topic": ("defaultTopic", "c"),
    "default_topic_queues": ("defaultTopicQueueNums", "d"),
    "queue_id": ("queueId", "e"),
    "sys_flag": ("sysFlag", "f"),
    "born_timestamp_ms": ("bornTimestamp", "g"),
    "flag": ("flag", "h"),
    "properties": ("properties", "i"),
    "reconsume_times": ("reconsumeTimes", "j"),
    "unit_mode": ("unitMode", "k"),
    "max_reconsume_times": ("maxReconsumeTimes", "l"),
    "batch": ("batch", "m"),
    "broker_name": ("bname", "n"),
}
"""Of ``SendHeader``: the names on the wire, of SEND_MESSAGE and of SEND_MESSAGE_V2, in the order the original
writes them in a ROCKETMQ header."""
SEND_V1_NAMES: Final = {name: full for name, (full, _) in SEND_NAMES.items()}
SEND_V2_NAMES: Final = {name: letter for name, (_, letter) in SEND_NAMES.items()}


@dataclass(slots=True)
class SendAnswer:
    """What a send is answered with: ``message_id`` is the store host and offset, comma-joined for a batch."""

    message_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str = ""

    @classmethod
    def parse(cls, ext: Ext) -> "SendAnswer":
        """Raises Refused."""
        return cls(
            need(ext, "msgId"),
            _int32(ext, "queueId"),
            need_int(ext, "queueOffset"),
            ext.get("transactionId", ""),
        )

    def to_ext(self) -> dict[str, str]:
        ext = {
            "msgId": self.message_id,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.queue_offset),
        }
        if self.transaction_id:
            ext["transactionId"] = self.transaction_id
        return ext


@dataclass(slots=True)
class PullHeader:
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    count_max: int
    sys_flag: int = 0
    commit_offset: int = 0
    suspend_timeout_ms: int = 0
    subscription: str = "*"
    sub_version: int = 0
    expression_type: str = "TAG"
    bytes_max: int | None = None
    request_source: int = -1
    standing: object = field(default=None, compare=False, repr=False)
    """What a broker keeps of a header that comes again and again, with other numbers."""

    @property
    def suspend(self) -> bool:
        return bool(self.sys_flag & PULL_SUSPEND)

    @property
    def commits(self) -> bool:
        return bool(self.sys_flag & PULL_COMMIT_OFFSET)

    @property
    def has_subscription(self) -> bool:
        return bool(self.sys_flag & PULL_SUBSCRIPTION)

    @classmethod
    def parse(cls, ext: Ext) -> "PullHeader":
        """What it wants is read where its flags say that it tells that. Raises Refused."""
        sys_flag = _int32(ext, "sysFlag")
        told = ext if sys_flag & PULL_SUBSCRIPTION else {}
        return cls(
            group=need(ext, "consumerGroup"),
            topic=need(ext, "topic"),
            queue_id=_int32(ext, "queueId"),
            queue_offset=need_int(ext, "queueOffset"),
            count_max=_int32(ext, "maxMsgNums"),
            sys_flag=sys_flag,
            commit_offset=need_int(ext, "commitOffset"),
            suspend_timeout_ms=need_int(ext, "suspendTimeoutMillis"),
            subscription=told.get("subscription") or "*",
            sub_version=opt_int(ext, "subVersion", 0),
            expression_type=told.get("expressionType") or "TAG",
            bytes_max=_opt_int32(ext, "maxMsgBytes", 0) if ext.get("maxMsgBytes") else None,
            request_source=_opt_int32(ext, "requestSource", -1),
        )

    def kept(self, group: str, topic: str) -> "PullHeader":
        """What is needed of one that waits, by the names that a table has: no text of its client's."""
        return PullHeader(
            group,
            topic,
            self.queue_id,
            self.queue_offset,
            self.count_max,
            self.sys_flag,
            self.commit_offset,
            self.suspend_timeout_ms,
            "",
            self.sub_version,
            "",
            self.bytes_max,
            self.request_source,
        )

    def to_ext(self) -> dict[str, str]:
        ext = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.queue_offset),
            "maxMsgNums": str(self.count_max),
            "sysFlag": str(self.sys_flag),
            "commitOffset": str(self.commit_offset),
            "suspendTimeoutMillis": str(self.suspend_timeout_ms),
            "subscription": self.subscription,
            "subVersion": str(self.sub_version),
            "expressionType": self.expression_type,
        }
        if self.bytes_max is not None:
            ext["maxMsgBytes"] = str(self.bytes_max)
        return ext


@dataclass(slots=True)
class PullAnswer:
    """The ext fields of a pull's answer, whatever its code."""

    next_offset: int
    min_offset: int
    max_offset: int
    suggest_broker_id: int = 0
    topic_sys_flag: int = 0
    group_sys_flag: int = 0

    @classmethod
    def parse(cls, ext: Ext) -> "PullAnswer":
        """Raises Refused."""
        return cls(
            need_int(ext, "nextBeginOffset"),
            need_int(ext, "minOffset"),
            need_int(ext, "maxOffset"),
            opt_int(ext, "suggestWhichBrokerId", 0),
            _opt_int32(ext, "topicSysFlag", 0),
            _opt_int32(ext, "groupSysFlag", 0),
        )

    def to_ext(self) -> dict[str, str]:
        return {
            "suggestWhichBrokerId": str(self.suggest_broker_id),
            "nextBeginOffset": str(self.next_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.max_offset),
            "topicSysFlag": str(self.topic_sys_flag),
            "groupSysFlag": str(self.group_sys_flag),
        }


@dataclass(slots=True)
class SendBackHeader:
    """CONSUMER_SEND_MSG_BACK (36): a consumer could not handle a message."""

    physical_offset: int
    group: str
    delay_level: int
    origin_message_id: str = ""
    origin_topic: str = ""
    unit_mode: bool = False
    max_reconsume_times: int | None = None

    @classmethod
    def parse(cls, ext: Ext) -> "SendBackHeader":
        """Raises Refused."""
        maximum = ext.get("maxReconsumeTimes")
        return cls(
            need_int(ext, "offset", 0),
            need(ext, "group"),
            _int32(ext, "delayLevel"),
            ext.get("originMsgId", ""),
            ext.get("originTopic", ""),
            opt_bool(ext, "unitMode"),
            _opt_int32(ext, "maxReconsumeTimes", 0) if maximum else None,
        )

    def to_ext(self) -> dict[str, str]:
        ext = {
            "offset": str(self.physical_offset),
            "group": self.group,
            "delayLevel": str(self.delay_level),
            "originMsgId": self.origin_message_id,
            "originTopic": self.origin_topic,
            "unitMode": flag(self.unit_mode),
        }
        if self.max_reconsume_times is not None:
            ext["maxReconsumeTimes"] = str(self.max_reconsume_times)
        return ext


@dataclass(slots=True)
class EndTransactionHeader:
    """END_TRANSACTION (37). ``decision``: 8 commit, 12 roll back, 0 unknown."""

    producer_group: str
    queue_offset: int
    physical_offset: int
    decision: int
    message_id: str
    transaction_id: str = ""
    from_check: bool = False
    topic: str = ""

    @classmethod
    def parse(cls, ext: Ext) -> "EndTransactionHeader":
        """Raises Refused."""
        decision = _int32(ext, "commitOrRollback")
        if decision not in (0, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise Refused("commitOrRollback field wrong", Response.SYSTEM_ERROR)
        return cls(
            need(ext, "producerGroup"),
            need_int(ext, "tranStateTableOffset", 0),
            need_int(ext, "commitLogOffset", 0),
            decision,
            ext.get("msgId", ""),
            ext.get("transactionId", ""),
            opt_bool(ext, "fromTransactionCheck"),
            ext.get("topic", ""),
        )

    def to_ext(self) -> dict[str, str]:
        return {
            "producerGroup": self.producer_group,
            "tranStateTableOffset": str(self.queue_offset),
            "commitLogOffset": str(self.physical_offset),
            "commitOrRollback": str(self.decision),
            "msgId": self.message_id,
            "transactionId": self.transaction_id,
            "fromTransactionCheck": flag(self.from_check),
            "topic": self.topic,
        }


@dataclass(slots=True)
class QueryMessageHeader:
    """QUERY_MESSAGE (12); ``unique`` asks for the client's id (UNIQ_KEY) instead of a key."""

    topic: str
    key: str
    count_max: int
    begin_ms: int
    end_ms: int
    unique: bool = False

    @classmethod
    def parse(cls, ext: Ext) -> "QueryMessageHeader":
        """Raises Refused."""
        return cls(
            need(ext, "topic"),
            need(ext, "key"),
            _int32(ext, "maxNum"),
            need_int(ext, "beginTimestamp"),
            need_int(ext, "endTimestamp"),
            opt_bool(ext, "_UNIQUE_KEY_QUERY"),
        )


@dataclass(slots=True)
class QueueHeader:
    """What many requests name: a topic and one of its queues."""

    topic: str
    queue_id: int

    @classmethod
    def parse(cls, ext: Ext) -> "QueueHeader":
        """Raises Refused."""
        return cls(need(ext, "topic"), _int32(ext, "queueId"))


@dataclass(slots=True)
class OffsetHeader:
    """QUERY_CONSUMER_OFFSET (14) and UPDATE_CONSUMER_OFFSET (15); only the latter has ``commit_offset``."""

    group: str
    topic: str
    queue_id: int
    commit_offset: int | None = None
    set_zero_if_not_found: bool = True

    @classmethod
    def parse(cls, code: int, ext: Ext) -> "OffsetHeader":
        """Raises Refused."""
        update = code == Request.UPDATE_CONSUMER_OFFSET
        return cls(
            need(ext, "consumerGroup"),
            need(ext, "topic"),
            _int32(ext, "queueId"),
            need_int(ext, "commitOffset") if update else None,
            opt_bool(ext, "setZeroIfNotFound", True),
        )


@dataclass(slots=True)
class BrokerHeader:
    """A broker's identity: 103, 104, 322 (and 904, without an id) at a NameServer."""

    cluster: str
    name: str
    address: str
    broker_id: int | None

    @classmethod
    def parse(cls, ext: Ext, *, with_id: bool = True) -> "BrokerHeader":
        """Raises Refused."""
        return cls(
            need(ext, "clusterName"),
            need(ext, "brokerName"),
            need(ext, "brokerAddr"),
            need_int(ext, "brokerId", 0) if with_id else None,
        )

    def to_ext(self) -> dict[str, str]:
        ext = {"clusterName": self.cluster, "brokerName": self.name, "brokerAddr": self.address}
        if self.broker_id is not None:
            ext["brokerId"] = str(self.broker_id)
        return ext
