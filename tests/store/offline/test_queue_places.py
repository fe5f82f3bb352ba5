"""The promise of a repair to queues: what no CRC covers of one record costs no other record its entry."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest

from store.files.consume_queue import ENTRY, ENTRY_BYTES
from store.files.record import Record, decode, encode
from store.offline.directory import StoreDirectory
from store.offline.queues.places import QueuePlaces, Says
from store.offline.repair import repair
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed
from tests.store.support import config, fill, message, opened

COUNT = 80
PER_FILE = 200
"""Bytes of a queue's file: ten entries."""
QUEUE_OFFSET = 20
"""Of a record's bytes."""


def _written() -> FaultyDisk:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env, queue_file_bytes=PER_FILE, segment_bytes=1 << 20) as store:
            await fill(store, COUNT, queues=2)
        return env.disk

    return completed(run())


def _records(disk: FaultyDisk) -> list[Record]:
    with StoreDirectory(disk, "/store") as store:
        return [item for item in store.records() if isinstance(item, Record)]


def record(at: int, place: int) -> Record:
    return decode(encode(message("x"), place, at * 1000, 1))


def _flip(disk: FaultyDisk, number: int, bit: int) -> Record:
    """Flip a bit of a record's queue offset."""
    found = _records(disk)[number]
    at = found.physical_offset + QUEUE_OFFSET
    cache = disk.nodes[f"/store/commitlog/{0:020}"].cache
    cache[at : at + 8] = (int.from_bytes(cache[at : at + 8]) ^ 1 << bit).to_bytes(8)
    return found


