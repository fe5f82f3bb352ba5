"""Is what was written long ago still what it was? A slow walk over the whole log, for ever.

Reads at most ``scrubMegabytesPerSecond`` (0 = off), oldest first, up to where dispatch was when the pass
began, and begins again. What is written meanwhile is for the next pass: a log that grows faster than it is
read has no end. The first pass after a start, at ``checkOnStartMegabytesPerSecond``, is made even when the
scrub is off, of what was there at the start: recovery reads the end of the log only. Each record is checked
by its own CRCs, its queue entry and its index entries against it. Damage goes to the ledger, whose hooks
ask the replicas; a wrong queue entry is made right at once, and a missing index entry made, where a CRC
covers what the record says. Else the record may be what rotted, and its entries the only ones here that tell
so: it is doubted, and replicas are asked (``Repairer.doubt``). What is read comes from the page cache while
it is there: rot below it shows once the page was dropped.

A page the disk does not give (EIO) is taken for zeros, so that the records it is in are noted as damaged,
from the first one's start to the next whole one, and the pass goes on behind them. A pass asks for it once,
and what is noted no pass reads. Such reads may take seconds each: after FAILED_READS_MAX of them a step ends,
the scrub rests FAILED_REST_S for each, and after UNREADABLE_PAGES_MAX pages the pass is over.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from model.errors import DiskError
from model.message import TRANSACTION_PREPARED
from store.files.consume_queue import ConsumeQueue
from store.files.damage import RECORD_BYTES_MAX
from store.files.record import BadRecord, Dispatch, has_prop_crc, measure
from store.files.store_files import StoreFiles
from store.flow.dispatching.store_flow import StoreFlow
from store.flow.upkeep.throttle import Throttle
from store.heal.repair import PAGE_BYTES, Repairer

log = logging.getLogger(__name__)

STEP_BYTES: Final = 1 << 16
IDLE_S: Final = 1.0
PASS_PAUSE_S: Final = 10.0
FAILED_READS_MAX: Final = 8
FAILED_REST_S: Final = 1.0
UNREADABLE_PAGES_MAX: Final = 256
LOOKUP_BYTES: Final = 4096
"""What looking a key up in the index costs: a page of it."""
LOOKUPS_MAX: Final = 16
"""So many of them in one step: acknowledgements and heartbeats wait for the end of a step."""


class _EnoughError(Exception):
    """So many reads failed in this step that others should have a turn."""


class Scrub:
    """``at`` is how far this pass is, bytes; ``passes`` how often the whole log was read; ``unreadable`` how
    many pages the disk did not give."""

    def __init__(
        self,
        files: StoreFiles,
        flow: StoreFlow,
        repairer: Repairer,
        throttle: Throttle,
        bytes_per_s: int,
        first_bytes_per_s: int,
    ) -> None:
        """``first_bytes_per_s`` is the rate of the pass after a start; 0 = as all others."""
        self.at = 0
        self.passes = 0
        self.damaged_found = 0
        self.unreadable = 0
        self._files = files
        self._flow = flow
        self._log = files.log
        self._repairer = repairer
        self._throttle = throttle
        self._bytes_per_s = bytes_per_s
        self._first_bytes_per_s = first_bytes_per_s
        self._lookups = 0
        self._failed = 0  # reads of this step
        self._bad: set[int] = set()  # where pages of this pass begin that the disk does not give
        self._skipped: set[object] = set()  # queues, or the index, that it does not give in this pass

    async def run(self, pause: Callable[[float], Awaitable[bool]]) -> None:
        """Until ``pause`` (seconds) says that the store closes."""
        end_at_start = self._log.end
        while await pause(IDLE_S):
            bytes_per_s = self.rate()
            if bytes_per_s <= 0:
                return
            until = self._flow.dispatcher.dispatched
            if not self.passes:
                until = min(until, end_at_start)
            try:
                while self.at < min(until, self._flow.dispatcher.dispatched):  # less when a cut comes
                    begin = self.at
                    self.step()
                    cost = max(self.at - begin, 1) + self._lookups * LOOKUP_BYTES
                    rest_s = self._failed * FAILED_REST_S
                    if not await pause(max(cost / bytes_per_s, self._throttle.left_s, rest_s)):
                        return
            except (DiskError, ValueError, OSError) as error:  # deleted or cut under our eyes, or unreadable
                log.error("the scrub stopped at %d: %s", self.at, error)
            self.at = self._log.min_offset
            self._bad.clear()
            self._skipped.clear()
            self.passes += 1
            if not await pause(PASS_PAUSE_S):
                return

    def rate(self) -> int:
        """Bytes per second the pass under way, or the next one, may read; 0 when there is none."""
        return self._bytes_per_s if self.passes else self._bytes_per_s or self._first_bytes_per_s

    def step(self) -> None:
        """Check the records from ``at`` on, about STEP_BYTES of them, fewer if they have many keys. Raises
        DiskError, ValueError."""
        self._lookups = self._failed = 0
        try:
            self._step()
        except _EnoughError:
            return  # the next one goes on from there, and knows these pages

    def _step(self) -> None:
        at = max(self.at, self._log.min_offset)
        known = self._files.damage.at(at)
        if known is not None:
            self.at = known.until
            return
        stop = self._files.damage.next_begin(at, self._flow.dispatcher.dispatched)
        segment_bytes = self._log.segment_bytes
        stop = min(stop, at - at % segment_bytes + segment_bytes)
        data = self._read(at, min(STEP_BYTES, stop - at))
        begin = at
        try:
            while at < stop:
                size = self._log.whole(data, at - begin, at)
                if size == 0 or at - begin + size > len(data):
                    data = self._longer(data, at - begin, at, stop)
                    begin = at
                    continue
                if size < 0 and -size != segment_bytes - at % segment_bytes:
                    raise BadRecord("unreadable_region", f"the blank at {at} does not reach the end")
                if self._is_bad(at, at + abs(size)):
                    raise BadRecord("unreadable_region", "the disk does not give it")
                if size > 0:
                    self._entry(data, at - begin, size)
                at += abs(size)
                if at - begin >= STEP_BYTES or self._lookups >= LOOKUPS_MAX:
                    break
            self.at = at
        except BadRecord as bad:
            if self._is_bad(at, at + STEP_BYTES):
                bad = BadRecord("unreadable_region", f"the disk does not give all that is there: {bad}")
            self.at = self._repairer.note(at, bad, self._read)
            self.damaged_found += 1

    def _longer(self, data: bytes, place: int, at: int, stop: int) -> bytes:
        """The bytes from ``at`` on, with the whole record that begins there. Raises BadRecord."""
        says = int.from_bytes(data[place : place + 4], "big", signed=True) if place + 4 <= len(data) else 0
        want = max(says, STEP_BYTES)
        longer = self._read(at, min(want, stop - at))
        if says > min(stop - at, RECORD_BYTES_MAX) or measure(longer, 0, at, False) == 0:
            raise BadRecord("unreadable_region", f"the record at {at} says it has {says} bytes")
        return longer

    def _is_bad(self, begin: int, until: int) -> bool:
        """Is a byte of [``begin``, ``until``) in a page known to be unreadable?"""
        return bool(self._bad) and any(page + PAGE_BYTES > begin and page < until for page in self._bad)

    def _read(self, at: int, size: int) -> bytes:
        """As the log's ``read``; zeros for pages the disk does not give. Raises _EnoughError, ValueError, and
        DiskError after too many of them in this pass."""
        base = at - at % self._log.segment_bytes
        until = min(at + size, self._log.end, base + self._log.segment_bytes)
        if not self._is_bad(at, until):
            try:
                return self._log.read(at, size)
            except DiskError as error:
                log.error("[%d, %d) cannot be read at once, reading page by page: %s", at, until, error)
                self._failed += 1
        pieces: list[bytes] = []
        while at < until:
            page = at - (at - base) % PAGE_BYTES
            stop = min(page + PAGE_BYTES, until)
            pieces.append(bytes(stop - at) if page in self._bad else self._piece(page, at, stop))
            at = stop
        return b"".join(pieces)

    def _piece(self, page: int, at: int, stop: int) -> bytes:
        try:
            return self._log.read(at, stop - at)
        except DiskError as error:
            self._bad.add(page)
            self.unreadable += 1
            self._failed += 1
            if len(self._bad) >= UNREADABLE_PAGES_MAX:
                raise DiskError(f"{len(self._bad)} pages cannot be read: {error}") from error
            if self._failed >= FAILED_READS_MAX:
                raise _EnoughError from error
            return bytes(stop - at)

    def _entry(self, data: bytes, place: int, size: int) -> None:
        item = self._flow.parser.one(data, place, size)
        index = self._files.index
        proven = self._log.prop_crc and has_prop_crc(data, place + size)
        # The others it comes to yet.
        if index is not None and item.offset < self._flow.indexer.at and index not in self._skipped:
            self._lookups += bool(item.uniq_key) + len(item.keys.split())
            try:
                if proven:
                    index.add_late((item,))
                elif index.missing(item):
                    self._repairer.doubt(item)
            except (DiskError, OSError) as error:
                self._skip(index, f"the index, asked for the record at {item.offset}: {error}")
        queue = self._files.queues.get(item.topic, item.queue_id)
        if queue in self._skipped:
            return
        try:
            self._enter(queue, item, proven)
        except (DiskError, OSError) as error:
            self._skip(queue, f"{item.topic}/{item.queue_id}, entry {item.queue_offset}: {error}")

    def _skip(self, what: object, text: str) -> None:
        log.error("skipped in this pass: %s", text)
        self._failed += 1
        self._skipped.add(what)

    def _enter(self, queue: ConsumeQueue | None, item: Dispatch, proven: bool) -> None:
        if item.sys_flag & TRANSACTION_PREPARED or queue is None or item.queue_offset < queue.first_offset:
            return
        if item.queue_offset >= queue.max_offset:
            return
        entry = queue.entry(item.queue_offset)
        if not proven and entry is not None and entry[:2] == (item.offset, item.size):
            if entry[2] != item.tags_code and self._repairer.tells_tags(entry[2], item.topic):
                self._repairer.doubt(item)
        elif self._repairer.enter(queue, item):
            log.warning(
                "%s/%d: queue entry %d was wrong, and was made from its record at %d",
                *(item.topic, item.queue_id, item.queue_offset, item.offset),
            )
