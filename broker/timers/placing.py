"""Where does a timer message go at its send? To the timer topic, to its own at once, or nowhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from broker.requests.properties import changed, has
from broker.timers.core import Rules, deliver_ms, is_timer
from model.codes import Response
from model.config import BrokerConfig
from model.errors import Refused
from model.message import (
    REAL_QID,
    REAL_TOPIC,
    RETRY_PREFIX,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    UNIQ_KEY,
    property_of,
)
from model.recall import RecallHandle
from store.files.record import NewMessage

TIMERS: Final = (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)
"""Properties by which a client asks for a time."""
_ILLEGAL: Final = (
    "timer message illegal, the delay time should not be bigger than the max delay {most}ms;"
    " or if set del msg, the delay time should be bigger than the current time"
)
_FLOW: Final = (
    "timer message is under flow control, max num limit is {most} or the current value is greater than {few}"
    " and less than {most}, trigger random flow control"
)


class TimerPlacing:
    """``waiting`` tells how many messages wait in a slot; ``chance`` gives a number below another."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int], chance: Callable[[int], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._chance = chance
        self.waiting: Callable[[int], int] = lambda slot_ms: 0

    def need_enabled(self, properties: str) -> None:
        """Raises Refused for a timer message where there are none, and for one that takes another back where
        that is not allowed: a send is no way round what RECALL_MESSAGE is refused."""
        if not is_timer(properties):
            return
        if not self._config.timer_wheel_enable:
            raise Refused(
                "accurate timer message is not enabled, timerWheelEnable is false", Response.SYSTEM_ERROR
            )
        if has(properties, TIMER_DEL_UNIQKEY) and not self._config.recall_message_enable:
            raise Refused("recall failed, operation is forbidden", Response.NO_PERMISSION)

    def place(self, message: NewMessage) -> NewMessage:
        """``message``, or what is stored in its stead until it is due. Raises Refused."""
        if not is_timer(message.properties):
            return message
        self.need_enabled(message.properties)
        rules = Rules.of(self._config)
        now_ms = self._now_ms()
        at_ms = deliver_ms(message.properties, now_ms)
        illegal = Refused(_ILLEGAL.format(most=rules.delay_max_ms), Response.MESSAGE_ILLEGAL)
        if at_ms is None or at_ms - now_ms > rules.delay_max_ms:
            raise illegal
        if at_ms <= now_ms:
            if has(message.properties, TIMER_DEL_UNIQKEY):
                raise illegal
            return message
        out_ms = rules.out_ms(at_ms)
        self._need_room(self.waiting(rules.floor(out_ms)), rules.per_slot)
        text = changed(
            message.properties,
            {TIMER_OUT_MS: str(out_ms), REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id)},
        )
        return dataclasses.replace(message, topic=TIMER_TOPIC, queue_id=0, properties=text)

    def _need_room(self, waiting: int, few: int) -> None:
        if waiting <= few:
            return
        # The fuller the slot, the more are refused.
        if waiting >= 2 * few or self._chance(1000) < 1000 * (waiting - few) // few:
            raise Refused(_FLOW.format(most=2 * few, few=few), Response.SYSTEM_ERROR)

    def recall_handle(self, message: NewMessage) -> str | None:
        """What the answer to a send names a timer message by; None for others."""
        topic = property_of(message.properties, REAL_TOPIC)
        out_ms = property_of(message.properties, TIMER_OUT_MS)
        if message.topic != TIMER_TOPIC or topic is None or out_ms is None or topic.startswith(RETRY_PREFIX):
            return None
        uniq_key = property_of(message.properties, UNIQ_KEY) or ""
        # One more: the slot before that time is the one of the message.
        return RecallHandle(topic, self._config.broker_name, str(int(out_ms) + 1), uniq_key).encode()
