"""The promise of inner batches: the queue offsets one record stands for are never given out again."""

from __future__ import annotations

import asyncio

import pytest

from model.message import INNER_BATCH, TRANSACTION_PREPARED, encode_properties
from store.files.record import encode
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import config, message, opened, records_of

INNER = 5


def _append(store: MessageStore, *, body: str, queue_offset: int, inner: int = 0) -> None:
    """Append as a slave does: the record of a master that has batch queues."""
    properties = {"INNER_NUM": str(inner)} if inner else {}
    one = message(
        body, sys_flag=INNER_BATCH if inner else 0, properties=encode_properties(properties | {"TAGS": "A"})
    )
    store.append_raw(store.log.end, encode(one, queue_offset, store.log.end, 1_700_000_000_000))


async def _filled(store: MessageStore, *, confirm: bool = True) -> None:
    _append(store, body="first", queue_offset=0)
    _append(store, body="batch", queue_offset=1, inner=INNER)
    if confirm:
        store.confirm(store.log.end)
        await store.caught_up()


async def _check(store: MessageStore) -> None:
    following = 1 + INNER
    assert store.next_offset("T", 0) == following
    assert [r.body for r in records_of(store)] == [b"first", b"batch"]
    assert store.put(message("next"))[0].queue_offset == following
    store.confirm(store.log.end)
    await store.caught_up()
    assert [(r.queue_offset, r.body) for r in records_of(store)][-1] == (following, b"next")


@pytest.mark.parametrize("how", ["promoted", "clean", "killed", "undispatched", "power", "recut"])
async def test_offsets_behind_an_inner_batch_are_never_given_out_again(how: str) -> None:
    env = FaultyEnv()
    disk: FaultyDisk = env.disk
    store = MessageStore(env, config())
    await store.open()
    await _filled(store, confirm=how != "undispatched")
    if how == "recut":
        end = store.log.end
        _append(store, body="cut off", queue_offset=1 + INNER)
        store.confirm(store.log.end)
        await store.caught_up()
        store.truncate(end)
    if how in ("promoted", "recut"):
        store.rebuild_queue_offsets()
        await _check(store)
        await store.close()
        return
    if how == "clean":
        await store.close()
    elif how == "power":
        store.log.sync()
        disk = disk.crash()
    else:
        disk = disk.killed()
    async with opened(FaultyEnv(disk), controller_mode=how == "undispatched") as again:
        if how == "undispatched":
            assert again.next_offset("T", 0) == 1 + INNER
            again.confirm(again.log.end)
            await again.caught_up()
        await _check(again)


async def test_a_count_that_cannot_be_one_is_one() -> None:
    async with opened(FaultyEnv()) as store:
        for number, text in enumerate(("x", "", "-3", "999999999", "0")):
            one = message(
                "b", sys_flag=INNER_BATCH, properties=encode_properties({"TAGS": "A", "INNER_NUM": text})
            )
            store.append_raw(store.log.end, encode(one, number, store.log.end, 1))
        store.confirm(store.log.end)
        await store.caught_up()
        assert store.max_queue_offset("T", 0) == 5
        assert not INNER_BATCH & TRANSACTION_PREPARED


def test_the_batch_queues_of_a_real_broker_stay_as_they_are() -> None:
    path = "/store/batchconsumequeue/T/0/00000000000000000000"

    async def run() -> FaultyDisk:
        env = FaultyEnv()
        env.disk.makedirs(path.rpartition("/")[0])
        env.disk.open(path, create=True).pwrite(b"entries of another broker", 0)
        for step in (lambda store: None, lambda store: store.truncate(0), lambda store: store.reset()):
            async with opened(env) as store:
                await _filled(store)
                step(store)
        return env.disk

    assert bytes(asyncio.run(run()).nodes[path].cache) == b"entries of another broker"
