"""What does a store directory hold, without opening it as a broker would?

Nothing is locked and nothing is changed; a broker may run on the directory meanwhile. Works on directories of
RocketMQ 5.x and on those written here: sizes are taken from the files. ``store.offline.verify`` judges what
is found.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from model import message as m
from model.compression import plain_pieces
from model.errors import DiskError
from model.read_ahead import Ahead
from runtime.env import Disk, File, read_file
from store.files import consume_queue as cq
from store.files.checkpoint import READ_BYTES as CHECKPOINT_BYTES
from store.files.checkpoint import Checkpoint
from store.files.damage import FILE_NAME, DamagedRange, Resync, load_ranges
from store.files.epoch_file import EpochEntry
from store.files.epoch_file import decode as decode_epochs
from store.files.record import (
    BLANK_BYTES,
    HEAD,
    BadRecord,
    Record,
    decode,
    measure,
    whole,
)
from store.files.segment import NAME_DIGITS

BLOCK_BYTES: Final = 4 << 20
FILE_BYTES_MAX: Final = (1 << 31) - 1
"""RocketMQ keeps the size of a file of log, queue or index as an int; there are no larger ones here."""
NOT_REGULAR: Final = "not a regular file"
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
            if len(name) == NAME_DIGITS and name.isdigit():
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
        """The files of the CommitLog, oldest first."""
        return self._listing(self._log_path)

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
            here = window.place(at)
            offset = segment.start + at
            try:
                if check_crc:
                    size = whole(window.data, here, offset, prop_crc=False)
                else:
                    size = measure(window.data, here, offset, False)
            except BadRecord as bad:
                head = HEAD.unpack_from(window.data.ljust(here + HEAD.size, b"\0"), here)
                if bad.kind != "unreadable_region":  # its parts fit: the next record is where it says
                    following: int | None = at + int(head[0])
                else:
                    following = window.resync(at)
                if following is not None:
                    yield Damage(bad.kind, offset, segment.start + following, segment.name, str(bad))
                    at = following
                    continue
                until = window.data_end(at)
                if until > at:
                    if head[6] == offset and head[0] > 0:  # a record began here: it tells its own end
                        until = max(until, min(at + int(head[0]), segment.size))
                    yield Damage(bad.kind, offset, segment.start + until, segment.name, str(bad))
                return
            if size == 0:
                if not window.grow(at):
                    yield Damage(
                        "unreadable_region", offset, segment.end, segment.name, "cut off by the file's end"
                    )
                    return
                continue
            if size < 0:
                if at - size != segment.size:
                    yield Damage(
                        "unreadable_region", offset, segment.end, segment.name, "a blank of wrong length"
                    )
                return
            yield decode(window.data, here, check_crc=False)
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
        says = int.from_bytes(self.log_bytes(offset, offset + 4), "big", signed=True)
        return self.log_bytes(offset, offset + size) if says == size else b""

    def record_at(self, offset: int) -> Record | None:
        """The record that begins at ``offset``; its CRC is not looked at."""
        segment = self.segment_at(offset)
        size = int.from_bytes(self.log_bytes(offset, offset + 4), "big")
        if segment is None or size > segment.end - offset:
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
            for topic in self._disk.listdir(root)
            for name in sorted(self._disk.listdir(f"{root}/{topic}"))
            if name.isdigit()
        ]

    def queue_files(self, topic: str, queue_id: int) -> list[SegmentInfo]:
        """The files of one queue, oldest first."""
        return self._listing(f"{self.root}/consumequeue/{topic}/{queue_id}")

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
            if len(name) == 17 and name.isdigit() and self._fit(f"{self.root}/index/{name}") is not None
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


class _Window:
    """A piece of a segment in memory (``data``), moved along."""

    def __init__(self, store: StoreDirectory, segment: SegmentInfo) -> None:
        self.segment = segment
        self.data = b""
        self._store, self._begin = store, 0
        self._ahead = Ahead(lambda at, size: store.read(segment.path, size, at), segment.size, BLOCK_BYTES)
        self._resync = Resync(self._ahead, segment.start, segment.size, self._data_from)

    def place(self, position: int) -> int:
        """Where ``position`` is in ``data``, with as many bytes as a head has behind it, if there are."""
        return self._moved(self._ahead.at(position, HEAD.size))

    def _moved(self, here: int) -> int:
        self.data = self._ahead.data
        self._store.progress(max(self._ahead.base - self._begin, 0))
        self._begin = self._ahead.base
        return here

    def grow(self, position: int) -> bool:
        """Read on until the record at ``position`` is in ``data``; False when the segment is too short."""
        here = self.place(position)
        size = int.from_bytes(self.data[here : here + 4], "big")
        if position + size > self.segment.size or size <= len(self.data) - here:
            return False
        here = self._moved(self._ahead.at(position, size))
        return len(self.data) - here >= size

    def resync(self, position: int) -> int | None:
        """The position of the next whole record behind ``position``."""
        return self._resync.behind(position)

    def data_end(self, position: int) -> int:
        """The position behind the last byte that is not zero, at or behind ``position``."""
        end = at = position
        while at < self.segment.size and (found := self._data_from(at)) is not None:
            at, stop = found[0], min(found[1], self.segment.size)
            while at < stop and (
                block := self._store.read(self.segment.path, min(BLOCK_BYTES, stop - at), at)
            ):
                kept = len(block.rstrip(b"\0"))
                end, at = at + kept if kept else end, at + len(block)
            if at < stop:
                break  # somebody cut the file
        return end

    def _data_from(self, position: int) -> tuple[int, int] | None:
        return self._store.data_from(self.segment.path, position)


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
