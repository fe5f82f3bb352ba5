"""The promise about work: what rotted, or was made to look like records, costs as much as it is long."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.reading.records import search
from audit.reading.records.scan import scan_columns
from audit.reading.strays import belongs
from store.files import damage
from tests.audit.plants import ledger_at, run_local
from tests.audit.stores import LogWriter, record

SEGMENT = 1 << 20
_BODY_SIZE = 84
_CRC = 8


class _Counted:
    """Bytes that are read by (offset, size)."""

    def __init__(self, data: bytes) -> None:
        self.bytes = 0
        self._data = data

    def __call__(self, offset: int, size: int) -> bytes:
        found = self._data[offset : offset + size]
        self.bytes += len(found)
        return found


def _rotten(count: int) -> bytes:
    """Records that name their places, and whose bodies do not fit."""
    data = b""
    for n in range(count):
        one = bytearray(record(len(data), n, b"x" * 8, key="k"))
        struct.pack_into(">i", one, _BODY_SIZE, 1 << 20)
        data += one
    return data


def test_records_that_rot_one_by_one_are_read_a_few_times() -> None:
    count = 500
    data = _rotten(count)
    read = _Counted(data.ljust(16 * SEGMENT, b"\0"))
    found = []

    def run() -> Iterator[object]:
        _, damages = yield from scan_columns(read, 0, 16 * SEGMENT, 0, 16 * SEGMENT, len(data))
        found.extend(damages)

    for _ in run():
        pass
    assert len(found) == count
    assert read.bytes < count * 16384 + 32 * SEGMENT  # it was 8 MiB for each, twice


def _nested(count: int, base: int, size: int = SEGMENT) -> bytes:
    """Heads in a row that say of themselves to be records up to one place, and to stand from ``base`` on."""
    data = bytearray(size)
    tail = record(0, 0, b"", key="k")[88:]
    end = size - 64
    data[end - len(tail) : end] = tail
    for at in range(0, 100 * count, 100):
        head = bytearray(record(base + at, 0, b"", key="k")[:88])
        struct.pack_into(">i", head, 0, end - at)
        struct.pack_into(">I", head, _CRC, 7)
        struct.pack_into(">i", head, _BODY_SIZE, end - at - 88 - len(tail))
        data[at : at + 88] = head
    return bytes(data)


class _File:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, name: str, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


def test_the_search_of_a_store_for_its_next_record_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "RECORD_BYTES_MAX", SEGMENT)
    data = b"\1" * 8 + _nested(5000, 8) + record(SEGMENT + 8, 0, b"sound", key="k")
    read = _Counted(data)
    assert damage.resync(lambda size, at: read(at, size), 0, 0, len(data)) == SEGMENT + 8
    assert read.bytes < 64 * SEGMENT


@pytest.mark.parametrize("size", [100, 200, 1000, 3000])
@pytest.mark.parametrize("before", [0, 1, 77, 300, 511])
def test_a_record_that_is_longer_than_a_window_tells_of_its_file(
    before: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "WINDOW_BYTES", 256)
    rotten = bytearray(record(SEGMENT + before, 0, b"y" * size))
    rotten[100] ^= 1
    data = bytes(before) + rotten + record(SEGMENT + before + len(rotten), 0, b"x" * size)
    assert belongs(_File(data), "some", SEGMENT) == (SEGMENT, 2 * SEGMENT)
    assert belongs(_File(data[:-1]), "some", SEGMENT) is None


def _of_long_records(root: Path, body_bytes: int) -> tuple[list[Path], Path]:
    """Two running stores with three records in the first segment, of which one still has it."""
    logs = [LogWriter(root / name, segment=4 * body_bytes) for name in ("s0", "s1")]
    for log in logs:
        for n in range(7):
            log.add(bytes([65 + n]) * body_bytes, key=f"m{n}", stamp=1000 + n)
        log.confirm(epochs=[(1, 0)])
        (log.root / "abort").touch()
    (logs[1].root / "commitlog" / f"{0:020d}").unlink()
    return [log.root for log in logs], ledger_at(root, logs[0].rows)


@pytest.mark.parametrize("window", [2000, 5000, 1 << 23])
@pytest.mark.parametrize("to", ["behind", "aside"])
def test_a_file_of_long_records_that_was_moved_is_the_only_thing_told(
    to: str, window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "WINDOW_BYTES", window)
    stores, ledger = _of_long_records(tmp_path, 3000)
    first = stores[0] / "commitlog" / f"{0:020d}"
    first.rename(first.with_name(f"{12000 * 9:020d}" if to == "behind" else f"{first.name}.bak"))
    report = run_local(stores, ledger)
    told = {(f.kind, f.replica) for f in report.findings if f.kind != "acked_missing"}
    assert told == {("file_corrupt", "s0")}
    assert report.lost == (3 if to == "behind" else 0)
    assert not report.none_lost
