"""How do the queues and the index of a store no broker runs on come back, when only the log is left?

Queues are completed: entries that are there and right stay, what lacks behind them is made from the log. An
index is made anew as a whole, beside the one there is, whose place it takes when it is durable: a crash in
between leaves the old one, or none, and the next call makes it again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from model.queue_sizes import Told, opens
from runtime.env import Disk, File
from store.files.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK, PRE_BLANK_SIZE
from store.files.index import Index
from store.files.record import Dispatch, DispatchParser, Record
from store.offline.directory import NEW_INDEX, SegmentInfo, StoreDirectory
from store.offline.index_check import Shape
from store.offline.queues.begins import FOLDER
from store.offline.queues.growing import Growing
from store.offline.queues.places import Placed, Queue, Says, placed, right_ones
from store.offline.queues.sizes import queue_files

_BATCH: Final = 1024
_BLANKS: Final = 1 << 14
_OPEN_MAX: Final = 64
_UNDER_WAY: Final = ".made"
"""Behind the name of a queue's file that is being made: to readers it is none."""


def complete_queues(
    disk: Disk,
    store: StoreDirectory,
    told: Told,
    parser: DispatchParser,
    end: int,
    unsure: Container[int] = (),
) -> int:
    """Make the queue entries that lack of the log up to ``end``; returns how many. No entry that is there is
    judged, or goes for one that is made, but where a queue goes on far ahead. A queue is left
    that lacks files between others, of which a broker drops those behind, or has one that none opens, and so
    is a record that goes on far ahead of its queue alone, or of which its entry says another place
    (``unsure``). Without a sure size no file is made. Raises
    DiskError, OSError."""
    if not told.size:
        return 0
    files = {queue: store.queue_files(*queue) for queue in store.queues()}
    left = {queue for queue, own in files.items() if _gap(own) or not all(opens(told.size, f) for f in own)}
    made, growing = 0, Growing(disk, store.root, told, files)
    try:
        for item in _to_enter(placed(store, end, unsure), left, files, told):
            record = item.record
            code = parser.tags_code(record.topic, record.properties, record.store_timestamp_ms)
            made += growing.enter(item, ENTRY.pack(record.physical_offset, record.size, code))
    finally:
        growing.sync()
    return made


def _to_enter(
    found: Iterable[Placed],
    left: Container[Queue],
    files: Mapping[Queue, Sequence[SegmentInfo]],
    told: Told,
) -> Iterator[Placed]:
    for item in found:
        record, queue = item.record, (item.record.topic, item.record.queue_id)
        if item.says in (Says.WRONG, Says.CONTRADICTED) or queue in left:
            continue
        if told.sure or _has_place(files.get(queue, ()), told.size, record.queue_offset):
            yield item


def _has_place(files: Sequence[SegmentInfo], size: int, queue_offset: int) -> bool:
    return any(file.start <= queue_offset * ENTRY_BYTES < file.start + size for file in files)


def drop_unbelieved(disk: Disk, store: StoreDirectory, end: int) -> None:
    """Remove files of queues in which nothing stands but records that do not belong there, as a repair made
    them once; ``end``: of the log. A broker that finds one drops the files before. Raises DiskError,
    OSError."""
    wrong: dict[Queue, dict[int, int]] = {}
    for record in (item.record for item in placed(store, end) if item.says is Says.WRONG):
        wrong.setdefault((record.topic, record.queue_id), {})[record.queue_offset] = record.physical_offset
    for queue, offsets in wrong.items():
        starts = {offset * ENTRY_BYTES for offset in offsets}
        for file in store.queue_files(*queue):
            if any(file.start <= at < file.end for at in starts):
                found = dict(_entries_of(store, file))
                if found and found.items() <= offsets.items():
                    disk.remove(file.path)
                    disk.sync_dir(f"{store.root}/{FOLDER}/{queue[0]}/{queue[1]}")


def _gap(files: Sequence[SegmentInfo]) -> int:
    """Before which file others lack; 0: nowhere."""
    return next((at for at in range(1, len(files)) if files[at].start != files[at - 1].end), 0)


