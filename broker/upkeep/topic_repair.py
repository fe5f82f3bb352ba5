"""Which topics does the log hold that the table lacks?

A topic is missing when its master died before it handed the table on. A new master makes it from the queues
its log has.
"""

from __future__ import annotations

from typing import Final

from broker.context import BrokerContext

RECENT_MS: Final = 600_000


class TopicRepair:
    """``widen`` at a promotion, ``arrived`` for each record that is dispatched after it."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def widen(self) -> None:
        """Make the topics and queues that the newest messages of the log are in."""
        self._context.topics.widen(self._recent_queues())

    def arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """A record was dispatched. One the former master stored may be of a topic it never handed on."""
        known = self._context.topics.get(topic)
        if (
            (known is None or queue_id >= max(known.read_queues, known.write_queues))
            and self._context.role_state.is_master
            and not self._context.topics.was_deleted(topic, queue_id, max_offset)
        ):
            self._context.topics.widen([(topic, queue_id)])

    def _recent_queues(self) -> list[tuple[str, int]]:
        """Queues whose newest message is at most ``RECENT_MS`` older than the newest of all.

        A topic missing from the table is one of these when its master died before handing the table on; one
        that was deleted must not come back, nor an older one: it was, before a broker remembered that.
        """
        store = self._context.store
        newest = {
            queue: store.queue_store_time(*queue, store.max_queue_offset(*queue) - 1) or 0
            for queue in store.queues()
        }
        since_ms = max(newest.values(), default=0) - RECENT_MS
        return [
            queue
            for queue, stored_ms in newest.items()
            if stored_ms >= since_ms
            and not self._context.topics.was_deleted(*queue, store.max_queue_offset(*queue))
        ]
