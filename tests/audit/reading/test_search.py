"""The promise of audit.reading.records.search: what rots, or costs much, is read and hashed about once."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit.compare import Cursor
from audit.reading.layout import load
from audit.reading.log_ends import find_ends
from audit.reading.records.record import is_whole, parse
from audit.reading.records.scan import scan_columns
from audit.reading.records.search import Read, Search, find_record
from audit.reading.storage import LocalStorage, StoreSpec
from audit.reading.strays import belongs
from tests.audit.plants import ledger_at, run_local
from tests.audit.stores import LogWriter, copies, record

LOG = 1 << 20
WINDOW = 1 << 16


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.reading.records.search.WINDOW_BYTES", WINDOW)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes = list[int]()

    def crc32(data: Any, start: int = 0) -> int:
        sizes.append(len(data))
        return zlib.crc32(data, start)

    monkeypatch.setattr("audit.reading.records.record.crc32", crc32)
    monkeypatch.setattr("audit.reading.records.search.crc32", crc32)
    return sizes


def _rotten(length: int) -> bytes:
    """Records of 100 bytes, each of which names its place, and says that it has ``length`` more: its body
    does not fit."""
    log = bytearray()
    while len(log) < LOG:
        head = bytearray(record(len(log), 0, b"x" * 6, key="k"))
        struct.pack_into(">i", head, 0, 100 + length)
        struct.pack_into(">i", head, 84, 1 << 29)
        log += head.ljust(100, b"\0")
    return bytes(log[:LOG])


def _nested(place: int, count: int, *, fails: bool) -> bytes:
    """Heads of records side by side that all end where the file does, where their lengths add up."""
    log = bytearray(LOG)
    behind = b"\x01T" + struct.pack(">H", 12) + b"UNIQ_KEY\x01k\x02\0"
    log[-len(behind) :] = behind
    for at in range(0, 100 * count, 100):
        head = bytearray(record(place + at, 0, b""))[:88]
        struct.pack_into(">i", head, 0, LOG - at)
        struct.pack_into(">i", head, 84, LOG - at - 88 - len(behind))
        log[at : at + 88] = head
    if not fails:  # the last one is right
        at = 100 * (count - 1)
        crc = zlib.crc32(log[at + 88 : -len(behind)]) & 0x7FFFFFFF
        struct.pack_into(">I", log, at + 8, crc)
    return bytes(log)


def _counted(log: bytes) -> tuple[Read, list[int]]:
    sizes = list[int]()

    def read(offset: int, size: int) -> bytes:
        sizes.append(len(log[offset : offset + size]))
        return log[offset : offset + size]

    return read, sizes


def _scanned(read: Read) -> None:
    for _ in scan_columns(read, 0, LOG, 0, 16 * LOG, LOG):
        pass


def _walked(read: Read) -> None:
    cursor, at = Cursor(read, 16 * LOG, LOG), 0
    while at < LOG:
        cursor.bytes_at(at, 8)
        at, _ = cursor.step(at)


@pytest.mark.parametrize("length", [0, WINDOW // 3, 3 * WINDOW, LOG])
@pytest.mark.parametrize("way", [_scanned, _walked])
def test_records_that_rotted_are_read_about_once(way: Callable[[Read], None], length: int) -> None:
    read, sizes = _counted(_rotten(length))
    way(read)
    assert sum(sizes) <= 3 * LOG


@pytest.mark.parametrize("spoil", ["lengths", "bodies", "both"])
def test_an_audit_reads_a_log_in_which_most_rotted_as_often_as_a_sound_one(
    spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(tmp_path / "origin", segment=1 << 19)
    writer.fill(2000)
    writer.confirm(epochs=[(1, 0)])
    stores = copies(writer.root, 2)
    sizes, plain = list[int](), LocalStorage.read

    def counted(self: LocalStorage, path: str, offset: int, size: int) -> bytes:
        data = plain(self, path, offset, size)
        sizes.append(len(data) if path.startswith("commitlog") else 0)
        return data

    monkeypatch.setattr(LocalStorage, "read", counted)
    file = stores[1] / "commitlog" / f"{0:020d}"
    log = bytearray(file.read_bytes())
    for number, row in enumerate(writer.rows[1:-3]):
        at = int(str(row["phys_offset"]))
        if spoil == "lengths" or (spoil == "both" and number % 2):
            struct.pack_into(">i", log, at + 84, 1 << 20)
        else:
            log[at + 88] ^= 1
    file.write_bytes(log)
    assert run_local(stores, None).verdict == "diverged"
    assert sum(sizes) <= 25 * writer.end


def test_the_end_of_a_log_of_rotten_records_is_found_by_reading_it_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogWriter(tmp_path / "s", segment=LOG)
    (store.root / "commitlog" / f"{0:020d}").write_bytes(_rotten(0))
    store.confirm(LOG)
    sizes, plain = list[int](), LocalStorage.read

    def counted(self: LocalStorage, path: str, offset: int, size: int) -> bytes:
        sizes.append(len(data := plain(self, path, offset, size)))
        return data

    replica = load(StoreSpec("s", str(store.root)))
    monkeypatch.setattr(LocalStorage, "read", counted)
    find_ends([replica])
    assert replica.end > LOG - 200
    assert sum(sizes) <= 5 * LOG


@pytest.mark.parametrize("fails", [True, False])
def test_heads_that_all_reach_to_the_files_end_are_hashed_about_once(
    fails: bool, hashed: list[int], tmp_path: Path
) -> None:
    count = 4000
    log = _nested(0, count, fails=fails)
    (tmp_path / "x").write_bytes(log)
    home = belongs(LocalStorage(str(tmp_path)), "x", 16 * LOG)
    assert home == (None if fails else (0, 16 * LOG))
    assert sum(hashed) <= 2 * LOG + 2048 * count


@pytest.mark.parametrize("fails", [True, False])
def test_heads_of_another_segment_that_all_reach_to_the_end_are_hashed_about_once(
    fails: bool, hashed: list[int]
) -> None:
    """Also where each stands in a stretch of its own, between records that rotted."""
    count = 2000
    log = bytearray(_nested(32 * LOG, count, fails=fails))
    own = record(0, 0, b"")
    for at in range(50, 100 * (count // 2), 100):
        head = bytearray(own[:50])
        struct.pack_into(">q", head, 28, at)
        log[at : at + 36] = head[:36]
    read, sizes = _counted(bytes(log))
    _scanned(read)
    assert sum(hashed) <= 2 * LOG + 2048 * count
    assert sum(sizes) <= 4 * LOG
    found = Search(read, 16 * LOG).find_moved(0, LOG, 16 * LOG)
    assert found == (-1 if fails else 100 * (count - 1))


def test_a_whole_record_is_what_parse_calls_one() -> None:
    chance = random.Random(5)
    crc_property = b"UNIQ_KEY\x01k\x02__CRC32#\x011234567890\x02"
    for number in range(4000):
        sys_flag, v2 = chance.choice([0, 0x10, 0x20, 0x30]), chance.random() < 0.3
        own = crc_property if number % 5 == 0 else None
        data = bytearray(record(4096, 3, b"body" * 9, sys_flag=sys_flag, v2=v2, properties=own))
        if number % 10 == 0:
            data[-11:-1] = f"{zlib.crc32(data[:-20]) & 0x7FFFFFFF:010d}"[::-1].encode()
        for _ in range(chance.choice([0, 0, 1, 3])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        size = int.from_bytes(data[:4], signed=True)
        parsed = parse(bytes(data), 0, 4096, 8192)
        sound = parsed.record is not None and parsed.damage is None
        if 91 <= size <= 4096:
            crc = lambda a, b, data=data: zlib.crc32(data[a:b])  # noqa: E731
            assert is_whole(bytes(data), 0, 4096, crc) == sound


def test_a_search_says_the_same_wherever_it_was_before() -> None:
    chance, log = random.Random(3), bytearray()
    starts = []
    while len(log) < LOG:
        starts.append(len(log))
        log += record(len(log), 0, b"x" * chance.randrange(9000))
        log += bytes(chance.choice([0, 0, 500, WINDOW, 3 * WINDOW]))
    search = Search(lambda o, n: bytes(log[o : o + n]), 2 * LOG)
    for _ in range(500):
        begin = chance.randrange(LOG)
        end = min(LOG, begin + chance.choice([1, 100, 10_000, LOG]))
        found = next((at for at in starts if begin <= at < end), -1)
        assert search.find_record(begin, end) == found
        assert find_record(lambda o, n: bytes(log[o : o + n]), begin, end, 2 * LOG) == found


def _of_long_records(root: Path, body: int) -> tuple[list[Path], Path]:
    """Two stores of records as long as windows are, and longer; of the first segment, moved by who calls,
    only one has a copy."""
    writer = LogWriter(root / "origin", segment=1 << 18)
    for n in range((1 << 18) // body + 1):
        writer.add(bytes([n]) * body, key=f"m{n}", stamp=1000 + n)
    for n in range(100, 104):
        writer.add(b"small", key=f"m{n}", stamp=1000 + n)
    writer.confirm(epochs=[(1, 0)])
    (writer.root / "abort").touch()
    stores = copies(writer.root, 2)
    (stores[1] / "commitlog" / f"{0:020d}").unlink()
    return stores, ledger_at(root, writer.rows)


@pytest.mark.parametrize("body", [WINDOW // 4, WINDOW // 2, WINDOW - 200, WINDOW * 3 // 2 + 100])
@pytest.mark.parametrize("name", [f"{0:020d}.bak", f"{1 << 20:020d}"])
def test_a_segment_of_long_records_under_another_name_is_told_and_no_other_store_blamed(
    name: str, body: int, tmp_path: Path
) -> None:
    stores, ledger = _of_long_records(tmp_path, body)
    log = stores[0] / "commitlog"
    (log / f"{0:020d}").rename(log / name)
    report = run_local(stores, ledger)
    rows = [
        (f.kind, f.replica, f.segment, f.found) for f in report.findings if not f.kind.startswith("acked")
    ]
    assert rows == [("file_corrupt", "r0", f"commitlog/{name}", f"records of {0:020d}")]
    assert (report.lost == 0) == name.endswith(".bak")


@pytest.mark.parametrize("gap", [0, 1, 4000, 60_000, WINDOW - 100, WINDOW, WINDOW + 1, 3 * WINDOW])
def test_a_record_is_found_wherever_a_window_ends(gap: int) -> None:
    for at in range(gap, gap + 110, 7):
        own = bytes(at) + record(at, 0, b"x" * 50) + bytes(100)
        moved = bytes(at) + record(LOG + at, 0, b"x" * 50) + bytes(100)
        assert find_record(_counted(own)[0], 0, len(own), LOG) == at
        assert Search(_counted(moved)[0], LOG).find_moved(0, len(moved), LOG) == at
        assert Search(_counted(moved)[0], LOG).find_moved(0, at + 1, LOG) == at
        assert Search(_counted(moved)[0], LOG).find_moved(0, at, LOG) == -1
        assert Search(_counted(moved)[0], 1 << 62, once=True).find_home(len(moved), LOG) == LOG


def test_a_sound_record_behind_heads_that_claim_it_is_found(hashed: list[int], tmp_path: Path) -> None:
    count = 4000
    log = _nested(0, count, fails=True)[: 100 * count + 100]
    sound = record(len(log), 0, b"sound")
    (tmp_path / "x").write_bytes(log + sound + bytes(LOG))
    assert belongs(LocalStorage(str(tmp_path)), "x", 16 * LOG) == (0, 16 * LOG)
    assert sum(hashed) <= 4 * LOG + 2048 * count


@pytest.mark.parametrize("size", [100, WINDOW - 300, WINDOW, 3 * WINDOW])
@pytest.mark.parametrize("before", [0, 1, 511])
def test_a_record_that_is_longer_than_a_window_tells_of_its_file(
    before: int, size: int, tmp_path: Path
) -> None:
    rotten = bytearray(record(LOG + before, 0, b"y" * size))
    rotten[100] ^= 1
    data = bytes(before) + rotten + record(LOG + before + len(rotten), 0, b"x" * size)
    (tmp_path / "whole").write_bytes(data)
    (tmp_path / "cut").write_bytes(data[:-1])
    assert belongs(LocalStorage(str(tmp_path)), "whole", LOG) == (LOG, 2 * LOG)
    assert belongs(LocalStorage(str(tmp_path)), "cut", LOG) is None
