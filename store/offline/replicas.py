"""Which records of a log seem whole and are others in its replicas' logs, and whose bytes are right?

What no CRC covers is compared: properties, times, places in queues. The log that is mended has a voice for
all of its records, a replica for those that it has confirmed, in the same epoch, in a file of its own: one by
two names is one copy. ``store.heal.agreement`` decides. Records that differ one behind another are taken over
only when one that is the same follows: two histories differ to their ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from model.errors import DiskError
from model.message import TRANSACTION_PREPARED
from runtime.env import Disk
from store.files.epoch_file import EpochEntry
from store.files.index import Index
from store.files.index_file import IndexFile
from store.files.record import BadRecord, DispatchParser, Record, whole
from store.heal.agreement import Copy, decide
from store.offline.directory import StoreDirectory
from store.offline.index_check import Shape
from store.offline.queues.entries import EntryCheck

_BATCH_BYTES: Final = 1 << 20
RUN_BYTES_MAX: Final = 1 << 20
"""More that differs in one row is another history."""
Span = tuple[int, int]
"""A record's [begin, until) in the log."""


@dataclass(slots=True)
class Difference:
    """Bytes [``begin``, ``begin`` + size of ``data``) should be ``data``, as ``source`` has them; without
    ``data`` nothing is decided about [``begin``, ``until``), and ``why`` says why."""

    begin: int
    until: int
    data: bytes = b""
    source: str = ""
    why: str = ""


