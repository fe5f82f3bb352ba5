"""The promise of timer messages across two systems: what waits in a store of one comes once in the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from model.codes import Request
from model.message import DELAYED_AS, decode_properties
from runtime.os_env import OsEnv
from tests.interop.store_sides import TOPIC, Peer, served

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KEYS = {"timerWheelEnable": "true", "recallMessageEnable": "true"}
LATER_MS = 45_000
NAMES = {"TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "REAL_TOPIC", "REAL_QID"}


async def later(peer: Peer, number: int, at_ms: int) -> str:
    """Message ``number`` for a time; its recall handle."""
    answer = await peer.send(number, properties={"TIMER_DELIVER_MS": str(at_ms)})
    return answer.ext["recallHandle"]


@pytest.mark.covers(
    "Timer messages that wait in a store, and one recalled", client="store files", sides="together"
)
async def test_what_waits_in_a_store_comes_once_in_the_other_system(
    real_rocketmq: Path, tmp_path: Path
) -> None:
    # Both at once: most of it is waiting.
    await asyncio.gather(
        over(tmp_path / "to-ours", "rocketmq", "keelmq"), over(tmp_path / "to-theirs", "keelmq", "rocketmq")
    )


async def over(base: Path, one: str, other: str) -> None:
    """Messages wait in ``one``; it stops, and ``other`` serves its store."""
    env = OsEnv()
    async with served(one, base, more=KEYS) as peer:
        await peer.create(TOPIC)
        begun_ms = env.now_ms()
        await later(peer, 0, begun_ms + 2500)
        await later(peer, 4, begun_ms + LATER_MS)
        recalled = await later(peer, 8, begun_ms + LATER_MS)
        ext = {"topic": TOPIC, "recallHandle": recalled, "producerGroup": "p"}
        await peer.ask(Request.RECALL_MESSAGE, ext)
        (first,) = await peer.until("the first", TOPIC, 0, 1)
        assert first.store_timestamp_ms >= begun_ms + 2500
        await asyncio.sleep(2)  # both write down how far they are each second
    async with served(other, base, more=KEYS) as peer:
        assert env.now_ms() < begun_ms + LATER_MS, "too slow a machine: it would come late"
        await later(peer, 12, begun_ms + LATER_MS + 2000)
        _, second, _ = await peer.until("the others", TOPIC, 0, 3)
        await asyncio.sleep(2)
        found = await peer.until("all", TOPIC, 0, 3)
    keys = [decode_properties(record.properties)["KEYS"].split()[0] for record in found]
    assert keys == ["key-0", "key-4", "key-12"], "each once, and not the one taken back"
    assert 0 <= second.store_timestamp_ms - begun_ms - LATER_MS < LATER_MS / 4, "when it was due"
    for record in found:
        names = set(decode_properties(record.properties))
        assert names >= NAMES
        assert names - NAMES - {DELAYED_AS} == set(decode_properties(first.properties)) - NAMES - {DELAYED_AS}
