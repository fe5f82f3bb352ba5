"""The promise of a slave's patience: a master that only seems to work is asked again ever more seldom."""

from __future__ import annotations

import asyncio

import pytest

from ha import slave
from ha.codec import encode_master_handshake, encode_transfer_header
from runtime.backoff import Backoff
from tests.ha.group import Node
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
    monkeypatch.setattr(slave, "STEADY_MS", steady_ms)
    monkeypatch.setattr(slave, "STEADY_BYTES", steady_bytes)
    monkeypatch.setattr(slave, "RETRY_FIRST_MS", 4)
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
            await writer.drain()
            await reader.read(16)  # the frame was taken
            writer.close()

        node, port = Node(2), free_port()
        server = await asyncio.start_server(fails, "127.0.0.1", port)
        async with server:
            await node.ha.start()
            await node.ha.become_slave(2, 1, f"127.0.0.1:{port}")
            await until(lambda: len(waits_ms) >= LINKS, "so many links failed")
            await node.ha.stop()

    asyncio.run(run())
    longest_ms = max(waits_ms[:LINKS])
    assert (longest_ms <= 4) if soon else (longest_ms >= 4 * 2 ** (LINKS - 1) / 2)
