"""The promise of one format: a store goes from one system to the other and back, and says the same in both.

One system writes messages of every kind and is stopped, or killed; the other serves the same directory. Both
are asked over the wire, so that what is compared is what clients see: by queue, by key, by id, by time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.tables.topics import OP_HALF_TOPIC
from model.message import decode_properties, retry_topic
from remoting.codec import Command
from store.files.record import Record, decode
from tests.interop.store_sides import (
    BATCH,
    COMMIT,
    COMMITTED,
    DELAYED,
    GROUP,
    LATER,
    NEVER,
    NUMBERS,
    PENDING,
    PENDING_TOO,
    PLAIN,
    QUEUES,
    ROLLBACK,
    ROLLED_BACK,
    SOON,
    TOPIC,
    WAIT_S,
    Peer,
    Stored,
    served,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


async def fill(peer: Peer) -> tuple[Command, Command]:
    """Write messages of every kind; the two transactions that are pending."""
    await peer.create(TOPIC)
    await peer.create(DELAYED)
    sent = [await peer.send(number) for number in PLAIN]
    await peer.send_batch(BATCH)
    pending = await peer.half(PENDING), await peer.half(PENDING_TOO)
    await peer.end(await peer.half(COMMITTED), COMMIT)
    await peer.end(await peer.half(ROLLED_BACK), ROLLBACK)
    await peer.rows(TOPIC, 0)  # the first pull makes the consumer group known
    await peer.send_back(sent[3])
    await peer.send(0, DELAYED, delay_level=SOON)
    await peer.send(4, DELAYED, delay_level=NEVER)
    for queue_id in range(QUEUES):
        await peer.commit(queue_id, 10 + queue_id)
    await peer.until("a retry", retry_topic(GROUP), 0, 1)
    await peer.until("a short delay", DELAYED, 0, 1)
    await peer.until("the committed one", TOPIC, COMMITTED % QUEUES, 30 + 1)
    await _ended(peer, {2, 3})
    await peer.send(8, DELAYED, delay_level=LATER)
    return pending


async def _ended(peer: Peer, halves: set[int]) -> None:
    """Wait until op records name these half messages; the real broker writes them together, seconds later."""
    async with asyncio.timeout(WAIT_S):
        while True:
            ops = [decode(raw) for _, raw in await peer.rows(OP_HALF_TOPIC, 0)]
            named = {int(word) for op in ops for word in op.body.decode().split(",") if word}
            if halves <= named:
                return
            await asyncio.sleep(0.1)


async def go_on(
    peer: Peer, pending: tuple[Command, Command], round_number: int, *, killed: bool = False
) -> None:
    """What the other system left open is ended here, and more is written."""
    first = 134 + 3 * round_number
    for number in range(first, first + 3):
        await peer.send(number)
    if round_number == 0:
        await peer.end(pending[0], COMMIT)
        await peer.end(pending[1], ROLLBACK)
        seen = await peer.until("what was pending", TOPIC, PENDING % QUEUES, 30 + 2)
        halves = {f"key-{PENDING}", f"key-{PENDING_TOO}", f"key-{ROLLED_BACK}"}
        assert [f"key-{PENDING}"] == [key for key in map(_key, seen) if key in halves]
        await _ended(peer, {0, 1})
    count = 2
    while True:
        keys = [_key(record) for record in await peer.until("a long delay", DELAYED, 0, count)]
        if keys[-1] == "key-8":
            break
        # A killed real broker may not have written down yet how far it was: the first one comes again.
        assert killed, keys
        count = len(keys) + 1
    assert list(dict.fromkeys(keys)) == ["key-0", "key-8"]
    assert killed or len(keys) == 2


def _key(record: Record) -> str:
    return decode_properties(record.properties)["KEYS"].split()[0]


MESSAGES = ("queues", "by_key", "by_id", "by_time")


def same(here: Stored, there: Stored, names: tuple[str, ...] = (*MESSAGES, "committed")) -> None:
    for name in names:
        ours, theirs = getattr(here, name), getattr(there, name)
        differing = {key: (ours.get(key), theirs.get(key)) for key in {**ours, **theirs}}
        wrong = {key: both for key, both in differing.items() if both[0] != both[1]}
        assert not wrong, f"{name}: {dict(list(wrong.items())[:3])}"


@pytest.mark.covers("A store goes over to the other system and back", client="store files", sides="together")
@pytest.mark.parametrize(("one", "other"), [("rocketmq", "keelmq"), ("keelmq", "rocketmq")])
@pytest.mark.more
async def test_a_store_goes_over_and_back_and_says_the_same(
    real_rocketmq: Path, tmp_path: Path, one: str, other: str
) -> None:
    async with served(one, tmp_path) as peer:
        pending = await fill(peer)
        first = await peer.look(NUMBERS)
    async with served(other, tmp_path) as peer:
        same(first, await peer.look(NUMBERS, first.end))
        await go_on(peer, pending, 0)
        second = await peer.look(NUMBERS)
    async with served(one, tmp_path, kill=True) as peer:  # in order takes seconds, and nobody looks at it
        same(second, await peer.look(NUMBERS, second.end))
        await go_on(peer, pending, 1)


@pytest.mark.covers("The store of a killed real broker", client="store files", sides="together")
async def test_the_store_of_a_killed_real_broker_is_served_whole(real_rocketmq: Path, tmp_path: Path) -> None:
    async with served("rocketmq", tmp_path, kill=True) as peer:
        pending = await fill(peer)
        first = await peer.look(NUMBERS)
    async with served("keelmq", tmp_path) as peer:
        # A real broker writes consumer offsets down 10 s after its start for the first time.
        same(first, await peer.look(NUMBERS, first.end), MESSAGES)
        await go_on(peer, pending, 0, killed=True)
