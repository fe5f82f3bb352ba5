"""The promise of the walk over a log that no broker runs on: whatever one head says, every sound record is
seen, what is damaged ends where they begin and where the log does, and memory is not what a head says."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from runtime.env import File, read_file
from runtime.os_env import OsDisk
from store.files.damage import DamagedRange, DamageLedger
from store.files.record import Record, encode
from store.offline.directory import BLOCK_BYTES, Damage, StoreDirectory
from store.offline.repair import repair
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.fakes.disk.passing import PassingDisk, PassingFile
from tests.loops import completed
from tests.store.support import SEGMENT, config, fill, message, opened, records_of

COUNT = 100
SHAPE = config("/ours")
ROOTS = ("/ours", "/second", "/third")
Span = tuple[int, int]


def _stores(roots: tuple[str, ...] = ROOTS) -> tuple[FaultyDisk, list[Span]]:
    """Equal stores, and where their records lie: in three segments, the last of which is not full."""
    return deepcopy(_made(roots))


@cache
def _made(roots: tuple[str, ...]) -> tuple[FaultyDisk, list[Span]]:
    env = FaultyEnv()

    async def run() -> None:
        for root in roots:
            async with opened(env, root=root) as store:
                await fill(store, COUNT, queues=2)

    completed(run())
    with StoreDirectory(env.disk, "/ours") as store:
        spans = _spans(store.records())
    assert len(spans) == COUNT
    assert spans[-1][0] > 2 * SEGMENT
    return env.disk, spans


def _spans(items: Iterable[Record | Damage]) -> list[Span]:
    return [(r.physical_offset, r.physical_offset + r.size) for r in items if isinstance(r, Record)]


def _flip(disk: FaultyDisk, offset: int, bit: int, root: str = "/ours") -> None:
    """``bit`` 0 is the highest of the byte at ``offset`` of the log."""
    offset += bit // 8
    disk.nodes[f"{root}/commitlog/{offset - offset % SEGMENT:020}"].cache[offset % SEGMENT] ^= 128 >> bit % 8


def _walked(disk: FaultyDisk) -> tuple[list[Span], list[Span]]:
    """Where sound records lie, and damage."""
    with StoreDirectory(disk, "/ours") as store:
        items = list(store.records())
    return _spans(items), [(d.physical_offset, d.until) for d in items if not isinstance(d, Record)]


def _in_log(rows: list[dict[str, Any]]) -> list[Span]:
    return [(r["physicalOffset"], r["until"]) for r in rows if r["kind"] == "unreadable_region"]


def _noted(disk: FaultyDisk) -> list[Span]:
    ledger = DamageLedger(disk, "/ours")
    ledger.load()
    ledger.check_invariants()
    return [(item.begin, item.until) for item in ledger.ranges]


def _hit(spans: list[Span], where: str) -> int:
    """The number of a record: amid others, the last of a segment, the first and the last of the last one."""
    last = [n for n, (begin, _) in enumerate(spans) if begin >= 2 * SEGMENT]
    return {"amid": 5, "before the blank": last[0] - 1, "first": last[0], "last": last[-1]}[where]


WHERE = pytest.mark.parametrize("where", ["amid", "before the blank", "first", "last"])


@WHERE
@pytest.mark.parametrize("bit", range(32))
def test_behind_any_size_the_sound_records_are_seen_and_replicas_mend_it(bit: int, where: str) -> None:
    disk, spans = _stores()
    number = _hit(spans, where)
    begin, until = spans[number]
    right = {path: bytes(node.cache) for path, node in disk.nodes.items() if "/commitlog/" in path}
    _flip(disk, begin, bit)
    sound, damaged = _walked(disk)
    assert sound == [span for span in spans if span != (begin, until)]
    if where in ("amid", "first"):  # a record follows, and tells where it ended
        assert damaged == [(begin, until)]
    rows = verify(disk, "/ours", SHAPE)["damage"]
    assert _covers(_in_log(rows), begin, until)
    outcome = repair(disk, "/ours", ROOTS[1:], config=SHAPE)
    assert (outcome.left, outcome.tail) == ([], None)
    assert {path: bytes(disk.nodes[path].cache) for path in right} == right
    assert verify(disk, "/ours", SHAPE)["ok"]


def _covers(rows: list[Span], begin: int, until: int) -> bool:
    """Do rows that touch make up just [begin, until)?"""
    ends = [begin]
    for first, stop in sorted(rows):
        if first != ends[-1]:
            return False
        ends.append(stop)
    return ends[-1] == until or (begin < SEGMENT * 2 and ends[-1] % SEGMENT == 0)  # with its blank


@WHERE
@pytest.mark.parametrize("bit", [0, 1, 7, 16, 20])
def test_a_lone_store_serves_after_a_repair_what_it_served_before(bit: int, where: str) -> None:
    served = []
    for repaired in (False, True):
        disk, spans = _stores(ROOTS[:1])
        begin, until = spans[_hit(spans, where)]
        _flip(disk, begin, bit)
        if repaired:
            outcome = repair(disk, "/ours", [], config=SHAPE)
            assert _covers(_in_log(outcome.left), begin, until)
            assert _covers(_noted(disk), begin, until)
        served.append(_served(disk))
    assert served[0] == served[1]
    assert sum(map(len, served[0])) == COUNT - 1


def _served(disk: FaultyDisk) -> list[list[int]]:
    async def run() -> list[list[int]]:
        async with opened(FaultyEnv(disk=disk), root="/ours") as store:
            return [[r.queue_offset for r in records_of(store, "T", queue)] for queue in (0, 1)]

    return completed(run())


def test_what_was_noted_too_wide_before_is_narrowed() -> None:
    disk, spans = _stores(ROOTS[:1])
    begin, until = spans[5]
    _flip(disk, begin, 1)
    DamageLedger(disk, "/ours").note([DamagedRange(begin, SEGMENT, "unreadable_region")])
    assert repair(disk, "/ours", [], config=SHAPE).left
    assert _noted(disk) == [(begin, until)]
    assert sum(map(len, _served(disk))) == COUNT - 1


def test_an_index_that_is_made_anew_and_a_queue_hold_every_sound_record() -> None:
    disk, spans = _stores(ROOTS[:1])
    _flip(disk, spans[5][0], 1)
    for path in [p for p in disk.nodes if p.startswith(("/ours/index/", "/ours/consumequeue/"))]:
        disk.remove(path)
    outcome = repair(disk, "/ours", [], config=SHAPE)
    assert outcome.indexed in (COUNT - 1, None)  # messages without keys
    assert outcome.entries == COUNT - 1


@pytest.mark.parametrize("bit", range(32))
def test_a_blank_of_another_size_is_mended_and_hides_nothing(bit: int) -> None:
    disk, spans = _stores()
    blank = next(until for _, until in spans if until > SEGMENT - 200)
    _flip(disk, blank, bit)
    assert _walked(disk)[0] == spans
    assert _covers(_in_log(verify(disk, "/ours", SHAPE)["damage"]), blank, SEGMENT)
    assert repair(disk, "/ours", ROOTS[1:], config=SHAPE).left == []


# -- what is read, and held in memory ---------------------------------------------------------------------


class _Sizes(PassingDisk):
    def __init__(self) -> None:
        super().__init__(OsDisk())
        self.sizes = list[int]()

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        return _SizedFile(file, self.sizes) if "/commitlog/" in path else file


class _SizedFile(PassingFile):
    def __init__(self, file: File, sizes: list[int]) -> None:
        super().__init__(file)
        self._sizes = sizes

    def pread(self, size: int, offset: int) -> bytes:
        self._sizes.append(size)
        return super().pread(size, offset)

    def pwrite(self, data: Any, offset: int) -> None:
        self._sizes.append(len(data))
        super().pwrite(data, offset)


def _long_store(root: Path, write: Callable[[File], None], size: int) -> str:
    (root / "commitlog").mkdir(parents=True)
    path = root / f"commitlog/{0:020}"
    path.touch()
    os.truncate(path, size)
    file = OsDisk().open(str(path))
    write(file)
    file.close()
    return str(root)


def _records(file: File, at: int, until: int, number: int) -> None:
    body = b"x" * (1 << 16)
    while at + len(body) + 200 <= until:
        data = encode(message(body), number, at, 0)
        file.pwrite(data, at)
        at, number = at + len(data), number + 1


@pytest.mark.parametrize("claim", [(1 << 30) - 1000, (1 << 31) - 1, 129 << 20])
def test_a_head_that_claims_more_than_a_record_has_is_not_read_for_it(claim: int, tmp_path: Path) -> None:
    def write(file: File) -> None:
        record = encode(message(b"sound"), 0, 0, 0)
        file.pwrite(record, 0)
        bad = encode(message(b"bad"), 1, len(record), 0)
        file.pwrite(struct.pack(">i", claim) + bad[4:], len(record))
        behind = len(record) + len(bad)
        file.pwrite(encode(message(b"behind"), 2, behind, 0), behind)

    disk = _Sizes()
    root = _long_store(tmp_path / "a", write, 1 << 30)
    assert verify(disk, root)["records"] == 1  # the log ends before what is none
    with StoreDirectory(disk, root) as store:
        assert [isinstance(item, Record) for item in store.records()] == [True, False, True]
    peer = _long_store(tmp_path / "b", lambda file: _records(file, 0, 1 << 20, 0), 1 << 30)
    repair(disk, root, [peer])
    assert max(disk.sizes) <= BLOCK_BYTES


def test_a_long_stretch_of_zeros_is_mended_piece_by_piece(tmp_path: Path) -> None:
    size = 6 * BLOCK_BYTES
    peer = _long_store(tmp_path / "peer", lambda file: _records(file, 0, size, 0), size)
    root = _long_store(tmp_path / "own", lambda file: None, size)
    data = Path(peer, f"commitlog/{0:020}").read_bytes()
    first, last = 200_000 // (1 << 16), 3
    with StoreDirectory(OsDisk(), peer) as store:
        spans = _spans(store.records())
    kept = [(0, spans[first][1]), (spans[-last][0], spans[-1][1])]
    with open(Path(root, f"commitlog/{0:020}"), "r+b") as file:
        for begin, until in kept:
            file.seek(begin)
            file.write(data[begin:until])
    disk = _Sizes()
    outcome = repair(disk, root, [peer])
    [row] = [row for row in outcome.repaired if row["kind"] == "unreadable_region"]
    assert (row["physicalOffset"], row["until"]) == (kept[0][1], kept[1][0])
    assert Path(root, f"commitlog/{0:020}").read_bytes() == data
    assert max(disk.sizes) <= BLOCK_BYTES
    assert sum(disk.sizes) <= 30 * size


# -- where the log is known to end ------------------------------------------------------------------------


def _last_entry(disk: FaultyDisk, queue: int, back: int = 0) -> tuple[bytearray, int]:
    """The file with a queue's last entry but ``back``, and its place there."""
    paths = sorted(p for p in disk.nodes if p.startswith(f"/ours/consumequeue/T/{queue}/"))
    places = [(disk.nodes[p].cache, at) for p in paths for at in range(0, 400, 20)]
    written = [(cache, at) for cache, at in places if any(cache[at + 8 : at + 12])]
    return written[-1 - back]


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("bit", range(1, 96, 5))
@pytest.mark.parametrize("queue", [0, 1])
def test_an_entrys_word_alone_does_not_move_the_logs_end(queue: int, bit: int, torn: bool) -> None:
    disk, spans = _stores()
    end = spans[-1][1]
    disk.open("/ours/abort", create=True)
    cache, at = _last_entry(disk, queue)
    cache[at + bit // 8] ^= 128 >> bit % 8
    if torn:  # a write that was under way
        _write(disk, end, b"\1" * 40)
    verdict = verify(disk, "/ours", SHAPE)
    assert verdict["maxOffset"] == end
    assert _in_log(verdict["damage"]) == []
    assert (verdict["tail"] is not None) is torn
    outcome = repair(disk, "/ours", ROOTS[1:], config=SHAPE, cut_tail=True)
    assert _noted(disk) == []
    assert outcome.tail_cut is torn
    assert not any(d["physicalOffset"] >= end for d in outcome.left)


def _write(disk: FaultyDisk, offset: int, data: bytes) -> None:
    cache = disk.nodes[f"/ours/commitlog/{offset - offset % SEGMENT:020}"].cache
    cache[offset % SEGMENT : offset % SEGMENT + len(data)] = data


def _zero(disk: FaultyDisk, begin: int, until: int) -> None:
    _write(disk, begin, bytes(until - begin))


def _rot(disk: FaultyDisk, begin: int, until: int) -> None:
    _write(disk, begin, b"\1\2" * 2)  # another size


@pytest.mark.parametrize("harm", [_zero, _rot])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_entries_that_something_bears_out_tell_what_the_log_lost(
    count: int, harm: Callable[[FaultyDisk, int, int], None]
) -> None:
    disk, spans = _stores()
    disk.open("/ours/abort", create=True)
    disk.remove("/ours/checkpoint")
    for begin, until in spans[-count:]:
        harm(disk, begin, until)
    rows = _in_log(verify(disk, "/ours", SHAPE)["damage"])
    assert _covers(rows, spans[-count][0], spans[-1][1])
    assert repair(disk, "/ours", ROOTS[1:], config=SHAPE).left == []
    assert _walked(disk)[0] == spans


def test_entries_of_what_the_log_has_elsewhere_do_not_count() -> None:
    """It may begin just where the log ends, as a flipped bit has it."""
    disk, spans = _stores()
    disk.open("/ours/abort", create=True)
    disk.remove("/ours/checkpoint")
    end = spans[-1][1]
    for queue in (0, 1):
        cache, at = _last_entry(disk, queue)
        struct.pack_into(">q", cache, at, end)
    verdict = verify(disk, "/ours", SHAPE)
    assert (verdict["maxOffset"], _in_log(verdict["damage"])) == (end, [])


@pytest.mark.parametrize("until", [1, 200, SEGMENT, 1 << 40])
def test_a_range_that_was_noted_behind_the_log_does_not_feed_itself(until: int) -> None:
    disk, spans = _stores()
    end = spans[-1][1]
    disk.open("/ours/abort", create=True)
    DamageLedger(disk, "/ours").note([DamagedRange(end, end + until, "unreadable_region")])
    verdict = verify(disk, "/ours", SHAPE)
    assert (verdict["ok"], verdict["maxOffset"]) == (True, end)


def test_a_noted_range_tells_that_the_log_goes_on_if_a_sound_record_stands_behind_it() -> None:
    disk, spans = _stores()
    begin, until = spans[-3]
    disk.open("/ours/abort", create=True)
    disk.remove("/ours/checkpoint")
    for path in [p for p in disk.nodes if p.startswith("/ours/consumequeue/")]:
        disk.remove(path)
    _zero(disk, begin, until)
    assert verify(disk, "/ours", SHAPE)["maxOffset"] == begin
    DamageLedger(disk, "/ours").note([DamagedRange(begin, until, "unreadable_region")])
    verdict = verify(disk, "/ours", SHAPE)
    assert (verdict["maxOffset"], _in_log(verdict["damage"])) == (spans[-1][1], [(begin, until)])


@pytest.mark.parametrize("size", [1 << 8, 1 << 10, 1 << 11])
def test_a_last_record_whose_size_grew_does_not_reach_behind_the_log(size: int) -> None:
    disk, spans = _stores(ROOTS[:1])
    begin, until = spans[-1]
    _write(disk, begin, struct.pack(">i", until - begin + size))
    repair(disk, "/ours", [], config=SHAPE)
    assert _noted(disk) == [(begin, until)]


# -- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, SEGMENT, 2 * SEGMENT])
@pytest.mark.parametrize("behind", [b"\0" * 4096, b"\0" * 5, b"rest" * 9])
def test_what_stands_behind_a_segments_end_is_named_and_no_damage_of_the_log(
    behind: bytes, start: int
) -> None:
    disk, spans = _stores()
    disk.nodes[f"/ours/commitlog/{start:020}"].cache += behind
    row = {
        "kind": "unreadable_region",
        "physicalOffset": start + SEGMENT,
        "until": start + SEGMENT,
        "file": f"{start:020}",
        "text": f"{len(behind)} bytes stand behind the segment's end, {SEGMENT} bytes",
    }
    verdict = verify(disk, "/ours", SHAPE)
    assert (verdict["damage"], verdict["maxOffset"], verdict["records"]) == ([row], spans[-1][1], COUNT)
    _flip(disk, spans[5][0] + 100, 0)
    outcome = repair(disk, "/ours", ROOTS[1:], config=SHAPE)
    assert [r["why"] for r in outcome.left] == [row["text"]]
    assert _noted(disk) == []
    node = disk.nodes[f"/ours/commitlog/{start:020}"]
    del node.cache[SEGMENT:]
    assert verify(disk, "/ours", SHAPE)["ok"]


NAMES = ["²" * 20, "٠" * 20, "²", "٣", "²" * 17]
FOLDERS = ["commitlog", "consumequeue/T", "consumequeue/T/0", "index"]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", NAMES)
def test_digits_of_other_alphabets_name_nothing_of_a_store(name: str, folder: str) -> None:
    disk, _ = _stores()
    if folder == "consumequeue/T":
        disk.makedirs(f"/ours/{folder}/{name}")
        disk.open(f"/ours/{folder}/{name}/{0:020}", create=True)
    else:
        disk.open(f"/ours/{folder}/{name}", create=True)
    assert verify(disk, "/ours", SHAPE)["ok"]
    assert repair(disk, "/ours", ROOTS[1:], config=SHAPE).to_json()["ok"]
    assert list(map(len, _served(disk))) == [COUNT // 2] * 2
    assert name in disk.listdir(f"/ours/{folder}")


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"crc":1,"ranges":' + b"[" * 100_000 + b"}\n"])
def test_a_note_that_nests_too_deep_is_ignored_as_any_other_that_is_damaged(text: bytes) -> None:
    disk, _ = _stores()
    disk.open("/ours/damagedRanges", create=True).pwrite(text, 0)
    assert verify(disk, "/ours", SHAPE)["ok"]
    assert repair(disk, "/ours", ROOTS[1:], config=SHAPE).to_json()["ok"]
    assert list(map(len, _served(disk))) == [COUNT // 2] * 2
    assert read_file(disk, "/ours/commitlog/" + "0" * 20)
