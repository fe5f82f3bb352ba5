"""The promise of remoting: what thousands of connections take of a server's memory is bounded, and small."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from remoting.codec import Command, encode
from tests import ROOT
from tests.remoting.support import HOST, client_of

SERVER = """
import asyncio, signal, sys
from remoting.codec import Command
from remoting.service import Guard, Limits, RemotingServer
from runtime.os_env import OsEnv

async def handler(connection, request):
    return request.reply(body=bytes(int(request.ext.get("size", "0"))))

async def main():
    env = OsEnv(seed=1)
    limits = Limits(begun_bytes_max=16 << 20, unread_bytes_max=16 << 20)
    server = RemotingServer(env, "test", handler, guard=Guard("test", limits, env.monotonic_ms))
    print(await server.start("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
IDLE_BYTES = 10 * 1024
"""An idle connection may take so much: socket, transport, protocol and their small objects."""


@contextmanager
def server_process() -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def rss(process: subprocess.Popen[str]) -> int:
    with open(f"/proc/{process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


async def settled(process: subprocess.Popen[str], port: int) -> int:
    """Its memory when it has handled what came so far."""
    async with client_of() as client:
        for _ in range(5):
            assert (await client.call(f"{HOST}:{port}", Command(1), 20)).code == 0
            await asyncio.sleep(0.05)
    return rss(process)


def dial(port: int) -> socket.socket:
    found = socket.create_connection((HOST, port), timeout=20)
    found.setblocking(False)
    return found


async def test_idle_connections_cost_little() -> None:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(3000, (descriptors - 200) // 2)
    with server_process() as (process, port):
        empty = await settled(process, port)
        held = [dial(port) for _ in range(count)]
        for one in held:
            one.send(b"\0\0")  # each begins a frame
        full = await settled(process, port)
        for one in held:
            one.close()
    assert full - empty < count * IDLE_BYTES + (4 << 20), f"{(full - empty) / count:.0f} bytes a connection"


@pytest.mark.parametrize("what", ["begun frames", "unread answers"])
async def test_memory_stays_below_its_bound_whatever_many_connections_leave(what: str) -> None:
    """200 connections try for 2 MB (begun) and 8 MB (unread) each; the caps are 16 MB in all."""
    begun = (15_000_000).to_bytes(4, "big") + (100).to_bytes(4, "big") + bytes(1_000_000)
    asking = b"".join(encode(Command(11, {"size": "262144"}, opaque=n)) for n in range(32))
    with server_process() as (process, port):
        empty = await settled(process, port)
        loop = asyncio.get_running_loop()
        held = [dial(port) for _ in range(200)]

        async def send(one: socket.socket) -> None:
            try:
                await loop.sock_sendall(one, begun if what == "begun frames" else asking)
            except OSError:
                return  # this one had to give way

        async with asyncio.timeout(60):
            await asyncio.gather(*map(send, held))
        full = await settled(process, port)
        for one in held:
            one.close()
    # A cap, what one turn of the loop makes beside it, and what the allocator keeps of both.
    assert full < empty + 6 * (16 << 20), f"{(full - empty) >> 20} MB more than empty"
