"""The promise of logs that end early: sectors that a disk did not write are no rot, and a learner that is
behind or cut is judged as any other replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.engines.local import LocalEngine
from audit.kinds.logs import tails
from audit.reading.layout import Replica, Segment
from tests.audit.learner import CASES, check


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


@pytest.mark.parametrize("name", CASES)
def test_a_learner_that_is_behind_or_cut_is_judged_as_any_replica(name: str, tmp_path: Path) -> None:
    check(LocalEngine(), CASES[name], tmp_path)
