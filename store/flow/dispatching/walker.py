"""Which records lie in a stretch of the log, dispatched or not?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from store.files.commit_log import CommitLog
from store.files.damage import DamageLedger, may_have
from store.files.record import HEAD, BadRecord, Dispatch, DispatchParser

READ_BYTES: Final = 1 << 19


class Walker:
    """Parses the log in pieces; damaged ranges come as the records lost there."""

    def __init__(self, log: CommitLog, parser: DispatchParser, damage: DamageLedger) -> None:
        self._log = log
        self._parser = parser
        self._damage = damage

    def parsed(
        self, at: int, end: int, *, stop_bad: bool = False, read_bytes: int = READ_BYTES
    ) -> Iterator[tuple[list[Dispatch], int]]:
        """Batches of whole records in [at, end) and where each batch ends; a partial last one is left out.

        ``stop_bad`` ends at bytes that are no record, else they raise BadRecord. A batch has at most
        ``read_bytes``, or one record that is longer.
        """
        want = read_bytes
        while at < end:
            damaged = self._damage.at(at)
            if damaged is not None and damaged.until <= end:
                lost, at = damaged.lost_from(at), damaged.until
                yield lost, at
                continue
            segment_bytes = self._log.segment_bytes
            room = min(self._damage.next_begin(at, end), at - at % segment_bytes + segment_bytes) - at
            data = self._log.read(at, min(want, room))
            try:
                found, stop = self._parser.parse(data, at, end)
            except BadRecord:
                if stop_bad:
                    yield from self._singly(data, at)
                    return
                raise
            if stop > at:
                at, want = stop, read_bytes
                yield found, at
                continue
            size = int(HEAD.unpack_from(data.ljust(HEAD.size, b"\0"))[0]) if len(data) >= 4 else 0
            if not may_have(size, room) or size <= len(data):
                return  # no whole record; one that says it reaches into damage, or the next segment, is none
            want = size

    def _singly(self, data: bytes, at: int) -> Iterator[tuple[list[Dispatch], int]]:
        begin = 0
        while begin < len(data):
            size = int.from_bytes(data[begin : begin + 4], "big")
            try:
                found, stop = self._parser.parse(data[begin : begin + size], at + begin, at + begin + size)
            except BadRecord:
                return
            if stop == at + begin:
                return
            yield found, stop
            begin = stop - at
