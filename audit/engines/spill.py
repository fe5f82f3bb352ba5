"""Where do the rows of a scan wait for the questions? In files, so that memory does not grow with the logs.

Each task's records are one Arrow file, in log order; a view is read as the batches of its replicas' files, in
log order again, and only the columns that a question needs. The folder is temporary (``TMPDIR``): about 50
bytes a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit.rows.parts import WRITTEN
from audit.tables import CHUNK, DAMAGE, ENDED, LOG, RECORD, Task, View, run_scan

_OF_OTHERS: Final = {"row", "kind", "expected", "found", "first", "last_end", "records"}
RECORDS: Final = pa.schema([field for field in LOG if field.name not in _OF_OTHERS])
"""What is kept of a record."""
MISPLACED: Final = "phys_offset_mismatch"

EVERYWHERE: Final = (-1, 1 << 62)


class Piece(NamedTuple):
    """One batch of a file: the offsets of its first and its last record."""

    path: str
    number: int
    replica: int
    first: int
    last: int
    rows: int


class Spilled(NamedTuple):
    """What a task left: its seams, as LOG rows, and where its records are, its damage, and the halves that
    ended; empty: it met none."""

    chunks: pa.Table
    pieces: list[Piece]
    damage: str
    ended: str


class SpillTask(NamedTuple):
    task: Task
    path: str


def spill_scan(job: SpillTask) -> Spilled:
    """Scan one task's stretch into its file. Raises OSError."""
    return spill(job.path, run_scan(job.task))


def spill(path: str, batches: Iterable[pa.RecordBatch]) -> Spilled:
    """Write the records of LOG batches, which are in log order, to a file, and what they have besides to
    others."""
    chunks: list[pa.RecordBatch] = []
    pieces: list[Piece] = []
    damage, ended = _Others(f"{path}.damage"), _Others(f"{path}.ended")
    with (
        pa.OSFile(path, "wb") as sink,
        pa.ipc.new_file(sink, RECORDS, options=WRITTEN) as writer,
        damage,
        ended,
    ):
        for batch in batches:
            row = batch["row"].to_numpy()
            if (row != RECORD).any():
                chunks.append(batch.filter(pa.array(row == CHUNK)))
                damage.add(batch.filter(pa.array(row == DAMAGE)))
                ended.add(batch.filter(pa.array(row == ENDED)))
                batch = batch.filter(pa.array(row == RECORD))
            if not len(batch):
                continue
            offset = batch["offset"].to_numpy()
            replica = int(batch["replica"][0].as_py())
            pieces.append(Piece(path, len(pieces), replica, int(offset[0]), int(offset[-1]), len(batch)))
            writer.write_batch(batch.select(RECORDS.names))
    return Spilled(pa.Table.from_batches(chunks, schema=LOG), pieces, damage.path, ended.path)


class _Others:
    """A file of LOG rows that is there only if there are any. A context manager."""

    def __init__(self, path: str) -> None:
        self.path = ""
        self._name = path
        self._open = ExitStack()
        self._writer: Any = None

    def __enter__(self) -> None:
        self._open.__enter__()

    def __exit__(self, *told: Any) -> None:
        self._open.__exit__(*told)

    def add(self, batch: pa.RecordBatch) -> None:
        if not len(batch):
            return
        if self._writer is None:
            self.path = self._name
            sink = self._open.enter_context(pa.OSFile(self.path, "wb"))
            self._writer = self._open.enter_context(pa.ipc.new_file(sink, LOG, options=WRITTEN))
        self._writer.write_batch(batch)


def others_of(paths: Iterable[str]) -> Iterator[pa.Table]:
    """What tasks met, one small table after the other."""
    for path in paths:
        with pa.OSFile(path, "rb") as source:
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False))
            for number in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(number)], schema=LOG)


