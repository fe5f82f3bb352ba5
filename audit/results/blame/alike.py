"""Which other copies say what one is named for? Rightness belongs to bytes, not to a replica's name.

Places of queues and sends are asked of one log for all that have the same. So where another one differs, each
that says the same is as wrong as the one that was asked. Where all that can be read say the same, no copy is
better than another: none is named for it but that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from audit.findings import Finding
from audit.kinds.logs.witnesses import records
from audit.reading.layout import Replica, bytes_at
from audit.rows.intervals import Interval

_OF_PLACES: Final = frozenset({"queue_gap", "dup_queue_offset", "queue_order"})
_OF_BYTES: Final = frozenset({"phantom", "acked_mismatch"})
_LOOKED_MAX: Final = 1000
"""Stretches that differ, which are read; behind them nobody knows: all are as the one that is named."""
_LOOKED_BYTES: Final = 1024 * 1024
"""Of each."""


class Alike:
    """Of one report. Where copies differ, the report has a row: all else needs no reading."""

    def __init__(self, findings: Sequence[Finding], replicas: Sequence[Replica]) -> None:
        self._by_name = {r.name: r for r in replicas}
        rows = (f for f in findings if f.kind == "bytes_differ" and not f.counted)
        self._differing = sorted({(f.phys_offset, f.until) for f in rows})
        self._looked: set[Interval] = set()

    def others(self, f: Finding) -> Iterator[tuple[str, Interval]]:
        """The other replicas that say what ``f`` names one for, and where: only where any says otherwise."""
        if f.kind not in _OF_PLACES | _OF_BYTES or f.replica not in self._by_name or f.phys_offset < 0:
            return
        own, exact = self._by_name[f.replica], f.kind in _OF_BYTES
        for span in filter(lambda span: f.overlaps(*span), self._differing):
            held = [r for r in self._by_name.values() if r is not own and r.covers(*span)]
            alike = [r for r in held if self._is_same(own, r, span, exact=exact)]
            if len(alike) < len(held):
                yield from ((r.name, span) for r in alike)

    def _is_same(self, own: Replica, r: Replica, span: Interval, *, exact: bool) -> bool:
        if span not in self._looked and len(self._looked) >= _LOOKED_MAX:
            return True
        self._looked.add(span)
        span = span[0], min(span[1], span[0] + _LOOKED_BYTES)
        try:
            return _said(own, span, exact=exact) == _said(r, span, exact=exact)
        except OSError:
            return True


def _said(r: Replica, span: Interval, *, exact: bool) -> object:
    """What a copy says in a stretch: all its bytes, or of which place of a queue each record is. Raises
    OSError."""
    if exact:
        return bytes_at(r, span[0], span[1] - span[0])
    found = records(r, *span, every=True)
    return [(record.offset, record.topic, record.queue_id, record.queue_offset) for record in found]
