"""Which entries of queues name nothing that can be theirs, when all that the log holds is entered?

    the entry names                                odd
    the record of its place                        no
    a record that its own place names, too         yes
    what retention took                            behind a place whose record the log holds
    what lies behind the log's end                 before a place whose record the log holds
    bytes of damage, of a segment that is gone     no: they may be all that is left of a message
    other bytes of the log                         yes

No other entry is judged by an odd one. It becomes one that stands for no message, so that its queue does not
end there. Where the log tells that the queue ended before it, nothing stands there then, whether or not zeros
stood before it. Light queues are left out: their entries name records of others.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from runtime.env import Disk
from store.files.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK, PRE_BLANK_SIZE
from store.files.record import DispatchParser, Record
from store.offline.directory import SegmentInfo, StoreDirectory
from store.offline.queues.entries import EntryCheck
from store.offline.queues.places import Queue, QueuePlaces, Says, far_ahead, places_of
from store.offline.written import Written

_HOLES_MAX: Final = 1000
"""With more damage than that the log tells nothing of what it does not hold."""
_NOTHING: Final = bytes(ENTRY_BYTES)


class OddEntries:
    """``end``: where the log ends, bytes; ``unsure``: as ``QueuePlaces`` has it. Reads the log once; keeps
    two numbers a queue."""

    def __init__(
        self, store: StoreDirectory, parser: DispatchParser, end: int, unsure: Container[int]
    ) -> None:
        self._store = store
        self._check = EntryCheck(store, parser)
        self._end = end
        self._unsure = unsure
        self._begin = next((segment.start for segment in store.segments()), end)
        self._first: dict[Queue, int] = {}  # place of the first record that the log holds
        self._following: dict[Queue, int] = {}  # the place behind the last one
        self._holes: list[tuple[int, int]] = []
        self._read_log()

    def _read_log(self) -> None:
        places = QueuePlaces(far_ahead(self._store), self._unsure)
        told_to = self._begin
        for item in self._store.records(0, self._end):
            self._untold(told_to, item.physical_offset)
            if isinstance(item, Record):
                told_to = item.physical_offset + item.size
                for found in places.take(item):
                    self._note(found.record, found.says)
            else:
                told_to = item.until
                self._hole(item.physical_offset, item.until)
        self._untold(told_to, self._end)
        for found in places.rest():
            self._note(found.record, found.says)

    def _untold(self, begin: int, until: int) -> None:
        """What neither a record nor damage was told of is the blank that ends a segment, or damage as well:
        zeros up to its end."""
        while begin < until:
            segment = self._store.segment_at(begin)
            stop = until if segment is None else min(segment.end, until)
            if not self._store.is_sound(begin):
                self._hole(begin, stop)
            begin = stop

    def _hole(self, begin: int, until: int) -> None:
        if len(self._holes) <= _HOLES_MAX:
            self._holes.append((begin, until))

    def _note(self, record: Record, says: Says) -> None:
        if says is Says.WRONG:
            self._check.unbelieved.add(record.physical_offset)
        if says is Says.RIGHT:
            queue, place = (record.topic, record.queue_id), record.queue_offset
            self._first[queue] = min(self._first.get(queue, place), place)
            self._following[queue] = max(self._following.get(queue, 0), place + places_of(record))

    def _is_odd(self, queue: Queue, place: int, offset: int, size: int) -> bool:
        says = self._check.says(offset, size)
        if says is not None:
            own = self._check.entry(*says)
            named = own is not None and own[:2] == (offset, size)
            return says != (*queue, place) and named and offset not in self._check.unbelieved
        if 0 <= offset < self._begin:
            return place > self._first.get(queue, place)
        if offset + size > self._end:
            return place < self._following.get(queue, 0)
        return not self._may_be_lost(offset, offset + size)

    def _may_be_lost(self, begin: int, until: int) -> bool:
        if len(self._holes) > _HOLES_MAX or (begin >= 0 and self._store.segment_at(begin) is None):
            return True
        return any(at < until and begin < stop for at, stop in self._holes)

    def mend(self, disk: Disk, files: Written) -> int:
        """Returns how many there were. Raises DiskError, OSError."""
        made = 0
        for queue in self._store.queues():
            following = self._following.get(queue, 1 << 62)
            behind, first = range(0), -1  # of odd ones behind ``following``: those of this row, and the first
            for place, offset, size in self._entries(queue):
                if size == PRE_BLANK_SIZE:
                    continue
                if size <= 0:
                    made += self._write(files, queue, behind, _NOTHING)
                    first, behind = behind.start if behind and first < 0 else first, range(0)
                elif not self._is_odd(queue, place, offset, size):
                    made += self._write(files, queue, behind, PRE_BLANK)
                    behind = range(0)
                elif place < following:
                    made += self._write(files, queue, range(place, place + 1), PRE_BLANK)
                else:
                    behind = range(behind.start if behind else place, place + 1)
            if first >= 0:
                files.sync()
                self._remove_empty(disk, queue, first)
        return made

    def _entries(self, queue: Queue) -> Iterator[tuple[int, int, int]]:
        """Place, physical offset and size; a size of 0 where a row ends: no entry stands there, or no file
        has the place."""
        following = 0
        for at, raw in self._check.blocks(*queue, gaps=True):
            written = bool(raw.strip(b"\0"))
            if at > following or (raw and not written):
                yield following, 0, 0
            following = at + len(raw) // ENTRY_BYTES
            for place, (offset, size, _) in enumerate(ENTRY.iter_unpack(raw) if written else (), at):
                yield place, offset, max(size, 0)
        yield following, 0, 0

    def _write(self, files: Written, queue: Queue, places: range, entry: bytes) -> int:
        """Over all entries but those that stand for no message; these only, where nothing is to be left."""
        made = 0
        for place in places:
            found = self._check.entry(*queue, place)
            if found is not None and (found[1] != PRE_BLANK_SIZE or entry == _NOTHING):
                files.put(self._check.place_of(*queue, place), entry)
                made += 1
        return made

    def _remove_empty(self, disk: Disk, queue: Queue, place: int) -> None:
        """The last files of a queue in which nothing stands, from a place on: RocketMQ looks for a queue's
        end in its last three."""
        self._store.close()
        files = self._store.queue_files(*queue)
        while len(files) > 1 and files[-1].start >= place * ENTRY_BYTES and self._is_empty(files[-1]):
            self._store.close()
            disk.remove(files[-1].path)
            disk.sync_dir(files[-1].path.rpartition("/")[0])
            del files[-1]

    def _is_empty(self, file: SegmentInfo) -> bool:
        at = 0
        while at < file.size and (data := self._store.data_from(file.path, at)):
            raw = self._store.read(file.path, min(data[1] - data[0], 1 << 16), data[0])
            if any(raw):
                return False
            at = data[0] + max(len(raw), 1)
        return True
