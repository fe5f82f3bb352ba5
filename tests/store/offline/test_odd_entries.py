"""The promise of a repair to right queue entries: none is judged by an odd one, or altered on the way.

Of a whole log each record has its entry afterwards, whatever queue files say, and nothing else is entered.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

import pytest

from model.message import INNER_BATCH, INNER_NUM, encode_properties
from model.queue_sizes import Told
from store.files.consume_queue import ENTRY_BYTES, PRE_BLANK
from store.files.record import Record
from store.offline.directory import SegmentInfo, StoreDirectory
from store.offline.queues.growing import Growing
from store.offline.queues.places import Placed, Says
from store.offline.repair import repair
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed
from tests.store.support import SEGMENT, config, message, opened, records_of

PER_FILE = 200
"""Bytes: ten entries."""
QUEUES = [("T", 0), ("T", 1), ("U", 0), ("V", 3)]
SHAPE = config(queue_file_bytes=PER_FILE)
ROOT = "/store/consumequeue/"
BATCH: dict[str, Any] = {
    "topic": "B",
    "queue_offset": 8,
    "sys_flag": INNER_BATCH,
    "properties": encode_properties({INNER_NUM: "4"}),
}
Place = tuple[str, int]
"""A queue's file, and the byte in it."""


class Base(NamedTuple):
    """``entries``: all of the store; ``live``: places of the records that the log holds still."""

    disk: FaultyDisk
    entries: dict[Place, bytes]
    live: set[Place]
    following: dict[tuple[str, int], int]


@cache
def _base() -> Base:
    """A store that was stopped, whose first segments expired."""
    env, chance = FaultyEnv(), random.Random(7)

    async def run() -> None:
        async with opened(env, queue_file_bytes=PER_FILE) as store:
            for number in range(260):
                topic, queue_id = chance.choice(QUEUES)
                body = "x" * chance.choice([4, 100])
                store.put(message(body, topic=topic, queue_id=queue_id, uniq=f"U{number}"))
            store.confirm(store.log.end)
            await store.caught_up()

    completed(run())
    for start in range(0, 3 * SEGMENT, SEGMENT):
        env.disk.remove(f"/store/commitlog/{start:020}")
    env.disk.sync_dir("/store/commitlog")
    repair(env.disk, "/store", [], config=SHAPE)  # of the index
    assert verify(env.disk, "/store", SHAPE)["damage"] == []
    live, following = set(), dict[tuple[str, int], int]()
    with StoreDirectory(env.disk, "/store") as store:
        for record in store.records():
            assert isinstance(record, Record)
            live.add(_place(record.topic, record.queue_id, record.queue_offset))
            following[record.topic, record.queue_id] = record.queue_offset + 1
    assert len(live) > 40
    return Base(env.disk, dict(_entries(env.disk)), live, following)


def _place(topic: str, queue_id: int, place: int) -> Place:
    at = place * ENTRY_BYTES
    return f"{ROOT}{topic}/{queue_id}/{at - at % PER_FILE:020}", at % PER_FILE


def _entries(disk: FaultyDisk) -> Iterator[tuple[Place, bytes]]:
    for path, node in disk.nodes.items():
        if path.startswith(ROOT):
            for at in range(0, len(node.cache), ENTRY_BYTES):
                if any(node.cache[at : at + ENTRY_BYTES]):
                    yield (path, at), bytes(node.cache[at : at + ENTRY_BYTES])


def _damage(disk: FaultyDisk, chance: random.Random) -> None:
    """Flips, swaps, zeros, files over others, noise."""
    files = sorted(path for path in disk.nodes if path.startswith(ROOT))
    for _ in range(chance.choice([1, 1, 2, 3])):
        one, other = (disk.nodes[path].cache for path in chance.sample(files, 2))
        at = chance.randrange(PER_FILE)
        match chance.choice(["flip", "flip", "swap", "swap", "zeros", "over", "noise"]):
            case "flip":
                one[at] ^= 1 << chance.randrange(8)
            case "swap":
                one[:], other[:] = bytes(other), bytes(one)
            case "over":
                one[:], other[:] = bytes(other), bytes(PER_FILE)
            case "zeros":
                one[at : at + 40] = bytes(len(one[at : at + 40]))
            case "noise":
                one[at : at + 40] = chance.randbytes(len(one[at : at + 40]))


