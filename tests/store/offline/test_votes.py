"""The promise about whom a repair hears: each copy of a record once, its own first, and only who has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.ids import PhysicalOffset
from runtime.os_env import OsDisk
from store.files.checkpoint import Checkpoint
from store.files.damage import DamagedRange, DamageLedger
from store.offline import repair as offline_repair
from store.offline import verify
from store.offline.repair import Outcome, repair
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import config, message, opened

FIRST = "commitlog/" + "0" * 20
COUNT = 12
KEYS = {"segment_bytes": 1 << 16}


def _stores(*roots: str, count: int = COUNT, body: int = 0, **keys: Any) -> FaultyDisk:
    """The same records of one size in each."""
    env = FaultyEnv()

    async def run() -> None:
        for root in ("/ours", *roots):
            async with opened(env, root=root, **(KEYS | keys)) as store:
                for number in range(count):
                    store.put(message(b"a-%04d" % number + bytes(body), uniq=f"U{number:04d}"))
                store.confirm(store.log.end)
                await store.caught_up()

    asyncio.run(run())
    return env.disk


def _size(disk: FaultyDisk) -> int:
    return int.from_bytes(disk.nodes[f"/ours/{FIRST}"].cache[:4])


def _flag(disk: FaultyDisk, root: str, number: int) -> int:
    """A bit of a record's flag flips: no CRC, no entry, no key tells. Returns where."""
    at = number * _size(disk) + 19
    disk.nodes[f"{root}/{FIRST}"].cache[at] ^= 0x40
    return at


def _confirm(disk: FaultyDisk, root: str, offset: int) -> None:
    cache = disk.nodes[f"{root}/checkpoint"].cache
    found = Checkpoint.decode(bytes(cache))
    found.confirm_offset = PhysicalOffset(offset)
    found.settled_offset = PhysicalOffset(min(found.settled_offset, offset))
    cache[: len(found.encode())] = found.encode()


def _ours(disk: FaultyDisk) -> bytes:
    return bytes(disk.nodes[f"/ours/{FIRST}"].cache)


def _repaired(disk: FaultyDisk, *peers: str, **keys: Any) -> Outcome:
    return repair(disk, "/ours", peers, config=config("/ours", **(KEYS | keys)))


Link = Callable[[Path], list[str]]


def _linked(to: Path) -> list[str]:
    (to / "two").symlink_to(to / "one")
    return [f"{to}/one", f"{to}/two"]


def _log_linked(to: Path) -> list[str]:
    (to / "two").mkdir()
    (to / "two/commitlog").symlink_to(to / "one/commitlog")
    return [f"{to}/one", f"{to}/two"]


def _hard_linked(to: Path) -> list[str]:
    for path in sorted((to / "one").rglob("*")):
        target = to / "two" / path.relative_to(to / "one")
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            target.hardlink_to(path)
    return [f"{to}/one", f"{to}/two"]


@pytest.mark.parametrize("wrong", ["one", "ours"])
@pytest.mark.parametrize(
    "named",
    [
        lambda to: [f"{to}/one", f"{to}/./one"],
        lambda to: [f"{to}/one", f"{to}/one/../one/"],
        lambda to: [f"{to}/one", f"{to}/ours/../ours"],
        _linked,
        _log_linked,
        _hard_linked,
    ],
)
def test_one_store_by_two_names_is_one_copy(tmp_path: Path, named: Link, wrong: str) -> None:
    disk = _stores("/one")
    at = _flag(disk, f"/{wrong}", 5)
    for path, node in disk.nodes.items():
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_bytes(node.cache)
    root = str(tmp_path / "ours")
    before = (tmp_path / "ours" / FIRST).read_bytes()
    outcome = repair(OsDisk(), root, named(tmp_path), config=config(root, **KEYS))
    assert (outcome.repaired, [row["kind"] for row in outcome.left]) == ([], ["bytes_differ"])
    assert outcome.left[0]["why"].startswith("2 copies")
    assert (tmp_path / "ours" / FIRST).read_bytes()[at] == before[at]


def test_its_own_name_adds_no_voice_to_a_wrong_record() -> None:
    disk = _stores("/one", "/two")
    right = _ours(disk)
    _flag(disk, "/ours", 5)
    disk.makedirs("/twin/commitlog")
    disk.nodes |= {p.replace("/ours", "/twin"): n for p, n in disk.nodes.items() if p.startswith("/ours")}
    outcome = _repaired(disk, "/one", "/two", "/twin")
    assert (outcome.left, len(outcome.repaired), _ours(disk)) == ([], 1, right)


@pytest.mark.parametrize("confirmed", [False, True])
@pytest.mark.parametrize("peers", [("/p1", "/p2", "/p3"), ("/p3", "/p1", "/p2")])
def test_our_copy_has_its_voice_whether_or_not_it_is_confirmed(
    peers: tuple[str, ...], confirmed: bool
) -> None:
    disk = _stores("/p1", "/p2", "/p3")
    right = _ours(disk)
    if not confirmed:
        _confirm(disk, "/ours", 5 * _size(disk))
    _flag(disk, "/p1", 8)
    _flag(disk, "/p2", 8)
    outcome = _repaired(disk, *peers)
    assert (outcome.repaired, [row["kind"] for row in outcome.left]) == ([], ["bytes_differ"])
    assert _ours(disk) == right


