"""What does a store directory hold, without opening it as a broker would?

Nothing is locked and nothing is changed; a broker may run on the directory meanwhile. Works on directories of
RocketMQ 5.x and on those written here: sizes are taken from the files. ``store.offline.verify`` judges what
is found.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from model import message as m
from model.compression import plain_pieces
from model.errors import DiskError
from model.ids import is_number
from model.read_ahead import Ahead
from runtime.env import Disk, File, read_file
from store.files import consume_queue as cq
from store.files.checkpoint import READ_BYTES as CHECKPOINT_BYTES
from store.files.checkpoint import Checkpoint
from store.files.damage import FILE_NAME, DamagedRange, Resync, load_ranges, may_have
from store.files.epoch_file import EpochEntry
from store.files.epoch_file import decode as decode_epochs
from store.files.record import (
    BLANK_BYTES,
    HEAD,
    MAGIC_BLANK,
    BadRecord,
    Record,
    decode,
    measure,
    whole,
)
from store.files.segment import is_segment_name

BLOCK_BYTES: Final = 4 << 20
FILE_BYTES_MAX: Final = (1 << 31) - 1
"""RocketMQ keeps the size of a file of log, queue or index as an int; there are no larger ones here."""
NOT_REGULAR: Final = "not a regular file"
NO_FOLDER: Final = "a file where a queue's folder should be: keelmq does not start with it; move it away"
NOTE_BYTES_MAX: Final = 256 << 20
"""As the largest table that the audit reads."""
NEW_INDEX: Final = ".index-rebuilt"
"""There from the first file of a new index until the last one is in its place."""
SIGNS: Final = ("commitlog", "checkpoint", "epochFileCheckpoint")
"""A store has one of these from its first start on."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A file of the CommitLog or of a queue: where it starts and how long it is, bytes."""

    start: int
    size: int
    path: str

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [``physical_offset``, ``until``) are not what they should be; ``kind`` is the audit's word."""

    kind: str
    physical_offset: int
    until: int
    file: str
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "physicalOffset": self.physical_offset,
            "until": self.until,
            "file": self.file,
            "text": self.text,
        }


def must_be_store(disk: Disk, root: str) -> None:
    """Raises DiskError unless ``root`` is the directory of a store: a wrong path is no empty, whole log."""
    if not disk.is_dir(root):
        raise DiskError(f"{root}: there is no such directory")
    if not any(disk.exists(f"{root}/{name}") for name in SIGNS):
        raise DiskError(f"{root} holds no store: it has none of {', '.join(SIGNS)}")


