"""What do the engines hand back, as Arrow tables with one schema each, whichever engine it was?

``LOG`` is what a scan yields: one row a record, a damaged stretch or a finished task. The other tables hold
only rows that are wrong; where these may be as many as messages, they come one small table after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit.ledgers.ledger import Ledger
from audit.reading.derived.index_files import IndexTask
from audit.reading.derived.others import DerivedTask
from audit.reading.derived.queue_files import Queue, QueueFile
from audit.reading.derived.queue_prefix import PrefixTask
from audit.reading.records.plain import Plain
from audit.reading.records.record import Damage, Record
from audit.reading.records.scan import Chunk, digests, scan, scan_columns
from audit.reading.records.transactions import OP_TAGS_CODE, OP_TOPIC, ended
from audit.reading.storage import open_storage
from audit.rows.intervals import Interval
from model.errors import MqError

RECORD: Final = 0
DAMAGE: Final = 1
CHUNK: Final = 2
ENDED: Final = 5
"""A half that an op record names; 3 and 4 are rows of pieces. Asked for with a ledger only."""

LOG: Final = pa.schema(
    [
        ("row", pa.int8()),  # RECORD, DAMAGE, CHUNK or ENDED
        ("replica", pa.int32()),  # index into the plan's replicas
        ("offset", pa.int64()),
        ("until", pa.int64()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),  # of a chunk: how much damage it has; of ENDED: the half's
        ("uniq_key", pa.string()),
        ("body_crc", pa.int64()),
        ("plain_crc", pa.int64()),
        ("sys_flag", pa.int32()),
        ("advance", pa.int32()),
        ("tags_code", pa.int64()),  # of ENDED: how, as ``audit.reading.records.transactions`` has it
        ("kind", pa.string()),  # of a damage
        ("expected", pa.string()),
        ("found", pa.string()),
        ("first", pa.int64()),  # of a chunk
        ("last_end", pa.int64()),
        ("records", pa.int64()),
    ]
)
DIGEST: Final = pa.schema(
    [("replica", pa.int32()), ("start", pa.int64()), ("end", pa.int64()), ("digest", pa.binary())]
)
COMPARED: Final = DIGEST.append(pa.field("ranges", pa.int64()))
"""The digest of the first of ``ranges`` that touch, in all of which the same replicas hold the same bytes."""
FOLDED: Final = pa.schema(
    [
        ("replica", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("ranges", pa.int64()),
        ("shortest", pa.int32()),  # bytes of a digest: a worker without fast hashes has others
        ("longest", pa.int32()),
        ("digest", pa.binary()),
    ]
)
"""One of all digests of a replica's part of a segment."""
QUEUES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        ("queue_offset", pa.int64()),
        ("advance", pa.int32()),
        ("uniq_key", pa.string()),
    ]
)
RUNS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),  # of the run's first record
        ("queue_offset", pa.int64()),
        ("end", pa.int64()),  # the place behind its last
        ("uniq_key", pa.string()),
        ("last", pa.int64()),  # offset of its last record
        ("number", pa.int64()),  # of this run in its queue, from 1 on
        ("runs", pa.int64()),  # of the queue
    ]
)
TAKEN: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("since", pa.int64()),  # physical offset
    ]
)
UNENTERED: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("offset", pa.int64()),
        ("until", pa.int64()),
        ("uniq_key", pa.string()),
        ("tags_code", pa.int64()),
    ]
)
LACKING: Final = UNENTERED.append(pa.field("reach", pa.int64())).append(pa.field("records", pa.int64()))
"""The first of consecutive records of a queue, where the last ends, and how many they are."""
DUPLICATES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("uniq_key", pa.string()),
        ("offset", pa.int64()),
        ("until", pa.int64()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
    ]
)
COPIES: Final = DUPLICATES.append(pa.field("first", pa.int64()))
"""``first``: the physical offset of the first record with the topic and key."""
STRANGERS: Final = DUPLICATES.append(pa.field("outcome", pa.int8()))
"""``outcome``: of the message's send, ``audit.ledgers.history``; -1: nobody sent it."""
ACKED: Final = pa.schema(
    [
        # missing, misplaced (there is nothing but a record of another place), mismatch, order, untold
        ("fault", pa.string()),
        ("asked", pa.int32()),  # which of the views that were asked
        ("line", pa.int64()),
        ("uniq_key", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("phys_offset", pa.int64()),  # what the ledger says, or -1
        ("body_crc", pa.int64()),
        ("offset", pa.int64()),  # where the log has it, or -1
        ("until", pa.int64()),
        ("found_topic", pa.string()),
        ("found_queue_id", pa.int32()),
        ("found_queue_offset", pa.int64()),
        ("found_crc", pa.int64()),
        ("held", pa.int64()),  # where another view that was asked has the message, or -1
    ]
)

EXTENTS: Final = ["topic", "queue_id", "offset", "until", "queue_offset", "records"]

BATCH_ROWS: Final = 65536
DAMAGE_ROWS: Final = 10_000
_OPS_BYTES: Final = 256 * 1024
"""Of the log, read at once where an op record stands: others are near."""


@dataclass(frozen=True, slots=True)
class Task:
    """One stretch of one segment of one replica."""

    replica: int
    location: str
    file: str
    segment_base: int
    segment_end: int
    log_end: int
    start: int
    end: int
    cuts: tuple[int, ...] = ()
    aligned: bool = False  # a record (or damage) is known to start at ``start``
    plain: bool = False  # also the CRC of decompressed bodies, which a ledger speaks of
    everywhere: bool = False  # digests that each worker can make, with fast hashes or without
    onward: bool = False  # also what is damaged from ``end`` on, up to where the next task finds a record

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Task:
        return cls(**{**values, "cuts": tuple(values["cuts"])})


def bytes_of(tasks: Iterable[Task]) -> int:
    """That they read."""
    return sum(task.end - task.start for task in tasks)


@dataclass(frozen=True, slots=True)
class View:
    """One replica's log, made of the base replica's rows where the two were proved equal, and its own."""

    base: int
    replica: int
    equal: tuple[tuple[int, int], ...]  # stretches taken from the base, ascending and apart


Again = tuple[str, int, int]
"""Topic, queue id, and the physical offset at which a queue of that name began again."""


@dataclass(frozen=True, slots=True)
class SearchedView:
    """A view to look for messages in. Its log begins at ``start``: what stood before has no order now. What
    stands in one of ``wrong``, misplaced or of which the others have another record, tells no place of its
    message, and is a copy at most where the ledger says that it stands."""

    view: View
    start: int
    wrong: tuple[Interval, ...] = ()


@dataclass(frozen=True, slots=True)
class Tail:
    """Acknowledged messages a replica's log is too short for."""

    records: int
    first: int  # physical offset of the first of them, -1 when there are none
    until: int  # end of the last of them
    uniq_key: str  # of the first


@dataclass(frozen=True, slots=True)
class EntryBounds:
    """Entries of records before ``start`` (removed, or not read) and from ``until`` on (still written) do not
    count. Records on both sides of one of ``cuts`` may be judged differently."""

    start: int
    until: int
    cuts: tuple[int, ...] = ()

    def concern(self, entries: pa.RecordBatch) -> Any:
        offset = entries["entry_offset"].to_numpy()
        return (offset < 0) | (offset >= self.start) & (offset < self.until)


class Entered(NamedTuple):
    """How a replica's queue entries agree with its log."""

    wrong: pa.Table  # ENTRIES that name no record of their place as it is
    unentered: pa.Table  # LACKING: records of queues that are there, without a right entry
    last: dict[Queue, int]  # the last place of each queue that has a right entry


class EngineError(MqError):
    """An engine could not run the tasks: the audit cannot finish."""


class ScannedLog(Protocol):
    """What was scanned, and the questions that need all of it."""

    def chunks(self) -> pa.Table: ...
    def damage(self) -> Iterator[pa.Table]:
        """Its LOG rows, of each replica by offset and kind."""

    def record_count(self) -> int: ...
    def broken_queues(self, view: View, before: pa.Table, most: int, *, whole: bool) -> pa.Table:
        """RUNS, in log order, of every queue whose offsets do not ascend by one (transactions apart): of each
        the first ``most`` and the last one.

        ``before``: the last place of each queue before what was read, as QUEUES. With ``whole`` the log
        begins at 0, so that a queue that has none and does not begin at 0 is broken too."""

    def first_taken(self, view: View, places: pa.Table) -> pa.Table:
        """TAKEN rows of ``places`` and ``offset``: the first record from ``since`` on in the place."""

    def last_places(self, view: View, begin: int, end: int, size: int) -> pa.Table:
        """QUEUES: the last place of every queue in each segment, of ``size`` bytes, of a stretch."""

    def keyed(self, view: View, begin: int, end: int) -> pa.Table:
        """DUPLICATES rows of all messages with a key, of users' topics, in a stretch of the log."""

    def copies(self, view: View) -> Iterator[pa.Table]:
        """COPIES: each further record of a (topic, uniq_key) of users' topics that stands more than once."""

    def strangers(self, ledger: Ledger, view: View) -> Iterator[pa.Table]:
        """STRANGERS: messages of the topics of a history that nobody sent, whose send was refused, or that
        have another body than a send whose end is unknown."""

    def acked(
        self, ledger: Ledger, asked: Sequence[SearchedView], again: tuple[Again, ...]
    ) -> Iterator[pa.Table]:
        """ACKED rows: ledger lines without their message, with another one, or in another order. All rows of
        a line are in one table.

        From each of ``again`` on the places of its queue are those of a topic that was created again."""

    def asked_all(self) -> bool:
        """Were the ledger's lines that were asked for those that the ledger has? Asked at the end."""

    def queue_starts(self, view: View, *, placed: bool = False) -> pa.Table:
        """(topic, queue_id, queue_offset): the first place of every queue that ``view`` holds. ``placed``: by
        records that name the place where they stand, here and below."""

    def queue_ends(self, view: View, *, placed: bool = False) -> pa.Table:
        """(topic, queue_id, queue_offset): the place behind the last one of every queue in ``view``."""

    def queue_extents(self, view: View, *, placed: bool = False) -> pa.Table:
        """EXTENTS of every queue, from its first record to the last.

        Inner batches, whose queues are of another kind, do not count."""

    def entered(self, view: View, files: Sequence[QueueFile], bounds: EntryBounds) -> Entered:
        """Compare the entries of a replica's queue files with the records of its ``view``."""

    def acked_behind(self, ledger: Ledger, view: View, offset: int, lacking: View | None = None) -> Tail:
        """Acknowledged messages of ``view`` at or behind ``offset``; those only, with their bodies, that
        ``lacking`` has nowhere."""

    def close(self) -> None: ...


class Engine(Protocol):
    """Runs the same functions over bytes, here or on a cluster."""

    @property
    def name(self) -> str: ...
    def warm_up(self) -> None:
        """Do now what the first job would otherwise wait for. Optional."""

    def compared(self, tasks: list[Task]) -> pa.Table:
        """COMPARED rows."""

    def folded(self, tasks: list[Task], segment_bytes: int) -> pa.Table:
        """FOLDED rows."""

    def scan(self, tasks: list[Task]) -> ScannedLog: ...
    def index(self, tasks: list[IndexTask]) -> pa.Table:
        """INDEX rows, by replica, file and place."""

    def derived(self, tasks: list[DerivedTask]) -> pa.Table:
        """INDEX rows of other files that are made of the log, in the same order."""

    def prefixes(self, tasks: list[PrefixTask]) -> pa.Table:
        """PREFIX rows, in any order."""

    def close(self) -> None: ...


def each_alone(digests: pa.Table) -> pa.Table:
    """COMPARED rows of a range each."""
    return digests.append_column(COMPARED.field("ranges"), pa.array(np.ones(len(digests), np.int64)))


def run_digests(task: Task) -> pa.RecordBatch:
    """One task's DIGEST rows. Raises OSError."""
    storage = open_storage(task.location)
    try:
        cuts = list(task.cuts)
        found = digests(_reader(storage, task), task.start, task.end, cuts, everywhere=task.everywhere)
        rows = list(found)
    finally:
        storage.close()
    return pa.RecordBatch.from_arrays(
        [
            pa.array([task.replica] * len(rows), pa.int32()),
            pa.array([r.start for r in rows], pa.int64()),
            pa.array([r.end for r in rows], pa.int64()),
            pa.array([r.digest for r in rows], pa.binary()),
        ],
        schema=DIGEST,
    )


def run_scan(task: Task) -> Iterator[pa.RecordBatch]:
    """One task's LOG rows, in batches of bounded size. Raises OSError."""
    storage = open_storage(task.location)
    try:
        told = {"aligned": task.aligned, "onward": task.onward, "plain": task.plain}
        rows = scan_columns(_reader(storage, task), *_bounds(task), **told, batch=BATCH_ROWS)
        waiting: list[pa.RecordBatch] = []
        while True:
            try:
                made = _made(task.replica, next(rows))
                waiting.append(made)
            except StopIteration as stop:
                chunk, damage = stop.value
                break
            if task.plain:
                yield from _ended(made, _reader(storage, task))
            if sum(map(len, waiting)) >= BATCH_ROWS // 2:
                yield _one(waiting)
                waiting.clear()
        if waiting:
            yield _one(waiting)
        yield from _other_batches(task.replica, chunk, damage)
    finally:
        storage.close()


def scanned_records(task: Task) -> Generator[list[Record], None, tuple[Chunk, list[Damage]]]:
    """One task's records, in batches of bounded size; returns its seams and damage. Raises OSError."""
    storage = open_storage(task.location)
    try:
        told = {"aligned": task.aligned, "onward": task.onward, "plain": task.plain}
        return (yield from scan(_reader(storage, task), *_bounds(task), **told, batch=BATCH_ROWS))
    finally:
        storage.close()


def _bounds(task: Task) -> tuple[int, int, int, int, int]:
    return task.start, task.end, task.segment_base, task.segment_end, task.log_end


def _reader(storage: Any, task: Task) -> Callable[[int, int], bytes]:
    def read(offset: int, size: int) -> bytes:
        return bytes(storage.read(task.file, offset - task.segment_base, size))

    return read


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _made(replica: int, rows: list[Record] | Plain) -> pa.RecordBatch:
    return _plain_batch(replica, rows) if isinstance(rows, Plain) else _record_batch(replica, rows)


def _plain_batch(replica: int, rows: Plain) -> pa.RecordBatch:
    n = len(rows)
    none, text = pa.nulls(n, pa.int64()), pa.nulls(n, pa.string())
    columns: dict[str, Any] = {
        "row": np.full(n, RECORD, np.int8),
        "replica": np.full(n, replica, np.int32),
        "offset": rows.offset,
        "until": rows.until,
        "topic": rows.topic,
        "queue_id": rows.queue_id,
        "queue_offset": rows.queue_offset,
        "uniq_key": rows.uniq_key,
        "body_crc": rows.body_crc,
        "plain_crc": rows.plain_crc,
        "sys_flag": rows.sys_flag,
        "advance": rows.advance,
        "tags_code": rows.tags_code,
    }
    rest = {"kind": text, "expected": text, "found": text, "first": none, "last_end": none, "records": none}
    return pa.RecordBatch.from_arrays([pa.array(a) for a in (columns | rest).values()], schema=LOG)


def _record_batch(replica: int, rows: list[Record]) -> pa.RecordBatch:
    n = len(rows)
    offset, size, topic, queue_id, queue_offset, key, crc, plain, flag, _, advance, tags = zip(
        *rows, strict=True
    )
    offsets = pa.array(offset, pa.int64())
    none = pa.nulls(n, pa.int64())
    text = pa.nulls(n, pa.string())
    return pa.RecordBatch.from_arrays(
        [
            pa.array([RECORD] * n, pa.int8()),
            pa.array([replica] * n, pa.int32()),
            offsets,
            pa.array([o + s for o, s in zip(offset, size, strict=True)], pa.int64()),
            pa.array(topic, pa.string()),
            pa.array(queue_id, pa.int32()),
            pa.array(queue_offset, pa.int64()),
            pa.array(key, pa.string()),
            pa.array(crc, pa.int64()),
            pa.array(plain, pa.int64()),
            pa.array(flag, pa.int32()),
            pa.array(advance, pa.int32()),
            pa.array(tags, pa.int64()),
            text,
            text,
            text,
            none,
            none,
            none,
        ],
        schema=LOG,
    )


def _ended(records: pa.RecordBatch, read: Callable[[int, int], bytes]) -> Iterator[pa.RecordBatch]:
    """ENDED rows of the op records among them. Raises OSError."""
    is_op = pc.and_(pc.equal(records["topic"], OP_TOPIC), pc.equal(records["tags_code"], OP_TAGS_CODE))
    if not pc.any(is_op, min_count=0).as_py():
        return
    ops = records.select(["replica", "offset", "until", "queue_id"]).filter(is_op)
    data, base = b"", 0
    rows = []
    for op in ops.to_pylist():
        if not base <= op["offset"] <= op["until"] <= base + len(data):
            base = op["offset"]
            data = read(base, max(_OPS_BYTES, op["until"] - base))
        places, how = ended(data[op["offset"] - base : op["until"] - base])
        rows += [{**op, "row": ENDED, "queue_offset": place, "tags_code": how} for place in places]
    for at in range(0, len(rows), BATCH_ROWS):
        yield pa.RecordBatch.from_pylist(rows[at : at + BATCH_ROWS], schema=LOG)


def _other_batches(replica: int, chunk: Chunk, damage: list[Damage]) -> Iterator[pa.RecordBatch]:
    """The task's seams, with how much damage it met, then the damage by offset and kind."""
    seams = {
        "row": CHUNK,
        "replica": replica,
        "offset": chunk.start,
        "until": chunk.end,
        "queue_offset": len(damage),
        "first": chunk.first,
        "last_end": chunk.last_end,
        "records": chunk.records,
    }
    yield pa.RecordBatch.from_pylist([seams], schema=LOG)
    damage.sort(key=lambda d: (d.offset, d.kind))
    for at in range(0, len(damage), DAMAGE_ROWS):
        rows = [
            {
                "row": DAMAGE,
                "replica": replica,
                "offset": d.offset,
                "until": d.until,
                "topic": d.topic,
                "queue_id": d.queue_id,
                "queue_offset": d.queue_offset,
                "uniq_key": d.uniq_key,
                "kind": d.kind,
                "expected": d.expected,
                "found": d.found,
                "records": d.records,
            }
            for d in damage[at : at + DAMAGE_ROWS]
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=LOG)