def _right(disk: FaultyDisk, base: Base) -> set[Place]:
    return {
        (path, at)
        for (path, at), entry in base.entries.items()
        if path in disk.nodes and disk.nodes[path].cache[at : at + ENTRY_BYTES] == entry
    }


def _watch(disk: FaultyDisk, base: Base, kill_at: int) -> Callable[[str, str], int | None]:
    """Sees all that was right at each write of a queue, and kills the process at one."""
    right, writes = _right(disk, base), 0

    def look(what: str, path: str) -> int | None:
        nonlocal writes
        if path.startswith(ROOT) and what in ("pwrite", "remove", "truncate", "sync", "replace"):
            assert not right - _right(disk, base), f"{what} of {path}"
            writes += 1
            if writes == kill_at:
                raise KeyboardInterrupt
        return None

    return look


def _log(disk: FaultyDisk) -> dict[str, bytes]:
    return {path: bytes(node.cache) for path, node in disk.nodes.items() if "/commitlog/" in path}


@pytest.mark.parametrize("seed", range(60))
def test_each_record_has_its_entry_and_no_right_one_was_altered(seed: int) -> None:
    base, chance = _base(), random.Random(seed)
    disk = base.disk.crash()
    _damage(disk, chance)
    right = _right(disk, base)
    disk.fail = _watch(disk, base, chance.choice([0, 1, 3, 10]))
    try:
        repair(disk, "/store", [], config=SHAPE)
    except KeyboardInterrupt:
        disk.fail = _watch(disk, base, 0)
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert outcome.left == []
    assert verify(disk, "/store", SHAPE)["damage"] == []
    assert base.live | right <= _right(disk, base)
    assert _log(disk) == _log(base.disk)
    with StoreDirectory(disk, "/store") as store:
        end = store.segments()[-1].end
        for queue in QUEUES:  # what lies behind the log's end a start drops
            named = [at for at, offset, size, _ in store.queue_entries(*queue) if offset + size <= end]
            assert named[-1] + 1 == base.following[queue]
    before = dict(_entries(disk))
    again = repair(disk, "/store", [], config=SHAPE)
    assert (again.entries, again.left, dict(_entries(disk))) == (0, [], before)
    if seed % 6 == 0:
        _serves(disk.crash(), base)


def _serves(disk: FaultyDisk, base: Base) -> None:
    async def run() -> None:
        async with opened(FaultyEnv(disk), queue_file_bytes=PER_FILE) as store:
            assert {queue: store.max_queue_offset(*queue) for queue in QUEUES} == base.following
            assert sum(len(records_of(store, *queue)) for queue in QUEUES) == len(base.live)

    completed(run())


def test_an_odd_entry_of_an_expired_message_stands_for_none() -> None:
    base = _base()
    disk = base.disk.crash()
    first = min(at for path, at in base.live if path == min(path for path, _ in base.live))
    path = min(path for path, _ in base.live)
    at = first - ENTRY_BYTES
    assert at >= 0
    disk.nodes[path].cache[at + 2] ^= 4
    assert [row["kind"] for row in verify(disk, "/store", SHAPE)["damage"]] == ["cq_dangling"]
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert (outcome.entries, outcome.left) == (1, [])
    wanted = base.entries | {(path, at): PRE_BLANK}
    assert dict(_entries(disk)) == wanted


@pytest.mark.parametrize("offset", [0, 500, -1, -(1 << 62)])
def test_a_live_record_whose_entry_looks_expired_has_none(offset: int) -> None:
    base = _base()
    disk = base.disk.crash()
    path, at = max(base.live)
    disk.nodes[path].cache[at : at + 8] = offset.to_bytes(8, "big", signed=True)
    assert [row["kind"] for row in verify(disk, "/store", SHAPE)["damage"]] == [
        "cq_wrong" if offset >= 0 else "cq_dangling"
    ]
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert (outcome.entries, outcome.left) == (1, [])
    assert dict(_entries(disk)) == base.entries


