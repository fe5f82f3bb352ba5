"""What do a store's ConsumeQueues say? The entries of one file, and which queues and topics there are.

A queue is a folder ``consumequeue/TOPIC/ID``; a file's name is the byte of the queue at which it begins:

    at  size  field of an entry (20 bytes, big-endian)
     0     8  physical offset of the record
     8     4  its size; 0x7FFFFFFF with offset 0: the place stands for no message
    12     8  hash of its TAGS; below -2^31 the address of an extension; of a delayed message when it is due

Zeros are no entry. Source: Apache RocketMQ 5.x, ``store/ConsumeQueue``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from audit.reading.small.config_tables import queues_of
from audit.reading.storage import Storage, names_in, open_storage
from audit.rows.numbers import QUEUE_LAST, of_digits

ENTRY_BYTES: Final = 20
EXTENSION_BELOW: Final = -(1 << 31)
_PLACE_BYTES_MAX: Final = 1 << 62
"""No queue reaches so far; a damaged record may say so."""
_ENTRY: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert _ENTRY.itemsize == ENTRY_BYTES, "an entry as it stands in the file"
_PRE_BLANK_SIZE: Final = 0x7FFFFFFF
_WINDOW_BYTES: Final = 8 * 1024 * 1024 // ENTRY_BYTES * ENTRY_BYTES

ENTRIES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("entry_offset", pa.int64()),  # physical
        ("entry_size", pa.int64()),
        ("entry_tags", pa.int64()),
    ]
)

Queue = tuple[str, int]
"""Topic and queue id."""


@dataclass(frozen=True, slots=True)
class QueueFile:
    """One file of a queue. ``first``: the place of its first entry; ``size``: bytes when it was looked at;
    ``extended``: the store has extensions, to which entries may refer for their tags."""

    location: str
    file: str
    topic: str
    queue_id: int
    first: int
    size: int = 0
    extended: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> QueueFile:
        return cls(**values)


@dataclass(frozen=True, slots=True)
class QueueFolder:
    """``queues_of``: how many queues ``config/topics.json`` gives each topic. ``elsewhere``: topics whose
    queues this store keeps in files of another kind."""

    files: tuple[QueueFile, ...]
    queues_of: dict[str, int]
    elsewhere: frozenset[str]

    @property
    def queues(self) -> set[Queue]:
        return {(file.topic, file.queue_id) for file in self.files}


def look(location: str) -> QueueFolder | None:
    """What queues a store has; None when it keeps them in RocksDB. Raises OSError."""
    storage = open_storage(location)
    try:
        if storage.exists("consumequeue_r"):
            return None
        elsewhere = frozenset(names_in(storage, "batchconsumequeue"))
        return QueueFolder(tuple(_files(storage, location)), queues_of(storage), elsewhere)
    finally:
        storage.close()


def _files(storage: Storage, location: str) -> Iterator[QueueFile]:
    extended = storage.exists("consumequeue_ext")
    for topic in names_in(storage, "consumequeue"):
        for queue in _names(storage, f"consumequeue/{topic}"):
            folder = f"consumequeue/{topic}/{queue}"
            if of_digits(queue, QUEUE_LAST) < 0:
                continue  # no broker made it
            for name in _names(storage, folder):
                if len(name) == 20 and of_digits(name) >= 0:
                    file = f"{folder}/{name}"
                    with contextlib.suppress(FileNotFoundError):  # retention removed it meanwhile
                        size = storage.size(file)
                        first = int(name) // ENTRY_BYTES
                        yield QueueFile(location, file, topic, int(queue), first, size, extended)


def _names(storage: Storage, path: str) -> list[str]:
    try:
        return [name for name in storage.listdir(path) if name.isascii() and name.isdigit()]
    except NotADirectoryError:
        return []


def read_entries(file: QueueFile) -> Iterator[pa.RecordBatch]:
    """ENTRIES rows of one file, without places that stand for no message. Raises OSError.

    A file that retention removes meanwhile has none.
    """
    storage = open_storage(file.location)
    try:
        at = 0
        while raw := storage.read(file.file, at, _WINDOW_BYTES):
            rows = np.frombuffer(raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES], dtype=_ENTRY)
            yield _batch(file, file.first + at // ENTRY_BYTES, rows)
            at += len(raw)
            if len(raw) < _WINDOW_BYTES:
                break
    except FileNotFoundError:
        return
    finally:
        storage.close()


def is_entered(location: str, place: tuple[str, int, int], offset: int) -> bool:
    """Does the entry at a place (topic, queue, queue offset) of a store name that physical offset? Of a topic
    with files of another kind nobody knows: it may. Raises OSError."""
    storage = open_storage(location)
    try:
        if place[0] in names_in(storage, "batchconsumequeue"):
            return True
        raw = _entry_of(storage, place)
        return len(raw) == ENTRY_BYTES and int(np.frombuffer(raw, dtype=_ENTRY)["offset"][0]) == offset
    finally:
        storage.close()


def entry_at(location: str, place: tuple[str, int, int]) -> tuple[int, int, int] | None:
    """Physical offset, bytes and tag code of the entry at a place (topic, queue, queue offset) of a store.
    None: there is none that stands for a message. Raises OSError."""
    storage = open_storage(location)
    try:
        raw = _entry_of(storage, place)
    finally:
        storage.close()
    rows = np.frombuffer(raw if len(raw) == ENTRY_BYTES else b"", dtype=_ENTRY)
    if not len(_written(rows)):
        return None
    return int(rows["offset"][0]), int(rows["size"][0]), int(rows["tags_code"][0])


def _entry_of(storage: Storage, place: tuple[str, int, int]) -> bytes:
    """Its bytes, as many as there are. Raises OSError."""
    topic, queue_id, queue_offset = place
    folder, at = f"consumequeue/{topic}/{queue_id}", queue_offset * ENTRY_BYTES
    if not 0 <= at < _PLACE_BYTES_MAX:
        return b""
    there = topic in names_in(storage, "consumequeue")  # a damaged record's may be any text
    names = [n for n in _names(storage, folder) if len(n) == 20 and int(n) <= at] if there else []
    return storage.read(f"{folder}/{max(names)}", at - int(max(names)), ENTRY_BYTES) if names else b""


def entry_bytes(offset: Any, size: Any, tags_code: Any) -> Any:
    """The entries of records as they stand in a file, numpy uint8."""
    rows = np.empty(len(offset), _ENTRY)
    rows["offset"], rows["size"], rows["tags_code"] = offset, size, tags_code
    return rows.view(np.uint8)


def first_named(files: Sequence[QueueFile]) -> int:
    """The physical offset that the first entry of a queue names; -1 when it has none. Raises OSError."""
    for file in sorted(files, key=lambda file: file.first):
        for batch in read_entries(file):
            if len(batch):
                return int(batch["entry_offset"][0].as_py())
    return -1


def last_named(files: Sequence[QueueFile], end: int) -> int:
    """Where the furthest record ends that the last entries of queues name, up to ``end``; 0: they name none.
    Raises OSError."""
    found = 0
    done: set[Queue] = set()
    for file in sorted(files, key=lambda file: -file.first):
        if (file.topic, file.queue_id) in done:
            continue
        for batch in read_entries(file):
            ends = batch["entry_offset"].to_numpy() + batch["entry_size"].to_numpy()
            found = max(found, int(ends[ends <= end].max(initial=0)))
            if len(batch):
                done.add((file.topic, file.queue_id))
    return found


def offsets_of(raw: bytes) -> tuple[Any, Any]:
    """The places, from 0 on, of the entries that stand for a message, and the physical offsets they name."""
    rows = np.frombuffer(raw, dtype=_ENTRY)
    at = _written(rows)
    return at, rows["offset"][at].astype(np.int64)


def _written(rows: Any) -> Any:
    blank = (rows["offset"] == 0) & ((rows["size"] == _PRE_BLANK_SIZE) | (rows["size"] == 0))
    return np.nonzero(~blank)[0]


def _batch(file: QueueFile, first: int, rows: Any) -> pa.RecordBatch:
    at = _written(rows)
    rows = rows[at]
    topic = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(at), np.int32)), pa.array([file.topic]))
    return pa.RecordBatch.from_arrays(
        [
            topic.cast(pa.string()),
            pa.array(np.full(len(at), file.queue_id, np.int32)),
            pa.array(at.astype(np.int64) + first),
            pa.array(rows["offset"].astype(np.int64)),
            pa.array(rows["size"].astype(np.int64)),
            pa.array(rows["tags_code"].astype(np.int64)),
        ],
        schema=ENTRIES,
    )
