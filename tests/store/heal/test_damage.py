"""The promise about bit rot: one bad record costs one record, and no queue offset is handed out twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ids import PhysicalOffset, QueueOffset
from runtime.os_env import OsDisk, OsEnv
from store.files.damage import DamagedRange, DamageLedger, Lost, resync
from store.files.record import blank, decode, encode
from store.message_store import MessageStore
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed
from tests.store.support import SEGMENT, fill, golden, golden_config, message, opened, records_of

FIRST = "/store/commitlog/" + "0" * 20
Place = tuple[str, int, int, int, int]


def served(store: MessageStore) -> set[Place]:
    return {
        (r.topic, r.queue_id, r.queue_offset, r.physical_offset, r.size)
        for queue in store.queues()
        for r in records_of(store, *queue)
    }


async def _open(root: Path, manifest: dict[str, Any]) -> MessageStore:
    store = MessageStore(OsEnv(), golden_config(root, manifest))
    await store.open()
    return store


def test_one_flipped_bit_costs_one_record_where_the_real_broker_loses_64(tmp_path: Path) -> None:
    root, manifest = golden("flip-61", tmp_path)
    before = root / "before"
    damage = manifest["damage"]
    at, size = damage["physicalOffset"], damage["recordSize"]
    all_of_them = {tuple(row) for row in manifest["pulledBefore"]}
    (lost,) = (row for row in all_of_them if row[3] == at)
    assert (len(all_of_them), len(manifest["pulledAfter"])) == (360, 296)

    async def run() -> None:
        for _ in range(2):  # after an unclean stop, and after the clean one that follows
            store = await _open(before, manifest)
            (found,) = store.damage.ranges
            assert (found.begin, found.until, found.kind) == (at, at + size, "crc_mismatch")
            assert [(one.topic, one.queue_id, one.queue_offset) for one in found.lost] == [lost[:3]]
            assert served(store) == all_of_them - {lost}
            assert store.lookup(at) is None
            for topic, queue_id in store.queues():
                ends = [row[2] + 1 for row in all_of_them if row[:2] == (topic, queue_id)]
                assert store.next_offset(topic, queue_id) == max(ends)
            await store.close()

    completed(run())
    verdict = verify(OsDisk(), str(before), golden_config(before, manifest))
    assert [(d["kind"], d["physicalOffset"], d["until"]) for d in verdict["damage"]] == [
        ("crc_mismatch", at, at + size)
    ]


@pytest.mark.parametrize(("case", "kept"), [("torn-71", 359), ("torn-73", 359)])
def test_a_torn_last_record_is_dropped_as_a_whole_and_nothing_else(
    case: str, kept: int, tmp_path: Path
) -> None:
    """Torn in its properties (71) the real broker serves it with what is left of them."""
    root, manifest = golden(case, tmp_path)
    before = root / "before"
    at = manifest["damage"]["physicalOffset"]

    async def run() -> None:
        store = await _open(before, manifest)
        assert store.log.end == at
        assert store.damage.ranges == []
        assert served(store) == {tuple(row) for row in manifest["pulledBefore"] if row[3] != at}
        assert len(served(store)) == kept
        await store.close()

    completed(run())
    assert verify(OsDisk(), str(before), golden_config(before, manifest))["ok"]


def test_what_a_real_broker_cut_off_does_not_come_back(tmp_path: Path) -> None:
    """Good records follow the end of these logs: what was there before the cut."""
    root, _ = golden("ha-allack-91", tmp_path)
    settings = {
        "mappedFileSizeCommitLog": "262144",
        "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "500",
        "maxIndexNum": "2000",
    }

    async def run(name: str) -> tuple[int, list[DamagedRange]]:
        config = golden_config(root / name, {"settings": settings})
        store = MessageStore(OsEnv(), config, controller_mode=True)
        await store.open()
        found = store.log.end, store.damage.ranges
        await store.close()
        return found

    for name in ("after/b0", "after/b1", "after/b2"):
        assert completed(run(name)) == (199202, [])


def _written(**keys: Any) -> tuple[FaultyDisk, list[Place]]:
    """60 messages in two queues over three segments, stopped cleanly."""

    async def run() -> tuple[FaultyDisk, list[Place]]:
        env = FaultyEnv()
        async with opened(env, **keys) as store:
            await fill(store, 120)
            return env.disk, sorted(served(store), key=lambda row: row[3])

    return completed(run())


def _flip(disk: FaultyDisk, path: str, byte: int, mask: int = 1) -> None:
    node = disk.nodes[path]
    node.cache[byte] ^= mask
    node.sync()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 1, 45, 46, 118, 119])
async def test_a_record_destroyed_anywhere_leaves_all_others_and_its_offset(number: int, clean: bool) -> None:
    disk, places = _written()
    topic, queue_id, queue_offset, at, size = places[number]
    path = f"/store/commitlog/{at - at % SEGMENT:020}"
    for byte in range(4, size):  # all but its size
        disk.nodes[path].cache[at % SEGMENT + byte] ^= 0xFF
    disk.nodes[path].sync()
    if not clean:
        disk.open("/store/abort", create=True)

    async with opened(FaultyEnv(disk)) as store:
        assert served(store) == set(places) - {places[number]}
        if number > 100 or not clean:  # after a clean stop only the last segment is read
            assert store.damage.overlaps(at, at + size)
        following = max(row[2] for row in places if row[1] == queue_id) + 1
        assert store.next_offset(topic, queue_id) == following
        put = store.put(message("new", queue_id=queue_id))[0]
        assert put.queue_offset == following > queue_offset
        store.confirm(store.log.end)
        await store.caught_up()
        assert records_of(store, topic, queue_id)[-1].body == b"new"


async def test_offsets_of_records_nothing_is_known_of_are_not_handed_out_either() -> None:
    disk, places = _written()
    *_, at, size = places[-1]
    path = f"/store/commitlog/{at - at % SEGMENT:020}"
    disk.nodes[path].cache[at % SEGMENT : at % SEGMENT + size] = b"\xff" * size
    disk.nodes[path].sync()
    for name in [name for name in disk.nodes if "consumequeue" in name or "index" in name]:
        disk.remove(name)
    disk.open("/store/abort", create=True)

    async with opened(FaultyEnv(disk)) as store:
        assert store.damage.overlaps(at, at + size)
        assert all(store.next_offset("T", row[1]) > row[2] for row in places)


async def test_a_pull_passes_over_damage_and_does_not_stall() -> None:
    disk, places = _written()
    for row in places[2:6]:
        _flip(disk, FIRST, row[3] + 100)
    disk.open("/store/abort", create=True)

    async with opened(FaultyEnv(disk)) as store:
        got = store.get("T", 0, 1, 1, 1 << 20)
        assert (got.count, decode(got.chunks[0]).queue_offset, got.next_offset) == (1, 3, 4)
        assert len(records_of(store)) == 58


@pytest.mark.parametrize("byte", range(20))
@pytest.mark.parametrize("entry", [0, 30, 59])
def test_a_flipped_queue_entry_costs_no_message_and_no_offset(entry: int, byte: int) -> None:
    disk, places = _written(queue_file_bytes=2000)
    _flip(disk, "/store/consumequeue/T/0/" + "0" * 20, entry * 20 + byte, 0x40)

    async def run() -> None:
        async with opened(FaultyEnv(disk), queue_file_bytes=2000) as store:
            assert store.next_offset("T", 0) == 60
            assert store.max_queue_offset("T", 0) == 60
            lost = set(places) - served(store)
            assert len(lost) <= 1  # a scrub mends an entry in the middle

    completed(run())
    assert len(places) == 120


def test_the_ledger_is_durable_merges_follows_cuts_and_survives_its_own_rot() -> None:
    disk = FaultyDisk()
    disk.makedirs("/store")
    ledger = DamageLedger(disk, "/store")
    heard: list[int] = []
    ledger.on_change.append(lambda: heard.append(len(ledger.ranges)))
    lost = Lost(PhysicalOffset(100), 50, "T", 1, QueueOffset(7), 0)
    ledger.note([DamagedRange(100, 200, "crc_mismatch", 5, (lost,)), DamagedRange(400, 500, "x", 5)])
    ledger.note([DamagedRange(150, 300, "unreadable_region", 6)])
    ledger.note([DamagedRange(150, 300, "unreadable_region", 7)])
    assert [(r.begin, r.until, r.lost) for r in ledger.ranges] == [(100, 300, (lost,)), (400, 500, ())]
    assert heard == [2, 2]
    again = DamageLedger(disk.crash(), "/store")
    again.load()
    assert again.ranges == ledger.ranges
    assert (again.at(99), again.at(299), again.at(300)) == (None, ledger.ranges[0], None)
    assert (again.next_begin(300, 1000), again.next_begin(400, 1000)) == (400, 1000)
    again.truncate(450)
    assert [(r.begin, r.until) for r in again.ranges] == [(100, 300), (400, 450)]
    again.drop_below(300)
    again.clear(again.ranges[:1])
    assert again.ranges == []


def test_what_is_doubted_is_known_again_and_by_what_is_noted_last() -> None:
    disk = FaultyDisk()
    disk.makedirs("/store")
    ledger = DamageLedger(disk, "/store")
    doubted, other = b"\0\0\0\7old", b"\0\0\0\7new"
    ledger.note([DamagedRange(100, 107, "bytes_differ")])
    assert not ledger.ranges[0].were_replaced(other), "an older note does not say"
    for noted in (other, doubted):
        ledger.note([DamagedRange(100, 107, "bytes_differ", bytes_crc=crc32(noted))])
    again = DamageLedger(disk.crash(), "/store")
    again.load()
    (item,) = again.ranges
    assert [item.were_replaced(data) for data in (doubted, other, b"", other + other)] == [
        False,
        True,
        False,
        False,
    ]
    again.doubt_as_written({100: None, 7: 7})
    assert [r.bytes_crc for r in again.ranges] == [None]
    again.doubt_as_written({100: crc32(other)})
    assert [again.ranges[0].were_replaced(data) for data in (doubted, other)] == [True, False]
    again.note([DamagedRange(104, 120, "bytes_differ", bytes_crc=1)])
    assert [(r.begin, r.until, r.bytes_crc) for r in again.ranges] == [(100, 120, None)]


def test_of_several_records_nothing_tells_whether_all_that_were_doubted_were_replaced() -> None:
    two = b"\0\0\0\7one\0\0\0\7two"
    item = DamagedRange(100, 100 + len(two), "bytes_differ", bytes_crc=crc32(two))
    assert not item.were_replaced(two.replace(b"one", b"new"))


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12), st.sampled_from("xyz")), max_size=30)


@given(RANGES)
def test_what_is_noted_is_one_with_all_that_it_overlaps(noted: list[tuple[int, int, str]]) -> None:
    disk = FaultyDisk()
    disk.makedirs("/store")
    ledger = DamageLedger(disk, "/store")
    kept: list[tuple[int, int, str]] = []
    for begin, size, kind in noted:
        ledger.note([DamagedRange(begin, begin + size, kind)])
        near = sorted(one for one in kept if one[0] < begin + size and begin < one[1])
        merged = [*near, (begin, begin + size, kind)]
        kept = [one for one in kept if one not in near]
        kept.append((min(one[0] for one in merged), max(one[1] for one in merged), merged[0][2]))
    ledger.check_invariants()
    assert [(r.begin, r.until, r.kind) for r in ledger.ranges] == sorted(kept)


def test_a_bit_that_flips_in_the_ledger_is_turned_back_and_more_make_it_none() -> None:
    disk = FaultyDisk()
    disk.makedirs("/store")
    ledger = DamageLedger(disk, "/store")
    lost = Lost(PhysicalOffset(100), 50, "T", 1, QueueOffset(7), 0)
    differs = DamagedRange(400, 500, "bytes_differ", bytes_crc=7)
    ledger.note([DamagedRange(100, 200, "crc_mismatch", 5, (lost,)), differs])
    ranges, cache = ledger.ranges, disk.nodes["/store/damagedRanges"].cache
    for at in range(0, len(cache), 3):
        cache[at] ^= 4
        ledger.load()
        assert ledger.ranges == ranges, at
        cache[at] ^= 4
    cache[40] ^= 4
    cache[60] ^= 4
    ledger.load()
    assert ledger.ranges == []


def test_the_next_record_is_found_behind_garbage_but_not_inside_of_a_body() -> None:
    inner = encode(message("inner"), 0, 0, 0)
    first = encode(message(inner), 0, 4096, 0)
    second = encode(message("second"), 1, 4096 + len(first), 0)
    data = first + second
    data += blank(1024 - len(data))
    segment = data.ljust(1024, b"\0")

    def read(size: int, at: int) -> bytes:
        return segment[at : at + size]

    assert resync(read, 4096, 0, 1024) == len(first)
    assert resync(read, 4096, len(first), 1024) == len(data) - 8
    assert resync(read, 4096, len(data) - 8, 1024) is None