def test_nothing_is_made_of_what_lies_behind_a_torn_tail() -> None:
    """A power failure took a page of the log that was not synced, and the size of a new queue's file."""
    base = _base()
    disk = base.disk.crash()
    env = FaultyEnv(disk)

    async def run() -> FaultyDisk:
        async with opened(env, queue_file_bytes=PER_FILE) as store:
            await store.synced(store.log.end)
            for number in range(20):
                store.put(message("c" * 60, topic="C", queue_id=0, uniq=f"C{number}"))
            store.confirm(store.log.end)
            await store.caught_up()
        return env.disk

    disk = completed(run())
    with StoreDirectory(disk, "/store") as store:
        records = [item for item in store.records() if isinstance(item, Record) and item.topic == "C"]
    torn = records[4].physical_offset
    segment = disk.nodes[f"/store/commitlog/{torn - torn % SEGMENT:020}"].cache
    segment[torn % SEGMENT + 30 : torn % SEGMENT + 130] = bytes(100)
    disk.remove("/store/checkpoint")
    disk.open("/store/abort", create=True).close()
    for path in [path for path in disk.nodes if path.startswith(f"{ROOT}C/0/")]:
        disk.nodes[path].cache[:] = b""
        if not path.endswith("0" * 20):
            disk.remove(path)
    before = verify(disk, "/store", SHAPE)
    assert (before["maxOffset"], before["tail"]["physicalOffset"]) == (torn, torn)
    for _ in range(2):
        repair(disk, "/store", [], config=SHAPE)
        after = verify(disk, "/store", SHAPE)
        assert (after["maxOffset"], after["tail"]) == (torn, before["tail"])
        assert "unreadable_region" not in {row["kind"] for row in after["damage"]}
        assert not disk.exists("/store/damagedRanges")
        with StoreDirectory(disk, "/store") as store:
            entered = [offset for _, offset, *_ in store.queue_entries("C", 0)]
        assert entered == [record.physical_offset for record in records[:4]]


@pytest.mark.parametrize("sure", [True, False])
def test_what_an_inner_batch_takes_makes_no_file_of_a_size_that_nobody_knows(sure: bool) -> None:
    disk = FaultyEnv().disk
    path = f"{ROOT}B/0/{0:020}"
    disk.makedirs(path.rpartition("/")[0])
    file = disk.open(path, create=True)
    file.truncate(PER_FILE)
    file.close()
    record = Record(**{field.name: 0 for field in fields(Record)} | BATCH)
    growing = Growing(disk, "/store", Told(PER_FILE, sure), {("B", 0): [SegmentInfo(0, PER_FILE, path)]})
    entry = b"\x01" * ENTRY_BYTES
    assert growing.enter(Placed(record, Says.RIGHT), entry)
    growing.sync()
    wanted = {(path, 160): entry, (path, 180): PRE_BLANK}
    behind = {(f"{ROOT}B/0/{PER_FILE:020}", at): PRE_BLANK for at in (0, 20)}
    assert dict(_entries(disk)) == (wanted | behind if sure else wanted)


# -- behind a gap -----------------------------------------------------------------------------------------


def _put(disk: FaultyDisk, queue: tuple[str, int], place: int, entry: bytes) -> None:
    """With the file of the place, and those before it, as a broker makes them."""
    path, at = _place(*queue, place)
    for start in range(0, int(path[-20:]) + 1, PER_FILE):
        file = f"{path[:-20]}{start:020}"
        if file > min(p for p in disk.nodes if p.startswith(path[:-20])) and file not in disk.nodes:
            disk.open(file, create=True).truncate(PER_FILE)
    disk.nodes[path].cache[at : at + ENTRY_BYTES] = entry


def _named(disk: FaultyDisk, what: str) -> tuple[int, int]:
    """A place of the log, and a size, that are not those of the next message of T/0."""
    with StoreDirectory(disk, "/store") as store:
        records = [item for item in store.records() if isinstance(item, Record)]
    own = next(r for r in records if (r.topic, r.queue_id) == ("T", 0))
    other = next(r for r in records[10:] if r.topic == "U")
    return {
        "another": (other.physical_offset, other.size),
        "own": (own.physical_offset, own.size),
        "middle": (other.physical_offset + 3, other.size),
        "negative": (-5, other.size),
    }[what]


@pytest.mark.parametrize(
    ("what", "gap"),
    [("another", 1), ("own", 1), ("middle", 1), ("negative", 1), ("another", 5), ("own", 25), ("middle", 0)],
)
def test_an_odd_entry_goes_that_stands_behind_a_gap_at_its_queues_end(what: str, gap: int) -> None:
    base = _base()
    disk = base.disk.crash()
    queue, (offset, size) = ("T", 0), _named(disk, what)
    _put(disk, queue, base.following[queue] + gap, struct.pack(">qiq", offset, size, 0))
    rows = verify(disk, "/store", SHAPE)["damage"]
    assert [(row["kind"], row["physicalOffset"]) for row in rows] == [
        ("cq_wrong" if what in ("another", "own") else "cq_dangling", offset)
    ]
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert (outcome.entries, outcome.left, dict(_entries(disk))) == (1, [], base.entries)
    assert verify(disk, "/store", SHAPE)["damage"] == []


