"""What does a piece of a log say in a few rows, so that no record has to leave the worker that read it?

A piece is what a task read of its stretch between two cuts: of it a view takes all records or none. Of each
queue it tells the runs of places, extents, the last record, and a digest of the ConsumeQueue entries that
these records make; of the keys eight bytes each, in parts by hash. All of these can be put together piece by
piece, and say exactly what the records would (``audit.engines.told``). A piece of too many runs says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit.engines.queue_runs import QueueCodes, QueueRuns
from audit.engines.relate import lawful, of_users
from audit.reading.derived.queue_files import entry_bytes
from audit.reading.derived.queue_slices import new_digest
from audit.rows.numbers import FIRST, LAST, sums
from audit.rows.parts import WRITTEN, hashes
from audit.tables import CHUNK, DAMAGE, LOG, QUEUES, RECORD, RUNS, Task, run_scan
from model.message import INNER_BATCH

PIECE: Final = 3
KEYS: Final = 4
"""Rows besides those of LOG."""
PIECES: Final = LOG.append(pa.field("told", pa.binary()))
"""LOG rows of chunks and damage; of a piece: ``offset`` and ``until``, where its first and its last record
begin, ``records``, and in ``told`` its OF_QUEUES and RUNS, ``first`` and ``last_end`` rows (-1: too many); of
keys: ``told``, their hashes, and in ``queue_id`` the part, with the ``offset`` of their piece."""
OF_QUEUES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("place", pa.int64()),  # the lowest, and
        ("end", pa.int64()),  # the highest place behind a record
        ("batches", pa.bool_()),  # whether there are inner batches, or records of several places
        ("offset", pa.int64()),  # of what is none: where the first record begins
        ("until", pa.int64()),  # where the last ends
        ("queue_offset", pa.int64()),  # the lowest place
        ("records", pa.int64()),
        ("last", pa.int64()),  # of the last record: its offset, place, advance and key
        ("last_place", pa.int64()),
        ("last_advance", pa.int32()),
        ("last_key", pa.string()),
        ("entries", pa.binary()),  # the digest of the entries
    ]
)
ROWS_MAX: Final = 20_000
"""Queues and runs that a piece tells."""
KEYS_AT_ONCE: Final = 1_000_000
TWICE_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class PieceTask:
    """``parts``: into how many the hashes of keys are split."""

    task: Task
    parts: int


def run_pieces(job: PieceTask) -> Iterator[pa.RecordBatch]:
    """PIECES rows of a task. Raises OSError."""
    piece: _Piece | None = None
    for batch in run_scan(job.task):
        row = batch["row"].to_numpy()
        if (row != RECORD).any():
            yield _with_told(batch.filter(pa.array((row == CHUNK) | (row == DAMAGE))))
            batch = batch.filter(pa.array(row == RECORD))
        for number, part in _between(batch, job.task.cuts):
            if piece is not None and piece.number != number:
                yield from piece.rows()
                piece = None
            if piece is None:
                piece = _Piece(number, job)
            yield from piece.take(part)
    if piece is not None:
        yield from piece.rows()


def _with_told(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, pa.nulls(len(batch), pa.binary())], schema=PIECES)


def _between(batch: pa.RecordBatch, cuts: tuple[int, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The records between cuts, by where they begin; and how many cuts are not behind them."""
    if not len(batch):
        return
    number = np.searchsorted(np.array(cuts, np.int64), batch["offset"].to_numpy(), "right")
    begins = [0, *(np.nonzero(np.diff(number))[0] + 1).tolist(), len(batch)]
    for begin, end in pairwise(begins):
        yield int(number[begin]), batch.slice(begin, end - begin)


@dataclass(slots=True)
class _Queue:
    """OF_QUEUES of a queue so far. ``end``: the place behind its last record."""

    told: dict[str, Any]
    digest: Any = field(default_factory=new_digest)


