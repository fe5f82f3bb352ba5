"""The promise of ``store verify`` and ``store repair``: no damage is called whole, 0 means none is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pytest

from model.ids import Epoch, PhysicalOffset
from store.files.consume_queue import ENTRY as QUEUE_ENTRY
from store.files.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from store.offline.directory import StoreDirectory
from store.offline.repair import Outcome, repair
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed
from tests.store.support import SEGMENT, config, message, opened

COUNT: Final = 80
SHAPE: Final = config(queue_file_bytes=200)
DEFAULTS: Final = type(SHAPE)()
"""What the commands know: not the shape of the index."""
LOG: Final = "/ours/commitlog/"
QUEUE: Final = "/ours/consumequeue/T/0/" + "0" * 20
ENTRIES: Final = HEADER_BYTES + SLOT_BYTES * SHAPE.index_slots
PEERS: Final = ["/peer-1", "/peer-2"]

Damage = Callable[[FaultyDisk], None]


def _stores() -> FaultyDisk:
    """The same log three times, in two segments; the second one is not full."""
    env = FaultyEnv()

    async def run() -> None:
        for root in ("/ours", *PEERS):
            async with opened(env, root=root, queue_file_bytes=200) as store:
                store.epochs.append(Epoch(1), PhysicalOffset(0))
                for number in range(COUNT):
                    body = f"{number}:".ljust(40, "x")
                    store.put(
                        message(body, queue_id=number % 2, uniq=f"U{number:03}", keys=f"order-{number:03}")
                    )
                store.confirm(store.log.end)
                await store.caught_up()
        for path in [path for path in env.disk.nodes if path.startswith(("/peer-1/c", "/peer-2/c"))]:
            if "/commitlog/" in path:  # store times may differ between runs, never between replicas
                ours = "/ours/" + path.split("/", 2)[2]
                env.disk.nodes[path].cache[:] = env.disk.nodes[ours].cache

    completed(run())
    return env.disk


def _put(disk: FaultyDisk, path: str, at: int, data: bytes) -> None:
    cache = disk.nodes[path].cache
    assert cache[at : at + len(data)] != data
    cache[at : at + len(data)] = data


def _index(disk: FaultyDisk) -> str:
    return next(path for path in disk.nodes if path.startswith("/ours/index/"))


def _flip(at: int, path: Callable[[FaultyDisk], str]) -> Damage:
    def run(disk: FaultyDisk) -> None:
        disk.nodes[path(disk)].cache[at] ^= 1

    return run


def _of_log(text: bytes, at: int = 0) -> Damage:
    """Flip a bit of the log, ``at`` bytes from where ``text`` is."""

    def run(disk: FaultyDisk) -> None:
        cache = disk.nodes[LOG + "0" * 20].cache
        cache[bytes(cache).index(text) + at] ^= 1

    return run


def _entry(change: Callable[[int, int, int], tuple[int, int, int]]) -> Damage:
    """Change entry 5 of a queue."""

    def run(disk: FaultyDisk) -> None:
        was = QUEUE_ENTRY.unpack_from(disk.nodes[QUEUE].cache, 100)
        _put(disk, QUEUE, 100, QUEUE_ENTRY.pack(*change(*was)))

    return run


def _end(disk: FaultyDisk) -> int:
    return int(verify(disk, "/peer-1", SHAPE)["maxOffset"])


def _zero(begin: int, until: Callable[[int], int] = lambda end: end) -> Damage:
    """Zeros from ``begin`` (from the end, if negative) on."""

    def run(disk: FaultyDisk) -> None:
        end = _end(disk)
        for at in range(begin + end * (begin < 0), until(end)):
            disk.nodes[f"{LOG}{at - at % SEGMENT:020}"].cache[at % SEGMENT] = 0

    return run


def _remove_first_files(disk: FaultyDisk) -> None:
    for at in (0, 200):
        disk.remove(f"{QUEUE[:-20]}{at:020}")


DERIVED: Final[dict[str, Damage]] = {
    "an entry far beyond the log": _entry(lambda at, size, tag: (at + (4 << 32), size, tag)),
    "an entry inside a record": _entry(lambda at, size, tag: (at + 8, size, tag)),
    "an entry of another size": _entry(lambda at, size, tag: (at, size + 1, tag)),
    "an entry with another tag": _entry(lambda at, size, tag: (at, size, tag + 1)),
    "an entry of zeros": _entry(lambda at, size, tag: (0, 0, 0)),
    "an entry without a message": _entry(lambda at, size, tag: (0, 0x7FFFFFFF, 0)),
    "a queue's last file is gone": lambda disk: disk.remove(f"{QUEUE[:-20]}{600:020}"),
    "a queue's file in the middle is gone": lambda disk: disk.remove(f"{QUEUE[:-20]}{200:020}"),
    "a queue's first file is gone": lambda disk: disk.remove(QUEUE),
    "a queue's first files are gone": _remove_first_files,
    "a queue is gone": lambda disk: disk.rmtree(QUEUE[:-21]),
    "all queues are gone": lambda disk: disk.rmtree("/ours/consumequeue"),
    "an index entry with another hash": _flip(ENTRIES + 30 * ENTRY_BYTES, _index),
    "an index entry elsewhere in the log": _flip(ENTRIES + 30 * ENTRY_BYTES + 10, _index),
    "an index entry beyond the log": _flip(ENTRIES + 30 * ENTRY_BYTES + 5, _index),
    "an index entry at another time": _flip(ENTRIES + 30 * ENTRY_BYTES + 15, _index),
    "an index entry with another one before it": _flip(ENTRIES + 30 * ENTRY_BYTES + 19, _index),
    "slots of zeros": lambda disk: _put(disk, _index(disk), HEADER_BYTES, bytes(4 * SHAPE.index_slots)),
    "an index header that counts one entry less": _flip(39, _index),
    "an index header of zeros": lambda disk: _put(disk, _index(disk), 0, bytes(HEADER_BYTES)),
    "an index header that ends elsewhere": _flip(31, _index),
    "an index file of another size": lambda disk: disk.open(_index(disk)).truncate(5001),
    "an index file is gone": lambda disk: disk.remove(_index(disk)),
    "the index is gone": lambda disk: disk.rmtree("/ours/index"),
}
"""Made from the log alone."""
OF_THE_LOG: Final[dict[str, Damage]] = {
    "a body": _of_log(b"7:xxx"),
    "a length": _of_log(b"7:xxx", -84),
    "an end of zeros": _zero(-700),
    "zeros to the end of a segment": _zero(SEGMENT - 900, lambda end: SEGMENT),
    "zeros over the end of a segment": _zero(SEGMENT - 900, lambda end: end),
    "a key": _of_log(b"order-007", 8),
    "a queue id": _of_log(b"7:xxx", -73),
    "a queue offset": _of_log(b"7:xxx", -61),
}
"""Needs replicas."""
BEYOND: Final[dict[str, Damage]] = {
    "the epoch file": _flip(3, lambda disk: "/ours/epochFileCheckpoint"),
    "a segment is gone": lambda disk: disk.remove(f"{LOG}{SEGMENT:020}"),
}
"""Nothing here mends it."""
ALL: Final = DERIVED | OF_THE_LOG | BEYOND


def _log(disk: FaultyDisk, root: str) -> list[bytes]:
    return [bytes(node.cache) for path, node in sorted(disk.nodes.items()) if path.startswith(f"{root}/comm")]


def _repair(disk: FaultyDisk, peers: list[str]) -> Outcome:
    return repair(disk, "/ours", peers, config=SHAPE)


@pytest.mark.parametrize("name", ALL)
def test_what_is_damaged_is_not_called_whole_before_nor_after(name: str) -> None:
    disk = _stores()
    assert verify(disk, "/ours", SHAPE)["damage"] == []
    ALL[name](disk)
    assert not verify(disk, "/ours", SHAPE)["ok"]
    assert not verify(disk, "/ours", DEFAULTS)["ok"]
    done = _repair(disk, [])
    if name in DERIVED:
        assert done.left == []
    assert (done.left == []) is verify(disk, "/ours", SHAPE)["ok"]
    done = _repair(disk, PEERS)
    assert (done.left == []) is (name not in BEYOND)
    assert (done.left == []) is verify(disk, "/ours", SHAPE)["ok"]


@pytest.mark.parametrize("name", OF_THE_LOG)
def test_replicas_make_a_log_whole_at_once(name: str) -> None:
    disk = _stores()
    OF_THE_LOG[name](disk)
    assert _repair(disk, PEERS).left == []
    assert verify(disk, "/ours", SHAPE)["damage"] == []
    assert _log(disk, "/ours") == _log(disk, "/peer-1")


BYTES_NO_CRC_COVERS: Final = {"store time": -25, "born host": -33, "flag": -69}


@pytest.mark.parametrize("at", BYTES_NO_CRC_COVERS.values(), ids=list(BYTES_NO_CRC_COVERS))
def test_what_no_crc_covers_is_what_most_copies_say(at: int) -> None:
    disk = _stores()
    _of_log(b"7:xxx", at)(disk)
    done = _repair(disk, PEERS)
    assert [(row["kind"], row["from"]) for row in done.repaired] == [("bytes_differ", "/peer-1")]
    assert _log(disk, "/ours") == _log(disk, "/peer-1")
    assert done.left == []


def test_of_two_copies_the_queue_and_the_index_decide_or_nothing_does() -> None:
    disk = _stores()
    before = _log(disk, "/ours")
    _of_log(b"order-007", 8)(disk)
    assert _repair(disk, ["/peer-1"]).left == []
    assert _log(disk, "/ours") == before
    _of_log(b"7:xxx", -69)(disk)
    (left,) = _repair(disk, ["/peer-1", "/ours"]).left  # a store is no copy of itself
    assert left["kind"] == "bytes_differ"
    assert "2 copies differ" in left["why"]


def test_a_replica_of_other_epochs_is_not_compared() -> None:
    disk = _stores()
    for path in ("epochFileCheckpoint", "epochFileCheckpoint.bak"):
        if f"/ours/{path}" in disk.nodes:
            disk.remove(f"/ours/{path}")
    _of_log(b"7:xxx", -69)(disk)
    before = _log(disk, "/ours")
    done = _repair(disk, PEERS)
    assert [row["kind"] for row in done.left] == ["not_looked_at"]
    assert _log(disk, "/ours") == before


def test_histories_that_go_apart_without_epochs_are_left_as_they_are() -> None:
    disk = _stores()
    for path in [path for path in disk.nodes if "epochFile" in path]:
        disk.remove(path)
    with StoreDirectory(disk, "/ours") as store:
        spans = [(r.physical_offset, r.size) for r in store.records() if r.physical_offset >= SEGMENT]  # type: ignore[union-attr]
    for at, _ in spans[-5:]:
        for root in PEERS:  # flags that both replicas have and we do not
            disk.nodes[f"{root}/commitlog/{SEGMENT:020}"].cache[at - SEGMENT + 16] ^= 1
    before = _log(disk, "/ours")
    (left,) = _repair(disk, PEERS).left
    assert "another history" in left["why"]
    assert _log(disk, "/ours") == before


def test_a_crash_at_any_time_is_no_damage() -> None:
    env = FaultyEnv()

    async def run() -> None:
        async with opened(env) as store:
            for number in range(24):
                store.put(message(b"x" * number, queue_id=number % 3, uniq=f"U{number}", keys="a b"))
                if number % 3:
                    store.confirm(store.log.end)
                    await store.caught_up()
                await asyncio.sleep(0.004)
                for seed in range(2):
                    assert verify(env.disk.crash(seed), "/store", config())["damage"] == []
                assert verify(env.disk, "/store", config())["damage"] == []

    completed(run())
