"""What do the ext fields of requests and answers about popped messages say?

As in ``remoting/headers``: a missing or unreadable mandatory field is ``Refused`` with SYSTEM_ERROR (1).
"""

from __future__ import annotations

from dataclasses import dataclass

from model.pop import INT_MAX, short_attempt_id
from remoting.headers import Ext, flag, need, need_int, opt_bool, opt_int


@dataclass(slots=True)
class PopHeader:
    """POP_MESSAGE (200050). ``queue_id`` -1: all queues. ``born_ms`` 0: now."""

    group: str
    topic: str
    queue_id: int
    count_max: int
    invisible_ms: int
    poll_ms: int
    born_ms: int
    init_mode: int
    expression_type: str = ""
    expression: str = ""
    order: bool = False
    attempt_id: str = ""

    @classmethod
    def parse(cls, ext: Ext) -> PopHeader:
        """Raises Refused."""
        return cls(
            need(ext, "consumerGroup"),
            need(ext, "topic"),
            need_int(ext, "queueId", -INT_MAX - 1, INT_MAX),
            need_int(ext, "maxMsgNums", -INT_MAX - 1, INT_MAX),
            need_int(ext, "invisibleTime"),
            need_int(ext, "pollTime"),
            opt_int(ext, "bornTime", 0),
            need_int(ext, "initMode", -INT_MAX - 1, INT_MAX),
            ext.get("expType", ""),
            ext.get("exp", ""),
            opt_bool(ext, "order"),
            short_attempt_id(ext.get("attemptId", "")),
        )

    def to_ext(self) -> dict[str, str]:
        ext = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": str(self.queue_id),
            "maxMsgNums": str(self.count_max),
            "invisibleTime": str(self.invisible_ms),
            "pollTime": str(self.poll_ms),
            "bornTime": str(self.born_ms),
            "initMode": str(self.init_mode),
            "order": flag(self.order),
        }
        texts = {"expType": self.expression_type, "exp": self.expression, "attemptId": self.attempt_id}
        return ext | {name: text for name, text in texts.items() if text}


@dataclass(slots=True)
class PopAnswer:
    """The ext fields of a pop's answer, whatever its code."""

    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    rest: int
    start_offsets: str = ""
    message_offsets: str = ""
    order_counts: str = ""

    @classmethod
    def parse(cls, ext: Ext) -> PopAnswer:
        """Raises Refused."""
        return cls(
            need_int(ext, "popTime"),
            need_int(ext, "invisibleTime"),
            need_int(ext, "reviveQid", 0, INT_MAX),
            need_int(ext, "restNum"),
            ext.get("startOffsetInfo", ""),
            ext.get("msgOffsetInfo", ""),
            ext.get("orderCountInfo", ""),
        )

    def to_ext(self) -> dict[str, str]:
        ext = {
            "popTime": str(self.pop_time_ms),
            "invisibleTime": str(self.invisible_ms),
            "reviveQid": str(self.revive_queue),
            "restNum": str(self.rest),
            "startOffsetInfo": self.start_offsets,
            "msgOffsetInfo": self.message_offsets,
        }
        return ext | ({"orderCountInfo": self.order_counts} if self.order_counts else {})


@dataclass(slots=True)
class AckHeader:
    """ACK_MESSAGE (200051); with ``invisible_ms`` CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_ms: int | None = None
    suspend: bool = False
    """Of a change, since RocketMQ 5.5: it comes back without counting as tried once more."""

    @classmethod
    def parse(cls, ext: Ext, *, change: bool) -> AckHeader:
        """Raises Refused."""
        return cls(
            need(ext, "consumerGroup"),
            need(ext, "topic"),
            need_int(ext, "queueId", -INT_MAX - 1, INT_MAX),
            need(ext, "extraInfo"),
            need_int(ext, "offset"),
            need_int(ext, "invisibleTime") if change else None,
            change and opt_bool(ext, "suspend"),
        )

    def to_ext(self) -> dict[str, str]:
        ext = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": str(self.queue_id),
            "extraInfo": self.extra_info,
            "offset": str(self.offset),
        }
        if self.invisible_ms is not None:
            ext["invisibleTime"] = str(self.invisible_ms)
        return ext | ({"suspend": "true"} if self.suspend else {})


@dataclass(slots=True)
class LookHeader:
    """PEEK_MESSAGE (200052), NOTIFICATION (200054) and POLLING_INFO (200055): what they have in common."""

    group: str
    topic: str
    queue_id: int
    count_max: int = 0
    poll_ms: int = 0
    born_ms: int = 0
    order: bool = False
    attempt_id: str = ""

    @classmethod
    def parse(cls, ext: Ext, *, peek: bool = False, poll: bool = False) -> LookHeader:
        """Raises Refused."""
        return cls(
            need(ext, "consumerGroup"),
            need(ext, "topic"),
            need_int(ext, "queueId", -INT_MAX - 1, INT_MAX),
            need_int(ext, "maxMsgNums", -INT_MAX - 1, INT_MAX) if peek else 0,
            need_int(ext, "pollTime") if poll else 0,
            opt_int(ext, "bornTime", 0),
            opt_bool(ext, "order"),
            short_attempt_id(ext.get("attemptId", "")),
        )