class StoreDirectory:
    """Reads one store. Raises DiskError when a file cannot be read."""

    def __init__(self, disk: Disk, root: str, *, lenient: bool = False) -> None:
        """``lenient``: the store is read without those files of log, queues and index that no store can hold;
        else the first one is an error."""
        self.unfit: dict[str, str] = {}
        """Those, by their paths below the root, as far as they were met; and why."""
        self.surplus: dict[int, int] = {}
        """Of segments, by their starts: how many bytes their files have behind them."""
        self._lenient = lenient
        self.root = root.rstrip("/") or "/"
        self.progress: Callable[[int], None] = lambda size: None
        """Hears how many bytes of the log were read on, for a progress bar."""
        self.stopped_cleanly = not disk.exists(f"{self.root}/abort")
        self._disk = disk
        self._log_path = f"{self.root}/commitlog"
        self._epoch_path = f"{self.root}/epochFileCheckpoint"
        self._files: dict[str, File] = {}
        self._segments: list[SegmentInfo] | None = None
        must_be_store(disk, self.root)

    def __enter__(self) -> StoreDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def read(self, path: str, size: int, at: int) -> bytes:
        """Up to ``size`` bytes of a file of the store."""
        try:
            file = self._files.get(path)
            if file is None:
                if len(self._files) > 64:
                    self.close()
                file = self._files[path] = self._disk.open(path)
            return file.pread(size, at)
        except OSError as error:
            raise DiskError(f"reading {path} failed: {error.strerror or error}") from error

    def data_from(self, path: str, at: int) -> tuple[int, int] | None:
        """As that of the open file. Raises DiskError."""
        self.read(path, 0, 0)
        try:
            return self._files[path].data_from(at)
        except OSError as error:
            raise DiskError(f"reading {path} failed: {error.strerror or error}") from error

    def size(self, path: str) -> int:
        """Bytes of a file of the store."""
        self.read(path, 0, 0)
        return self._files[path].size()

    def _listing(self, path: str) -> list[SegmentInfo]:
        found: list[SegmentInfo] = []
        for name in self._disk.listdir(path):
            if is_segment_name(name):
                size = self._fit(f"{path}/{name}")
                if size is not None:
                    found.append(SegmentInfo(int(name), size, f"{path}/{name}"))
        return found

    def _fit(self, path: str) -> int | None:
        """Bytes of a file that a store may hold; None if it is another one."""
        try:
            size = self._disk.size(path)
            if size is not None and size <= FILE_BYTES_MAX:
                return size
            many = f"{size} bytes, no such file has more than {FILE_BYTES_MAX}"
            why = NOT_REGULAR if size is None else many
        except OSError as error:
            folder, _, name = path.rpartition("/")
            if isinstance(error, FileNotFoundError) and name not in self._disk.listdir(folder):
                return None  # retention took it just now
            why = error.strerror or str(error)
        if not self._lenient:
            raise DiskError(f"{path}: {why}")
        self.unfit[path.removeprefix(f"{self.root}/")] = why
        return None

    # -- CommitLog -------------------------------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """The files of the CommitLog, oldest first. What one holds behind its segment's end is left out."""
        found = self._listing(self._log_path)
        size = _segment_bytes(found)
        self.surplus = {one.start: one.size - size for one in found if size and one.size > size}
        return [replace(one, size=size) if one.start in self.surplus else one for one in found]

    def records(
        self, begin: int = 0, end: int | None = None, *, check_crc: bool = True
    ) -> Iterator[Record | Damage]:
        """Records that start in [``begin``, ``end``) in log order, and what lies between them that is none.

        Behind bytes that are no record the walk goes on at the next whole record, if there is one. A record
        whose CRC or own offset is wrong comes as Damage.
        """
        for segment in self.segments():
            if segment.end <= begin or (end is not None and segment.start >= end):
                continue
            for item in self.segment_records(segment, check_crc=check_crc):
                at = item.physical_offset
                if end is not None and at >= end:
                    return
                if at >= begin:
                    yield item

    def segment_records(self, segment: SegmentInfo, *, check_crc: bool = True) -> Iterator[Record | Damage]:
        """All of one segment, as ``records``."""
        window = _Window(self, segment)
        at = 0
        while at + BLANK_BYTES <= segment.size:
            try:
                size = window.measure(at, check_crc=check_crc)
            except BadRecord as bad:
                head = window.head(at)
                following = window.behind(at, bad, head)
                until = window.data_end(at, head) if following is None else following
                if until > at:
                    yield Damage(bad.kind, segment.start + at, segment.start + until, segment.name, str(bad))
                if following is None:
                    return
                at = following
                continue
            if size < 0:
                return
            yield decode(window.data, at - window.base, check_crc=False)
            at += size

    def segment_at(self, offset: int) -> SegmentInfo | None:
        """The segment that holds a byte of the log."""
        if self._segments is None:
            self._segments = self.segments()
        place = bisect_right(self._segments, offset, key=lambda segment: segment.start) - 1
        return self._segments[place] if place >= 0 and offset < self._segments[place].end else None

    def log_bytes(self, begin: int, until: int) -> bytes:
        """The bytes [``begin``, ``until``) of the log, as far as the segment with ``begin`` has them."""
        segment = self.segment_at(begin)
        if segment is None:
            return b""
        return self.read(segment.path, max(min(until, segment.end) - begin, 0), begin - segment.start)

    def record_bytes(self, offset: int, size: int) -> bytes:
        """The bytes of the log at ``offset`` if what begins there says that it has ``size``; else none: who
        asks may have any number from the disk."""
        segment = self.segment_at(offset)
        if segment is None or not may_have(size, segment.end - offset):
            return b""
        says = int.from_bytes(self.log_bytes(offset, offset + 4), "big", signed=True)
        return self.log_bytes(offset, offset + size) if says == size else b""

    def is_sound(self, offset: int) -> bool:
        """Does a whole record, or a blank, stand there?"""
        segment = self.segment_at(offset)
        if segment is None:
            return False
        try:
            return whole_at(self.ahead_in(segment, HEAD.size), offset - segment.start, segment) != 0
        except BadRecord:
            return False

    def ahead_in(self, segment: SegmentInfo, piece_bytes: int = BLOCK_BYTES) -> Ahead:
        """The bytes of a segment, by their positions in it."""
        return Ahead(lambda at, size: self.read(segment.path, size, at), segment.size, piece_bytes)

    def written_until(self, segment: SegmentInfo, offset: int) -> int:
        """Behind the last byte of the segment, at or behind ``offset``, that is not zero."""
        return segment.start + _data_end(self, segment, offset - segment.start)

    def record_at(self, offset: int) -> Record | None:
        """The record that begins at ``offset``; its CRC is not looked at."""
        segment = self.segment_at(offset)
        size = int.from_bytes(self.log_bytes(offset, offset + 4), "big")
        if segment is None or not may_have(size, segment.end - offset):
            return None
        try:
            record = decode(self.log_bytes(offset, offset + size), check_crc=False)
        except BadRecord:
            return None
        return record if record.physical_offset == offset else None

    # -- what is made from it --------------------------------------------------------------------------

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue folder."""
        root = f"{self.root}/consumequeue"
        return [
            (topic, int(name))
            for topic in self._folders(root)
            for name in self._folders(f"{root}/{topic}", digits=True)
        ]

    def _folders(self, path: str, *, digits: bool = False) -> list[str]:
        """The names of the folders at ``path``."""
        names = sorted(self._disk.listdir(path)) if self._is_folder(path) else []
        named = (name for name in names if not digits or (name.isascii() and name.isdigit()))
        return [name for name in named if self._is_folder(f"{path}/{name}")]

    def _is_folder(self, path: str) -> bool:
        """A file there is none that a store can hold."""
        if self._disk.is_dir(path):
            return True
        if self._disk.exists(path):  # else a topic was deleted just now
            if not self._lenient:
                raise DiskError(f"{path}: {NO_FOLDER}")
            self.unfit[path.removeprefix(f"{self.root}/")] = NO_FOLDER
        return False

    def queue_files(self, topic: str, queue_id: int) -> list[SegmentInfo]:
        """The files of one queue, oldest first."""
        path = f"{self.root}/consumequeue/{topic}/{queue_id}"
        return self._listing(path) if self._is_folder(path) else []

    def damaged(self) -> list[DamagedRange]:
        """What the ledger of a keelmq broker says of this store."""
        path = f"{self.root}/{FILE_NAME}"
        if self._disk.exists(path):
            self._must_be_note(path)
        return load_ranges(self._disk, path)

    def queue_entries(self, topic: str, queue_id: int) -> Iterator[tuple[int, int, int, int]]:
        """(index, physical offset, size, tags code) of a queue up to its first empty entry, or file that is
        missing; entries that stand for no message are left out."""
        end = None
        for file in self.queue_files(topic, queue_id):
            if end not in (None, file.start):
                return
            end = file.end
            index = file.start // cq.ENTRY_BYTES
            for at in range(0, file.size - cq.ENTRY_BYTES + 1, cq.ENTRY_BYTES * 4096):
                raw = self.read(file.path, min(cq.ENTRY_BYTES * 4096, file.size - at), at)
                for offset, size, tags_code in cq.ENTRY.iter_unpack(
                    raw[: len(raw) - len(raw) % cq.ENTRY_BYTES]
                ):
                    if size <= 0:
                        return
                    if size != cq.PRE_BLANK_SIZE:
                        yield index, offset, size, tags_code
                    index += 1

    @property
    def index_half_made(self) -> bool:
        """Was a repair cut short while it put a new index in place?"""
        return self._disk.is_dir(f"{self.root}/{NEW_INDEX}")

    def index_files(self) -> list[str]:
        """Paths of the index files, oldest first."""
        return [
            f"{self.root}/index/{name}"
            for name in self._disk.listdir(f"{self.root}/index")
            if len(name) == 17 and is_number(name) and self._fit(f"{self.root}/index/{name}") is not None
        ]

    def epochs(self) -> list[EpochEntry]:
        """The epochs; none when there is no file. Raises DiskError when it is damaged."""
        if not self._disk.exists(self._epoch_path):
            return []
        self._must_be_note(self._epoch_path)
        return decode_epochs(read_file(self._disk, self._epoch_path))

    def _must_be_note(self, path: str) -> None:
        """Raises DiskError: who reads a note reads all of it."""
        size = self._disk.size(path)
        if size is None or size > NOTE_BYTES_MAX:
            raise DiskError(f"{path}: {NOT_REGULAR if size is None else f'{size} bytes'}")

    @property
    def has_checkpoint(self) -> bool:
        return self._disk.exists(f"{self.root}/checkpoint")

    def checkpoint(self) -> Checkpoint:
        path = f"{self.root}/checkpoint"
        return (
            Checkpoint.decode(self.read(path, CHECKPOINT_BYTES, 0))
            if self._disk.exists(path)
            else Checkpoint()
        )


def _segment_bytes(found: list[SegmentInfo]) -> int:
    """How long segments are, where a file may have more behind its own: as far as most begin behind another,
    if there is a file of that size. 0: no file tells."""
    apart = Counter(b.start - a.start for a, b in pairwise(found))
    size = max(apart, key=lambda size: apart[size], default=0)
    return size if any(one.size == size for one in found) else 0


def whole_at(
    ahead: Ahead, at: int, segment: SegmentInfo, *, check_crc: bool = True, prop_crc: bool = False
) -> int:
    """Bytes of the record at position ``at`` of a segment, all of which are in ``ahead`` then; of a blank
    that is right there, negative. Raises BadRecord for all else: no size is believed that can be none."""
    left, offset, wanted = segment.size - at, segment.start + at, HEAD.size
    while True:
        here = ahead.at(at, wanted)
        if check_crc:
            size = whole(ahead.data, here, offset, prop_crc=prop_crc)
        else:
            size = measure(ahead.data, here, offset, False)
        if size > 0:
            return size
        if size < 0:
            if -size != left:
                raise BadRecord("unreadable_region", "a blank of wrong length")
            return size
        says = int.from_bytes(ahead.data[here : here + 4], "big")
        if wanted != HEAD.size or not may_have(says, left):
            raise BadRecord("unreadable_region", f"it says it has {says} bytes, {left} are left")
        wanted = says


def _data_end(store: StoreDirectory, segment: SegmentInfo, position: int) -> int:
    """The position behind the last byte that is not zero, at or behind ``position``."""
    end = at = position
    while at < segment.size and (found := store.data_from(segment.path, at)) is not None:
        at, stop = found[0], min(found[1], segment.size)
        while at < stop and (block := store.read(segment.path, min(BLOCK_BYTES, stop - at), at)):
            kept = len(block.rstrip(b"\0"))
            end, at = at + kept if kept else end, at + len(block)
        if at < stop:
            break  # somebody cut the file
    return end


class _Window:
    """A piece of a segment in memory (``data``), moved along."""

    def __init__(self, store: StoreDirectory, segment: SegmentInfo) -> None:
        self.segment = segment
        self._store, self._begin = store, 0
        self._ahead = store.ahead_in(segment)
        self._resync = Resync(
            self._ahead, segment.start, segment.size, lambda at: store.data_from(segment.path, at)
        )

    @property
    def data(self) -> bytes:
        return self._ahead.data

    @property
    def base(self) -> int:
        """The position with which ``data`` begins."""
        return self._ahead.base

    def place(self, position: int) -> int:
        """Where ``position`` is in ``data``, with as many bytes as a head has behind it, if there are."""
        return self._ahead.at(position, HEAD.size)

    def measure(self, position: int, *, check_crc: bool) -> int:
        """As ``whole_at``."""
        size = whole_at(self._ahead, position, self.segment, check_crc=check_crc)
        if self._ahead.base != self._begin:
            self._store.progress(max(self._ahead.base - self._begin, 0))
            self._begin = self._ahead.base
        return size

    def head(self, position: int) -> tuple[int, ...]:
        here = self.place(position)
        found: tuple[int, ...] = HEAD.unpack(self.data[here : here + HEAD.size].ljust(HEAD.size, b"\0"))
        return found

    def behind(self, position: int, bad: BadRecord, head: tuple[int, ...]) -> int | None:
        """Where the log goes on behind what is no record: its position, None if it is nowhere in the
        segment."""
        if bad.kind != "unreadable_region":  # its parts fit: the next record is where it says
            return position + head[0]
        return self._resync.behind(position)

    def data_end(self, position: int, head: tuple[int, ...]) -> int:
        """Where what stands at ``position``, behind which no record is whole, ends: as far as it says
        itself, if something is written there."""
        end, left = _data_end(self._store, self.segment, position), self.segment.size - position
        if end > position and head[1] == MAGIC_BLANK:
            return self.segment.size
        if end > position and head[6] == self.segment.start + position and may_have(head[0], left):
            return max(end, position + head[0])
        return end


def dump(record: Record) -> dict[str, Any]:
    """One record as JSON-ready values; ``bodyLen`` and ``bodySha256`` are of the decompressed body.

    When it cannot be unpacked, or is longer than PLAIN_BYTES_MAX, both are null and ``bodyUnread`` says why.
    """
    properties = m.decode_properties(record.properties)
    offset_id = m.message_id(record.store_host, record.physical_offset)
    body_bytes, digest, unread = _digest(record)
    values: dict[str, Any] = {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.physical_offset,
        "storeSize": record.size,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bodyCRC": record.body_crc,
        "msgId": properties.get(m.UNIQ_KEY, offset_id),
        "offsetMsgId": offset_id,
        "bornTimestamp": record.born_timestamp_ms,
        "storeTimestamp": record.store_timestamp_ms,
        "bornHost": "/" + m.decode_host(record.born_host),
        "storeHost": "/" + m.decode_host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "properties": properties,
        "bodyLen": body_bytes,
        "bodySha256": digest,
    }
    if unread:
        values["bodyUnread"] = unread
    return values


def _digest(record: Record) -> tuple[int | None, str | None, str]:
    """Length and SHA-256 of the decompressed body, piece by piece; or (None, None, why not)."""
    size, digest = 0, hashlib.sha256()
    try:
        for piece in plain_pieces(record.body, record.sys_flag):
            size += len(piece)
            digest.update(piece)
    except ValueError as error:
        return None, None, str(error)
    return size, digest.hexdigest(), ""
