"""Stores for the tests: the real broker's trios, and small logs written record by record."""

from __future__ import annotations

import shutil
import struct
import zlib
from pathlib import Path

from audit.reading.layout import Replica, load
from audit.reading.log_ends import find_ends
from audit.reading.records.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from audit.reading.storage import StoreSpec
from model.message import java_hash
from tests import GOLDEN, unpack_archive

STORES = GOLDEN / "store"
SEGMENT = 4096


def unpack(name: str, into: Path) -> Path:
    """A store (or trio) of the real broker; returns the directory of that name."""
    unpack_archive(STORES / f"{name}.tar.gz", into)
    return into / name


def ledger_of(name: str) -> Path:
    return STORES / f"{name}.ledger.jsonl"


def trio(name: str, state: str, into: Path) -> list[Path]:
    return [unpack(name, into) / state / f"b{i}" for i in range(3)]


def body_crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF


def record(
    offset: int,
    queue_offset: int,
    body: bytes,
    *,
    key: str = "",
    topic: str = "T",
    queue_id: int = 0,
    sys_flag: int = 0,
    stamp: int = 1000,
    properties: bytes | None = None,
    v2: bool = False,
) -> bytes:
    """One record as a broker writes it."""
    props = f"UNIQ_KEY\x01{key or f'K{offset}'}\x02".encode() if properties is None else properties
    name = topic.encode()
    length = struct.pack(">H", len(name)) if v2 else struct.pack(">B", len(name))
    born = b"\x7f\0\0\1\0\0\x30\x39" if not sys_flag & 0x10 else bytes(15) + b"\1\0\0\x30\x39"
    host = b"\x7f\0\0\1\0\0\x2a\x9f" if not sys_flag & 0x20 else bytes(15) + b"\1\0\0\x2a\x9f"
    tail = (
        struct.pack(">qqi", queue_offset, offset, sys_flag)
        + struct.pack(">q", stamp)
        + born
        + struct.pack(">q", stamp)
        + host
        + struct.pack(">iq", 0, 0)
        + struct.pack(">i", len(body))
        + body
        + length
        + name
        + struct.pack(">H", len(props))
        + props
    )
    size = 20 + len(tail)
    magic = MAGIC_V2 if v2 else MAGIC_V1
    return struct.pack(">iIIii", size, magic, body_crc(body), queue_id, 0) + tail


class LogWriter:
    """Appends records to a store in segments of ``segment`` bytes, with blanks, as a broker does."""

    def __init__(self, root: Path, *, segment: int = SEGMENT, start: int = 0) -> None:
        self.root = root
        self.segment = segment
        self.end = start
        self._next: dict[tuple[str, int], int] = {}
        (root / "commitlog").mkdir(parents=True)
        (root / "consumequeue").mkdir()
        self.rows: list[dict[str, object]] = []

    def add(
        self,
        body: bytes,
        *,
        key: str = "",
        topic: str = "T",
        queue_id: int = 0,
        stamp: int = 1000,
        tags: str = "",
        more: str = "",
    ) -> int:
        """Append one record; returns its physical offset."""
        queue_offset = self._next.get((topic, queue_id), 0)

        def made() -> bytes:
            of_tags = f"TAGS\x01{tags}\x02" if tags else ""
            own = f"UNIQ_KEY\x01{key or f'K{self.end}'}\x02{of_tags}{more}".encode()
            where = (self.end, queue_offset, body)
            return record(*where, key=key, topic=topic, queue_id=queue_id, stamp=stamp, properties=own)

        raw = made()
        left = self.segment - self.end % self.segment
        if len(raw) + 8 > left:
            self._write(struct.pack(">iI", left, MAGIC_BLANK))
            self.end += left - 8
            raw = made()
        at = self.end
        self._write(raw)
        self._next[topic, queue_id] = queue_offset + 1
        self.rows.append(
            {
                "uniq_key": key or f"K{at}",
                "topic": topic,
                "queue_id": queue_id,
                "queue_offset": queue_offset,
                "phys_offset": at,
                "body_crc": body_crc(body),
                "tags_code": java_hash(tags),
            }
        )
        return at

    def skip(self, places: int, *, topic: str = "T", queue_id: int = 0) -> None:
        """Leave places of a queue out."""
        self._next[topic, queue_id] = self._next.get((topic, queue_id), 0) + places

    def fill(self, count: int, *, mark: str = "m", queues: int = 2, stamp: int = 1000) -> None:
        for n in range(count):
            self.add(f"{mark}-{n}".encode() * 5, key=f"{mark}{n}", queue_id=n % queues, stamp=stamp + n)

    def write_queues(self, per_file: int = 10) -> None:
        """Enter every record of ``rows`` into its queue, as a broker does; files of ``per_file`` entries."""
        for row in self.rows:
            at = int(str(row["phys_offset"]))
            (size,) = struct.unpack(">i", look(self.root, at, 4, self.segment))
            entry = struct.pack(">qiq", at, size, int(str(row["tags_code"])))
            queue = (str(row["topic"]), int(str(row["queue_id"])))
            enter(self.root, *queue, int(str(row["queue_offset"])), entry, per_file)

    def forget(self) -> None:
        """The topics are deleted: their queues begin at 0 again."""
        self._next.clear()

    def confirm(self, offset: int | None = None, epochs: list[tuple[int, int]] | None = None) -> None:
        """Write checkpoint and epoch file as an orderly stop leaves them."""
        write_checkpoint(self.root, self.end if offset is None else offset)
        if epochs is not None:
            write_epochs(self.root, epochs)

    def _write(self, raw: bytes) -> None:
        base = self.end // self.segment * self.segment
        path = self.root / "commitlog" / f"{base:020d}"
        if not path.exists():
            path.write_bytes(bytes(self.segment))
        with path.open("r+b") as file:
            file.seek(self.end - base)
            file.write(raw)
        self.end += len(raw)


