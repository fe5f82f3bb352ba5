"""The promise of a start about ranges of the ledger: whole ones come off, and looking has a bound."""

from __future__ import annotations

from typing import Any

import pytest

from store.files.damage import DamagedRange, DamageLedger
from store.files.segment import Segment
from store.message_store import MessageStore
from store.recover import mended
from store.recover.mended import forget_mended
from tests.fakes.disk.memory import FaultyEnv
from tests.loops import completed
from tests.store.support import message, opened

FIRST = "/store/commitlog/" + "0" * 20
COUNT = 120
BODY = 2000


def _looked_at(
    monkeypatch: pytest.MonkeyPatch, rotten: range, noted: range, shift: int = 0
) -> tuple[list[int], int, int]:
    """Of records of one size bodies rot, and ranges are ``noted``, ``shift`` bytes into their records.
    Returns those that stay, the bytes that were read, and the size of a record."""
    env, read_bytes = FaultyEnv(), 0
    read = Segment.read

    def counted(segment: Segment, size: int, at: int) -> bytes:
        nonlocal read_bytes
        read_bytes += size
        return read(segment, size, at)

    async def run() -> tuple[list[int], int]:
        nonlocal read_bytes
        keys: dict[str, Any] = {
            "segment_bytes": 1 << 20,
            "queue_file_bytes": 20000,
            "index_slots": 500,
            "index_entries": 2000,
        }
        async with opened(env, **keys) as store:
            _fill(store)
            await store.caught_up()
            cache = env.disk.nodes[FIRST].cache
            size = int.from_bytes(cache[:4])
            for number in rotten:
                cache[number * size + 200] ^= 1
            ledger = DamageLedger(env.disk, "/store")
            for number in noted:
                begin = number * size + shift
                ledger.note([DamagedRange(begin, (number + 1) * size, "crc_mismatch", 1)])
            monkeypatch.setattr(Segment, "read", counted)
            read_bytes = 0
            forget_mended(store.log, ledger)
            return [item.begin // size for item in ledger.ranges], size

    left, size = completed(run())
    return left, read_bytes, size


def _fill(store: MessageStore) -> None:
    for number in range(COUNT):
        store.put(message(b"%06d" % number + bytes(BODY)))
    store.confirm(store.log.end)


def test_where_no_record_is_found_no_more_is_read_than_there_is_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All bodies of a segment rotted: each search went on to the segment's end."""
    monkeypatch.setattr(mended, "LOOKED_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(mended, "LOOK_BACK_BYTES", (1 << 16, 1 << 18))
    left, read_bytes, size = _looked_at(monkeypatch, range(COUNT), range(COUNT))
    assert left == list(range(COUNT))
    assert read_bytes < (1 << 20) + (1 << 19) + COUNT * (size + 4)


def test_nothing_behind_a_range_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    left, read_bytes, size = _looked_at(monkeypatch, range(5), range(3, 4))
    assert left == [3]
    assert read_bytes < 4 * (1 << 16) + 2 * size


@pytest.mark.parametrize("shift", [0, 1, 30, 500])
@pytest.mark.parametrize("first", [1, 30, 100])
def test_a_whole_range_comes_off_also_where_it_begins_inside_a_record(
    monkeypatch: pytest.MonkeyPatch, first: int, shift: int
) -> None:
    left, _, _ = _looked_at(monkeypatch, range(first + 3, first + 4), range(first, first + 4), shift)
    assert left == [first + 3]
