"""The promise of a slave's patience: a master that only seems to work is asked again ever more seldom."""

from __future__ import annotations

import asyncio

import pytest

from ha.slave import follower, reseeds
from model.ids import BrokerId, Epoch
from runtime.backoff import Backoff
from tests.fakes.ha.frames import encode_master_handshake, encode_transfer_header
from tests.fakes.ha.group import Node
from tests.ports import free_port
from tests.waiting import until

LINKS = 7


@pytest.mark.parametrize(
    ("steady_ms", "steady_bytes", "brings", "soon"),
    [
        (10_000_000, 1 << 20, b"", False),
        (10_000_000, 1 << 20, b"0123456789", False),
        (10_000_000, 5, b"0123456789", True),
        (0, 1 << 20, b"", True),
    ],
)
def test_a_master_that_says_one_thing_right_and_fails_is_asked_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch, steady_ms: int, steady_bytes: int, brings: bytes, soon: bool
) -> None:
    """Unless its links live for a while, or bring what this log never had."""
    monkeypatch.setattr(follower, "STEADY_MS", steady_ms)
    monkeypatch.setattr(follower, "STEADY_BYTES", steady_bytes)
    monkeypatch.setattr(follower, "RETRY_FIRST_MS", 4)
    waits_ms: list[float] = []
    drawn = Backoff.next_s

    def noted(self: Backoff) -> float:
        waits_ms.append(drawn(self) * 1000)
        return waits_ms[-1] / 1000

    monkeypatch.setattr(Backoff, "next_s", noted)

    async def run() -> None:
        async def fails(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(16)
            end = node.store.log.end
            writer.write(encode_master_handshake(1000, ((1, 0),)))
            writer.write(encode_transfer_header(end, len(brings), 1, 0, end) + brings)
            try:
                await writer.drain()
                await reader.read(16)  # the frame was taken
            except ConnectionError:
                pass  # it hung up over what came first
            finally:
                writer.close()

        node, port = Node(2), free_port()
        server = await asyncio.start_server(fails, "127.0.0.1", port)
        async with server:
            await node.ha.start()
            await node.ha.become_slave(BrokerId(2), Epoch(1), f"127.0.0.1:{port}")
            await until(lambda: len(waits_ms) >= LINKS, "so many links failed")
            await node.ha.stop()

    asyncio.run(run())
    longest_ms = max(waits_ms[:LINKS])
    assert (longest_ms <= 4) if soon else (longest_ms >= 4 * 2 ** (LINKS - 1) / 2)


@pytest.mark.parametrize(
    ("first_ms", "steady_ms", "aside"),
    [(0, 10_000_000, reseeds.RESEEDS_MAX), (10_000_000, 10_000_000, 1), (0, 0, LINKS)],
)
async def test_a_master_whose_every_copy_has_a_gap_fills_no_disk(
    monkeypatch: pytest.MonkeyPatch, first_ms: int, steady_ms: int, aside: int
) -> None:
    """The second log is put aside after a wait, the third after a longer one, a fourth not at all. One that
    was whole for long is the first again."""
    monkeypatch.setattr(reseeds, "RESEED_FIRST_MS", first_ms)
    monkeypatch.setattr(reseeds, "RESEED_STEADY_MS", steady_ms)
    monkeypatch.setattr(follower, "RETRY_FIRST_MS", 1)
    monkeypatch.setattr(follower, "RETRY_MAX_MS", 4)
    links = 0

    async def gaps(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal links
        links += 1
        await reader.read(16)
        end = node.store.log.end
        writer.write(encode_master_handshake(10_000, ((1, 0),)))
        writer.write(encode_transfer_header(end, 10, 1, 0, 0) + b"0123456789")
        writer.write(encode_transfer_header(end + 20, 10, 1, 0, 0) + b"0123456789")
        try:
            await writer.drain()
            await reader.read()
        except ConnectionError:
            pass  # it hung up over what came first
        finally:
            writer.close()

    node, port = Node(2, auto_reseed=True), free_port()
    server = await asyncio.start_server(gaps, "127.0.0.1", port)
    async with server:
        await node.ha.start()
        await node.ha.become_slave(BrokerId(2), Epoch(1), f"127.0.0.1:{port}")
        await until(lambda: links >= 2 * LINKS, "it is asked on")
        following = node.ha.status()["following"]
        await node.ha.stop()
    if aside < LINKS:
        assert len(node.store.put_asides) == aside
        assert following["state"] == follower.State.NEEDS_RESEED
        assert ("put aside later" if aside == 1 else "3 logs were") in following["reason"]
    else:
        assert len(node.store.put_asides) >= LINKS
