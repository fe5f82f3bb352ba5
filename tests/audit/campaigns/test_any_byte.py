"""The promise of the comparison: whichever byte of whichever log is changed, it is named, once, in place."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.audit.plants import make, run_local
from tests.audit.stores import SEGMENT, look, patch


class _Trio:
    """Three equal stores, made once and copied for each example."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="keelmq-any-byte-")
        self.root = Path(self._folder.name)
        _, self.writer, self.ledger = make(self.root)
        # Bytes of records and blanks; behind a blank's 8 bytes nothing counts.
        self.bytes: list[int] = []
        starts = [int(str(row["phys_offset"])) for row in self.writer.rows]
        for begin, following in zip(starts, [*starts[1:], self.writer.end], strict=True):
            size = int.from_bytes(look(self.writer.root, begin, 4), "big")
            self.bytes += range(begin, begin + size)
            if begin + size < following:
                self.bytes += range(begin + size, begin + size + 8)

    def copy(self, to: Path) -> list[Path]:
        return [Path(shutil.copytree(self.root / f"r{n}", to / f"r{n}")) for n in range(3)]


TRIO = _Trio()


@settings(max_examples=80, deadline=None)
@given(place=st.integers(0, len(TRIO.bytes) - 1), mask=st.integers(1, 255), victim=st.integers(0, 2))
def test_any_changed_byte_is_found_on_its_replica(place: int, mask: int, victim: int) -> None:
    offset = TRIO.bytes[place]
    with tempfile.TemporaryDirectory() as folder:
        stores = TRIO.copy(Path(folder))
        patch(stores[victim], offset, bytes([look(stores[victim], offset, 1)[0] ^ mask]))
        report = run_local(stores, TRIO.ledger)
    roots = [f for f in report.findings if not f.caused_by]
    assert report.verdict == "diverged"
    assert [f.replica for f in roots] == [f"r{victim}"], roots
    assert roots[0].phys_offset <= offset < roots[0].until
    assert roots[0].copies == 2
    assert not roots[0].ambiguous


@settings(max_examples=40, deadline=None)
@given(place=st.integers(0, SEGMENT - 1), noise=st.binary(min_size=1, max_size=64), victim=st.integers(0, 2))
def test_bytes_behind_the_end_never_count(place: int, noise: bytes, victim: int) -> None:
    end = TRIO.writer.end
    room = SEGMENT - end % SEGMENT
    at = end + place % room
    with tempfile.TemporaryDirectory() as folder:
        stores = TRIO.copy(Path(folder))
        patch(stores[victim], at, noise[: end + room - at])
        report = run_local(stores, TRIO.ledger)
    assert (report.verdict, report.findings) == ("clean", [])
