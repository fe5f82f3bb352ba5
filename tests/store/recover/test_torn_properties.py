"""The promise of the last record: what cannot be one, though body and lengths fit, is not served as one.

And what a client wrote into its properties makes nobody speak of damage.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from model.errors import Refused
from model.message import PROPERTIES_BYTES_MAX, encode_properties
from store.files.record import ZERO_TAIL_BYTES, BadRecord, NewMessage, encode, whole
from store.message_store import MessageStore
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import abandoned, config, message, opened, records_of, scrub_all

LOG = "/store/commitlog/" + "0" * 20
IDLE: dict[str, Any] = {"flush_interval_ms": 3_600_000, "flush_queue_interval_ms": 3_600_000}
FAKE_CRC = "__CRC32#\x010000000000\x02"


def _one(number: int) -> NewMessage:
    """392 bytes, as the one that was torn at 261; no keys, so that no index entry tells on it."""
    properties = encode_properties({"TAGS": "A", "a": "b" * 190})
    return message(f"{number}:".ljust(100, "x"), properties=properties)


async def _settle(store: MessageStore) -> None:
    store.log.sync()
    await store.background.housekeeping.queues.flush()
    await store.background.housekeeping.write_checkpoint()


def _left(stop: str, count: int = 3) -> tuple[FaultyDisk, int, int]:
    """A store of ``count`` records, and where the last one lies."""

    async def run() -> tuple[FaultyDisk, int, int]:
        env = FaultyEnv()
        store = MessageStore(env, config(**IDLE))
        await store.open()
        puts = [put for number in range(count) for put in store.put(_one(number))]
        store.confirm(store.log.end)
        await store.caught_up()
        if stop != "unsynced":
            await _settle(store)
        if stop == "clean":
            await store.close()
        disk = env.disk if stop == "clean" else env.disk.killed()
        return disk, puts[-1].physical_offset, puts[-1].size

    return asyncio.run(run())


@pytest.mark.parametrize("stop", ["unsynced", "settled", "clean"])
@pytest.mark.parametrize("kept", [261, 300, 384])
def test_a_last_record_torn_in_its_properties_is_not_served_and_verify_says_so(stop: str, kept: int) -> None:
    disk, offset, size = _left(stop)
    assert size == 392
    node = disk.nodes[LOG]
    node.cache[offset + kept : offset + size] = bytes(size - kept)
    node.sync()
    verdict = verify(disk, "/store", config())
    assert not verdict["ok"] or verdict["tail"] == {"physicalOffset": offset, "until": offset + size}

    async def run() -> None:
        async with opened(FaultyEnv(disk), **IDLE) as store:
            assert [r.body[:2] for r in records_of(store)] == [b"0:", b"1:"]
            if stop == "unsynced":
                assert store.log.end == offset, "it was being written when the process died"
            else:
                assert [(r.begin, r.until) for r in store.damage.ranges] == [(offset, offset + size)]

    asyncio.run(run())


@pytest.mark.parametrize("check", [True, False])
def test_a_body_of_which_a_page_was_lost_with_the_power_is_not_believed_whatever_is_configured(
    check: bool,
) -> None:
    """What lies behind it was written (swarm, seed 900158)."""

    async def run() -> None:
        env = FaultyEnv()
        store = MessageStore(env, config(**IDLE))
        await store.open()
        puts = [put for number in range(4) for put in store.put(_one(number))]
        store.confirm(store.log.end)
        await store.caught_up()
        disk = env.disk.killed()
        disk.boots += 1
        torn = disk.nodes[LOG]
        at = torn.cache.index(b"1:xxx", puts[1].physical_offset)
        torn.cache[at : at + 20] = bytes(20)
        torn.sync()
        async with opened(FaultyEnv(disk), check_crc_on_recover=check, **IDLE) as after:
            torn_at, behind = puts[1].physical_offset, puts[2].physical_offset
            assert [(r.begin, r.until) for r in after.damage.ranges] == [(torn_at, behind)]
            assert b"1:" not in [r.body[:2] for r in records_of(after)]

    asyncio.run(run())


def test_a_last_record_whose_queue_entry_was_made_of_other_tags_is_damage() -> None:
    disk, offset, size = _left("clean")
    node = disk.nodes[LOG]
    at = node.cache.index(b"TAGS\x01A", offset)
    node.cache[at + 5 : at + 6] = b"B"
    node.sync()

    async def run() -> None:
        async with opened(FaultyEnv(disk), **IDLE) as store:
            assert len(records_of(store)) == 2
            assert [(r.begin, r.until) for r in store.damage.ranges] == [(offset, offset + size)]
            assert store.next_offset("T", 0) == 3, "its place is not given to another"

    asyncio.run(run())


HARMLESS = [
    "",
    "a\x01b\x02",
    "a\x01b",
    "a\x01b" + "\0" * (ZERO_TAIL_BYTES - 1),
    "a\x01" + "\0" * 511 + "\x02",
    FAKE_CRC,
    "a\x01b\x02" + FAKE_CRC,
    "a\x01b\x02__CRC31#\x011234567890\x02",
    "a\x01" + "\0" * 511,
]


@pytest.mark.parametrize("properties", HARMLESS)
async def test_no_property_of_a_client_makes_a_store_speak_of_damage(properties: str) -> None:
    env = FaultyEnv()
    async with opened(env, **IDLE) as store:
        for number in range(3):
            store.put(message(f"{number}", properties=properties))
        store.confirm(store.log.end)
        await _settle(store)
        end = store.log.end
    for disk in (env.disk, _unclean(env.disk)):
        async with opened(FaultyEnv(disk), **IDLE) as store:
            assert (store.log.end, store.damage.ranges) == (end, [])
            assert len(records_of(store)) == 3
            scrub_all(store)
            assert (store.scrub.damaged_found, store.damage.ranges) == (0, [])
    assert verify(env.disk, "/store", config())["ok"]


MANY_NULS = "a\x01" + "\0" * 1023 + "\x02"


@pytest.mark.parametrize("prepared", [False, True])
async def test_properties_that_would_look_torn_are_refused(prepared: bool) -> None:
    """What was acknowledged after its sync could not be told from a torn record after a power loss."""
    async with opened(FaultyEnv(), **IDLE) as store:
        for count in (512, 1023):
            one = message("m", properties="a\x01" + "\0" * count + "\x02")
            with pytest.raises(Refused, match="NULs in a row"):
                store.writer.prepare(one) if prepared else store.put(one)
        assert store.log.end == 0


@pytest.mark.parametrize("behind", [0, 2])
async def test_a_kill_takes_no_record_that_an_older_version_let_hold_zeros(behind: int) -> None:
    """All that the process wrote is in the page cache: no block can be missing."""
    env = FaultyEnv()

    async def work(store: MessageStore) -> None:
        store.put(message("0", properties=MANY_NULS), stored_before=True)
        for number in range(behind):
            store.put(message(f"{number + 1}"))
        store.confirm(store.log.end)
        await store.caught_up()

    await abandoned(env, work, **IDLE)
    for disk, left in ((env.disk.copy(), 1 + behind), (_powered_off(env.disk), 0)):
        async with opened(FaultyEnv(disk), **IDLE) as store:
            assert [r.body for r in records_of(store)] == [b"%d" % n for n in range(left)]


def _powered_off(disk: FaultyDisk) -> FaultyDisk:
    """Where all was synced, but what the files say of that."""
    after = disk.copy()
    after.boots += 1
    return after


async def test_a_crc_property_that_matches_says_that_zeros_are_a_clients() -> None:
    env = FaultyEnv()

    async def work(store: MessageStore) -> None:
        for _ in range(2):
            store.put(message("m", properties=MANY_NULS), stored_before=True)

    await abandoned(env, work, append_prop_crc=True, **IDLE)
    async with opened(FaultyEnv(_powered_off(env.disk)), append_prop_crc=True, **IDLE) as store:
        assert len(records_of(store)) == 2


def _unclean(disk: FaultyDisk) -> FaultyDisk:
    after = disk.copy()
    after.open("/store/abort", create=True)
    return after


async def test_a_range_that_was_noted_for_a_clients_crc_property_is_forgotten_at_the_next_start() -> None:
    env = FaultyEnv()
    async with opened(env, **IDLE) as store:
        put = store.put(message("m", properties=FAKE_CRC))[0]
        store.confirm(store.log.end)
        await store.caught_up()
        store.repairer.note(0, BadRecord("crc_mismatch", "as a former version said"))
        assert store.damage.ranges
    async with opened(FaultyEnv(_unclean(env.disk)), **IDLE) as store:
        assert store.damage.ranges == []
        assert store.log.end == put.size
        assert len(records_of(store)) == 1


async def test_where_records_carry_a_crc_property_it_counts_and_a_clients_before_it_does_not() -> None:
    env = FaultyEnv()
    async with opened(env, append_prop_crc=True, **IDLE) as store:
        puts = [store.put(message("m", properties=text))[0] for text in ("a\x01b", FAKE_CRC, "c\x01d")]
        store.confirm(store.log.end)
        await store.caught_up()
        scrub_all(store)
        assert store.damage.ranges == []
    env.disk.nodes[LOG].cache[puts[2].physical_offset + 19] ^= 1  # the user's flag: in no body CRC
    async with opened(FaultyEnv(_unclean(env.disk)), append_prop_crc=True, **IDLE) as store:
        assert [r.begin for r in store.damage.ranges] == [puts[2].physical_offset]


def test_zeros_of_a_body_or_a_length_are_no_zeros_of_properties() -> None:
    for one in (message(bytes(600), properties=""), message(b"", properties="")):
        raw = encode(one, 0, 0, 0)
        assert whole(raw, 0, 0, prop_crc=False) == len(raw)
    longest = message(b"", properties="a\x01" + "b" * (PROPERTIES_BYTES_MAX - 2))
    assert whole(encode(longest, 0, 0, 0), 0, 0, prop_crc=False)
    torn = bytearray(encode(longest, 0, 0, 0))
    torn[-ZERO_TAIL_BYTES:] = bytes(ZERO_TAIL_BYTES)
    with pytest.raises(BadRecord, match="end in zeros"):
        whole(torn, 0, 0, prop_crc=False)
