"""Does the queue entry at a record's place name the record?"""

from __future__ import annotations

from typing import NamedTuple

from model.message import SCHEDULE_TOPIC, TRANSACTION_PREPARED
from store.files.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE, TAGS_CODE_MIN
from store.files.record import BadRecord, DispatchParser, Record, measure
from store.offline.directory import SegmentInfo, StoreDirectory

Entry = tuple[int, int, int]
"""Physical offset, size, tags code."""


class WrongEntry(NamedTuple):
    """In the file ``path`` at byte ``at`` stands ``found``, and should ``wanted``."""

    path: str
    at: int
    found: Entry
    wanted: Entry


class EntryCheck:
    """Looks records up in their queues."""

    def __init__(self, store: StoreDirectory, parser: DispatchParser) -> None:
        self._store = store
        self._parser = parser
        self._files: dict[tuple[str, int], list[SegmentInfo]] = {}
        self._firsts: dict[tuple[str, int], int] = {}
        self.unbelieved: set[int] = set()
        """Where records begin that do not stand in their queues where they say."""

    def _place(self, topic: str, queue_id: int, queue_offset: int) -> tuple[str, int] | None:
        key = (topic, queue_id)
        files = self._files.get(key)
        if files is None:
            files = self._files[key] = self._store.queue_files(*key)
        at = queue_offset * ENTRY_BYTES
        file = next((f for f in files if f.start <= at <= f.end - ENTRY_BYTES), None)
        return None if file is None else (file.path, at - file.start)

    def entry(self, topic: str, queue_id: int, queue_offset: int) -> Entry | None:
        """What stands at a place; None where no file has it."""
        place = self._place(topic, queue_id, queue_offset)
        return None if place is None else self._read(*place)

    def _read(self, path: str, at: int) -> Entry:
        found: Entry = ENTRY.unpack(self._store.read(path, ENTRY_BYTES, at).ljust(ENTRY_BYTES, b"\0"))
        return found

    def wrong(self, record: Record, *, zeros: bool = False) -> WrongEntry | None:
        """The entry at the record's place, when it is there and names no record of this place.

        A place without an entry yet is wrong only with ``zeros``. What a queue begins with that stands for no
        message is never: its topic was deleted since, or retention took it.
        """
        if record.sys_flag & TRANSACTION_PREPARED:
            return None
        key = (record.topic, record.queue_id)
        place = self._place(*key, record.queue_offset)
        if place is None:
            return None
        found = self._read(*place)
        tags_code = self._parser.tags_code(record.topic, record.properties, record.store_timestamp_ms)
        wanted = (record.physical_offset, record.size, tags_code)
        if not any(found):
            return WrongEntry(*place, found, wanted) if zeros else None
        if found == wanted or self._may_stand(found, wanted, record):
            return None
        if found[1] == PRE_BLANK_SIZE and record.queue_offset < self._first_of(key):
            return None
        return WrongEntry(*place, found, wanted)

    def _may_stand(self, found: Entry, wanted: Entry, record: Record) -> bool:
        """Of two records with one queue offset the first keeps it; when a delayed message is due, and where
        an extension lies, only the writer knew."""
        offset, size, tags_code = found
        if found[:2] == wanted[:2]:
            return record.topic == SCHEDULE_TOPIC or tags_code < TAGS_CODE_MIN
        if size == PRE_BLANK_SIZE or size <= 0 or offset < 0 or offset in self.unbelieved:
            return False
        data = self._store.record_bytes(offset, size)
        try:
            if measure(data, 0, offset, False) != size:
                return False
        except BadRecord:
            return False
        other = self._parser.one(data, 0, size)
        return other[2:5] == (record.topic, record.queue_id, record.queue_offset)

    def _first_of(self, key: tuple[str, int]) -> int:
        """The queue offset of the first entry that stands for a message."""
        if key not in self._firsts:
            self._firsts[key] = next((index for index, *_ in self._store.queue_entries(*key)), 1 << 62)
        return self._firsts[key]
