"""Which queues do not ascend by one, and where? Taken along the log, a chunk of its records at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from audit.rows.numbers import sums
from audit.tables import QUEUES, RUNS

Row = dict[str, Any]


class QueueCodes:
    """A number for each queue."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}

    def of(self, table: pa.Table) -> Any:
        """The queue of each row, numpy int64."""
        if not len(table):
            return np.zeros(0, np.int64)
        names = table["topic"].combine_chunks().dictionary_encode()
        codes = [self._topics.setdefault(name, len(self._topics)) for name in names.dictionary.to_pylist()]
        topic = np.array(codes, np.int64)[names.indices.to_numpy()]
        return topic << 32 | table["queue_id"].to_numpy().astype(np.int64) & 0xFFFFFFFF


@dataclass(slots=True)
class _Queue:
    """``open``: the RUNS row of the run that the next record may go on."""

    open: Row
    read: bool  # whether its first record was read now
    number: int = 1
    listed: list[Row] = field(default_factory=list)
    seen: int = 0  # runs of this chunk


class QueueRuns:
    """Runs of each queue; of each the first ``most`` are kept, and the last."""

    def __init__(self, before: pa.Table, most: int) -> None:
        self._codes = QueueCodes()
        self._most = most
        self._queues: dict[int, _Queue] = {}
        self._take(before, read=False)

    def take(self, table: pa.Table) -> None:
        """Records that belong into queues, in log order, behind those taken before."""
        self._take(table.select(QUEUES.names), read=True)

    def _take(self, table: pa.Table, *, read: bool) -> None:
        if not len(table):
            return
        queue = self._codes.of(table)
        order = np.argsort(queue, kind="stable")
        queue = queue[order]
        place = table["queue_offset"].to_numpy()[order]
        end = sums(place, table["advance"].to_numpy()[order])
        new_queue = np.concatenate(([True], queue[1:] != queue[:-1]))
        (begins,) = np.nonzero(new_queue | np.concatenate(([True], place[1:] != end[:-1])))
        (queues,) = np.nonzero(new_queue[begins])  # the first run of each queue
        runs = np.diff(np.append(queues, len(begins)))
        number = np.arange(len(begins)) - np.repeat(queues, runs) + 1
        (keep,) = np.nonzero((number <= self._most + 1) | (number == np.repeat(runs, runs)))
        last = np.append(begins[1:], len(queue))[keep] - 1
        rows = table.take(pa.array(order[begins[keep]])).drop_columns(["advance"]).to_pylist()
        ends, lasts = end[last].tolist(), table["offset"].to_numpy()[order[last]].tolist()
        codes, numbers = queue[begins[keep]].tolist(), number[keep].tolist()
        for run, run_end, run_last, code, n in zip(rows, ends, lasts, codes, numbers, strict=True):
            self._run(code, {**run, "end": run_end, "last": run_last}, n, read=read)

    def take_runs(self, table: pa.Table) -> None:
        """RUNS of records that are behind those taken before: of a queue at least the first ``most``, one
        more, and the last."""
        for code, run in zip(self._codes.of(table).tolist(), table.to_pylist(), strict=True):
            self._run(code, run, run["number"], read=True)

    @property
    def count(self) -> int:
        """How many runs there are."""
        return sum(queue.number for queue in self._queues.values())

    def all(self) -> pa.Table:
        """RUNS of every queue, each queue's in log order; of a queue no more than were to be kept."""
        rows = [
            {**run, "runs": queue.number}
            for queue in self._queues.values()
            for run in (*queue.listed, {**queue.open, "number": queue.number})
        ]
        return pa.Table.from_pylist(rows, schema=RUNS)

    def _run(self, code: int, run: Row, number: int, *, read: bool) -> None:
        """``number``: of this run among the queue's in this chunk."""
        known = self._queues.get(code)
        if known is None:
            self._queues[code] = _Queue(run, read, seen=1)
            return
        goes_on = number == 1 and known.open["end"] == run["queue_offset"]
        if goes_on:
            known.open["end"], known.open["last"] = run["end"], run["last"]
        else:
            if known.number <= self._most:
                known.listed.append({**known.open, "number": known.number})
            known.number += 1 if number == 1 else number - known.seen
            known.open = run
        known.seen = number

    def broken(self, *, whole: bool) -> pa.Table:
        """RUNS of the queues with more than one run; with ``whole`` of those, too, that do not begin at 0."""
        rows: list[Row] = []
        for queue in self._queues.values():
            first = queue.listed[0] if queue.listed else queue.open
            late = whole and queue.read and first["queue_offset"] != 0
            if queue.number > 1 or late:
                own = [*queue.listed, {**queue.open, "number": queue.number}]
                rows += [{**row, "runs": queue.number} for row in own]
        return pa.Table.from_pylist(rows, schema=RUNS).sort_by("offset")
