"""The promise of ``OwnBytes``: of any bytes of a log it finds whole records and right blanks, no more."""

from __future__ import annotations

import pytest

from ha.slave.follow import NoteDamage
from ha.slave.own_log import LogActions, OwnBytes
from ha.slave.tail import Differs, TailCompare, UnreadableError
from model.errors import DiskError
from model.ids import PhysicalOffset
from store.files.damage import DamagedRange
from store.files.record import blank, encode
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import fill, message, opened

SEGMENT = 4096
BEGIN = PhysicalOffset(0)


async def a_log(store: MessageStore) -> tuple[OwnBytes, bytes, list[int]]:
    """Of several segments; also its bytes, and where its records begin."""
    puts = await fill(store, 100)
    own = OwnBytes(store, store.log.segment_bytes)
    return own, own.read(BEGIN, store.log.end), [put.physical_offset for put in puts]


async def test_from_anywhere_whole_records_are_found_and_the_blanks_at_the_segments_ends() -> None:
    async with opened(FaultyEnv(FaultyDisk()), segment_bytes=SEGMENT) as store:
        own, data, starts = await a_log(store)
        pieces = own.pieces(data, BEGIN)
        assert [piece.begin for piece in pieces if piece.is_record] == starts
        blanks = [piece.until for piece in pieces if not piece.is_record]
        assert blanks
        assert not any(until % SEGMENT for until in blanks)
        inside = own.pieces(data[starts[3] + 7 :], PhysicalOffset(starts[3] + 7))
        assert inside == pieces[4:], "it begins with the next one"
        cut = own.pieces(data[: starts[5] + 60], BEGIN)
        assert cut == pieces[:6], "the last one ends behind what there is"
        assert own.pieces(data[: starts[5] + 60], PhysicalOffset(100)) == [], "none of them belongs there"
        assert own.pieces(blank(500), PhysicalOffset(SEGMENT - 400)) == [], "it does not reach the end"


async def test_a_record_that_does_not_match_its_crc_is_none_and_is_noted() -> None:
    async with opened(FaultyEnv(FaultyDisk()), segment_bytes=SEGMENT) as store:
        own, data, starts = await a_log(store)
        at = starts[4]
        rotten = bytearray(data)
        rotten[at + 100] ^= 1
        found = [piece.begin for piece in own.pieces(bytes(rotten), BEGIN) if piece.is_record]
        assert found == starts[:4] + starts[5:]
        LogActions(store).carry_out([NoteDamage(PhysicalOffset(at))], BEGIN)
        assert store.damage.ranges == [], "here it is sound"
        segment = store.files.log._dir.at(at)
        assert segment is not None
        segment.write(bytes(rotten[at + 100 : at + 101]), at % SEGMENT + 100)
        LogActions(store).carry_out([NoteDamage(PhysicalOffset(at))], BEGIN)
        assert [(item.begin, item.until) for item in store.damage.ranges] == [(at, starts[5])]


async def test_a_large_damaged_end_has_a_record_before_it_compared() -> None:
    async with opened(FaultyEnv(FaultyDisk()), segment_bytes=1 << 20) as store:
        puts = await fill(store, 300, size=1000)
        end = store.log.end
        whole = PhysicalOffset(puts[100].physical_offset)
        store.damage.note([DamagedRange(whole, end, "unreadable_region")])
        tail = TailCompare(OwnBytes(store, 1 << 20), BEGIN, end)
        assert tail.at == puts[99].physical_offset


async def test_bytes_known_to_be_damaged_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may not give them."""
    async with opened(FaultyEnv(FaultyDisk()), segment_bytes=1 << 20) as store:
        own, data, starts = await a_log(store)
        store.damage.note([DamagedRange(starts[4], starts[6], "unreadable_region")])
        read = store.log.read

        def failing(offset: int, size_max: int) -> bytes:
            if offset < starts[6] and starts[4] < offset + size_max:
                raise DiskError("EIO")
            return read(offset, size_max)

        monkeypatch.setattr(store.log, "read", failing)
        found = own.read(BEGIN, len(data))
        assert found == data[: starts[4]] + bytes(starts[6] - starts[4]) + data[starts[6] :]


def other_record(at: int, size: int) -> bytes:
    return encode(message(b"o" * size), 0, at, 2)


@pytest.mark.parametrize("torn", [False, True])
async def test_another_last_record_is_seen_also_when_it_ends_behind_our_log(torn: bool) -> None:
    """And when there is but half of ours, unless that is known to be damaged."""
    async with opened(FaultyEnv(FaultyDisk()), segment_bytes=1 << 20) as store:
        own, data, starts = await a_log(store)
        last = starts[-1]
        end = PhysicalOffset(last + 100) if torn else store.log.end
        theirs = data[:last] + other_record(last, 400)
        for cut in (end, last + 20):  # by there its head has come, or not all of it
            tail = TailCompare(own, BEGIN, end)
            assert tail.take(theirs[tail.at : cut], 0.0) == cut - 1
            assert tail.take(theirs[cut:end], 0.0) == end - cut
            assert not tail.compared
            found = tail.take(theirs[end:], 0.0)
            assert isinstance(found, Differs)
            assert found.at >= last
        # Rotten it tells nothing.
        tail = TailCompare(own, BEGIN, end)
        rotten = bytearray(theirs)
        rotten[-150] ^= 1
        with pytest.raises(UnreadableError, match="no readable record at"):
            tail.take(bytes(rotten[1:]), 0.0)
        # Nor does it contradict what is damaged here.
        store.damage.note([DamagedRange(last, store.log.end, "crc_mismatch")])
        tail = TailCompare(own, BEGIN, end)
        assert tail.take(theirs[1:], 0.0) == end - 1
        assert tail.compared


async def test_what_a_blank_is_filled_with_is_read_by_nobody() -> None:
    async with opened(FaultyEnv(FaultyDisk()), segment_bytes=4096) as store:
        own, _, _ = await a_log(store)
        end = PhysicalOffset(4096)
        while store.log.end < end:
            store.put(message(b"x" * 300))
        ours = bytearray(own.read(BEGIN, end))
        (blank_at,) = [piece.begin for piece in own.pieces(bytes(ours), BEGIN) if not piece.is_record]
        assert blank_at + 9 < end
        ours[blank_at + 9] ^= 1
        tail = TailCompare(own, BEGIN, end)
        tail.take(bytes(ours[tail.at :]), 0.0)
        assert tail.compared


async def test_a_blank_where_ours_has_a_record_is_another_log() -> None:
    async with opened(FaultyEnv(FaultyDisk()), segment_bytes=1 << 20) as store:
        own, data, starts = await a_log(store)
        last = starts[-1]
        theirs = data[:last] + blank((1 << 20) - last)
        tail = TailCompare(own, BEGIN, store.log.end)
        found = tail.take(theirs[1:].ljust(store.log.end - 1, bytes(1)), 0.0)
        assert isinstance(found, Differs)
        assert last <= found.at < store.log.end