def _entries_of(store: StoreDirectory, file: SegmentInfo) -> Iterator[tuple[int, int]]:
    """The queue offsets of a file at which messages stand, and where those begin."""
    for at in range(0, file.size, _BLANKS * ENTRY_BYTES):
        raw = store.read(file.path, min(_BLANKS * ENTRY_BYTES, file.size - at), at)
        rows = ENTRY.iter_unpack(raw[: len(raw) - len(raw) % ENTRY_BYTES])
        for place, (offset, size, _) in enumerate(rows, (file.start + at) // ENTRY_BYTES):
            if size and size != PRE_BLANK_SIZE:
                yield place, offset


class Resized(NamedTuple):
    """``done``: how many files got their size. ``short``: paths below the store of those that are still too
    short."""

    done: int
    short: list[str]


def resize_files(disk: Disk, store: StoreDirectory, told: Told) -> Resized:
    """Give the files of queues their size again. What stands in one behind it is of no place: the next file
    begins there. One that is too short ends in zeros where it is its queue's last, as a broker's start has
    it; elsewhere entries of messages have to come behind its own (``make_gone_files``). Raises OSError."""
    count, short = 0, []
    for files in queue_files(store) if told.size else ():
        for number, file in enumerate(files):
            if file.start % told.size or file.size == told.size or (file.size > told.size and not told.sure):
                continue
            if file.size < told.size and number + 1 < len(files):
                short.append(file.path.removeprefix(f"{store.root}/"))
                continue
            _resize(disk, file.path, min(file.size - file.size % ENTRY_BYTES, told.size))
            _resize(disk, file.path, told.size)
            count += 1
    return Resized(count, short)


def _resize(disk: Disk, path: str, size: int) -> None:
    file = disk.open(path)
    try:
        file.truncate(size)
        file.sync()
    finally:
        file.close()


def make_gone_files(
    disk: Disk,
    store: StoreDirectory,
    parser: DispatchParser,
    gone: Iterable[str],
    size: int,
    end: int,
    unsure: Container[int] = (),
) -> int:
    """Make files of queues anew, with the entries of all messages that the log holds, and those that stand
    in one that is too short; ``gone``: their paths below the store; ``size``: of each; ``end``: of the log.
    Returns how many entries. Raises DiskError, OSError.

    They have other names until they are durable, and get theirs the newest first: a crash leaves files that
    are still gone, or too short, and none with a part of its entries.
    """
    files = _GoneFiles(disk, store, gone, size)
    made = 0
    try:
        for record in right_ones(placed(store, end, unsure)):
            code = parser.tags_code(record.topic, record.properties, record.store_timestamp_ms)
            made += files.enter(record, ENTRY.pack(record.physical_offset, record.size, code))
        files.put_in_place()
    finally:
        files.close()
    return made


class _GoneFiles:
    """Files of queues under other names, without a message each. ``_starts``: of each queue, in bytes."""

    def __init__(self, disk: Disk, store: StoreDirectory, gone: Iterable[str], size: int) -> None:
        self._disk = disk
        self._root = store.root
        self._starts: dict[tuple[str, int], set[int]] = {}
        self._size = size
        self._open: dict[str, File] = {}
        for path in gone:
            _, topic, queue_id, start = path.split("/")
            queue = (topic, int(queue_id))
            short = next((f for f in store.queue_files(*queue) if f.start == int(start)), None)
            self._starts.setdefault(queue, set()).add(int(start))
            self._make(queue, int(start), b"" if short is None else store.read(short.path, short.size, 0))

    def _path(self, queue: tuple[str, int], start: int) -> str:
        return f"{self._root}/{FOLDER}/{queue[0]}/{queue[1]}/{start:020}"

    def _make(self, queue: tuple[str, int], start: int, there: bytes) -> None:
        file = self._file(self._path(queue, start) + _UNDER_WAY)
        there = there[: len(there) - len(there) % ENTRY_BYTES]
        left = (self._size - len(there)) // ENTRY_BYTES
        file.truncate(0)
        file.pwrite(there, 0)
        while left:
            count = min(left, _BLANKS)
            file.pwrite(PRE_BLANK * count, file.size())
            left -= count

    def enter(self, record: Record, entry: bytes) -> bool:
        """Of two records with one place the first has it."""
        queue = (record.topic, record.queue_id)
        if queue not in self._starts:
            return False
        at = record.queue_offset * ENTRY_BYTES % self._size
        start = record.queue_offset * ENTRY_BYTES - at
        if start not in self._starts[queue]:
            return False
        file = self._file(self._path(queue, start) + _UNDER_WAY)
        if file.pread(ENTRY_BYTES, at) != PRE_BLANK:
            return False
        file.pwrite(entry, at)
        return True

    def put_in_place(self) -> None:
        for queue, starts in self._starts.items():
            for start in starts:
                self._file(self._path(queue, start) + _UNDER_WAY).sync()
            for start in sorted(starts, reverse=True):
                path = self._path(queue, start)
                self._disk.replace(path + _UNDER_WAY, path)
            self._disk.sync_dir(f"{self._root}/{FOLDER}/{queue[0]}/{queue[1]}")

    def _file(self, path: str) -> File:
        file = self._open.get(path)
        if file is None:
            if len(self._open) >= _OPEN_MAX:
                self.close()
            file = self._open[path] = self._disk.open(path, create=True)
        return file

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()


def _dispatches(store: StoreDirectory, parser: DispatchParser, end: int) -> Iterator[Dispatch]:
    for record in store.records(0, end):
        if isinstance(record, Record):
            yield parser.dispatch_of(record)


def rebuild_index(
    disk: Disk, store: StoreDirectory, shape: Shape, parser: DispatchParser, now_ms: int, end: int
) -> int:
    """Make the index from the log up to ``end``; returns how many records it was made of. Raises
    DiskError, OSError."""
    aside = f"{store.root}/{NEW_INDEX}"
    if disk.is_dir(aside):
        disk.rmtree(aside)
    index = Index(disk, aside, shape.slots, shape.entries, lambda: now_ms)
    count = 0
    batch: list[Dispatch] = []
    try:
        for item in _dispatches(store, parser, end):
            count += 1
            batch.append(item)
            if len(batch) == _BATCH:
                index.put_many(batch)
                batch = []
        index.put_many(batch)
        index.begin_flush()()
        index.end_flush(True)
    finally:
        index.close()
    there = f"{store.root}/index"
    if disk.is_dir(there):
        disk.rmtree(there)
    disk.makedirs(there)
    for name in disk.listdir(aside):
        disk.replace(f"{aside}/{name}", f"{there}/{name}")
    for path in (there, aside, store.root):
        if disk.is_dir(path):
            disk.sync_dir(path)
    if disk.is_dir(aside):
        disk.rmtree(aside)
    return count