def test_a_wrong_record_of_ours_that_is_not_confirmed_is_mended() -> None:
    disk = _stores("/p1", "/p2")
    right = _ours(disk)
    _confirm(disk, "/ours", 5 * _size(disk))
    _flag(disk, "/ours", 8)
    outcome = _repaired(disk, "/p1", "/p2")
    assert (outcome.left, len(outcome.repaired), _ours(disk)) == ([], 1, right)


@pytest.mark.parametrize("before_end", [0, 1, 5, 100])
@pytest.mark.parametrize("wrong", [0, 8, 10])
def test_a_confirm_offset_inside_a_record_leaves_out_that_record_alone(wrong: int, before_end: int) -> None:
    disk = _stores("/p1", "/p2")
    right, end = _ours(disk), COUNT * _size(disk)
    _flag(disk, "/ours", wrong)
    for peer in ("/p1", "/p2"):
        _confirm(disk, peer, end - before_end)
    outcome = _repaired(disk, "/p1", "/p2")
    assert (outcome.left, len(outcome.repaired), _ours(disk)) == ([], 1, right)


def test_a_confirm_offset_inside_a_record_leaves_out_no_batch_of_a_long_log() -> None:
    keys: dict[str, Any] = {
        "segment_bytes": 4 << 20,
        "index_slots": 500,
        "index_entries": 2000,
        "queue_file_bytes": 40000,
    }
    disk = _stores("/p1", "/p2", count=300, body=8000, **keys)
    right, end = _ours(disk), 300 * _size(disk)
    _flag(disk, "/ours", 290)
    for peer in ("/p1", "/p2"):
        _confirm(disk, peer, end - 5)
    outcome = _repaired(disk, "/p1", "/p2", **keys)
    assert (outcome.left, len(outcome.repaired)) == ([], 1)
    assert _ours(disk) == right


def test_no_replica_that_confirmed_a_record_of_ours_is_told() -> None:
    disk = _stores("/p1")
    _confirm(disk, "/p1", 5)
    assert "nothing was compared" in _repaired(disk, "/p1").left[0]["why"]


@pytest.mark.parametrize("why", ["compared", "unconfirmed", "damaged", "none", "gone"])
def test_a_range_that_differs_is_forgotten_only_where_a_replica_was_compared(why: str) -> None:
    disk = _stores("/p1")
    size = _size(disk)
    ledger = DamageLedger(disk, "/ours")
    ledger.note([DamagedRange(8 * size, 9 * size, "bytes_differ", 1)])
    if why == "unconfirmed":
        _confirm(disk, "/p1", 5 * size)
    if why == "damaged":
        cache = disk.nodes[f"/p1/{FIRST}"].cache
        cache[cache.index(b"a-0008")] ^= 1
    if why == "gone":
        disk.nodes[f"/p1/{FIRST}"].cache[8 * size :] = b""
    outcome = _repaired(disk, *(() if why == "none" else ("/p1",)))
    ledger.load()
    assert (outcome.left, outcome.repaired) == ([], [])
    assert [item.begin for item in ledger.ranges] == ([] if why == "compared" else [8 * size])


def test_more_that_differs_than_is_told_stays_on_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "DAMAGE_MAX", 3)
    disk = _stores("/p1")
    size = _size(disk)
    for number in (1, 3, 5, 7, 9):
        _flag(disk, "/ours", number)
    ledger = DamageLedger(disk, "/ours")
    ledger.note([DamagedRange(9 * size, 10 * size, "bytes_differ", 1)])
    outcome = _repaired(disk, "/p1")
    ledger.load()
    assert [row["kind"] for row in outcome.left] == ["bytes_differ"] * 3 + ["not_looked_at"]
    assert [item.begin for item in ledger.ranges] == [9 * size]


def test_records_side_by_side_name_the_replica_that_each_was_taken_from() -> None:
    disk = _stores("/p1", "/p2", "/p3", "/p4")
    right, size = _ours(disk), _size(disk)
    _flag(disk, "/ours", 4)
    _flag(disk, "/ours", 5)
    cache = disk.nodes[f"/p1/{FIRST}"].cache
    cache[cache.index(b"a-0005")] ^= 1
    outcome = _repaired(disk, "/p1", "/p2", "/p3", "/p4")
    rows = [(row["physicalOffset"], row["until"], row["from"]) for row in outcome.repaired]
    assert rows == [(4 * size, 5 * size, "/p1"), (5 * size, 6 * size, "/p2")]
    assert (outcome.left, _ours(disk)) == ([], right)


def test_a_repair_that_did_not_end_cuts_no_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """What seemed to be the end when it looked last, a replica knows to be a hole."""
    monkeypatch.setattr(offline_repair, "ROUNDS_MAX", 1)
    disk = _stores("/p1")
    size = _size(disk)
    _confirm(disk, "/ours", 5 * size)
    cache = disk.nodes["/ours/checkpoint"].cache
    found = Checkpoint.decode(bytes(cache))
    found.settled_offset = found.master_flushed_offset = PhysicalOffset(5 * size)
    found.indexed_offset = PhysicalOffset(5 * size)
    cache[: len(found.encode())] = found.encode()
    disk.nodes[f"/ours/{FIRST}"].cache[6 * size + 20 : 8 * size] = bytes(2 * size - 20)
    before = _ours(disk)
    outcome = repair(disk, "/ours", ["/p1"], cut_tail=True, config=config("/ours", **KEYS))
    assert (outcome.to_json()["ok"], outcome.tail_cut) == (False, False)
    assert _ours(disk)[8 * size :] == before[8 * size :]
