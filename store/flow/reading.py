"""What does a queue hold from an offset on, when was it stored, and which messages carry a key?"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Final

from model.errors import DiskError
from model.message import KEYS, LMQ_PREFIX, UNIQ_KEY, property_of
from store.files.commit_log import CommitLog
from store.files.compiled import compiled
from store.files.consume_queue import ENTRY, PRE_BLANK_SIZE, ConsumeQueue
from store.files.damage import DamageLedger, may_have
from store.files.index_file import STILL_LOOKING
from store.files.record import (
    BLANK_BYTES,
    HEAD,
    RECORD_BYTES_MIN,
    BadRecord,
    Record,
    blank,
    body_of,
    decode,
    measure,
    store_timestamp_of,
)
from store.files.store_files import StoreFiles
from store.flow.dispatching.multi_dispatch import places as light_places

SCAN_ENTRIES_MAX: Final = 800
"""Entries one get looks at when a filter wants few of them."""
_FILTERED_ENTRIES: Final = 512  # looked at together where a filter wants few of them
QUERY_BYTES_MAX: Final = 8 << 20
"""Of what one look by key gives, unless the first message is longer: no client takes an answer of 16 MiB."""
LONG_RECORD_BYTES: Final = 256 << 10
_SPAN_BYTES_MAX: Final = 1 << 20
_SPARSE: Final = 8
"""Copying so many bytes costs less than a read of its own for each record."""
_STORE_TIME_BYTES: Final = 76
HEAD_BYTES_MAX: Final = 128
"""What stands before a body has fewer."""
REST_BYTES_MAX: Final = 2 + 65_535 + 2 + 65_535
"""Topic and properties."""
_PLACE: Final = struct.Struct(">i8xi4xqq")
assert _PLACE.size == 36, "what a record says of its place: size, queue id, queue offset, physical offset"

log = logging.getLogger(__name__)


class GetStatus(Enum):
    """How a read of a queue ended; the broker maps them to response codes."""

    FOUND = "FOUND"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    NO_MATCHED = "NO_MATCHED"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    NO_QUEUE = "NO_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"
    """Of no read: an operator has the group go on elsewhere."""


@dataclass(slots=True)
class Got:
    """``chunks`` together are ``count`` whole records in queue order; a chunk may hold several.

    ``next_offset`` is where to read on, ``min_offset`` and ``max_offset`` what the queue holds (messages).
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    chunks: list[bytes]
    count: int


class _Places:
    """The records of one read, as their queue entries name them: ``max_bytes`` together, but always one.

    ``rotten``: where it ended before an entry that names no record there can be.
    """

    __slots__ = ("_bytes_left", "_damage", "_log", "_max_count", "full", "places", "rotten")

    def __init__(self, log: CommitLog, damage: DamageLedger, max_count: int, max_bytes: int) -> None:
        self.places: list[tuple[int, int, int]] = []  # physical offset, size, queue offset
        self.rotten: int | None = None
        self.full = False
        self._log = log
        self._damage = damage if damage.ranges else None
        self._max_count = max_count
        self._bytes_left = max_bytes

    def take(self, at: int, raw: bytes, wanted: Container[int] | None) -> int:
        """Look at the entries ``raw``, the first of which is ``at``; the queue offset behind the last one."""
        places, damage, bytes_left = self.places, self._damage, self._bytes_left
        log_min, log_end, segment_bytes = self._log.min_offset, self._log.end, self._log.segment_bytes
        for at, (physical, size, tags_code) in enumerate(ENTRY.iter_unpack(raw), at):  # noqa: B020
            if (
                size == PRE_BLANK_SIZE
                or 0 <= physical < log_min
                or (wanted is not None and tags_code not in wanted)
            ):
                continue
            if damage is not None and damage.overlaps(physical, physical + size):
                continue  # lost, until it is repaired
            left = segment_bytes - physical % segment_bytes
            if physical < 0 or not RECORD_BYTES_MIN <= size <= left or physical + size > log_end:
                self.rotten, self.full = at, True
                return at
            if places and size > bytes_left:
                self.full = True
                return at
            places.append((physical, size, at))
            bytes_left -= size
            if len(places) >= self._max_count:
                self.full = True
                break
        self._bytes_left = bytes_left
        return at + 1