class Rows:
    """The records of all tasks, by view and in log order."""

    def __init__(
        self, pieces: Iterable[Piece], ended: Sequence[str] = (), damage: Sequence[str] = ()
    ) -> None:
        self._ended, self._damage = ended, damage
        self._of: dict[int, list[Piece]] = {}
        for piece in sorted(pieces, key=lambda piece: (piece.first, piece.number)):
            self._of.setdefault(piece.replica, []).append(piece)
        self._open: tuple[str, tuple[str, ...], Any] | None = None

    def count(self, replica: int) -> int:
        return sum(piece.rows for piece in self._of.get(replica, []))

    def batches(
        self, view: View, columns: Sequence[str], within: tuple[int, int] = EVERYWHERE
    ) -> Iterator[pa.RecordBatch]:
        """``columns`` (``offset`` among them) of the records that begin ``within``."""
        for replica, begin, end in _stretches(view):
            lo, hi = max(begin, within[0]), min(end, within[1])
            for piece in self._of.get(replica, []):
                if lo >= hi or piece.last < lo or piece.first >= hi:
                    continue
                batch = self._read(piece, tuple(columns))
                if not (lo <= piece.first and piece.last < hi):
                    offset = batch["offset"].to_numpy()
                    batch = batch.filter(pa.array((offset >= lo) & (offset < hi)))
                if len(batch):
                    yield batch

    def ended(self, view: View) -> Iterator[pa.Table]:
        """Its ENDED rows, one small table after the other."""
        for table in others_of(self._ended):
            if (own := of_view(view, table)).any():
                yield table.filter(pa.array(own))

    def misplaced(self, rows: pa.RecordBatch | pa.Table) -> Any:
        """Which records, told by ``replica`` and ``offset``, name another place than where they stand?"""
        found = np.zeros(len(rows), bool)
        for replica, offsets in self._misplaced.items():
            offset = rows["offset"].to_numpy()
            near = offsets[np.minimum(np.searchsorted(offsets, offset), len(offsets) - 1)]
            found |= (rows["replica"].to_numpy() == replica) & (near == offset)
        return found

    @cached_property
    def _misplaced(self) -> dict[int, Any]:
        """By replica, ascending."""
        found: dict[int, list[Any]] = {}
        for table in others_of(self._damage):
            own = table.filter(pc.equal(table["kind"], MISPLACED))
            for replica in pc.unique(own["replica"]).to_pylist():
                rows = own.filter(pc.equal(own["replica"], replica))
                found.setdefault(replica, []).append(rows["offset"].to_numpy())
        return {replica: np.unique(np.concatenate(parts)) for replica, parts in found.items()}

    def borders(self, view: View, rows: int) -> list[int]:
        """Offsets that cut a view into stretches of about ``rows`` records."""
        starts = sorted({p.first for at in {view.base, view.replica} for p in self._of.get(at, [])})
        sizes = {p.first: p.rows for at in {view.base, view.replica} for p in self._of.get(at, [])}
        borders, room = [-1], rows
        for start in starts:
            if room < sizes[start]:
                borders.append(start)
                room = rows
            room -= sizes[start]
        return borders

    def _read(self, piece: Piece, columns: tuple[str, ...]) -> pa.RecordBatch:
        if self._open is None or self._open[:2] != (piece.path, columns):
            self.release()
            fields = [RECORDS.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
            reader = pa.ipc.open_file(pa.OSFile(piece.path, "rb"), options=options)
            self._open = (piece.path, columns, reader)
        return self._open[2].get_batch(piece.number).select(list(columns))

    def release(self) -> None:
        """Close the file that was read last."""
        self._open = None


def of_view(view: View, rows: pa.RecordBatch | pa.Table) -> Any:
    """Which rows, told by ``replica`` and ``offset``, does a view take?"""
    replica = rows["replica"].to_numpy()
    own = replica == view.replica
    if view.base == view.replica:
        return own
    edges = np.array([edge for stretch in view.equal for edge in stretch], np.int64)
    shared = np.searchsorted(edges, rows["offset"].to_numpy(), "right") % 2 == 1
    return np.where(shared, replica == view.base, own)


def _stretches(view: View) -> Iterator[tuple[int, int, int]]:
    """(replica, from, to): which replica's rows a view takes where. A replica's own scan reaches back to a
    record's start: what the base has there is the same."""
    if view.base == view.replica:
        yield view.replica, *EVERYWHERE
        return
    at = EVERYWHERE[0]
    for begin, end in view.equal:
        yield view.replica, at, begin
        yield view.base, begin, end
        at = end
    yield view.replica, at, EVERYWHERE[1]
