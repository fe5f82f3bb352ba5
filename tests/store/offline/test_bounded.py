"""The promise of the offline view about its cost: what rots, or is made to cost much, is read and hashed
about once, and what no store can hold is named and not read."""

from __future__ import annotations

import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.errors import DiskError
from model.read_ahead import Sums
from runtime.env import File
from runtime.os_env import OsDisk, OsEnv
from store.files.damage import resync
from store.files.record import Record, encode
from store.offline.directory import StoreDirectory
from store.offline.index_check import IndexCheck
from store.offline.repair import repair
from store.offline.verify import shape_in, verify
from tests.fakes.disk.passing import PassingDisk, PassingFile
from tests.loops import completed
from tests.store.support import SEGMENT, config, fill, message, opened

LOG = 4 << 20
FIRST = f"commitlog/{0:020}"


def _head(place: int, size: int, body: int) -> bytes:
    head = bytearray(encode(message(b""), 0, place, 0)[:88])
    struct.pack_into(">i", head, 0, size)
    struct.pack_into(">i", head, 84, body)
    return bytes(head)


def _nested(count: int, *, fails: bool) -> bytes:
    """Behind a few bytes of garbage, heads side by side that all end where the log does."""
    log = bytearray(LOG)
    behind = b"\x01T" + struct.pack(">H", 2) + b"k\x02"
    log[-len(behind) :] = behind
    log[:8] = b"\7" * 8
    for at in range(100, 100 * count + 1, 100):
        log[at : at + 88] = _head(at, LOG - at, LOG - at - 88 - len(behind))
    if not fails:
        at = 100 * count
        struct.pack_into(">I", log, at + 8, zlib.crc32(log[at + 88 : -len(behind)]) & 0x7FFFFFFF)
    return bytes(log)


