"""The promise of admin.host.visitors: who holds connections of adminPort open keeps nobody else from it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial

import aiohttp
import pytest

from admin.host import door, visitors
from admin.host.endpoint import Endpoint
from admin.host.serve import bind
from tests.admin.statuses import BROKER, Server
from tests.waiting import until

BEGUN = b"GET /status HTTP/1.1\r\nX: "


@contextlib.asynccontextmanager
async def port_of_one() -> AsyncIterator[tuple[int, visitors.Visitors]]:
    link = bind(0)
    endpoint = Endpoint("broker", Server(BROKER), link)
    await endpoint.start()
    assert endpoint.visitors is not None
    try:
        yield link.getsockname()[1], endpoint.visitors
    finally:
        await endpoint.stop()


async def begun(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(BEGUN)
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""


async def test_of_too_many_the_oldest_gives_way_and_others_are_answered() -> None:
    async with port_of_one() as (port, there), aiohttp.ClientSession() as http:
        held = [await begun(port) for _ in range(visitors.VISITORS_MAX + 20)]
        await until(lambda: len(there) == visitors.VISITORS_MAX)
        async with http.get(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        assert await ended(held[0][0]) == b""
        assert len(there) <= visitors.VISITORS_MAX
        for _, writer in held:
            writer.close()
        await until(lambda: len(there) <= 1)


async def test_a_request_that_does_not_become_whole_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "Visitors", partial(visitors.Visitors, quiet_s=2.0))
    async with port_of_one() as (port, there):
        reader, writer = await begun(port)
        for _ in range(2):
            writer.write(b"x")  # a byte now and then is no request
            await asyncio.sleep(0.1)
        assert await ended(reader) == b""
        assert len(there) == 0
        writer.close()


async def test_who_asks_again_in_time_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "Visitors", partial(visitors.Visitors, quiet_s=3.0))
    async with port_of_one() as (port, there):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(6):  # longer than the bound in all, and a fifth of it each: a machine may stall
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.6)
        assert len(there) == 1
        writer.close()


async def test_what_is_no_http_makes_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with port_of_one() as (port, _):
        for nonsense in (
            b"\x16\x03\x01\r\n\r\n",
            b"GET /a b c d\r\n\r\n",
            b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(nonsense)
            assert b" 400 " in await ended(reader)
            writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []
