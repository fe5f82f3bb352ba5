"""Does the queue entry at a record's place name the record?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from model.message import LMQ_PREFIX, SCHEDULE_TOPIC, TRANSACTION_PREPARED
from store.files.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE, TAGS_CODE_MIN
from store.files.record import BadRecord, DispatchParser, Record, measure
from store.offline.directory import SegmentInfo, StoreDirectory

_BLOCK_BYTES: Final = ENTRY_BYTES * 4096
_ZEROS: Final = bytes(_BLOCK_BYTES)

Entry = tuple[int, int, int]
"""Physical offset, size, tags code."""


class WrongEntry(NamedTuple):
    """In the file ``path`` at byte ``at`` stands ``found``, and should ``wanted``."""

    path: str
    at: int
    found: Entry
    wanted: Entry


class Hole(NamedTuple):
    """At the places [``begin``, ``until``) of a queue nothing stands that can be an entry, and entries that
    are right behind them, from ``physical`` on in the log. ``zeros``: nothing at all."""

    begin: int
    until: int
    physical: int
    zeros: bool


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
        if offset in self.unbelieved:
            return False
        return self._names_its_record((record.topic, record.queue_id), record.queue_offset, offset, size)

    def _names_its_record(self, queue: tuple[str, int], place: int, offset: int, size: int) -> bool:
        return self.says(offset, size) == (*queue, place)

    def says(self, offset: int, size: int) -> tuple[str, int, int] | None:
        """Topic, queue id and queue offset, as the record of ``size`` bytes at ``offset`` says; None: none
        is there."""
        if size == PRE_BLANK_SIZE or size <= 0 or offset < 0:
            return None
        data = self._store.record_bytes(offset, size)
        try:
            if not data or measure(data, 0, offset, False) != size:
                return None
        except BadRecord:
            return None
        found = self._parser.one(data, 0, size)
        return found[2], found[3], found[4]

    def place_of(self, topic: str, queue_id: int, queue_offset: int) -> tuple[str, int] | None:
        """The file with a place of a queue, and where in it the entry stands."""
        return self._place(topic, queue_id, queue_offset)

    def holes(self, topic: str, queue_id: int, place: int = 0) -> Iterator[Hole]:
        """From ``place`` on. A broker enters one message behind the other: what it killed, or an audit, may
        say of a queue's end does not go for places before an entry that is there."""
        begin, zeros, following = -1, True, -1
        for at, raw in self.blocks(topic, queue_id, place):
            if begin < 0 <= following < at:
                begin = following
            following = at + len(raw) // ENTRY_BYTES
            if raw == _ZEROS[: len(raw)]:
                begin = at if begin < 0 and raw else begin
                continue
            for here, (offset, size, tags) in enumerate(ENTRY.iter_unpack(raw), at):
                if size <= 0:
                    begin = here if begin < 0 else begin
                    zeros = zeros and not (offset or size or tags)
                elif begin >= 0 and self._names_its_record((topic, queue_id), here, offset, size):
                    yield Hole(begin, here, offset, zeros)
                    begin, zeros = -1, True

    def named_behind(self, queue: tuple[str, int], place: int) -> Iterator[tuple[int, int, int, int]]:
        """Place and entry, of messages, from the first place on behind ``place`` at which nothing stands, or
        no file is. No reader gets there."""
        ended, following = False, -1
        for at, raw in self.blocks(*queue, place, gaps=True):
            ended = ended or at > following >= 0
            following = at + len(raw) // ENTRY_BYTES
            if raw == _ZEROS[: len(raw)]:
                ended = ended or bool(raw)
                continue
            for here, entry in enumerate(ENTRY.iter_unpack(raw), at):
                if entry[1] <= 0:
                    ended = True
                elif ended and entry[1] != PRE_BLANK_SIZE:
                    yield here, *entry

    def blocks(
        self, topic: str, queue_id: int, place: int = 0, *, gaps: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """The entries of a queue's files in a row, with the place of the first of each block; what was never
        written is left out. Each file begins with a block of none. ``gaps``: also of those behind a file that
        is missing. A light queue's entries name records of other queues."""
        end = None
        for file in self._store.queue_files(topic, queue_id) if not topic.startswith(LMQ_PREFIX) else ():
            if not gaps and end not in (None, file.start):
                return
            end, at = file.end, max(place * ENTRY_BYTES - file.start, 0)
            yield (file.start + at) // ENTRY_BYTES, b""
            while at + ENTRY_BYTES <= file.size and (data := self._store.data_from(file.path, at)):
                at = max(at, data[0] - data[0] % ENTRY_BYTES)
                stop = min(data[1] + ENTRY_BYTES - 1, file.size)
                raw = self._store.read(file.path, min(_BLOCK_BYTES, stop - at), at)
                raw = raw[: len(raw) - len(raw) % ENTRY_BYTES]
                if not raw:
                    break
                yield (file.start + at) // ENTRY_BYTES, raw
                at += len(raw)

    def _first_of(self, key: tuple[str, int]) -> int:
        """The queue offset of the first entry that stands for a message."""
        if key not in self._firsts:
            self._firsts[key] = next((index for index, *_ in self._store.queue_entries(*key)), 1 << 62)
        return self._firsts[key]
