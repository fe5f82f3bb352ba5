"""The promise of ``rotten``: sectors that a disk did not write are no rot, wherever the file begins."""

from __future__ import annotations

import pytest

from audit.kinds import tails
from audit.reading.layout import Replica, Segment


@pytest.mark.parametrize(("base", "rot"), [(0, False), (100, False), (0, True), (100, True)])
def test_torn_sectors_are_those_of_the_file(base: int, rot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def replica(name: str, end: int) -> Replica:
        segment = Segment(file="commitlog/0", base=base, size_bytes=1 << 16)
        return Replica(name, name, [segment], 1 << 16, base, end)

    begin, record = base + 1024, b"x" * 2000
    torn = (bytes(500 if rot else 512) + record)[: 512 * 2].ljust(len(record), b"\0")
    monkeypatch.setattr(tails, "record_at", lambda replica, at: record)
    monkeypatch.setattr(tails, "bytes_at", lambda replica, at, size: torn[:size])
    assert tails.rotten(replica("b0", begin), [replica("b1", begin + len(record))]) is rot