@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("more", [1, 4])
def test_a_first_file_under_a_name_behind_the_last_comes_back_and_goes_there(more: int, gap: int) -> None:
    """With ``more`` files on, those between are gone but for one."""
    base = _base()
    disk = base.disk.crash()
    files = sorted(path for path in disk.nodes if path.startswith(f"{ROOT}T/0/"))
    moved = next(path for path, _ in sorted(base.live) if path.startswith(f"{ROOT}T/0/"))
    for path in [path for path in files if path < moved]:
        disk.remove(path)
    base = base._replace(entries={place: e for place, e in base.entries.items() if place[0] in disk.nodes})
    disk.replace(moved, f"{ROOT}T/0/{int(files[-1][-20:]) + more * PER_FILE + gap * PER_FILE:020}")
    assert verify(disk, "/store", SHAPE)["damage"]
    assert repair(disk, "/store", [], config=SHAPE).left == []
    found = dict(_entries(disk))
    assert {place: found.get(place) for place in base.live} == {
        place: base.entries[place] for place in base.live
    }
    assert not [place for place in found.keys() - base.entries.keys() if found[place] != PRE_BLANK]
    assert verify(disk, "/store", SHAPE)["damage"] == []


def test_what_may_be_a_cut_ones_is_left_behind_a_gap_and_a_right_entry_too() -> None:
    """It parts odd ones: the zeros between stay zeros."""
    base = _base()
    disk = base.disk.crash()
    queue, (offset, size) = ("T", 0), _named(disk, "middle")
    with StoreDirectory(disk, "/store") as store:
        end = store.segments()[-1].end
    beyond, odd = struct.pack(">qiq", end + 50, 100, 0), struct.pack(">qiq", offset, size, 0)
    for far, entry in {2: odd, 4: odd, 7: beyond, 9: odd}.items():
        _put(disk, queue, base.following[queue] + far, entry)
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert (outcome.entries, outcome.left) == (3, [])
    assert dict(_entries(disk)) == base.entries | {_place(*queue, base.following[queue] + 7): beyond}
    assert verify(disk, "/store", SHAPE)["damage"] == []


# -- zeros up to a segment's end --------------------------------------------------------------------------


def _segments(disk: FaultyDisk) -> list[SegmentInfo]:
    with StoreDirectory(disk, "/store") as store:
        return store.segments()


@pytest.mark.parametrize("number", [0, 1, -2])
@pytest.mark.parametrize("begin", [0, 60, 3000, SEGMENT - 1000])
@pytest.mark.parametrize("noise", [False, True])
def test_entries_of_what_lay_in_damage_up_to_a_segments_end_stay(
    number: int, begin: int, noise: bool
) -> None:
    """Zeros are damage like any other where the log goes on: entries may be all that is left."""
    base = _base()
    disk = base.disk.crash()
    segment = _segments(disk)[number]
    cache = disk.nodes[segment.path].cache
    size = len(cache) - begin
    cache[begin:] = random.Random(1).randbytes(size) if noise else bytes(size)
    queue, (offset, size) = ("T", 1), _named(disk, "middle")
    _put(disk, queue, base.following[queue] + 2, struct.pack(">qiq", offset, size, 0))
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert (outcome.entries, dict(_entries(disk))) == (1, base.entries)
    left = verify(disk, "/store", SHAPE)["damage"]
    assert {row["kind"] for row in left} == {row["kind"] for row in outcome.left}
    named = {row["physicalOffset"] for row in left if row["kind"] == "cq_dangling"}
    assert named
    assert all(segment.start + begin - 1000 < at < segment.end for at in named)
    assert repair(disk, "/store", [], config=SHAPE).entries == 0


def test_an_entry_that_names_the_blank_at_a_segments_end_goes() -> None:
    base = _base()
    disk = base.disk.crash()
    queue, segment = ("T", 0), _segments(disk)[1]
    _put(disk, queue, base.following[queue] + 1, struct.pack(">qiq", segment.end - 9, 9, 0))
    assert verify(disk, "/store", SHAPE)["damage"]
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert (outcome.entries, outcome.left, dict(_entries(disk))) == (1, [], base.entries)
