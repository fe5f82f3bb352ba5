"""Which offset does the next message of each queue get? None is ever handed out twice.

The queues say how far dispatch is; records behind that, and what is known of lost ones, say the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from model.ids import QueueOffset
from model.message import INNER_BATCH, LMQ_PREFIX, TRANSACTION_PREPARED
from store.files.compiled import PACKED
from store.files.consume_queue import ConsumeQueue
from store.files.record import RECORD_BYTES_MIN, Dispatch
from store.files.store_files import StoreFiles
from store.flow.dispatching.dispatch import FAR_ENTRIES, messages_at
from store.flow.dispatching.walker import Walker

T = TypeVar("T")
STEP_QUEUES: Final = 512


class QueueOffsets:
    """``table``: (topic, queue id) -> offset of the next message; a queue that is not in it begins at 0."""

    def __init__(self, files: StoreFiles, walker: Walker) -> None:
        self.table: dict[tuple[str, int], QueueOffset] = {}
        self.light_queues = 0
        """How many of the table are light queues."""
        self.newest_ms = 0
        """The newest store time among the records that were behind the queues when the table was made."""
        self._log = files.log
        self._queues = files.queues
        self._walker = walker
        self._damage = files.damage

    def appended(self, dispatches: Iterable[Dispatch]) -> None:
        """Records of one message each were appended."""
        table = self.table
        if isinstance(dispatches, PACKED):
            dispatches.advance(table)
            return
        for _, _, topic, queue_id, queue_offset, _, _, _, _, sys_flag in dispatches:
            if not sys_flag & TRANSACTION_PREPARED:
                table[topic, queue_id] = queue_offset + 1  # type: ignore[assignment]  # no call a message

    def clear(self) -> None:
        """There are no queues any more."""
        self.table.clear()
        self.light_queues = 0

    def check_none_given_twice(self) -> None:
        """Raise if the next offset of a queue is one it holds already. True while this store's own writer
        appends: a slave makes the table anew before it leads."""
        for queue in self._queues:
            _check(queue, self.table)

    def rebuild(self, dispatched: int) -> None:
        """Make the table from the queues and every record from ``dispatched`` (bytes) on."""
        for _ in self.rebuilding(dispatched):
            pass

    def rebuilding(self, dispatched: int) -> Iterator[None]:
        """``rebuild`` in steps: of 160,000 queues it takes 140 ms. Nothing is appended between them; what is
        dispatched meanwhile is counted once. The table is there when the last step was made, and is as it was
        until then.

        Raises as ``check_none_given_twice``.
        """
        newest_ms, table = 0, dict[tuple[str, int], QueueOffset]()
        undispatched = set[tuple[str, int]]()
        for queues in _batches(self._queues):
            table.update(((q.topic, q.queue_id), QueueOffset(q.max_offset)) for q in queues)
            yield
        for found, _ in self._walker.parsed(dispatched, self._log.end):
            for item in found:
                newest_ms = max(newest_ms, item.store_timestamp_ms)
                if not item.sys_flag & TRANSACTION_PREPARED:
                    key = (item.topic, item.queue_id)
                    undispatched.add(key)
                    inner = item.sys_flag & INNER_BATCH
                    count = messages_at(self._log, item.offset, item.size) if inner else 1
                    table[key] = QueueOffset(max(table.get(key, 0), item.queue_offset + count))
            yield
        yield from self._begin_at(table, undispatched, here=False)
        self._step_over_lost(table)
        yield from self._begin_at(table, undispatched, here=True)
        light_queues = 0
        for keys in _batches(table):
            light_queues += sum(topic.startswith(LMQ_PREFIX) for topic, _ in keys)
            yield
        for queues in _batches(self._queues):
            for queue in queues:
                _check(queue, table)
            yield
        self.table, self.light_queues, self.newest_ms = table, light_queues, newest_ms

    def _begin_at(
        self,
        table: dict[tuple[str, int], QueueOffset],
        undispatched: Container[tuple[str, int]],
        *,
        here: bool,
    ) -> Iterator[None]:
        """Queues of which the log has nothing go on where they are known to have ended. One it has messages
        of goes on behind those: what is known of it was ahead of the log, and the log was lost.

        Those that are not ``here`` come before damage is stepped over, the others after it: what is known of
        them may hold that step."""
        for known in _batches(self._queues.starts.items()):
            for topic, starts in known:
                for queue_id, start in starts.items():
                    key, queue = (topic, queue_id), self._queues.get(topic, queue_id)
                    gone = queue is None or queue.max_physical <= self._log.min_offset
                    if here is (queue is not None) and gone and key not in undispatched:
                        table[key] = QueueOffset(max(table.get(key, 0), start))
            yield

    def _step_over_lost(self, table: dict[tuple[str, int], QueueOffset]) -> None:
        """Hand out no queue offset a lost record may have had: of records nothing is known of, any queue
        that nothing was appended to since may have held as many as there was room for. No further than who
        dispatches the next record believes, here and at every replica."""
        if not self._damage.ranges:
            return
        steps = Counter[tuple[str, int]]()
        ends = {(queue.topic, queue.queue_id): queue.max_physical for queue in self._queues}
        for item in self._damage.ranges:
            for one in item.lost:
                key = (one.topic, one.queue_id)
                table[key] = QueueOffset(max(table.get(key, 0), one.queue_offset + 1))
            unknown = item.until - item.begin - sum(one.size for one in item.lost)
            if unknown >= RECORD_BYTES_MIN:
                room = unknown // RECORD_BYTES_MIN
                steps.update({key: room for key in table if ends.get(key, 0) <= item.begin})
        for key, step in steps.items():
            table[key] = QueueOffset(table[key] + min(step, FAR_ENTRIES))


def _check(queue: ConsumeQueue, table: dict[tuple[str, int], QueueOffset]) -> None:
    following = table.get((queue.topic, queue.queue_id), 0)
    assert queue.max_offset <= following, (
        f"{queue.topic}/{queue.queue_id} holds {queue.max_offset} messages, "
        f"the next would get offset {following}"
    )


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    """``STEP_QUEUES`` at a time, of those that are there now."""
    left = iter(list(items))
    while batch := list(islice(left, STEP_QUEUES)):
        yield batch