@pytest.mark.parametrize("fails", [True, False])
def test_heads_that_all_reach_to_the_segments_end_are_read_and_hashed_about_once(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, asked, count = [0], [0], 2000

    def crc32(data: Any, start: int) -> int:
        hashed[0] += len(data)
        return zlib.crc32(data, start)

    monkeypatch.setattr("store.files.damage.Sums", lambda: Sums(crc32))
    log = _nested(count, fails=fails)

    def read(size: int, at: int) -> bytes:
        asked[0] += size
        return log[at : at + size]

    assert resync(read, 0, 0, LOG) == (None if fails else 100 * count)
    assert hashed[0] <= 2 * LOG + 2048 * count
    assert asked[0] <= 3 * LOG


class _CountedFile(PassingFile):
    def __init__(self, file: File, sizes: list[int]) -> None:
        super().__init__(file)
        self._sizes = sizes

    def pread(self, size: int, offset: int) -> bytes:
        self._sizes.append(size)
        return super().pread(size, offset)


class _Counted(PassingDisk):
    """Counts what is read of the log."""

    def __init__(self) -> None:
        super().__init__(OsDisk())
        self.sizes = list[int]()

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        return _CountedFile(file, self.sizes) if "/commitlog/" in path else file


def _store(root: Path, log: bytes) -> str:
    (root / "commitlog").mkdir()
    (root / FIRST).write_bytes(log)
    return str(root)


@pytest.mark.parametrize("claim", [0, 3 << 20])
def test_records_that_rotted_between_sound_ones_are_read_about_once(claim: int, tmp_path: Path) -> None:
    log, count = bytearray(), 0
    while len(log) < LOG // 2:
        log += encode(message(b"sound"), count, len(log), 0)
        log += _head(len(log), 200 + claim, 1 << 29).ljust(200, b"\0")
        count += 1
    disk = _Counted()
    with StoreDirectory(disk, _store(tmp_path, bytes(log.ljust(2 * LOG, b"\0")))) as store:
        [segment] = store.segments()
        kinds = [type(item).__name__ for item in store.segment_records(segment)]
    assert kinds == ["Record", "Damage"] * count
    assert sum(disk.sizes) <= 2 * (LOG + (claim + (4 << 20)))


@pytest.mark.parametrize("behind", [0, 1 << 30, (2 << 30) - 4096])
def test_what_was_never_written_of_a_segment_is_not_read(behind: int, tmp_path: Path) -> None:
    root = _store(tmp_path, b"\xff" * 8)
    with open(tmp_path / FIRST, "r+b") as file:
        file.truncate((2 << 30) - 1)
        if behind:
            file.seek(behind)
            file.write(b"\2" * 8)
    disk = _Counted()
    verdict = verify(disk, root)
    assert verdict["tail"] == {"physicalOffset": 0, "until": behind + 8}
    assert sum(disk.sizes) <= 64 << 20


def test_a_record_is_found_behind_a_hole_in_which_its_size_begins(tmp_path: Path) -> None:
    root = _store(tmp_path, b"\xff" * 8)
    at = (1 << 20) - 2
    with open(tmp_path / FIRST, "r+b") as file:
        file.truncate(1 << 22)
        file.seek(at + 2)
        file.write(encode(message(b"m"), 0, at, 0)[2:])
    with StoreDirectory(OsDisk(), root) as store:
        assert [item.physical_offset for item in store.records()] == [0, at]


def _written(root: Path) -> Path:
    async def run() -> None:
        async with opened(OsEnv(), root=str(root / "store")) as store:
            await fill(store, 100)

    completed(run())
    return root / "store"


def _folder(path: Path) -> str:
    path.mkdir()
    return "not a regular file"


def _pipe(path: Path) -> str:
    os.mkfifo(path)
    return "not a regular file"


def _device(path: Path) -> str:
    path.symlink_to("/dev/zero")
    return "not a regular file"


def _dangling(path: Path) -> str:
    path.symlink_to(path.parent / "nowhere")
    return "No such file or directory"


def _loop(path: Path) -> str:
    path.symlink_to(path.name)
    return "Too many levels of symbolic links"


def _huge(path: Path) -> str:
    path.touch()
    os.truncate(path, (1 << 62) - 1)
    return f"{(1 << 62) - 1} bytes, no such file has more than {(1 << 31) - 1}"


HARMS = [_folder, _pipe, _device, _dangling, _loop, _huge]
PLACES = [
    f"commitlog/{100 * SEGMENT:020}",
    f"commitlog/{0:020}",
    f"consumequeue/T/0/{400 * 100:020}",
    f"index/{20260101000000000:017}",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("harm", HARMS)
def test_what_no_store_can_hold_is_named_and_nothing_is_made_of_the_rest(
    harm: Callable[[Path], str], place: str, tmp_path: Path
) -> None:
    root = _written(tmp_path)
    path = root / place
    path.unlink(missing_ok=True)
    try:
        why = harm(path)
    except OSError as error:
        pytest.skip(f"this file system holds no such file: {error}")
    entries = {p: p.read_bytes() for p in (root / "consumequeue").rglob("*") if p.is_file() and p != path}
    [row] = [r for r in verify(OsDisk(), str(root), config())["damage"] if r["kind"] == "file_unreadable"]
    assert (row["file"], row["text"]) == (place, why)
    outcome = repair(OsDisk(), str(root), [], config=config())
    assert [r["why"] for r in outcome.left if r["kind"] == "file_unreadable"] == [why]
    assert (outcome.entries, outcome.indexed) == (0, None)
    assert all(p.read_bytes() == data for p, data in entries.items())
    with StoreDirectory(OsDisk(), str(root)) as store, pytest.raises(DiskError, match=place):
        _ = store.segments(), store.queue_files("T", 0), store.index_files()


@pytest.mark.parametrize("harm", [_folder, _pipe, _huge])
@pytest.mark.parametrize("name", ["epochFileCheckpoint", "damagedRanges"])
def test_a_note_that_is_none_is_named(name: str, harm: Callable[[Path], str], tmp_path: Path) -> None:
    root = _written(tmp_path)
    (root / name).unlink(missing_ok=True)
    harm(root / name)
    if name == "damagedRanges":
        with pytest.raises(DiskError, match=name):
            verify(OsDisk(), str(root), config())
    else:
        assert [r["file"] for r in verify(OsDisk(), str(root), config())["damage"]] == [name]


def test_an_entry_that_claims_much_has_nothing_read_for_it(tmp_path: Path) -> None:
    root = _written(tmp_path)
    queue = root / f"consumequeue/T/0/{0:020}"
    data = bytearray(queue.read_bytes())
    for at in range(8, len(data), 20):
        struct.pack_into(">i", data, at, SEGMENT - 100)
    queue.write_bytes(data)
    disk = _Counted()
    verdict = verify(disk, str(root), config())
    assert len([r for r in verdict["damage"] if r["kind"] == "cq_dangling"]) == len(data) // 20
    whole = sum(file.stat().st_size for file in (root / "commitlog").iterdir())
    assert sum(disk.sizes) <= 3 * whole


@pytest.mark.parametrize("place", [-1, -5, -(1 << 63)])
@pytest.mark.parametrize("queues", [True, False])
def test_a_record_that_says_a_place_before_the_first_is_damage(
    place: int, queues: bool, tmp_path: Path
) -> None:
    root = _written(tmp_path)
    right = (root / FIRST).read_bytes()
    if not queues:
        shutil.rmtree(root / "consumequeue")
    log = bytearray((root / FIRST).read_bytes())
    at = struct.unpack_from(">i", log)[0]
    struct.pack_into(">q", log, at + 20, place)
    (root / FIRST).write_bytes(log)
    text = f"the record says entry {place}: it is in no queue"
    rows = verify(OsDisk(), str(root), config())["damage"]
    assert [r["kind"] for r in rows if r["text"] == text and r["physicalOffset"] == at] == ["cq_missing"]
    outcome = repair(OsDisk(), str(root), [], config=config())
    assert (text in [r["why"] for r in outcome.left]) is not queues
    assert ((root / FIRST).read_bytes() == right) is queues, "its queue knows its place"


class _Compared(int):
    """Counts how often it is compared."""

    count = 0

    def __le__(self, other: int) -> bool:
        _Compared.count += 1
        return int(self) <= other

    def __lt__(self, other: int) -> bool:
        _Compared.count += 1
        return int(self) < other

    def __gt__(self, other: int) -> bool:
        _Compared.count += 1
        return int(self) > other


def _index_check(root: Path, holes: list[tuple[int, int]], log: range) -> IndexCheck:
    with StoreDirectory(OsDisk(), str(root)) as store:
        check = IndexCheck(store, shape_in(config()), log, None)
        for begin, until in holes:
            check.hole(_Compared(begin), _Compared(until))
        check.finish(log.stop)
    return check


def _spans(root: Path) -> list[tuple[int, int]]:
    with StoreDirectory(OsDisk(), str(root)) as store:
        found = [item for item in store.records() if isinstance(item, Record)]
    return [(record.physical_offset, record.physical_offset + record.size) for record in found]


def test_entries_of_many_damaged_records_are_not_each_compared_with_all_of_those(tmp_path: Path) -> None:
    root = _written(tmp_path)
    spans = _spans(root)
    _Compared.count = 0
    check = _index_check(root, [(begin, until - 1) for begin, until in spans], range(spans[-1][1]))
    assert check.rows == []
    assert 0 < _Compared.count <= 40 * len(spans)


@pytest.mark.parametrize("seed", range(20))
def test_of_what_lies_in_a_hole_nothing_is_said_however_holes_lie(seed: int, tmp_path: Path) -> None:
    root, chance = _written(tmp_path), random.Random(seed)
    spans = _spans(root)
    holes = []
    for _ in range(12):
        first = chance.randrange(90)
        holes.append((spans[first][0], spans[min(first + chance.choice([0, 1, 5, 20]), 99)][1] - 1))
    for segment in (root / "commitlog").iterdir():
        segment.write_bytes(bytes(segment.stat().st_size))
    rows = _index_check(root, holes, range(spans[-1][1])).rows
    wanted = [at for at, _ in spans if not any(begin <= at < until for begin, until in holes)]
    assert [row.physical_offset for row in rows] == wanted[: len(rows)]
    assert len(rows) == min(len(wanted), 20)


def test_much_damage_is_noted_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = _written(tmp_path)
    places = [begin for begin, _ in _spans(root)[1::2]]
    for at in places:
        with open(root / f"commitlog/{at - at % SEGMENT:020}", "r+b") as file:
            file.seek(at % SEGMENT + 88)  # the body
            file.write(b"~")
    with caplog.at_level("ERROR", logger="store.files.damage"):
        outcome = repair(OsDisk(), str(root), [], config=config())
    noted = [line for line in caplog.messages if line.startswith("the log is damaged")]
    assert len(outcome.left) == len(places) == len(noted)