def _entries(disk: FaultyDisk, queue_id: int) -> dict[int, int]:
    """Of a queue's places, the messages that stand there."""
    found = {}
    for path, node in disk.nodes.items():
        if path.startswith(f"/store/consumequeue/T/{queue_id}/"):
            for at, (offset, size, _) in enumerate(ENTRY.iter_unpack(bytes(node.cache))):
                if 0 < size < 0x7FFFFFFF:
                    found[int(path[-20:]) // ENTRY_BYTES + at] = offset
    return found


def _last_file_gone(disk: FaultyDisk) -> None:
    disk.remove(f"/store/consumequeue/T/0/{600:020}")


def _folder_gone(disk: FaultyDisk) -> None:
    disk.rmtree("/store/consumequeue/T/0")


def _all_gone(disk: FaultyDisk) -> None:
    disk.rmtree("/store/consumequeue")


def _nothing_gone(disk: FaultyDisk) -> None:
    pass


@pytest.mark.parametrize("bit", [1, 3, 5, 14, 40])
@pytest.mark.parametrize("number", [0, 40, 70])
@pytest.mark.parametrize("gone", [_last_file_gone, _folder_gone, _all_gone, _nothing_gone])
def test_a_record_that_says_another_place_costs_no_other_its_entry(
    gone: Callable[[FaultyDisk], None], number: int, bit: int
) -> None:
    disk = _written()
    right = [_entries(disk, queue_id) for queue_id in (0, 1)]
    rotten = _flip(disk, number, bit)
    gone(disk)
    told = rotten.physical_offset in _entries(disk, 0).values()
    outcome = repair(disk, "/store", [], config=config())
    for queue_id, entries in enumerate(right):
        made = entries if told else _but(entries, rotten.physical_offset)
        assert made.items() <= _entries(disk, queue_id).items() <= entries.items()
    if told:  # its entry knows its place
        assert _records(disk)[number] == rotten
        assert outcome.left == []
        return
    assert [row["physicalOffset"] for row in outcome.left if row["kind"] in ("cq_missing", "cq_wrong")] == [
        rotten.physical_offset
    ]
    assert not verify(disk, "/store", config())["ok"]


def test_the_last_record_of_a_topic_that_was_made_again_is_no_damage() -> None:
    """Of the former topic the log holds one, and its entries went with it."""
    told = QueuePlaces(lambda _: 1 << 14)
    found = [item for at, place in enumerate((50, 0, 1)) for item in told.take(record(at, place))]
    assert [(i.says, i.before, i.following) for i in found[:1]] == [(Says.WRONG, 0, 0)]


def _but(entries: dict[int, int], offset: int) -> dict[int, int]:
    return {place: physical for place, physical in entries.items() if physical != offset}


@pytest.mark.parametrize("bit", [15, 40, 62])
def test_the_last_record_of_a_queue_takes_no_entry_from_others_by_a_place_far_ahead(bit: int) -> None:
    disk = _written()
    right = _entries(disk, 0)
    rotten = _flip(disk, COUNT - 2, bit)
    _last_file_gone(disk)
    outcome = repair(disk, "/store", [], config=config())
    assert _entries(disk, 0) == _but(right, rotten.physical_offset)
    assert [row["kind"] for row in outcome.left] == ["cq_missing"]


def test_what_a_former_repair_made_of_such_a_record_goes_and_the_others_come_back() -> None:
    disk = _written()
    right = _entries(disk, 0)
    rotten = _flip(disk, 70, 40)
    _folder_gone(disk)
    start = (rotten.queue_offset ^ 1 << 40) // 10 * PER_FILE
    path = f"/store/consumequeue/T/0/{start:020}"
    disk.makedirs(path.rpartition("/")[0])
    file = disk.open(path, create=True)
    file.truncate(PER_FILE)
    at = (rotten.queue_offset ^ 1 << 40) % 10 * ENTRY_BYTES
    file.pwrite(ENTRY.pack(0, 0x7FFFFFFF, 0) * (at // ENTRY_BYTES), 0)
    file.pwrite(ENTRY.pack(rotten.physical_offset, rotten.size, crc32(b"")), at)
    file.close()
    assert not verify(disk, "/store", config())["ok"]
    repair(disk, "/store", [], config=config())
    assert _entries(disk, 0) == _but(right, rotten.physical_offset)


@pytest.mark.parametrize(
    ("places", "wrong", "alone"),
    [
        ((0, 1, 2, 3), [], []),
        ((5, 6, 9, 10), [], []),  # what lay between is damaged
        ((5, 9, 6, 7), [9], []),
        ((90, 6, 7, 8), [90], []),
        ((5, 6, 1 << 40, 7), [1 << 40], []),
        ((5, 6, 1 << 40, (1 << 40) + 1), [], []),  # it began anew there
        ((5, 6, 1 << 40), [], [1 << 40]),
        ((5, 6, 1 << 40, 1 << 50, 7), [1 << 50], [1 << 40]),
        ((5, 1 << 40, 6, 7), [1 << 40], []),
        ((98, 99, 0, 1, 2), [], []),  # the topic was deleted, and made again
        ((5, 6, 8, 2), [], []),
        ((5,), [], []),
        ((5, 5, 6), [], []),
        ((5, 6, 7, 3, 9, 10), [3], []),
        ((5, 6, 8, 8, 9), [8], []),
        ((5, 6, 7, 3, 12), [], []),  # more is damaged
        ((5, 6, 7, 6, 7, 8, 9), [], []),  # two of one place
        ((50, 0, 1, 2), [50], []),
    ],
)
def test_a_place_is_wrong_that_the_next_record_of_the_queue_contradicts(
    places: tuple[int, ...], wrong: list[int], alone: list[int]
) -> None:
    told = QueuePlaces(lambda _: 1 << 14)
    found = [item for at, place in enumerate(places) for item in told.take(record(at, place))]
    found += told.rest()
    assert [i.record.queue_offset for i in found if i.says is Says.WRONG] == wrong
    assert [i.record.queue_offset for i in found if i.says is Says.ALONE] == alone
    assert sorted(i.record.queue_offset for i in found) == sorted(places)


@pytest.mark.parametrize(
    ("ended", "held", "following", "says"),
    [
        (7, 9, 8, Says.WRONG),
        (7, 3, 8, Says.WRONG),
        (7, 9, 10, Says.RIGHT),
        (7, 6, 7, Says.RIGHT),
        (7, 0, 1, Says.RIGHT),
        (7, 1 << 40, None, Says.ALONE),
    ],
)
def test_the_examples_of_queue_places(ended: int, held: int, following: int | None, says: Says) -> None:
    told = QueuePlaces(lambda _: 1 << 14)
    places = [*range(ended), held, *([] if following is None else [following])]
    found = [item for at, place in enumerate(places) for item in told.take(record(at, place))]
    found += told.rest()
    assert found[ended].says is says
