"""Which topics does the log hold that the table lacks?

A topic is missing when its master died before it handed the table on. A new master makes it from the queues
its log has. A topic that was deleted stays deleted: messages that waited for their time go on to come to it,
from a master that died before it noted them, too, and are no sign that somebody made it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from broker.context import BrokerContext
from broker.requests.moving import records_of
from broker.upkeep.copies import is_copy
from runtime.turns import Slice
from store.flow.dispatching.arrivals import Arrival, Listening
from store.flow.reading import GetStatus

RECENT_MS: Final = 600_000
COUNT: Final = 32
BYTES: Final = 1 << 20


class TopicRepair:
    """``look`` and ``widen`` at a promotion; ``arrived`` from then on, for each record that is dispatched."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._listening = Listening(context.store.on_arrive, self.arrived)
        # True: ``look`` has looked at it. None: there is no promotion.
        self._lacking: dict[tuple[str, int], bool] | None = None

    async def look(self, slice_: Slice) -> None:
        """Look which queues the table lacks; those that arrive from here on are noted until ``widen``. Of
        20,000 topics one look at the newest message of each took 0.3 s. Raises as ``slice_``."""
        store, topics = self._context.store, self._context.topics
        self._lacking = {}
        self._listening.begin()
        found: list[tuple[str, int]] = []
        for queue in store.queues():
            if self._is_lacking(*queue) and not topics.was_deleted(*queue, store.max_queue_offset(*queue)):
                for _ in self._passing_copies(*queue, store.max_queue_offset(*queue)):
                    await slice_.breathe()
                if self._is_lacking(*queue) and not topics.was_deleted(
                    *queue, store.max_queue_offset(*queue)
                ):
                    found.append(queue)
            await slice_.breathe()
        if found:
            newest_ms = 0
            for queue in store.queues():
                newest_ms = max(newest_ms, self._newest_ms(*queue))
                await slice_.breathe()
            recent = [queue for queue in found if self._newest_ms(*queue) >= newest_ms - RECENT_MS]
            self._lacking.update(dict.fromkeys(recent, True))

    def widen(self) -> None:
        """Make the topics and queues that the newest messages of the log are in, by ``look`` and since.

        A topic missing from the table is one of these when its master died before handing the table on; one
        that was deleted must not come back, nor an older one: it was, before a broker remembered that.
        """
        lacking, self._lacking = self._lacking or {}, None
        store, topics = self._context.store, self._context.topics
        for queue, looked_at in lacking.items():
            if not looked_at:  # those were passed by in ``look``
                self._pass_copies(*queue, store.max_queue_offset(*queue))
        # The name may have been deleted since.
        topics.widen(q for q in lacking if not topics.was_deleted(*q, store.max_queue_offset(*q)))

    def arrived(self, arrived: Sequence[Arrival]) -> None:
        """Records were dispatched. One the former master stored may be of a topic it never handed on."""
        if self._lacking is None and not self._context.role_state.is_master:
            self._listening.end()
            return
        table = self._context.topics.table
        for topic, queue_id, max_offset, _ in arrived:
            known = table.get(topic)
            if known is not None and (queue_id < known.read_queues or queue_id < known.write_queues):
                continue  # nearly all
            if self._context.role_state.is_master:
                last = self._context.store.place_of(topic, queue_id, max_offset - 1)
                own = last is not None and last >= self._context.role_state.led_from
                if not own:
                    self._pass_copies(topic, queue_id, max_offset)
                if not self._context.topics.was_deleted(topic, queue_id, max_offset, own=own):
                    self._context.topics.widen([(topic, queue_id)])
            elif self._lacking is not None:
                self._lacking.setdefault((topic, queue_id), False)

    def _pass_copies(self, topic: str, queue_id: int, end: int) -> None:
        for _ in self._passing_copies(topic, queue_id, end):
            pass

    def _passing_copies(self, topic: str, queue_id: int, end: int) -> Iterator[None]:
        """Note of a deleted topic's queue that it ended behind the copies of messages that had waited, which
        its end is followed by, up to ``end``. In steps: all who sent to a topic may have had them wait."""
        store, topics = self._context.store, self._context.topics
        if not topics.is_gone(topic):
            return
        begin = max(topics.first_offset(topic, queue_id), store.min_queue_offset(topic, queue_id))
        while begin < end:
            got = store.get(topic, queue_id, begin, min(COUNT, end - begin), BYTES, None)
            records = list(records_of(got.chunks)) if got.status is GetStatus.FOUND else []
            if not records or not all(is_copy(store, record) for record in records):
                return  # sent since, as far as anybody can tell
            begin = got.next_offset
            yield
        topics.was_deleted(topic, queue_id, end, own=True)

    def _is_lacking(self, topic: str, queue_id: int) -> bool:
        known = self._context.topics.get(topic)
        return known is None or queue_id >= max(known.read_queues, known.write_queues)

    def _newest_ms(self, topic: str, queue_id: int) -> int:
        """When the newest message of a queue was stored; 0 when there is none."""
        store = self._context.store
        return store.queue_store_time(topic, queue_id, store.max_queue_offset(topic, queue_id) - 1) or 0
