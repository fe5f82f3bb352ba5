"""Transports without a loop behind them, and the endpoint of a test."""

from __future__ import annotations

import asyncio
from typing import Any

from remoting.guard import Guard, Limits
from remoting.transport.connection import BufferHandler, Connection, Handler
from remoting.transport.endpoint import Endpoint


class Transport(asyncio.Transport):
    """Takes everything written; hands out a name."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.written: list[bytes] = []
        self.ended = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        assert not self.ended

    def resume_reading(self) -> None:
        assert not self.ended

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"


def endpoint_of(
    handler: Handler | None, frame_bytes_max: int = 2000, fast: BufferHandler | None = None
) -> Endpoint[Connection]:
    limits = Limits(frame_bytes_max=frame_bytes_max, idle_s=60)
    return Endpoint[Connection]("test", handler, Guard("test", limits, lambda: 0.0), fast=fast)


class Wire(asyncio.Transport):
    """Takes everything that is written."""

    def __init__(self, port: int) -> None:
        super().__init__({"peername": ("127.0.0.1", port)})
        self.reading = True

    def write(self, data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


async def feed(connection: Connection, wire: Wire, data: bytes) -> None:
    """As a loop does: nothing is read while that is paused."""
    at = 0
    while at < len(data):
        while not wire.reading:  # noqa: ASYNC110 - the loop under test has no event for it
            await asyncio.sleep(0)
        room = connection.get_buffer(-1)
        size = min(len(room), len(data) - at)
        room[:size] = data[at : at + size]
        connection.buffer_updated(size)
        at += size