def write_checkpoint(root: Path, confirmed: int) -> None:
    (root / "checkpoint").write_bytes(struct.pack(">5q", 1, 1, 1, 0, confirmed) + bytes(4096 - 40))


def write_epochs(root: Path, epochs: list[tuple[int, int]]) -> None:
    body = "".join(f"{epoch}-{start}\n" for epoch, start in epochs)
    crc = zlib.crc32(body.encode()) & 0x7FFFFFFF
    (root / "epochFileCheckpoint").write_text(f"{len(epochs)}\n{crc}\n{body}")


def copies(root: Path, count: int = 3) -> list[Path]:
    """The same store ``count`` times, side by side."""
    paths = [root.parent / f"r{n}" for n in range(count)]
    for path in paths:
        shutil.copytree(root, path)
    return paths


def kept(
    log: LogWriter, store: Path, epochs: list[tuple[int, int]], confirmed: int, end: int | None = None
) -> Path:
    """A running replica's store, which has the log up to ``end``."""
    shutil.copytree(log.root, store)
    cut(store, log.end if end is None else end)
    write_checkpoint(store, confirmed)
    write_epochs(store, epochs)
    (store / "abort").touch()
    return store


def cut(store: Path, end: int) -> None:
    """Take all that stands behind ``end`` off its log."""
    for file in (store / "commitlog").iterdir():
        base = int(file.name)
        if base >= end:
            file.unlink()
        elif end < base + SEGMENT:
            patch(store, end, bytes(base + SEGMENT - end))


def expire(store: Path, until: int) -> None:
    """Remove the segments before ``until``, as retention does."""
    for base in range(0, until, SEGMENT):
        (store / "commitlog" / f"{base:020d}").unlink(missing_ok=True)


def patch(root: Path, offset: int, data: bytes, segment: int = SEGMENT) -> None:
    """Overwrite bytes at a physical offset."""
    base = offset // segment * segment
    with (root / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(offset - base)
        file.write(data)


def queue_file(root: Path, topic: str, queue_id: int, place: int, per_file: int = 10) -> Path:
    return root / "consumequeue" / topic / str(queue_id) / f"{place // per_file * per_file * 20:020d}"


def enter(root: Path, topic: str, queue_id: int, place: int, entry: bytes, per_file: int = 10) -> None:
    """Write one entry of a queue."""
    path = queue_file(root, topic, queue_id, place, per_file)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(per_file * 20))
    with path.open("r+b") as file:
        file.seek(place % per_file * 20)
        file.write(entry)


def look(root: Path, offset: int, size: int, segment: int = SEGMENT) -> bytes:
    base = offset // segment * segment
    with (root / "commitlog" / f"{base:020d}").open("rb") as file:
        file.seek(offset - base)
        return file.read(size)


def found(*roots: Path) -> list[Replica]:
    """The replicas with their bounds."""
    replicas = [load(StoreSpec(root.name, str(root))) for root in roots]
    find_ends(replicas)
    return replicas


def first_records(store: Path, count: int) -> list[tuple[int, int]]:
    """Where the first records of a log begin and end."""
    found, at = [], 0
    for _ in range(count):
        size = struct.unpack(">i", look(store, at, 4))[0]
        found.append((at, at + size))
        at += size
    return found
