"""The promise of ``store repair``: it takes from a replica what proves itself, and says what it left."""

from __future__ import annotations

import asyncio

import pytest

from model.ids import PhysicalOffset
from runtime.env import read_file, write_file
from store.files.checkpoint import Checkpoint
from store.offline import repair as offline_repair
from store.offline import replicas, verify
from store.offline.repair import repair
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import config, fill, message, opened

FIRST = "commitlog/" + "0" * 20


def _stores(shared: int, ours: list[bytes], theirs: list[bytes], shape: int = 1 << 16) -> FaultyDisk:
    """Stores at /ours and /theirs with the same first records, then each with its own."""
    env = FaultyEnv()

    async def run() -> None:
        for root, bodies in (("/ours", ours), ("/theirs", theirs)):
            async with opened(env, root=root, segment_bytes=shape) as store:
                await fill(store, shared, queues=1)
                for body in bodies:
                    store.put(message(body))
                store.confirm(store.log.end)
                await store.caught_up()

    asyncio.run(run())
    return env.disk


def _flip(disk: FaultyDisk, body: bytes) -> int:
    """Flip a bit in the first of our records that has this body; returns where."""
    at = bytes(disk.nodes[f"/ours/{FIRST}"].cache).index(body)
    disk.nodes[f"/ours/{FIRST}"].cache[at] ^= 1
    return at


def test_a_replica_with_another_history_behind_the_damage_mends_nothing() -> None:
    disk = _stores(10, [b"ours-%d" % n for n in range(9)], [b"peer-%d" % n for n in range(9)])
    _flip(disk, b"ours-0")
    before = read_file(disk, f"/ours/{FIRST}")
    outcome = repair(disk, "/ours", ["/theirs"], config=config("/ours"))
    assert [row["kind"] for row in outcome.left] == ["bytes_differ", "crc_mismatch"]
    assert "not ours" in outcome.left[1]["why"]
    assert read_file(disk, f"/ours/{FIRST}") == before


@pytest.mark.parametrize("more", [0, 1, 9])
def test_damage_at_the_end_or_beside_other_damage_is_mended_from_a_replica_that_goes_on(more: int) -> None:
    ours = [b"same-%d" % n for n in range(4)]
    disk = _stores(10, ours, ours + [b"more-%d" % n for n in range(more)])
    for body in (b"same-0", b"same-1", b"same-3"):
        _flip(disk, body)
    outcome = repair(disk, "/ours", ["/theirs"], config=config("/ours"))
    assert (len(outcome.repaired), outcome.left) == (3, [])
    assert all(body in read_file(disk, f"/ours/{FIRST}") for body in ours)