class Replica:
    """One store to compare with; ``at`` says in which epoch an offset lies there."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.store = StoreDirectory(disk, root, lenient=True)
        self.epochs = self.store.epochs()
        confirmed = self.store.checkpoint().confirm_offset
        self.limit = confirmed if confirmed > 0 else 1 << 62
        self._disk = disk
        self._files: dict[str, Hashable] = {}

    def at(self, offset: int) -> EpochEntry | None:
        place = bisect_right(self.epochs, offset, key=lambda entry: entry.start) - 1
        return self.epochs[place] if place >= 0 else None

    def file_at(self, offset: int) -> Hashable | None:
        """Which file holds a byte of the log, whatever its name; None: none does. Raises DiskError."""
        segment = self.store.segment_at(offset)
        if segment is None:
            return None
        if segment.path not in self._files:
            try:
                self._files[segment.path] = self._disk.identity(segment.path)
            except OSError as error:
                raise DiskError(f"reading {segment.path} failed: {error.strerror or error}") from error
        return self._files[segment.path]


class Comparison:
    """Compares one log with its replicas'. Of its ``records``, ``compared`` have been with a whole one of
    another; in ``alone`` are stretches of the others, those one behind another as one.

    Raises DiskError, here and on: a store or its epoch file cannot be read.
    """

    def __init__(
        self, disk: Disk, root: str, peers: Sequence[str], parser: DispatchParser, shape: Shape
    ) -> None:
        self.records = 0
        self.compared = 0
        self.alone: list[Span] = []
        self._is_alone = False  # is the last one?
        self._replicas: list[Replica] = []
        try:
            for path in (root, *peers):
                self._replicas.append(Replica(disk, path))
        except DiskError:
            self.close()
            raise
        self._own = self._replicas[0]
        self._parser = parser
        self._entries = EntryCheck(self._own.store, parser)
        self._index = Index(disk, f"{root}/index", shape.slots, shape.entries, lambda: 0)
        for path in self._own.store.index_files():
            file = IndexFile(disk, path, shape.slots, shape.entries)
            try:
                file.load()
            except DiskError:
                file.close()
            else:
                self._index.files.append(file)

    def close(self) -> None:
        for replica in self._replicas:
            replica.store.close()
        if hasattr(self, "_index"):
            self._index.close()

    def differences(self) -> Iterator[Difference]:
        """What has to be changed, or cannot be decided, in log order; adjacent places are one."""
        row: _Row | None = None
        for begin, _, found in self._judged():
            if row is not None and (found is None or begin != row.until):
                yield from row.closed(follows=found is None and begin == row.until)
                row = None
            if found is not None:
                row = row or _Row(begin)
                row.add(found)
        if row is not None:
            yield from row.closed(follows=False)

    def _judged(self) -> Iterator[tuple[int, int, Difference | None]]:
        """Each record that a replica has as well, with its difference."""
        for spans in self._batches():
            begin, until = spans[0][0], spans[-1][1]
            copies = [(peer, peer.store.log_bytes(begin, until)) for peer in self._able(begin, until)]
            if all(data == copies[0][1] for _, data in copies):
                self._count(begin, until, len(spans), compared=len(copies) > 1)
                if len(copies) > 1:
                    yield begin, until, None
                continue
            for first, stop in spans:
                parts = [(peer, data[first - begin : stop - begin]) for peer, data in copies]
                same = all(data == parts[0][1] for _, data in parts)
                judged = [] if same else [self._copy(data, first) for _, data in parts]
                compared = same or any(copy.whole for copy in judged[1:])
                self._count(first, stop, 1, compared=compared)
                if compared:
                    yield first, stop, None if same else _difference(first, stop, parts, judged)

    def _count(self, begin: int, until: int, records: int, *, compared: bool) -> None:
        self.records += records
        if compared:
            self.compared += records
        elif self._is_alone:
            self.alone[-1] = self.alone[-1][0], until
        else:
            self.alone.append((begin, until))
        self._is_alone = not compared

    def _able(self, begin: int, until: int) -> list[Replica]:
        """Whose bytes there count: ours first, which need not be confirmed."""
        epoch, able = self._own.at(begin), {self._own.file_at(begin): self._own}
        for replica in self._replicas[1:]:
            counts = until <= replica.limit and replica.at(begin) == epoch
            file = replica.file_at(begin) if counts else None
            if file is not None:
                able.setdefault(file, replica)
        return list(able.values())

    def _batches(self) -> Iterator[list[Span]]:
        """Whole records that lie one behind another in one file, of one epoch everywhere, and below the same
        limits. A limit may lie inside a record, as a slave acknowledges bytes."""
        edges: set[int] = {entry.start for replica in self._replicas for entry in replica.epochs}
        edges |= {replica.limit for replica in self._replicas}
        edges |= {segment.start for replica in self._replicas for segment in replica.store.segments()}
        borders = sorted(edges)
        batch: list[Span] = []
        stop = 0  # a batch ends before the record that goes on behind it
        for item in self._own.store.records():
            if not isinstance(item, Record):
                continue
            at, until = item.physical_offset, item.physical_offset + item.size
            if batch and (at != batch[-1][1] or until > stop):
                yield batch
                batch = []
            if not batch:
                border = bisect_right(borders, at)
                stop = min([at + _BATCH_BYTES, *borders[border : border + 1]])
            batch.append((at, until))
        if batch:
            yield batch

    def _copy(self, data: bytes, offset: int) -> Copy:
        try:
            is_whole = bool(data) and whole(data, 0, offset, prop_crc=False) == len(data)
        except BadRecord:
            is_whole = False
        return Copy(data, is_whole, is_whole and self._named(data))

    def _named(self, data: bytes) -> bool:
        """Do our queue and index say of the record what ``data`` says?"""
        item = self._parser.one(data, 0, len(data))
        if not item.sys_flag & TRANSACTION_PREPARED:
            entry = self._entries.entry(item.topic, item.queue_id, item.queue_offset)
            if entry != (item.offset, item.size, item.tags_code):
                return False
        return not self._index.files or self._index.names(item)


def _difference(
    begin: int, until: int, parts: list[tuple[Replica, bytes]], copies: list[Copy]
) -> Difference | None:
    """``parts``: the first is our own. ``copies``: the same, judged."""
    right = decide(copies, by_operator=True)
    if right == copies[0].data:
        return None
    if right is None:
        whole_ones = sum(copy.whole for copy in copies)
        why = f"{whole_ones} copies differ, and neither their number nor queue and index decide"
        return Difference(begin, until, why=why)
    source = next(peer.store.root for peer, data in parts if data == right)
    return Difference(begin, until, right, source)


_HISTORY: Final = "no record behind them is the same everywhere: another history, or the log's end rotted"
_TOO_MUCH: Final = f"more than {RUN_BYTES_MAX >> 20} MiB on end differ: another history"


class _Row:
    """Records that differ one behind another. They are exchanged together, or none is: two histories differ
    to their ends, or for long."""

    def __init__(self, begin: int) -> None:
        self.begin = self.until = begin
        self._parts: list[Difference] = []  # side by side, each decided or not, of one source
        self._records = 0

    def add(self, found: Difference) -> None:
        self.until, self._records = found.until, self._records + 1
        last = self._parts[-1] if self._parts else None
        if last is None or (bool(last.why), last.source) != (bool(found.why), found.source):
            self._parts.append(found)
        else:
            last.until = found.until
            last.data += found.data
        if self.until - self.begin > RUN_BYTES_MAX and any(not part.why for part in self._parts):
            self._parts = [Difference(self.begin, self.until, why=_TOO_MUCH)]

    def closed(self, *, follows: bool) -> Iterator[Difference]:
        """``follows``: a record that is the same everywhere."""
        for part in self._parts:
            if not part.why and self._records > 1 and not follows:
                part.data, part.why = b"", _HISTORY
            yield part


def goes_on_behind(disk: Disk, root: str, peers: Sequence[str], end: int) -> int:
    """Where a record of this log ends that stands behind what looks like the log's end; 0 if there is none,
    or no replica shows that the log was longer: with the same record there, and one at ``end``, in the same
    epochs."""
    try:
        own = Replica(disk, root)
    except DiskError:
        return 0  # its epoch file tells nothing
    try:
        record = _first_record(own.store, end)
        if record is None:
            return 0
        until = record.physical_offset + record.size
        return until if any(_shows(disk, path, own, record, end) for path in peers) else 0
    finally:
        own.store.close()


def _first_record(store: StoreDirectory, begin: int) -> Record | None:
    for segment in store.segments():
        for item in store.segment_records(segment) if segment.end > begin else ():
            if isinstance(item, Record) and item.physical_offset >= begin:
                return item
    return None


def _shows(disk: Disk, path: str, own: Replica, record: Record, end: int) -> bool:
    begin, until = record.physical_offset, record.physical_offset + record.size
    try:
        peer = Replica(disk, path)
    except DiskError:
        return False
    try:
        same = peer.store.log_bytes(begin, until) == own.store.log_bytes(begin, until)
        epochs = all(own.at(at) == peer.at(at) for at in (end, begin))
        return same and epochs and until <= peer.limit and peer.store.is_sound(end)
    finally:
        peer.store.close()
