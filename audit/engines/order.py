"""Which messages stand in the log in an order that their acknowledgements exclude?

Within a queue, as long as its topic was not created again: by the queue offsets the broker answered; and,
where the ledger has times, a message acknowledged before another one was begun may not stand behind it.

The rows are read in log order, a stretch at a time. A row is early if the one before it by queue offset
stands behind it in the log; then that other one is late: a row with a higher queue offset stands before it.
So only late rows are kept, and the next row of each by queue offset is looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from audit.engines.queue_runs import QueueCodes
from audit.rows.parts import Folder, Parts
from audit.tables import Again

_ROW: Final = pa.schema(
    [
        ("line", pa.int64()),
        ("queue", pa.int64()),
        ("life", pa.int64()),  # the queue, and how often its topic was created again before
        ("told", pa.int64()),  # the queue offset that was answered
        ("offset", pa.int64()),
        ("begun", pa.float64()),
        ("acked", pa.float64()),
    ]
)
LATE_MAX: Final = 1_000_000
"""Rows looked for in one pass."""
_FAR: Final = 1 << 62


class _Late(NamedTuple):
    """Columns of the late rows of one pass."""

    life: Any
    told: Any
    offset: Any


def out_of_order(
    placed: Iterable[pa.Table], borders: Sequence[int], again: tuple[Again, ...], folder: Folder
) -> Any:
    """Lines that stand in a wrong order, ascending. ``placed``: lines with their records, in any order;
    ``borders``: offsets that cut the log into stretches."""
    rows = Parts(folder, _ROW, len(borders))
    codes = QueueCodes()
    lives = _Lives(codes, again)
    for table in placed:
        if len(table):
            numbers = lives.numbered(table)
            part = np.searchsorted(np.array(borders), numbers["offset"].to_numpy(), side="right") - 1
            rows.add(numbers, np.maximum(part, 0))
    found = [*_early(rows), _begun_behind(rows)]
    return np.unique(np.concatenate(found))


class _Lives:
    """Turns lines into _ROW rows."""

    def __init__(self, codes: QueueCodes, again: tuple[Again, ...]) -> None:
        self._codes = codes
        self._begins: dict[int, list[int]] = {}
        if again:
            named = pa.table(
                {"topic": [a[0] for a in again], "queue_id": pa.array([a[1] for a in again], pa.int32())}
            )
            for code, (_, _, begin) in zip(codes.of(named).tolist(), again, strict=True):
                self._begins.setdefault(code, []).append(begin)

    def numbered(self, table: pa.Table) -> pa.Table:
        queue, offset = self._codes.of(table), table["offset"].to_numpy()
        life = np.zeros(len(table), np.int64)
        for code in set(np.unique(queue).tolist()) & self._begins.keys():
            own = queue == code
            life[own] = np.searchsorted(np.sort(self._begins[code]), offset[own], side="right")
        columns = [
            table["line"],
            pa.array(queue),
            pa.array(queue << 10 | np.minimum(life, 1023)),
            table["queue_offset"],
            table["offset"],
            table["begun_ms"],
            table["acked_ms"],
        ]
        return pa.table(columns, schema=_ROW)


def _stretch(rows: Parts, number: int, by: str) -> tuple[dict[str, Any], Any]:
    """Columns of a stretch by queue (``by``) and offset, and where each queue begins and the last ends."""
    table = rows.part(number)
    columns = {name: table[name].to_numpy() for name in _ROW.names}
    # A ledger may list a message twice: which of its lines is told hangs on no order of theirs.
    order = np.lexsort((columns["line"], columns["told"], columns["offset"], columns[by]))
    columns = {name: column[order] for name, column in columns.items()}
    own = columns[by]
    edges = np.flatnonzero(np.concatenate(([True], own[1:] != own[:-1], [True]))) if len(own) else [0]
    return columns, edges


def _early(rows: Parts) -> Iterator[Any]:
    """Lines whose message stands before the one that has the next lower queue offset."""
    taken = 0
    while True:
        late, more = _late(rows, taken)
        if not len(late.life):
            return
        yield _before(rows, late)
        taken += len(late.life)
        if not more:
            return


def _late(rows: Parts, skip: int) -> tuple[_Late, bool]:
    """Rows behind one with a higher queue offset, without the first ``skip``; and whether there are more."""
    highest: dict[int, int] = {}
    found: list[tuple[Any, Any, Any]] = []
    seen = 0
    for n in range(len(rows)):
        columns, edges = _stretch(rows, n, "life")
        told = columns["told"]
        before = np.full(len(told), -_FAR)
        for begin, end in pairwise(edges):
            life = int(columns["life"][begin])
            reach = np.maximum.accumulate(np.concatenate(([highest.get(life, -_FAR)], told[begin:end])))
            before[begin:end] = reach[:-1]
            highest[life] = int(reach[-1])
        (at,) = np.nonzero(told < before)
        first = max(0, skip - seen)
        seen += len(at)
        at = at[first:]
        found.append((columns["life"][at], told[at], columns["offset"][at]))
        if seen - skip >= LATE_MAX:
            break
    joined = [np.concatenate([part[at] for part in found]) for at in range(3)]
    more = len(joined[0]) >= LATE_MAX
    return _Late(*joined), more


def _before(rows: Parts, late: _Late) -> Any:
    """Lines that are next to a late row by queue offset, and stand before it in the log."""
    count = len(late.life)
    next_told, next_offset = np.full(count, _FAR), np.full(count, _FAR)
    next_line = np.full(count, -1)
    for n in range(len(rows)):
        columns, _ = _stretch(rows, n, "life")
        size = len(columns["line"])
        is_late = np.concatenate((np.zeros(size, bool), np.ones(count, bool)))
        both = [np.concatenate((columns[name], getattr(late, name))) for name in _Late._fields]
        order = np.lexsort((is_late, both[2], both[1], both[0]))  # a late row is not next to itself
        last = np.maximum.accumulate(np.where(is_late[order], np.arange(len(order)), -1))
        (at,) = np.nonzero(~is_late[order] & (last >= 0))
        of, row = order[last[at]] - size, order[at]
        of, nearest = np.unique(of, return_index=True)  # rows ascend: the first of each is the nearest
        row = row[nearest]
        told, offset = columns["told"][row], columns["offset"][row]
        nearer = (told < next_told[of]) | ((told == next_told[of]) & (offset < next_offset[of]))
        nearer &= columns["life"][row] == late.life[of]
        of, row = of[nearer], row[nearer]
        next_told[of], next_offset[of] = columns["told"][row], columns["offset"][row]
        next_line[of] = columns["line"][row]
    return next_line[(next_line >= 0) & (next_offset < late.offset)]


def _begun_behind(rows: Parts) -> Any:
    """Lines that were begun after a message that stands behind them had been acknowledged."""
    earliest: dict[int, float] = {}
    found = [np.zeros(0, np.int64)]
    for n in reversed(range(len(rows))):
        columns, edges = _stretch(rows, n, "queue")
        for begin, end in pairwise(edges):
            queue = int(columns["queue"][begin])
            begun, acked = columns["begun"][begin:end], columns["acked"][begin:end]
            timed = (begun >= 0) & (acked >= 0)
            if not timed.any():
                continue
            behind = np.append(acked[timed], earliest.get(queue, np.inf))
            behind = np.minimum.accumulate(behind[::-1])[::-1]
            found.append(columns["line"][begin:end][timed][behind[1:] < begun[timed]])
            earliest[queue] = float(behind[0])
    return np.concatenate(found)
