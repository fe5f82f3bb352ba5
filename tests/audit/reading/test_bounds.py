"""The promise about work: what rotted, or was made to look like records, costs as much as it is long."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.reading import aside, strays
from audit.reading import scan as scanning
from audit.reading.record import Parsed, parse
from audit.reading.scan import find_moved, find_record, record_there, scan_columns
from audit.reading.storage import LocalStorage
from audit.reading.strays import Metered, belongs
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


class _Spent:
    """Bytes that are checked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        monkeypatch.setattr(scanning, "RECORD_BYTES_MAX", SEGMENT)
        for module in (scanning, strays):
            monkeypatch.setattr(module, "parse", self._parse)

    def _parse(self, data: bytes, at: int, offset: int, end: int, *, plain: bool = False) -> Parsed:
        found = parse(data, at, offset, end, plain=plain)
        self.bytes += found.size
        return found


class _File:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, name: str, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


def test_heads_in_each_other_are_checked_as_often_as_a_few_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    data, spent = _nested(5000, 0), _Spent(monkeypatch)
    assert belongs(_File(data), "some", 64 * SEGMENT) is None
    assert spent.bytes < 20 * SEGMENT  # it was 2,500
    spent.bytes, there = 0, _nested(5000, 64 * SEGMENT)
    assert find_moved(_Counted(there), 0, SEGMENT, 0, 64 * SEGMENT) == -1
    assert spent.bytes < 20 * SEGMENT


def test_a_record_behind_such_heads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = _Spent(monkeypatch)
    data = _nested(5000, 64 * SEGMENT) + record(65 * SEGMENT, 0, b"sound", key="k") + bytes(100)
    assert find_moved(_Counted(data), 0, len(data), 0, 64 * SEGMENT) == SEGMENT
    assert belongs(_File(data), "some", 64 * SEGMENT) == (64 * SEGMENT, 128 * SEGMENT)
    assert spent.bytes < 64 * SEGMENT


def test_what_was_not_checked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _Spent(monkeypatch)
    (tmp_path / "some").write_bytes(_nested(5000, 0))
    metered = Metered(LocalStorage(str(tmp_path)))
    assert belongs(metered, "some", 64 * SEGMENT) is None
    assert metered.refused


def test_the_search_of_a_store_for_its_next_record_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "RECORD_BYTES_MAX", SEGMENT)
    data = b"\1" * 8 + _nested(5000, 8) + record(SEGMENT + 8, 0, b"sound", key="k")
    read = _Counted(data)
    assert damage.resync(lambda size, at: read(at, size), 0, 0, len(data)) == SEGMENT + 8
    assert read.bytes < 64 * SEGMENT


@pytest.mark.parametrize("gap", [0, 1, 4000, 4032, 4096, 60_000, 70_000, 500_000])
def test_a_record_is_found_wherever_a_window_ends(gap: int) -> None:
    for shift in range(0, 80, 7):
        at = gap + shift
        data = bytes(at) + record(at, 0, b"x" * 50) + bytes(100)
        assert find_record(_Counted(data), 0, len(data), SEGMENT) == at
        moved = bytes(at) + record(SEGMENT + at, 0, b"x" * 50) + bytes(100)
        assert find_moved(_Counted(moved), 0, len(moved), 0, SEGMENT) == at
        assert find_moved(_Counted(moved), 0, at, 0, SEGMENT) == -1


@pytest.mark.parametrize("size", [1, 3000, 5000, 100_000])
def test_a_record_is_read_as_long_as_it_says(size: int) -> None:
    data = record(0, 0, b"x" * size)
    found = record_there(_Counted(data + bytes(SEGMENT)), 0, SEGMENT)
    assert parse(found, 0, 0, SEGMENT) == parse(data, 0, 0, SEGMENT)


@pytest.mark.parametrize("size", [100, 200, 1000, 3000])
@pytest.mark.parametrize("before", [0, 1, 77, 300, 511])
def test_a_record_that_is_longer_than_a_window_tells_of_its_file(
    before: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strays, "WINDOW_BYTES", 256)
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
    monkeypatch.setattr(strays, "WINDOW_BYTES", window)
    if window < 1 << 23:  # one record, and a part of the next
        monkeypatch.setattr(aside, "window", record_there)
    stores, ledger = _of_long_records(tmp_path, 3000)
    first = stores[0] / "commitlog" / f"{0:020d}"
    first.rename(first.with_name(f"{12000 * 9:020d}" if to == "behind" else f"{first.name}.bak"))
    report = run_local(stores, ledger)
    told = {(f.kind, f.replica) for f in report.findings if f.kind != "acked_missing"}
    assert told == {("file_corrupt", "s0")}
    assert report.lost == (3 if to == "behind" else 0)
    assert not report.none_lost