@pytest.mark.parametrize("rounds", [1, 16])
def test_a_repair_goes_on_until_nothing_is_left_or_says_that_there_may_be_more(
    monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    monkeypatch.setattr(offline_repair, "ROUNDS_MAX", rounds)
    monkeypatch.setattr(verify, "DAMAGE_MAX", 3)
    ours = [b"same-%d:" % n for n in range(12)]
    disk = _stores(1, ours, ours)
    for number in (0, 3, 6, 9):
        _flip(disk, b"same-%d:" % number)
    outcome = repair(disk, "/ours", ["/theirs"], config=config("/ours"))
    assert len(outcome.repaired) == (4 if rounds > 1 else 3)
    assert outcome.to_json()["ok"] is (rounds > 1)


@pytest.mark.parametrize("bit", [0x10, 0x20])
@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_of_two_copies_that_differ_in_their_time_the_index_knows_the_right_one(whose: str, bit: int) -> None:
    """No CRC covers the time, and the queue entry does not have it: the second of storing is in the index."""
    disk = _stores(10, [], [])
    right = read_file(disk, f"/ours/{FIRST}")
    assert right == read_file(disk, f"/theirs/{FIRST}")
    size = int.from_bytes(right[:4])
    disk.nodes[f"/{whose}/{FIRST}"].cache[5 * size + 60] ^= bit  # of the time of storing: days later
    outcome = repair(disk, "/ours", ["/theirs"], config=config("/ours"))
    assert outcome.left == []
    assert read_file(disk, f"/ours/{FIRST}") == right
    assert len(outcome.repaired) == (whose == "ours")


SEGMENT = 1 << 13


def _older_checkpoint(disk: FaultyDisk, reach: int) -> None:
    """One from when the log ended at ``reach`` is put back."""
    cache = disk.nodes["/ours/checkpoint"].cache
    found = Checkpoint.decode(bytes(cache))
    at = PhysicalOffset(reach)
    found.confirm_offset = found.master_flushed_offset = found.settled_offset = found.indexed_offset = at
    cache[: len(found.encode())] = found.encode()


def _long(ours: int = 120) -> FaultyDisk:
    """Stores of one history in more than three segments; ours may end earlier."""
    disk = _stores(ours, [], [b"x" * 100 for _ in range(120 - ours)], shape=SEGMENT)
    _older_checkpoint(disk, 8 * int.from_bytes(read_file(disk, f"/ours/{FIRST}")[:4]))
    return disk


def _zero(disk: FaultyDisk, begin: int, until: int) -> None:
    for at in range(begin, until):
        disk.nodes[f"/ours/commitlog/{at - at % SEGMENT:020}"].cache[at % SEGMENT] = 0


def _log(disk: FaultyDisk, root: str) -> list[bytes]:
    return [bytes(node.cache) for path, node in sorted(disk.nodes.items()) if path.startswith(f"{root}/comm")]


@pytest.mark.parametrize(
    ("begin", "until"),
    [
        (SEGMENT, 2 * SEGMENT),
        (SEGMENT, 3 * SEGMENT),
        (SEGMENT + 4000, 2 * SEGMENT),
        (SEGMENT + 10, SEGMENT + 900),
    ],
)
def test_zeros_in_the_log_are_not_its_end_where_a_replica_has_records(begin: int, until: int) -> None:
    """An older checkpoint does not know of them; what stands behind them, here and there, does."""
    disk = _long()
    _zero(disk, begin, until)
    assert repair(disk, "/ours", [], config=config("/ours")).repaired == []
    outcome = repair(disk, "/ours", ["/theirs"], config=config("/ours"))
    assert (outcome.left, bool(outcome.repaired)) == ([], True)
    assert _log(disk, "/ours") == _log(disk, "/theirs")


def test_a_log_that_ends_before_its_replicas_is_not_continued() -> None:
    disk = _long(ours=100)
    assert _log(disk, "/ours") != _log(disk, "/theirs")
    before = _log(disk, "/ours")
    outcome = repair(disk, "/ours", ["/theirs"], config=config("/ours"))
    assert (outcome.left, outcome.repaired) == ([], [])
    assert _log(disk, "/ours") == before


@pytest.mark.parametrize("what", ["records", "epochs", "unconfirmed"])
def test_what_stands_behind_zeros_says_nothing_by_another_history(what: str) -> None:
    """Of a log that was cut, say."""
    disk = _long()
    _zero(disk, SEGMENT, 2 * SEGMENT)
    if what == "records":
        disk.nodes[f"/theirs/commitlog/{2 * SEGMENT:020}"].cache[60] ^= 1
    elif what == "epochs":
        for root, text in (("/ours", b"1\n0\n1-0\n"), ("/theirs", b"1\n0\n2-0\n")):
            write_file(disk, f"{root}/epochFileCheckpoint", text)
    else:
        cache = disk.nodes["/theirs/checkpoint"].cache
        found = Checkpoint.decode(bytes(cache))
        found.confirm_offset = PhysicalOffset(SEGMENT)
        cache[: len(found.encode())] = found.encode()
    before = _log(disk, "/ours")
    repair(disk, "/ours", ["/theirs"], config=config("/ours"))
    assert _log(disk, "/ours") == before


@pytest.mark.parametrize("at", [0, 1, 3000, SEGMENT - 200])
@pytest.mark.parametrize("count", [1, 8, 100, -1, -8, -100])
@pytest.mark.parametrize("which", [0, 1])
def test_what_was_moved_within_a_file_is_mended_to_the_segments_end(which: int, count: int, at: int) -> None:
    """No record tells where the damage ends: neither does the last byte that is there."""
    disk = _stores(120, [], [], shape=SEGMENT)
    cache = disk.nodes[f"/ours/commitlog/{which * SEGMENT:020}"].cache
    moved = bytes(cache[:at]) + b"\1" * count + bytes(cache[at + max(-count, 0) :])
    cache[:] = moved[:SEGMENT].ljust(SEGMENT, b"\0")
    outcome = repair(disk, "/ours", ["/theirs"], config=config("/ours"))
    assert (outcome.left, bool(outcome.repaired)) == ([], True)
    assert _log(disk, "/ours") == _log(disk, "/theirs")


def _differ(disk: FaultyDisk, root: str, number: int, value: int) -> None:
    """Another flag, which neither CRC nor queue nor index tells, in a record of this log of equal ones."""
    cache = disk.nodes[f"{root}/{FIRST}"].cache
    cache[number * int.from_bytes(cache[:4]) + 19] = value


@pytest.mark.parametrize("undecided", [False, True])
@pytest.mark.parametrize("count", range(2, 14))
def test_a_row_of_records_that_differ_is_exchanged_as_a_whole_or_not_at_all(
    count: int, undecided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = FaultyEnv()

    async def run() -> None:
        for root in ("/ours", "/theirs", "/third"):
            async with opened(env, root=root) as store:
                for _ in range(20):
                    store.put(message(b"same"))
                store.confirm(store.log.end)
                await store.caught_up()

    asyncio.run(run())
    disk = env.disk
    size = int.from_bytes(read_file(disk, f"/ours/{FIRST}")[:4])
    monkeypatch.setattr(replicas, "RUN_BYTES_MAX", 6 * size)
    right = read_file(disk, f"/theirs/{FIRST}")
    for number in range(3, 3 + count):
        _differ(disk, "/ours", number, 1)
    if undecided:
        _differ(disk, "/theirs", 4, 2)
        _differ(disk, "/third", 4, 3)
    outcome = repair(disk, "/ours", ["/theirs", "/third"], config=config("/ours"))
    ours = read_file(disk, f"/ours/{FIRST}")
    taken = [n for n in range(3, 3 + count) if ours[n * size : n * size + size] == right[n * size :][:size]]
    if count > 6:
        assert taken == []
        row = (outcome.left[0]["physicalOffset"], outcome.left[0]["until"])
        assert row == (3 * size, (3 + count) * size)
        assert "another history" in outcome.left[0]["why"]
    else:
        assert taken == [n for n in range(3, 3 + count) if not undecided or n != 4]
