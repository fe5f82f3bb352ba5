"""The promise of verify and repair to entries: they say what the audit says of the same store."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from model.message import SCHEDULE_TOPIC, encode_properties
from runtime.os_env import OsDisk, OsEnv
from store.files.checkpoint import Checkpoint
from store.files.consume_queue import ENTRY, ENTRY_BYTES
from store.offline.queues.dues import Due, odd_dues
from store.offline.repair import repair
from store.offline.verify import verify
from tests.audit.plants import run_local
from tests.loops import completed
from tests.store.support import config, fill, message, opened

COUNT = 80
PER_FILE = 200
STORED = 1 << 40


def _dues(delays: list[int]) -> list[Due]:
    return [Due(place, place * 100, 100, STORED, STORED + delay) for place, delay in enumerate(delays)]


@pytest.mark.parametrize(
    ("delays", "odd"),
    [
        ([5, 5, 7, 5, 5], {2: 5}),
        ([5, 5, 7, 7, 7], {}),
        ([5, 7], {}),
        ([7, 5, 5], {}),
        ([5, -2, 7], {1: 5}),
        ([-2, 7, 7], {0: 7}),
        ([7, 7, -2], {2: 7}),
        ([-2], {0: None}),
        ([], {}),
    ],
)
def test_a_delayed_message_is_due_as_those_beside_it(delays: list[int], odd: dict[int, int | None]) -> None:
    found = {due.place: wanted - STORED if wanted >= 0 else None for due, wanted in odd_dues(_dues(delays))}
    assert found == odd


def test_it_is_the_rule_of_the_audit() -> None:
    """``audit.engines.entries._Entries._odd_dues``, of one queue."""
    chance = random.Random(5)
    for _ in range(300):
        row = [chance.choice((5, 5, 5, 7, -3)) for _ in range(chance.randrange(1, 12))]
        delays = np.array(row)
        alone = delays < 0
        alone[1:-1] |= (delays[1:-1] != delays[:-2]) & (delays[:-2] == delays[2:])
        assert [due.place for due, _ in odd_dues(_dues(row))] == np.nonzero(alone)[0].tolist()


def _delayed(root: Path) -> None:
    async def run() -> None:
        async with opened(OsEnv(), root=str(root), queue_file_bytes=PER_FILE, segment_bytes=1 << 16) as store:
            for number in range(30):
                properties = encode_properties({"DELAY": "1", "UNIQ_KEY": f"U{number}"})
                store.put(message(f"{number}", topic=SCHEDULE_TOPIC, properties=properties))
            store.confirm(store.log.end)
            await store.caught_up()

    completed(run())


@pytest.mark.parametrize("by_ms", [2000, -5000, 365 * 86_400_000, 1 << 45])
@pytest.mark.parametrize("place", [5, 0, 29])
def test_an_entry_that_is_due_otherwise_is_found_by_verify_and_mended(
    by_ms: int, place: int, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    _delayed(root)
    assert verify(OsDisk(), str(root))["ok"]
    path, at = _place(root, SCHEDULE_TOPIC, 0, place)
    right = path.read_bytes()
    raw = bytearray(right)
    struct.pack_into(">q", raw, at + 12, struct.unpack_from(">q", raw, at + 12)[0] + by_ms)
    path.write_bytes(raw)
    told = any(f.kind == "cq_wrong" for f in run_local([root], None).findings)
    assert told is (place == 5 or by_ms == -5000)
    assert verify(OsDisk(), str(root))["ok"] is not told
    outcome = repair(OsDisk(), str(root), [])
    assert (outcome.left, outcome.entries) == ([], int(told))
    assert path.read_bytes() == (right if told else raw)


def _place(root: Path, topic: str, queue_id: int, place: int) -> tuple[Path, int]:
    start = place * ENTRY_BYTES // PER_FILE * PER_FILE
    return root / f"consumequeue/{topic}/{queue_id}/{start:020}", place * ENTRY_BYTES - start


def _written(root: Path) -> None:
    async def run() -> None:
        async with opened(OsEnv(), root=str(root), queue_file_bytes=PER_FILE, segment_bytes=1 << 16) as store:
            await fill(store, COUNT, queues=2)

    completed(run())


def _killed(root: Path) -> None:
    """With the checkpoint of a RocketMQ."""
    raw = (root / "checkpoint").read_bytes()
    theirs = Checkpoint.decode(raw).encode()[:64]
    (root / "checkpoint").write_bytes(theirs.ljust(len(raw), b"\0"))
    (root / "abort").touch()


@pytest.mark.parametrize("entry", [(0, 0, 0), (4096, -2147483513, 5), (0, -1, 0), (1 << 46, 91, 5)])
@pytest.mark.parametrize("place", [0, 3, 10, 15, 38])
def test_a_place_that_cannot_be_read_before_others_is_damage_also_of_a_store_that_was_killed(
    place: int, entry: tuple[int, int, int], tmp_path: Path
) -> None:
    root = tmp_path / "s"
    _written(root)
    _killed(root)
    assert verify(OsDisk(), str(root))["ok"]
    path, at = _place(root, "T", 0, place)
    right = path.read_bytes()
    path.write_bytes(right[:at] + ENTRY.pack(*entry) + right[at + ENTRY_BYTES :])
    assert not verify(OsDisk(), str(root))["ok"]
    outcome = repair(OsDisk(), str(root), [])
    assert outcome.left == []
    assert path.read_bytes() == right
    assert repair(OsDisk(), str(root), []).entries == 0


def test_what_a_killed_store_has_not_entered_at_a_queues_end_is_no_damage(tmp_path: Path) -> None:
    root = tmp_path / "s"
    _written(root)
    _killed(root)
    path, at = _place(root, "T", 0, 39)
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + bytes(len(raw) - at))
    assert verify(OsDisk(), str(root))["ok"]


QUEUE_ID, QUEUE_OFFSET = (12, ">i"), (20, ">q")


def _flip(root: Path, number: int, field: tuple[int, str], bit: int) -> int:
    log = root / f"commitlog/{0:020}"
    raw = bytearray(log.read_bytes())
    offset = 0
    for _ in range(number):
        offset += struct.unpack_from(">i", raw, offset)[0]
    at, layout = field
    value = struct.unpack_from(layout, raw, offset + at)[0]
    struct.pack_into(layout, raw, offset + at, value ^ 1 << bit)
    log.write_bytes(raw)
    return offset


def _all(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.stat().st_size
    }


@pytest.mark.parametrize(
    ("field", "bit"), [(QUEUE_ID, 26), (QUEUE_ID, 2), (QUEUE_ID, 0), (QUEUE_OFFSET, 40), (QUEUE_OFFSET, 3)]
)
@pytest.mark.parametrize("number", [0, 33, 40, COUNT - 1])
def test_a_record_whose_queue_knows_its_place_better_gets_it_back(
    number: int, field: tuple[int, str], bit: int, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    _written(root)
    right = _all(root)
    offset = _flip(root, number, field, bit)
    outcome = repair(OsDisk(), str(root), [])
    assert [row["physicalOffset"] for row in outcome.repaired] == [offset]
    assert outcome.left == []
    assert _all(root) == right
    assert run_local([root], None).verdict == "clean"


def test_copies_that_say_the_same_wrong_place_are_each_put_right(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in "abc"]
    _written(roots[0])
    _flip(roots[0], 33, QUEUE_ID, 26)
    for root in roots[1:]:
        shutil.copytree(roots[0], root)
    for root in roots:
        peers = [str(other) for other in roots if other != root]
        assert repair(OsDisk(), str(root), peers).left == []
    assert len({(root / f"commitlog/{0:020}").read_bytes() for root in roots}) == 1
    assert run_local(roots, None).verdict == "clean"


def test_a_record_that_says_a_queue_of_its_own_makes_no_queue(tmp_path: Path) -> None:
    """Its own queue is gone, and says nothing."""
    root = tmp_path / "s"
    _written(root)
    _flip(root, 33, QUEUE_ID, 26)
    shutil.rmtree(root / "consumequeue" / "T" / "1")
    outcome = repair(OsDisk(), str(root), [], config=config(queue_file_bytes=PER_FILE))
    assert sorted(path.name for path in (root / "consumequeue/T").iterdir()) == ["0", "1"]
    assert [row["kind"] for row in outcome.left] == ["cq_missing"]
    assert "queue 1 lacks it" in outcome.left[0]["why"]


def test_queues_that_were_swapped_change_no_record(tmp_path: Path) -> None:
    root = tmp_path / "s"
    _written(root)
    right = _all(root)
    one, other = (root / f"consumequeue/T/{queue_id}/{PER_FILE:020}" for queue_id in (0, 1))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    assert repair(OsDisk(), str(root), []).left == []
    assert _all(root) == right
