"""The promise where no CRC tells whether a record rotted or what was made of it: all stays as it is, is read,
and waits until another replica's log decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.context import BrokerContext
from broker.upkeep.log_repair import LogRepair
from remoting.service import RemotingClient
from store.files.consume_queue import ConsumeQueue
from store.files.record import BadRecord, Record
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import message, opened, records_of, scrub_all

FIRST = "/store/commitlog/" + "0" * 20


def queue_of(store: MessageStore) -> ConsumeQueue:
    queue = store.files.queues.get("T", 0)
    assert queue is not None
    return queue


@asynccontextmanager
async def two_replicas() -> AsyncIterator[tuple[FaultyEnv, MessageStore, MessageStore, Record]]:
    """The disk of one, it, another that has the same log, and record number 2 of it."""
    env = FaultyEnv()
    async with opened(env) as store, opened(FaultyEnv()) as other:
        for one in (store, other):
            for number in range(6):
                one.put(message(b"x" * 100, properties=f"TAGS\x01A{number}\x02KEYS\x01key{number}\x02"))
            one.confirm(one.log.end)
            await one.caught_up()
            await one.background.flush_all()
        yield env, store, other, records_of(store)[2]


def rot(env: FaultyEnv, record: Record, text: bytes) -> None:
    """The last byte of ``text`` in ``record`` gets another bit."""
    cache = env.disk.nodes[FIRST].cache
    at = bytes(cache).index(text, record.physical_offset) + len(text) - 1
    cache[at] ^= 1


def read(store: MessageStore, begin: int, until: int) -> bytes:
    return store.log.read(begin, until - begin)


@pytest.mark.parametrize("text", [b"TAGS\x01A2", b"KEYS\x01key2"])
async def test_a_record_that_rotted_is_read_until_a_replica_gives_the_one_its_entries_name(
    text: bytes,
) -> None:
    async with two_replicas() as (env, store, other, record):
        entry, offset = queue_of(store).entry(2), record.physical_offset
        rot(env, record, text)
        for _ in range(2):
            scrub_all(store)
            rotten = read(store, offset, offset + record.size)
            assert queue_of(store).entry(2) == entry, "it tells what the record was"
            assert not store.repairer.names(offset, rotten)
            assert (store.damage.ranges, len(records_of(store))) == ([], 6)
        (wanted,) = store.repairer.wanted()
        with pytest.raises(BadRecord, match="not ours"):
            await store.repairer.mend(wanted, bytes(wanted.until - wanted.begin))
        assert await store.repairer.mend(wanted, read(other, wanted.begin, wanted.until)) == 1
        assert read(store, 0, store.log.end) == read(other, 0, other.log.end)
        assert (store.repairer.wanted(), store.damage.ranges) == ([], [])
        assert queue_of(store).entry(2) == entry
        assert store.query("T", "key3", 9, 0, 1 << 62) == other.query("T", "key3", 9, 0, 1 << 62)


async def test_an_entry_that_rotted_is_made_anew_when_a_replica_has_the_same_record() -> None:
    async with two_replicas() as (_, store, other, record):
        queue, offset = queue_of(store), record.physical_offset
        entry = queue.entry(2)
        assert entry is not None
        queue.patch(2, *entry[:2], entry[2] ^ 64)
        scrub_all(store)
        assert queue.entry(2) != entry
        assert [one.of.begin for one in store.repairer.wanted()] == [offset]
        assert len(records_of(store)) == 6
        (wanted,) = store.repairer.wanted()
        assert await store.repairer.mend(wanted, read(other, wanted.begin, wanted.until)) == 1
        assert queue.entry(2) == entry
        assert (store.repairer.wanted(), store.damage.ranges) == ([], [])


async def test_a_replica_whose_record_no_entry_names_decides_nothing() -> None:
    async with two_replicas() as (env, store, other, record):
        rot(env, record, b"TAGS\x01A2")
        scrub_all(store)
        (wanted,) = store.repairer.wanted()
        data = read(other, wanted.begin, wanted.until).replace(b"TAGS\x01A2", b"TAGS\x01B2")
        with pytest.raises(BadRecord, match="no evidence"):
            await store.repairer.mend(wanted, data)
        assert len(store.repairer.wanted()) == 1


async def test_damage_is_not_mended_with_a_record_that_has_another_tag_than_its_entry() -> None:
    async with two_replicas() as (env, store, other, record):
        env.disk.nodes[FIRST].cache[record.physical_offset + 95] ^= 1  # its body
        scrub_all(store)
        (wanted,) = store.repairer.wanted()
        good = read(other, wanted.begin, wanted.until)
        with pytest.raises(BadRecord, match="another tag"):
            await store.repairer.mend(wanted, good.replace(b"TAGS\x01A2", b"TAGS\x01B2"))
        assert await store.repairer.mend(wanted, good) == 1
        assert store.damage.ranges == []


async def test_where_a_crc_covers_the_tags_a_wrong_entry_is_made_right_at_once() -> None:
    async with opened(FaultyEnv(), append_prop_crc=True) as store:
        store.put(message(b"x"))
        store.confirm(store.log.end)
        await store.caught_up()
        await store.background.flush_all()
        entry = queue_of(store).entry(0)
        assert entry is not None
        queue_of(store).patch(0, *entry[:2], entry[2] ^ 64)
        scrub_all(store)
        assert queue_of(store).entry(0) == entry
        assert store.repairer.wanted() == []


@pytest.mark.parametrize(
    ("members", "controllers", "believed"),
    [(["us"], False, True), ([], False, False), (["us", "them"], False, False), (["us"], True, False)],
)
async def test_only_a_broker_without_replicas_believes_its_records(
    members: list[str], controllers: bool, believed: bool
) -> None:
    async with two_replicas() as (env, store, _, record):
        config = SimpleNamespace(
            address="us", group_address=None, enable_controller_mode=controllers, broker_name="g"
        )
        context: Any = SimpleNamespace(
            env=env,
            config=config,
            store=store,
            ha=SimpleNamespace(verified_epoch=1),
            role_state=SimpleNamespace(master_address=None),
        )

        class Silent:
            async def call(self, *_: object) -> None:
                raise OSError("nobody answers")

        async def known() -> list[str]:
            return members

        entry = queue_of(store).entry(2)
        repair = LogRepair(cast(BrokerContext, context), cast(RemotingClient, Silent()), known)
        rot(env, record, b"TAGS\x01A2")
        scrub_all(store)
        await repair._turn()
        assert (queue_of(store).entry(2) != entry) == believed
        assert bool(store.repairer.wanted()) != believed