def _outside(offset: int, low: int, high: int) -> Got:
    """What is said of an offset that no entry has."""
    if high == 0 or low == high:
        return Got(GetStatus.NO_MESSAGE_IN_QUEUE, high, low, high, [], 0)
    if offset < low:
        return Got(GetStatus.OFFSET_TOO_SMALL, low, low, high, [], 0)
    if offset == high:
        return Got(GetStatus.OFFSET_OVERFLOW_ONE, high, low, high, [], 0)
    return Got(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0)


def looked_at_max(max_count: int, wanted: Container[int] | None) -> int:
    """How many entries of a queue are looked at in one go, for up to ``max_count`` records."""
    return _FILTERED_ENTRIES if wanted is not None else max_count


class Reader:
    """Reads what was dispatched. Raises DiskError when the disk does."""

    def __init__(self, files: StoreFiles) -> None:
        self.mend_entry: Callable[[str, int, int], bool] = lambda topic, queue_id, index: False
        """Asked to make right an entry (topic, queue id, queue offset) whose record is not where it says."""
        self._log = files.log
        self._damage = files.damage
        self._queues = files.queues
        self._table = files.queues.table()
        self._index = files.index
        module = compiled()
        self._maps = None if module is None else module.Maps()
        self._read_plain: Callable[..., tuple[bytes, int, int] | None] | None = (
            None if module is None else partial(module.read_plain, self._maps)
        )

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        wanted: Container[int] | None,
    ) -> Got:
        """Up to ``max_count`` records from queue offset ``offset``, ``max_bytes`` together (but always one),
        of those whose tags code is in ``wanted``."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            start = self._queues.start_of(topic, queue_id)
            status = GetStatus.NO_MESSAGE_IN_QUEUE if start else GetStatus.NO_QUEUE
            return Got(status, start, start, start, [], 0)
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return _outside(offset, low, high)
        found = self._gather(queue, offset, max_count, max_bytes, wanted)
        if found is not None:
            return Got(GetStatus.FOUND, found[2], low, high, [found[0]], found[1])
        at, tried = offset, -1
        while True:
            places, chunks, following, rotten = self._read(queue, at, max_count, max_bytes, wanted)
            if places:
                return Got(GetStatus.FOUND, following, low, high, chunks, len(places))
            if rotten is None:
                break
            if tried >= 0:  # one a read, so that its work is bounded
                following = max(rotten, tried + 1)
                break
            # A reader must not pass over a message that the log has. One it does not have is passed over.
            tried = rotten
            at = rotten if self.mend_entry(topic, queue_id, rotten) else rotten + 1
        if following == offset:
            return Got(GetStatus.OFFSET_FOUND_NULL, low, low, high, [], 0)
        return Got(GetStatus.NO_MATCHED, following, low, high, [], 0)

    def _gather(
        self, queue: ConsumeQueue, at: int, max_count: int, max_bytes: int, wanted: Container[int] | None
    ) -> tuple[bytes, int, int] | None:
        """What ``_read`` finds, compiled: (records, how many, the queue offset behind the last entry looked
        at). None: there is something that is not plain (``runtime/native/pulls.pxi``), or lies elsewhere."""
        if self._read_plain is None or self._damage.ranges or queue.topic.startswith(LMQ_PREFIX):
            return None
        looked_at = looked_at_max(max_count, wanted)
        return self._read_plain(queue, self._log, at, looked_at, max_count, max_bytes, wanted)

    def plain(self, topic: str) -> tuple[object, dict[tuple[str, int], ConsumeQueue], CommitLog] | None:
        """What compiled code reads a topic's queues with: the maps of the log, the queues, and the log; None:
        ``get`` has to."""
        if self._maps is None or self._damage.ranges or topic.startswith(LMQ_PREFIX):
            return None
        return self._maps, self._table, self._log

    def _read(
        self,
        queue: ConsumeQueue,
        at: int,
        max_count: int,
        max_bytes: int,
        wanted: Container[int] | None,
    ) -> tuple[list[tuple[int, int, int]], list[bytes], int, int | None]:
        """(places, chunks, the queue offset behind the last one, that of a wrong entry it ended before).

        What lies before a wrong entry goes first: the next read begins at that one.
        """
        found, following = self._places(queue, at, max_count, max_bytes, wanted)
        places, rotten = found.places, found.rotten
        chunks = self._fetch(places) if places else []
        if places and not self._are_right(queue, places, chunks):
            places, rotten = self._right_ones(queue, places)
            chunks = [self._exactly(at, size) for at, size, _ in places]
        return places, chunks, following if rotten is None else rotten, rotten

    def _are_right(
        self, queue: ConsumeQueue, places: list[tuple[int, int, int]], chunks: list[bytes]
    ) -> bool:
        """Does each record say that it lies where, and is what, its entry names?"""
        if queue.topic.startswith(LMQ_PREFIX):
            return self._are_light(queue, places)
        unpack = _PLACE.unpack_from
        queue_id = queue.queue_id
        rest = iter(chunks)
        chunk, at = next(rest), 0
        for offset, size, index in places:
            if at == len(chunk):
                chunk, at = next(rest), 0
            if unpack(chunk, at) != (size, queue_id, index, offset):
                return False
            at += size
        return True

    def _are_light(self, queue: ConsumeQueue, places: list[tuple[int, int, int]]) -> bool:
        """The same for a light queue: does each record name it, and its offset there?"""
        for offset, size, index in places:
            data = self._exactly(offset, size)
            try:
                if measure(data, 0, offset, False) != size:
                    return False
            except BadRecord:
                return False
            record = decode(data, check_crc=False)
            if (queue.topic, index) not in light_places(record.topic, record.properties):
                return False
        return True

    def _right_ones(
        self, queue: ConsumeQueue, places: list[tuple[int, int, int]]
    ) -> tuple[list[tuple[int, int, int]], int]:
        """Those before the first whose record is another one, and that one's queue offset."""
        for number, (offset, size, index) in enumerate(places):
            if not self._are_right(queue, [places[number]], [self._exactly(offset, size)]):
                log.error("%s/%d %d: no such record at %d", queue.topic, queue.queue_id, index, offset)
                return places[:number], index
        raise AssertionError("one of them is wrong")

    def _places(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        wanted: Container[int] | None,
    ) -> tuple[_Places, int]:
        """The records to send, and the queue offset behind the last looked at."""
        found = _Places(self._log, self._damage, max_count, max_bytes)
        at = offset
        stop = offset + max(SCAN_ENTRIES_MAX, max_count)
        while at < stop and not found.full:
            count = _FILTERED_ENTRIES if wanted is not None else max_count - len(found.places)
            raw = queue.read(at, min(stop - at, count))
            if not raw:
                break
            at = found.take(at, raw, wanted)
        return found, at

    def _fetch(self, places: list[tuple[int, int, int]]) -> list[bytes]:
        """The records at ``places``. Neighbours come in one piece; scattered ones that lie close are read at
        once and sliced."""
        first, (last, last_size, _) = places[0][0], places[-1]
        span = last + last_size - first
        segment_bytes = self._log.segment_bytes
        total = sum(place[1] for place in places)
        if total == span and first // segment_bytes == last // segment_bytes:
            return [self._exactly(first, span)]
        if (
            total < span <= min(_SPARSE * total + 4096, _SPAN_BYTES_MAX)
            and first // segment_bytes == last // segment_bytes
        ):
            data = self._exactly(first, span)
            return [data[at - first : at - first + size] for at, size, _ in places]
        chunks: list[bytes] = []
        begin, end = places[0][0], places[0][0]
        for at, size, _ in places:
            if at != end or at % segment_bytes == 0:
                if end > begin:
                    chunks.append(self._exactly(begin, end - begin))
                begin = at
            end = at + size
        chunks.append(self._exactly(begin, end - begin))
        return chunks

    def _exactly(self, offset: int, size: int) -> bytes:
        data = self._log.read(offset, size)
        if len(data) != size:
            raise DiskError(f"a queue names {size} bytes at {offset}, the log has {len(data)}")
        return data

    def record_bytes(self, physical_offset: int) -> int:
        """How long the record is that starts there, if one does; 0 where none can."""
        if not self._log.min_offset <= physical_offset < self._log.end:
            return 0
        head = self._log.read(physical_offset, HEAD.size)
        if len(head) < HEAD.size:
            return 0
        size = int(HEAD.unpack_from(head)[0])
        left = self._log.segment_bytes - physical_offset % self._log.segment_bytes
        left = min(left, self._log.end - physical_offset)
        return size if size >= RECORD_BYTES_MIN and may_have(size, left) else 0

    def lookup(self, physical_offset: int) -> bytes | None:
        """The record that starts there, or None: beyond the log, or no record."""
        size = self.record_bytes(physical_offset)
        if not size:
            return None
        data = self._log.read(physical_offset, size)
        try:
            return data if measure(data, 0, physical_offset) == size else None
        except BadRecord:
            return None

    def without_body(self, physical_offset: int) -> Record | None:
        """As ``lookup``, decoded, with an empty body: of a long record its ends alone are read, and nothing
        of the body is looked at."""
        size = self.record_bytes(physical_offset)
        data = self._log.read(physical_offset, min(size, HEAD_BYTES_MAX)) if size else b""
        if len(data) < RECORD_BYTES_MIN:
            return None
        body_at, body_bytes = body_of(data)
        rest_at = body_at + body_bytes
        if not (body_bytes >= 0 and rest_at < size):
            return None
        rest = self._log.read(physical_offset + rest_at, min(size - rest_at, REST_BYTES_MAX))
        head = bytearray(data[:body_at])
        struct.pack_into(">i", head, 0, size - body_bytes)
        struct.pack_into(">i", head, body_at - 4, 0)
        try:
            found = decode(bytes(head) + rest, check_crc=False)
        except BadRecord:
            return None
        return replace(found, size=size) if found.physical_offset == physical_offset else None

    def starts_record(self, offset: int) -> bool:
        """Does a record or the blank of a segment start there?"""
        head = self._log.read(offset, BLANK_BYTES)
        left = self._log.segment_bytes - offset % self._log.segment_bytes
        if head == blank(left):
            return True
        return self.lookup(offset) is not None

    def store_time(self, physical_offset: int) -> int | None:
        """Store timestamp (ms) of the record there, unchecked; None outside of the log."""
        if not self._log.min_offset <= physical_offset < self._log.end:
            return None
        head = self._log.read(physical_offset, _STORE_TIME_BYTES)
        return store_timestamp_of(head) if len(head) == _STORE_TIME_BYTES else None

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool) -> int:
        """The first queue offset stored at or after ``timestamp_ms`` (the end when there is none);
        ``upper``: the last one stored at or before it (the first kept when there is none)."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return self._queues.start_of(topic, queue_id)
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            entry = queue.entry(middle)
            stored = self.store_time(entry[0]) if entry and entry[1] != PRE_BLANK_SIZE else None
            if stored is None or stored < timestamp_ms or (upper and stored == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.min_offset) if upper else low

    def offset_behind(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """The first queue offset whose message lies behind ``physical_offset``, or the end."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return self._queues.start_of(topic, queue_id)
        place = lambda at: (queue.entry(at) or (-1,))[0]  # noqa: E731
        kept = range(queue.min_offset, queue.max_offset)
        return queue.min_offset + bisect_right(kept, physical_offset, key=place)

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> Iterator[list[bytes] | None]:
        """The newest records of ``topic``, up to ``max_count`` and ``QUERY_BYTES_MAX``, one at least, that
        carry ``key`` as unique key or among their keys, stored within [begin_ms, end_ms], in log order; each
        was read and compared.

        None again and again while it looks, so that others can have a turn; then the records, once.
        """
        found: dict[int, bytes] = {}
        size = looked_at = 0
        for offset in self._index.find(topic, key, begin_ms, end_ms) if self._index is not None else ():
            if len(found) >= max_count:
                break
            if offset == STILL_LOOKING or looked_at >= LONG_RECORD_BYTES:
                looked_at = 0
                yield None
            data = self.lookup(offset) if offset not in found and offset != STILL_LOOKING else None
            if data is None:
                continue
            looked_at += len(data)  # also of those that have another key with the same hash
            record = decode(data, check_crc=False)
            if (
                record.topic == topic
                and _has_key(record, key)
                and begin_ms <= record.store_timestamp_ms <= end_ms
            ):
                size += len(data)
                if found and size > QUERY_BYTES_MAX:
                    break
                found[offset] = data
        yield [found[offset] for offset in sorted(found)]


def _has_key(record: Record, key: str) -> bool:
    """Whether it is the unique key of a record, or one of its keys."""
    keys = (property_of(record.properties, KEYS) or "").split(" ")
    return key == property_of(record.properties, UNIQ_KEY) or key in keys
