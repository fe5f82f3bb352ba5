"""What moves when a message is acknowledged that was popped in order, or its invisible time changed?"""

from __future__ import annotations

from collections.abc import Callable

from broker.context import BrokerContext
from broker.requests.consumers.offsets import need_pair
from broker.requests.consumers.pop.log import PopLog
from broker.requests.consumers.pop.order import Key, OrderTable
from model.codes import Response
from model.errors import Refused
from model.pop import ORDER_REVIVE_QUEUE

Freed = Callable[[str, str, int], None]


class OrderAcks:
    """Moves the offsets of queues that are consumed in order; ``freed`` hears of one that may be popped."""

    def __init__(self, context: BrokerContext, pop_log: PopLog, orders: OrderTable, freed: Freed) -> None:
        self._context = context
        self._log = pop_log
        self._orders = orders
        self._freed = freed

    def ack(self, key: Key, offset: int, pop_time_ms: int) -> None:
        """Raises Refused for a message that is not in hand, and where there is no room for the offset."""
        topic, group, queue_id = key
        known = self._log.offset(topic, group, queue_id)
        if offset < known:
            return
        try:
            if offset >= self._context.store.max_queue_offset(topic, queue_id):
                raise ValueError  # nobody popped it: the next message that is sent would be passed over
            next_offset = self._orders.acked(key, offset, pop_time_ms, known)
        except ValueError:
            raise Refused(
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{known}, commit:{offset}, next:-1",
                Response.MESSAGE_ILLEGAL,
            ) from None
        if next_offset is None:
            return
        need_pair(self._context, group, topic)
        self._log.moved(topic, group, queue_id, next_offset)
        if not self._orders.blocks(key, "", self._context.env.monotonic_ms(), next_offset):
            self._freed(topic, group, queue_id)

    def change(self, key: Key, offset: int, pop_time_ms: int, invisible_ms: int) -> dict[str, str]:
        """The ext fields of the answer."""
        if offset < self._log.offset(*key):
            return {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
        env = self._context.env
        self._orders.change(key, offset, pop_time_ms, env.monotonic_ms() + invisible_ms)
        return {
            "popTime": str(pop_time_ms),
            "invisibleTime": str(env.now_ms() + invisible_ms - pop_time_ms),
            "reviveQid": str(ORDER_REVIVE_QUEUE),
        }
