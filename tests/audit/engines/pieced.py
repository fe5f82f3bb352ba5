"""An engine that asks every question twice: of the records, and of what pieces of the log tell; both have to
say the same. What is proved of entries and keys has to be so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from audit.engines.local import LocalEngine
from audit.engines.pieces import KEYS, PIECE, PIECES, PieceTask, run_near, run_pieces, twice
from audit.engines.relate import LocalLog
from audit.engines.slices import last_place, planned
from audit.engines.told import Told
from audit.reading.derived.queue_files import Queue, QueueFile
from audit.reading.derived.queue_slices import run_slices
from audit.rows.parts import hashes
from audit.tables import CHUNK, LOG, Entered, EntryBounds, Task, View

PARTS = 3
ORDER = [("topic", "ascending"), ("queue_id", "ascending")]


class Pieced(LocalEngine):
    """``answered`` and ``left``: how many questions the pieces answered, and did not; ``proved``: queues."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = self.left = self.proved = self.unproved = 0

    def scan(self, tasks: list[Task]) -> Any:
        return PiecedLog(self, tasks, super().scan(tasks))


class PiecedLog:
    def __init__(self, engine: Pieced, tasks: list[Task], log: LocalLog) -> None:
        self._engine, self._tasks, self._log = engine, tasks, log
        batches = [batch for task in tasks for batch in run_pieces(PieceTask(task, PARTS))]
        self._rows = pa.Table.from_batches(batches, schema=PIECES)
        heads = self._rows.filter(pc.equal(self._rows["row"], PIECE))
        self.told = Told(heads.drop_columns(["told"]), lambda: heads)
        chunks = self._rows.filter(pc.equal(self._rows["row"], CHUNK)).drop_columns(["told"])
        assert chunks.equals(log.chunks())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def _both(self, found: pa.Table, told: pa.Table | None, order: Any = ORDER) -> pa.Table:
        if told is None:
            self._engine.left += 1
        else:
            self._engine.answered += 1
            names = found.column_names
            assert told.select(names).sort_by(order).to_pylist() == found.sort_by(order).to_pylist()
        return found

    def broken_queues(self, *asked: Any, **how: Any) -> pa.Table:
        found = self._log.broken_queues(*asked, **how)
        return self._both(found, self.told.broken_queues(*asked, **how), "offset")

    def queue_starts(self, view: View, *, placed: bool = False) -> pa.Table:
        if placed:
            return self._log.queue_starts(view, placed=True)
        return self._both(self._log.queue_starts(view), self.told.queue_starts(view))

    def queue_ends(self, view: View, *, placed: bool = False) -> pa.Table:
        if placed:
            return self._log.queue_ends(view, placed=True)
        return self._both(self._log.queue_ends(view), self.told.queue_ends(view))

    def queue_extents(self, view: View, *, placed: bool = False) -> pa.Table:
        if placed:
            return self._log.queue_extents(view, placed=True)
        return self._both(self._log.queue_extents(view), self.told.queue_extents(view))

    def last_places(self, *asked: Any) -> pa.Table:
        return self._both(self._log.last_places(*asked), self.told.last_places(*asked), "offset")

    def copies(self, view: View) -> Iterator[pa.Table]:
        tables = list(self._log.copies(view))
        pieces = self.told.of(view)
        if pieces is not None:
            keys = self._rows.filter(pc.equal(self._rows["row"], KEYS))
            own = {(piece.replica, piece.first) for piece in pieces}
            told: dict[int, list[bytes]] = {}
            for row in keys.to_pylist():
                if (row["replica"], row["offset"]) in own:
                    told.setdefault(row["queue_id"], []).append(row["told"])
            found = {one for part in told.values() for one in twice(part)}
            expected = {one for table in tables for one in hashes(table["uniq_key"]).view("i8").tolist()}
            assert expected <= found, "each key that stands twice"
            self._near(view, sorted(found), expected)
        yield from tables

    def _near(self, view: View, found: list[int], expected: set[int]) -> None:
        batches = [batch for task in self._tasks for batch in run_near((), tuple(found or [0]), task)]
        rows = pa.Table.from_batches(batches, schema=LOG)
        chunks = rows.filter(pc.equal(rows["row"], CHUNK))
        assert chunks.equals(self._log.chunks())
        assert expected <= {*hashes(pc.fill_null(rows["uniq_key"], "")).view("i8").tolist()}

    def entered(self, view: View, files: Sequence[QueueFile], bounds: EntryBounds) -> Entered:
        found = self._log.entered(view, files, bounds)
        slices = self.told.slices(view)
        asked = planned(files, slices, bounds) if slices is not None else {}
        for queue, tasks in asked.items():
            assert slices is not None
            if all(run_slices(task)["right"][0].as_py() for task in tasks):
                self._engine.proved += 1
                assert queue not in {*_queues(found.wrong), *_queues(found.unentered)}
                own = slices.get(queue)
                assert found.last.get(queue) == (last_place(own) if own else None)
        self._engine.unproved += len({(file.topic, file.queue_id) for file in files}) - len(asked)
        return found


def _queues(rows: pa.Table) -> list[Queue]:
    return list(zip(rows["topic"].to_pylist(), rows["queue_id"].to_pylist(), strict=True))
