"""Is what was written long ago still what it was? A slow walk over the whole log, for ever.

Reads at most ``scrubMegabytesPerSecond`` (0 = off) of what is dispatched, oldest first, and begins again at
the end. The first pass after a start, at ``checkOnStartMegabytesPerSecond``, is made even when it is off:
recovery reads the end of the log only. Each record is checked by its own CRCs, its queue entry and its index
entries against it. Damage goes to the ledger, whose hooks ask the replicas; a wrong queue entry is made right
at once, and a missing index entry made. What is read comes from the page cache while it is there: rot below
it shows once the page was dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from model.errors import DiskError
from model.message import TRANSACTION_PREPARED
from store.commit_log import CommitLog
from store.consume_queue import ConsumeQueues
from store.damage import RECORD_BYTES_MAX, DamageLedger
from store.dispatch import Dispatcher
from store.index_file import Index
from store.indexing import Indexer
from store.pace import Pace
from store.record import BadRecord, DispatchParser, measure, whole
from store.repair import Repairer

log = logging.getLogger(__name__)

STEP_BYTES: Final = 1 << 16
IDLE_S: Final = 1.0
PASS_PAUSE_S: Final = 10.0
LOOKUP_BYTES: Final = 4096
"""What looking a key up in the index costs: a page of it."""
LOOKUPS_MAX: Final = 16
"""So many of them in one step: acknowledgements and heartbeats wait for the end of a step."""


class Scrub:
    """``at`` is how far this pass is, bytes; ``passes`` how often the whole log was read."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        dispatcher: Dispatcher,
        parser: DispatchParser,
        damage: DamageLedger,
        index: Index | None,
        indexer: Indexer,
        repairer: Repairer,
        pace: Pace,
        bytes_per_s: int,
        first_bytes_per_s: int,
    ) -> None:
        """``first_bytes_per_s`` is the rate of the pass after a start; 0 = as all others."""
        self.at = 0
        self.passes = 0
        self.damaged_found = 0
        self._log = commit_log
        self._queues = queues
        self._dispatcher = dispatcher
        self._parser = parser
        self._damage = damage
        self._index = index
        self._indexer = indexer
        self._repairer = repairer
        self._pace = pace
        self._bytes_per_s = bytes_per_s
        self._first_bytes_per_s = first_bytes_per_s
        self._lookups = 0

    async def run(self, pause: Callable[[float], Awaitable[bool]]) -> None:
        """Until ``pause`` (seconds) says that the store closes."""
        while await pause(IDLE_S):
            bytes_per_s = self.rate()
            if bytes_per_s <= 0:
                return
            try:
                while self.at < self._dispatcher.dispatched:
                    begin = self.at
                    self.step()
                    cost = max(self.at - begin, 1) + self._lookups * LOOKUP_BYTES
                    if not await pause(max(cost / bytes_per_s, self._pace.left_s)):
                        return
            except (DiskError, ValueError, OSError) as error:  # deleted or cut under our eyes, or unreadable
                log.error("the scrub stopped at %d: %s", self.at, error)
            self.at = self._log.min_offset
            self.passes += 1
            if not await pause(PASS_PAUSE_S):
                return

    def rate(self) -> int:
        """Bytes per second the pass under way, or the next one, may read; 0 when there is none."""
        return self._bytes_per_s if self.passes else self._bytes_per_s or self._first_bytes_per_s

    def step(self) -> None:
        """Check the records from ``at`` on, about STEP_BYTES of them, fewer if they have many keys. Raises
        DiskError, ValueError."""
        self._lookups = 0
        at = max(self.at, self._log.min_offset)
        known = self._damage.at(at)
        if known is not None:
            self.at = known.until
            return
        stop = self._damage.next_begin(at, self._dispatcher.dispatched)
        segment_bytes = self._log.segment_bytes
        stop = min(stop, at - at % segment_bytes + segment_bytes)
        data = self._log.read(at, min(STEP_BYTES, stop - at))
        begin = at
        try:
            while at < stop:
                size = whole(data, at - begin, at)
                if size == 0 or at - begin + size > len(data):
                    data = self._longer(data, at - begin, at, stop)
                    begin = at
                    continue
                if size < 0 and -size != segment_bytes - at % segment_bytes:
                    raise BadRecord("unreadable_region", f"the blank at {at} does not reach the end")
                if size > 0:
                    self._entry(data, at - begin, size)
                at += abs(size)
                if at - begin >= STEP_BYTES or self._lookups >= LOOKUPS_MAX:
                    break
            self.at = at
        except BadRecord as bad:
            self.at = self._repairer.note(at, bad)
            self.damaged_found += 1

    def _longer(self, data: bytes, place: int, at: int, stop: int) -> bytes:
        """The bytes from ``at`` on, with the whole record that begins there. Raises BadRecord."""
        says = int.from_bytes(data[place : place + 4], "big", signed=True) if place + 4 <= len(data) else 0
        want = max(says, STEP_BYTES)
        longer = self._log.read(at, min(want, stop - at))
        if says > min(stop - at, RECORD_BYTES_MAX) or measure(longer, 0, at, False) == 0:
            raise BadRecord("unreadable_region", f"the record at {at} says it has {says} bytes")
        return longer

    def _entry(self, data: bytes, place: int, size: int) -> None:
        item = self._parser.one(data, place, size)
        if self._index is not None and item.offset < self._indexer.at:  # the others it comes to yet
            self._lookups += bool(item.uniq_key) + len(item.keys.split())
            self._index.add_late((item,))
        queue = self._queues.get(item.topic, item.queue_id)
        if item.sys_flag & TRANSACTION_PREPARED or queue is None or item.queue_offset < queue.first_offset:
            return
        if item.queue_offset < queue.max_offset and self._repairer.enter(queue, item):
            log.error("%s/%d: entry %d was wrong", item.topic, item.queue_id, item.queue_offset)