class _Piece:
    """Takes the records of one piece in log order."""

    def __init__(self, number: int, job: PieceTask) -> None:
        self.number = number
        self._replica, self._parts = job.task.replica, job.parts
        self._codes = QueueCodes()
        self._queues: dict[int, _Queue] = {}
        self._runs = QueueRuns(QUEUES.empty_table(), ROWS_MAX)
        self._too_many = False
        self._keys: list[Any] = []
        self._waiting = 0
        self._first, self._last, self._records = -1, -1, 0

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of keys, where there are many."""
        offset = batch["offset"]
        if not self._records:
            self._first = offset[0].as_py()
        self._last = offset[-1].as_py()
        self._records += len(batch)
        found = hashes(of_users(batch)["uniq_key"])
        self._keys.append(found)
        self._waiting += len(found)
        if self._waiting >= KEYS_AT_ONCE:
            yield from self._rows_of_keys()
        if self._too_many:
            return
        if not (own := lawful(batch)).all():
            batch = batch.filter(pa.array(own))
        if len(batch):
            self._queued(pa.table(batch))
            self._too_many = len(self._queues) + self._runs.count > ROWS_MAX

    def _queued(self, table: pa.Table) -> None:
        self._runs.take(table)
        queue = self._codes.of(table)
        order = np.argsort(queue, kind="stable")
        queue = queue[order]
        begins = np.concatenate(([0], np.nonzero(np.diff(queue))[0] + 1))
        last = np.append(begins[1:], len(queue)) - 1
        offset, until, place, advance, tags = (
            table[name].to_numpy()[order]
            for name in ("offset", "until", "queue_offset", "advance", "tags_code")
        )
        batch = table["sys_flag"].to_numpy()[order] & INNER_BATCH != 0
        ends = np.maximum.reduceat(sums(place, advance), begins)
        columns = {
            "place": np.minimum.reduceat(place, begins),
            "end": ends,
            "batches": np.logical_or.reduceat(batch | (advance != 1), begins),
            "offset": np.minimum.reduceat(np.where(batch, LAST, offset), begins),
            "until": np.maximum.reduceat(np.where(batch, FIRST, until), begins),
            "queue_offset": np.minimum.reduceat(np.where(batch, LAST, place), begins),
            "records": np.add.reduceat(np.where(batch, 0, 1), begins),
            "last": offset[last],
            "last_place": place[last],
            "last_advance": advance[last],
        }
        names = table.select(["topic", "queue_id", "uniq_key"]).take(pa.array(order[last])).to_pylist()
        raw = memoryview(entry_bytes(offset, until - offset, tags))
        size = len(raw) // len(offset)
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        for n, values in enumerate(rows):
            told = {**dict(zip(columns, values, strict=True)), **names[n]}
            told["last_key"] = told.pop("uniq_key")
            own = self._add(int(queue[begins[n]]), told)
            own.digest.update(raw[int(begins[n]) * size : (int(last[n]) + 1) * size])

    def _add(self, code: int, now: dict[str, Any]) -> _Queue:
        known = self._queues.get(code)
        if known is None:
            self._queues[code] = known = _Queue(now)
            return known
        before = known.told
        known.told = now | {
            "place": min(before["place"], now["place"]),
            "end": max(before["end"], now["end"]),
            "batches": before["batches"] or now["batches"],
            "offset": min(before["offset"], now["offset"]),
            "until": max(before["until"], now["until"]),
            "queue_offset": min(before["queue_offset"], now["queue_offset"]),
            "records": before["records"] + now["records"],
        }
        return known

    def rows(self) -> Iterator[pa.RecordBatch]:
        """All that is left to tell."""
        yield from self._rows_of_keys()
        queues = [{**one.told, "entries": one.digest.digest()} for one in self._queues.values()]
        listed = pa.Table.from_pylist([] if self._too_many else queues, schema=OF_QUEUES)
        runs = RUNS.empty_table() if self._too_many else self._runs.all()
        row = {
            "row": PIECE,
            "replica": self._replica,
            "offset": self._first,
            "until": self._last,
            "records": self._records,
            "first": -1 if self._too_many else len(listed),
            "last_end": -1 if self._too_many else len(runs),
            "told": packed(listed, runs),
        }
        yield pa.RecordBatch.from_pylist([row], schema=PIECES)

    def _rows_of_keys(self) -> Iterator[pa.RecordBatch]:
        if not self._waiting:
            return
        found = np.concatenate(self._keys)
        self._keys.clear()
        self._waiting = 0
        part = (found % np.uint64(self._parts)).astype(np.int64)
        order = np.argsort(part, kind="stable")
        numbers, begins = np.unique(part[order], return_index=True)
        found = found[order]
        rows = [
            {
                "row": KEYS,
                "replica": self._replica,
                "offset": self._first,
                "queue_id": number,
                "told": found[begin:end].tobytes(),
            }
            for number, begin, end in zip(
                numbers.tolist(), begins.tolist(), [*begins[1:].tolist(), len(found)], strict=True
            )
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=PIECES)


def packed(*tables: pa.Table) -> bytes:
    """Tables as bytes, one behind the other."""
    sink = pa.BufferOutputStream()
    for table in tables:
        with pa.ipc.new_stream(sink, table.schema, options=WRITTEN) as writer:
            writer.write_table(table)
    return bytes(sink.getvalue())


def unpacked(raw: bytes, count: int) -> list[pa.Table]:
    """Of so many tables."""
    source = pa.BufferReader(raw)
    return [pa.ipc.open_stream(source).read_all() for _ in range(count)]


def twice(told: Iterable[bytes]) -> list[int]:
    """The hashes, as signed numbers, that stand more than once in the rows of keys of a part; no more than
    ``TWICE_MAX`` of them."""
    every = np.frombuffer(b"".join(told), np.int64).copy()
    every.sort()
    found: list[int] = np.unique(every[1:][every[1:] == every[:-1]])[:TWICE_MAX].tolist()
    return found


def run_near(topics: Sequence[str], keys: Sequence[int], task: Task) -> Iterator[pa.RecordBatch]:
    """LOG rows of the records of these topics, or whose keys have these hashes (as signed numbers), and the
    chunks; no damage. Raises OSError."""
    wanted = np.array(sorted(keys), np.int64).view(np.uint64)
    for batch in run_scan(task):
        row = batch["row"].to_numpy()
        keep = row == CHUNK
        if len(wanted):
            keep |= (row == RECORD) & np.isin(hashes(pc.fill_null(batch["uniq_key"], "")), wanted)
        if topics:
            keep |= (row == RECORD) & np.asarray(pc.is_in(batch["topic"], pa.array(topics)))
        if keep.any():
            yield batch.filter(pa.array(keep))
