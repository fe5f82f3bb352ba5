"""What do the records of a log say of its queues, where its pieces do not tell it? Each task asks its own
records, as the local engine asks all of them, and what they answer of a queue is put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import RDD

from audit.engines.on_spark.cluster import Cluster, collected
from audit.engines.on_spark.records import PiecedRows
from audit.engines.on_spark.spreading import (
    Element,
    in_parts,
    queue_part,
    shuffled,
    spread_out,
    tables,
    workers_folder,
)
from audit.engines.pieces import packed, unpacked
from audit.engines.queue_runs import QueueRuns
from audit.engines.relate import LocalLog, collect
from audit.tables import EXTENTS, LOG, QUEUES, RUNS, TAKEN, View

Ask = Callable[[LocalLog, View], Iterable[pa.Table]]
How = list[tuple[str, str]]

ANSWERS: Final = "answers"
QUEUE: Final = ["topic", "queue_id"]
_ENDS: Final = pa.schema([LOG.field(name) for name in (*QUEUE, "queue_offset")])
_EXTENTS: Final = pa.schema([LOG.field(name) for name in EXTENTS])
_FIRST: Final = TAKEN.append(LOG.field("offset"))
_CHUNK: Final = pa.field("chunk", pa.int64())  # where the records begin of which the runs are


class Queues:
    """``placed``: only of records that name the place where they stand."""

    def __init__(self, cluster: Cluster, rows: PiecedRows) -> None:
        self._cluster, self._rows = cluster, rows

    def broken_queues(self, view: View, before: pa.Table, most: int, *, whole: bool) -> pa.Table:
        edges = {edge for stretch in view.equal for edge in stretch}
        edges |= set(self._rows.chunks["offset"].to_pylist())
        answers, parts = self._answers(view, partial(_runs, sorted(edges), most))
        found = in_parts(partial(_broken, before, most, whole, parts), answers)
        return collected(found, RUNS).sort_by("offset")

    def first_taken(self, view: View, places: pa.Table) -> pa.Table:
        return self._least(view, partial(_first_taken, places), _FIRST, TAKEN.names, [("offset", "min")])

    def last_places(self, view: View, begin: int, end: int, size: int) -> pa.Table:
        answers, _ = self._answers(view, partial(_last_places, begin, end, size))
        return collected(in_parts(partial(_last, size), answers), QUEUES)

    def queue_starts(self, view: View, *, placed: bool) -> pa.Table:
        return self._least(view, partial(_starts, placed), _ENDS, QUEUE, [("queue_offset", "min")])

    def queue_ends(self, view: View, *, placed: bool) -> pa.Table:
        return self._least(view, partial(_ends, placed), _ENDS, QUEUE, [("queue_offset", "max")])

    def queue_extents(self, view: View, *, placed: bool) -> pa.Table:
        hows = list(zip(EXTENTS[2:], ("min", "max", "min", "sum"), strict=True))
        return self._least(view, partial(_extents, placed), _EXTENTS, QUEUE, hows)

    def _answers(self, view: View, ask: Ask) -> tuple[RDD[Element], int]:
        """Of all tasks, by queue; and in how many parts."""
        rows = self._rows.whole()
        parts = self._cluster.partitions(rows.getNumPartitions())
        return shuffled(rows.mapPartitions(partial(_asked, view, ask, parts)), parts), parts

    def _least(self, view: View, ask: Ask, schema: pa.Schema, keys: list[str], hows: How) -> pa.Table:
        """``hows``: (column, how it is put together) of the rows of each of the ``keys``."""
        answers, _ = self._answers(view, ask)
        return collected(in_parts(partial(_together, keys, hows), answers), schema).select(schema.names)


def _asked(view: View, ask: Ask, parts: int, raws: Iterable[bytes]) -> Iterator[Element]:
    """What a task answers of the records that it has of a view."""
    log = collect((batch for raw in raws for batch in _of_either(view, raw)), workers_folder())
    try:
        for table in ask(log, view) if log.record_count() else ():
            if len(table):
                yield from spread_out(ANSWERS, table, queue_part(table, parts))
    finally:
        log.close()


def _of_either(view: View, raw: bytes) -> list[pa.RecordBatch]:
    """LOG rows of the replicas of a view."""
    (rows,) = unpacked(raw, 1)
    own = pc.is_in(rows["replica"], pa.array({view.base, view.replica}, pa.int32()))
    batches: list[pa.RecordBatch] = rows.filter(own).to_batches()
    return [batch for batch in batches if len(batch)]


def _first_taken(places: pa.Table, log: LocalLog, view: View) -> list[pa.Table]:
    return [log.first_taken(view, places)]


def _last_places(begin: int, end: int, size: int, log: LocalLog, view: View) -> list[pa.Table]:
    return [log.last_places(view, begin, end, size)]


def _starts(placed: bool, log: LocalLog, view: View) -> list[pa.Table]:
    return [log.queue_starts(view, placed=placed)]


def _ends(placed: bool, log: LocalLog, view: View) -> list[pa.Table]:
    return [log.queue_ends(view, placed=placed)]


def _extents(placed: bool, log: LocalLog, view: View) -> list[pa.Table]:
    return [log.queue_extents(view, placed=placed)]


def _together(keys: list[str], hows: How, part: int, elements: Iterable[Element]) -> Iterator[bytes]:
    if found := tables(ANSWERS, elements):
        rows = pa.concat_tables(found).group_by(keys, use_threads=False).aggregate(hows)
        rows = rows.select([*keys, *(f"{column}_{how}" for column, how in hows)])
        yield packed(rows.rename_columns([*keys, *(column for column, _ in hows)]))


def _last(size: int, part: int, elements: Iterable[Element]) -> Iterator[bytes]:
    """Of each queue and segment the place that stands last."""
    if found := tables(ANSWERS, elements):
        rows = pa.concat_tables(found).sort_by("offset")
        rows = rows.append_column("segment", pa.array(rows["offset"].to_numpy() // size))
        names = [name for name in QUEUES.names if name not in QUEUE]
        last = rows.group_by([*QUEUE, "segment"], use_threads=False).aggregate([(n, "last") for n in names])
        yield packed(last.select([*QUEUE, *(f"{n}_last" for n in names)]).rename_columns([*QUEUE, *names]))


def _runs(edges: list[int], most: int, log: LocalLog, view: View) -> Iterator[pa.Table]:
    """RUNS of each queue, with their _CHUNK; of each as many as may be asked for, one more and the last. None
    goes on over one of the ``edges``: other tasks may have records of the view there."""
    begun, chunk, runs = -1, -1, QueueRuns(QUEUES.empty_table(), most + 1)
    for table in log.queued(view, QUEUES.names):
        number = np.searchsorted(np.array(edges, np.int64), table["offset"].to_numpy(), "right")
        cuts = [0, *(np.nonzero(np.diff(number))[0] + 1).tolist(), len(table)]
        for begin, end in pairwise(cuts):
            if int(number[begin]) != chunk and begun >= 0:
                yield _of_chunk(runs, begun)
                begun, runs = -1, QueueRuns(QUEUES.empty_table(), most + 1)
            if begun < 0:
                begun, chunk = table["offset"][begin].as_py(), int(number[begin])
            runs.take(table.slice(begin, end - begin))
    if begun >= 0:
        yield _of_chunk(runs, begun)


def _of_chunk(runs: QueueRuns, begun: int) -> pa.Table:
    rows = runs.all()
    return rows.append_column(_CHUNK, pa.array(np.full(len(rows), begun)))


def _broken(
    before: pa.Table, most: int, whole: bool, parts: int, part: int, elements: Iterable[Element]
) -> Iterator[bytes]:
    found = tables(ANSWERS, elements)
    if not found:
        return
    runs = QueueRuns(before.filter(pa.array(queue_part(before, parts) == part)), most)
    rows = pa.concat_tables(found)
    rows = rows.sort_by([(name, "ascending") for name in (_CHUNK.name, *QUEUE, "number")])
    at = 0
    for _, own in groupby(rows[_CHUNK.name].to_pylist()):
        count = sum(1 for _ in own)
        runs.take_runs(rows.slice(at, count).select(RUNS.names))
        at += count
    yield packed(runs.broken(whole=whole))
