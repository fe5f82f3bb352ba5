"""What a topic and a consumer group are configured as, and how two versions of a table compare."""

from dataclasses import dataclass, field
from typing import Any, Final

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

AUTO_CREATE_TOPIC: Final = "TBW102"
TOPIC_BYTES_MAX: Final = 127
GROUP_CHARS_MAX: Final = 120
"""Its retry topic for those that pop has the name of a topic behind it."""
LONG_GROUP_CHARS_MAX: Final = 255
"""Of clients before RocketMQ 5, whose groups an older table may hold."""
_NAME_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%|")

NOT_FOR_CLIENT_SENDS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "rmq_sys_wheel_timer",
    }
)
"""Topics only the broker itself writes to; a client's send is answered NO_PERMISSION (16)."""

INTERNAL_TOPICS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "rmq_sys_wheel_timer",
    }
)
"""Topics that hold messages no consumer may see yet, or ever."""

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def is_system_group(name: str) -> bool:
    """Whether a consumer group is the broker's own: how far it is says what the broker has done."""
    return name.startswith(SYSTEM_GROUP_PREFIX)


def topic_name_error(name: str) -> str | None:
    """Say what is wrong with a topic name a client wants to create, or None."""
    if not name.strip():
        return "The specified topic is blank."
    if not set(name) <= _NAME_CHARS:
        return f"The specified topic {name!r} contains illegal characters, allowing only [%|a-zA-Z0-9_-]."
    if len(name) > TOPIC_BYTES_MAX:
        return f"The specified topic is longer than topic max length {TOPIC_BYTES_MAX}."
    return None


def group_name_error(name: str, chars_max: int = GROUP_CHARS_MAX) -> str | None:
    """Say what is wrong with the name of a group that is to be made, or None."""
    if not name.strip():
        return "The specified group is blank."
    if not set(name) <= _NAME_CHARS:
        return f"The specified group {name!r} contains illegal characters, allowing only [%|a-zA-Z0-9_-]."
    if len(name) > chars_max:
        return f"The specified group is longer than group max length {chars_max}."
    return None


@dataclass(slots=True)
class DataVersion:
    """Orders two versions of a table: stateVersion (the master's epoch), then counter, then time.

    stateVersion outlives the Controllers that counted it, so it never goes back. keelmq's own beside it:
    ``taken_epoch``, whose master took over all that was answered before, as the Controllers of ``life``
    count. Other lives' epochs cannot be compared with it.
    """

    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0
    life: str = ""
    taken_epoch: int = 0

    def next(self, now_ms: int, state_version: int | None = None) -> "DataVersion":
        state = self.state_version if state_version is None else state_version
        return DataVersion(state, now_ms, self.counter + 1, self.life, self.taken_epoch)

    def taken_in(self, life: str) -> int:
        """The newest epoch of that life whose master took these tables over; 0 = none. Controllers of an
        older version do not name their life: then it is the state version."""
        if not life:
            return self.state_version
        return self.taken_epoch if life == self.life else 0

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }
        if self.life:
            found |= {"keelmqLife": self.life, "keelmqTakenEpoch": self.taken_epoch}
        return found

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> "DataVersion":
        data = data or {}
        return cls(
            int(data.get("stateVersion", 0)),
            int(data.get("timestamp", 0)),
            int(data.get("counter", 0)),
            str(data.get("keelmqLife", "")),
            int(data.get("keelmqTakenEpoch", 0)),
        )

    def order(self) -> tuple[int, int, int]:
        return (self.state_version, self.counter, self.timestamp_ms)


@dataclass(slots=True, weakref_slot=True)
class TopicConfig:
    """One topic of one broker; ``to_json`` gives the members mqadmin and real brokers expect."""

    name: str
    read_queues: int = 8
    write_queues: int = 8
    perm: int = PERM_READ | PERM_WRITE
    sys_flag: int = 0
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    attributes: dict[str, str] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    """Members this code does not know: a newer broker of the group may, so they are kept and handed on."""

    def to_json(self) -> dict[str, Any]:
        return self.others | {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TopicConfig":
        """Raises KeyError without a ``topicName``, ValueError or TypeError for what no topic can be."""
        return cls(
            name=_name(data["topicName"]),
            read_queues=_int32(data, "readQueueNums", 16),
            write_queues=_int32(data, "writeQueueNums", 16),
            perm=_int32(data, "perm", 6),
            sys_flag=_int32(data, "topicSysFlag", 0),
            order=bool(data.get("order", False)),
            filter_type=str(data.get("topicFilterType", "SINGLE_TAG")),
            attributes=_texts(data.get("attributes") or {}),
            others=_others(data, _TOPIC_MEMBERS),
        )


_TOPIC_MEMBERS: Final = frozenset(TopicConfig("").to_json())


@dataclass(slots=True, weakref_slot=True)
class SubscriptionGroupConfig:
    """One consumer group of one broker; members and defaults are RocketMQ's."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queues: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed: bool = True
    group_sys_flag: int = 0
    consume_timeout_minutes: int = 15
    attributes: dict[str, str] = field(default_factory=dict)
    retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    """Kept and handed on: only the original delays by it what is consumed again."""
    others: dict[str, Any] = field(default_factory=dict)
    """As a topic's."""

    def to_json(self) -> dict[str, Any]:
        return self.others | {
            "attributes": self.attributes,
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.name,
            "groupRetryPolicy": self.retry_policy,
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "SubscriptionGroupConfig":
        """Raises KeyError without a ``groupName``, ValueError or TypeError for what no group can be."""
        return cls(
            name=_name(data["groupName"]),
            consume_enable=bool(data.get("consumeEnable", True)),
            consume_from_min_enable=bool(data.get("consumeFromMinEnable", True)),
            consume_broadcast_enable=bool(data.get("consumeBroadcastEnable", True)),
            consume_message_orderly=bool(data.get("consumeMessageOrderly", False)),
            retry_queues=_int32(data, "retryQueueNums", 1),
            retry_max_times=_int32(data, "retryMaxTimes", 16),
            broker_id=_int32(data, "brokerId", 0),
            which_broker_when_consume_slowly=_int32(data, "whichBrokerWhenConsumeSlowly", 1),
            notify_consumer_ids_changed=bool(data.get("notifyConsumerIdsChangedEnable", True)),
            group_sys_flag=_int32(data, "groupSysFlag", 0),
            consume_timeout_minutes=_int32(data, "consumeTimeoutMinute", 15),
            attributes=_texts(data.get("attributes") or {}),
            retry_policy=dict(data.get("groupRetryPolicy") or {"type": "CUSTOMIZED"}),
            others=_others(data, _GROUP_MEMBERS),
        )


_GROUP_MEMBERS: Final = frozenset(SubscriptionGroupConfig("").to_json())


def _others(data: dict[str, Any], members: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in members}


def _name(value: Any) -> str:
    """Tables are sorted by their names: one that is no text would break every later change."""
    if not isinstance(value, str):
        raise ValueError(f"a name is text, not {type(value).__name__}")
    return value


def _int32(data: dict[str, Any], name: str, default: int) -> int:
    value = data.get(name, default)
    if isinstance(value, float) or not -(2**31) <= int(value) < 2**31:
        raise ValueError(f"{name} is not a 32-bit number: {str(value)[:40]}")
    return int(value)


def _texts(value: Any) -> dict[str, str]:
    found = dict(value)
    if not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise ValueError("attributes are not texts")
    return found
