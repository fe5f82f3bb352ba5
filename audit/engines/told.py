"""What do the pieces of a log say together? The answers that ``audit.engines.relate`` gives of the records.

Each answer is exact, or None: a view that takes a part of a piece, or pieces that do not tell their queues,
are asked record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from audit.engines.pieces import OF_QUEUES, unpacked
from audit.engines.queue_runs import QueueRuns
from audit.reading.derived.queue_files import Queue
from audit.tables import EXTENTS, LOG, QUEUES, RUNS, EngineError, View

ROWS_MAX: Final = 250_000
"""Of queues and runs, in the driver's memory."""
_LAST: Final = ("last", "last_place", "last_advance", "last_key")
_QUEUE: Final = ["topic", "queue_id"]


class Piece(NamedTuple):
    """``first`` and ``last``: where its first and its last record begin; ``rows``: -1: it does not tell."""

    replica: int
    first: int
    last: int
    rows: int


class Slice(NamedTuple):
    """So many places of a queue from ``place`` on, and the digest of the entries of their records."""

    place: int
    places: int
    entries: bytes


class Told:
    """``heads``: rows of pieces without what they tell; None: there are no pieces, but records. ``fetch``:
    (replica, offset, told) of all."""

    def __init__(self, heads: pa.Table | None, fetch: Callable[[], pa.Table]) -> None:
        self._nothing = heads is None
        heads = heads if heads is not None else LOG.empty_table()
        columns = (heads[name].to_pylist() for name in ("replica", "offset", "until", "first", "last_end"))
        self.pieces = [
            Piece(replica, first, last, queues + runs if queues >= 0 else -1)
            for replica, first, last, queues, runs in zip(*columns, strict=True)
        ]
        self._fetch = fetch
        self._tables: dict[tuple[int, int], list[pa.Table]] = {}
        self._few = sum(max(piece.rows, 0) for piece in self.pieces) <= ROWS_MAX

    def of(self, view: View) -> list[Piece] | None:
        """The pieces of a view, in log order; None: it takes a part of one."""
        if self._nothing:
            return None
        found = []
        for piece in self.pieces:
            taken = _takes(view, piece)
            if taken is None:
                return None
            if taken:
                found.append(piece)
        found.sort(key=lambda piece: piece.first)
        apart = all(a.last < b.first for a, b in pairwise(found))
        return found if apart else None

    def _listed(self, view: View) -> list[Piece] | None:
        pieces = self.of(view)
        if pieces is None or not self._few or any(piece.rows < 0 for piece in pieces):
            return None
        if not self._tables and pieces:
            for row in self._fetch().to_pylist():
                self._tables[row["replica"], row["offset"]] = unpacked(row["told"], 2)
            for piece in self.pieces:
                tables = self._tables.get((piece.replica, piece.first), [])
                if max(piece.rows, 0) != sum(map(len, tables)):  # a worker lost what it kept
                    raise EngineError("a piece of a log was read again, and was not the same")
        return pieces

    def _queues(self, piece: Piece) -> pa.Table:
        return self._tables[piece.replica, piece.first][0]

    def _runs(self, piece: Piece) -> pa.Table:
        return self._tables[piece.replica, piece.first][1]

    def broken_queues(self, view: View, before: pa.Table, most: int, *, whole: bool) -> pa.Table | None:
        pieces = self._listed(view)
        if pieces is None:
            return None
        runs = QueueRuns(before, most)
        for piece in pieces:
            runs.take_runs(self._runs(piece))
        return runs.broken(whole=whole)

    def _of_queues(self, view: View, asked: Sequence[tuple[str, str, str]]) -> pa.Table | None:
        """(column, how, name) of each queue of a view."""
        pieces = self._listed(view)
        if pieces is None:
            return None
        every = pa.concat_tables([OF_QUEUES.empty_table(), *map(self._queues, pieces)])
        rows = every.group_by(_QUEUE).aggregate([(column, how) for column, how, _ in asked])
        rows = rows.select([*_QUEUE, *[f"{column}_{how}" for column, how, _ in asked]])
        return rows.rename_columns([*_QUEUE, *[name for _, _, name in asked]])

    def queue_starts(self, view: View) -> pa.Table | None:
        return self._of_queues(view, [("place", "min", "queue_offset")])

    def queue_ends(self, view: View) -> pa.Table | None:
        return self._of_queues(view, [("end", "max", "queue_offset")])

    def queue_extents(self, view: View) -> pa.Table | None:
        hows = ["min", "max", "min", "sum"]
        asked = [(name, how, name) for name, how in zip(EXTENTS[2:], hows, strict=True)]
        rows = self._of_queues(view, asked)
        return rows if rows is None else rows.filter(pc.greater(rows["records"], 0))

    def last_places(self, view: View, begin: int, end: int, size: int) -> pa.Table | None:
        pieces = self._listed(view)
        if pieces is None:
            return None
        last: dict[tuple[int, Queue], dict[str, Any]] = {}
        for piece in pieces:
            if piece.last < begin or piece.first >= end:
                continue
            if piece.first < begin or piece.last >= end or piece.first // size != piece.last // size:
                return None
            for row in self._queues(piece).to_pylist():
                queue = (row["topic"], row["queue_id"])
                values = *queue, *(row[name] for name in _LAST)
                last[piece.first // size, queue] = dict(zip(QUEUES.names, values, strict=True))
        return pa.Table.from_pylist([*last.values()], schema=QUEUES)

    def slices(self, view: View) -> dict[Queue, list[Slice]] | None:
        """What the entries of each queue are, where its records stand at places that follow each other; else
        an empty list."""
        pieces = self._listed(view)
        if pieces is None:
            return None
        found: dict[Queue, list[Slice]] = {}
        odd: set[Queue] = set()
        for piece in pieces:
            runs = _by_queue(self._runs(piece))
            for row in self._queues(piece).to_pylist():
                queue = (row["topic"], row["queue_id"])
                own = found.setdefault(queue, [])
                begin, count = row["place"], row["end"] - row["place"]
                follows = not own or own[-1].place + own[-1].places == begin
                if runs[queue] != 1 or row["batches"] or not follows or count != row["records"]:
                    odd.add(queue)
                own.append(Slice(begin, count, row["entries"]))
        return {queue: [] if queue in odd else own for queue, own in found.items()}


def _by_queue(runs: pa.Table) -> dict[Queue, int]:
    counts: dict[Queue, int] = {}
    for queue in zip(runs["topic"].to_pylist(), runs["queue_id"].to_pylist(), strict=True):
        counts[queue] = counts.get(queue, 0) + 1
    return counts


def _takes(view: View, piece: Piece) -> bool | None:
    """Whether a view has the records of a piece; None: some of them."""
    if piece.replica not in (view.base, view.replica):
        return False
    if view.base == view.replica:
        return True
    inside = _inside(view.equal, piece)
    return inside if inside is None or piece.replica == view.base else not inside


def _inside(intervals: Iterable[tuple[int, int]], piece: Piece) -> bool | None:
    for begin, end in intervals:
        if begin <= piece.first and piece.last < end:
            return True
        if begin <= piece.last and piece.first < end:
            return None
    return False


assert RUNS.names[:2] == _QUEUE
