"""The promise to the machine: what clients do not read, do not end and do not confirm has an end in memory.

The slaves of a group are stopped (SIGSTOP), so that everything waits for them, and beside them are, at once,
idle connections (as many as this machine lets one process have, up to 10,000), consumers that pull megabytes
and read nothing, producers that send megabytes and read nothing, clients that ask for tables and read
nothing, and frames that never end. The master's memory stays below what docs/security.md states.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from admin.local.cluster import LocalCluster
from bench.attackers import VICTIM, packed, send_ext
from bench.attacks import Range, _rss_mb
from client.message import Message
from model.codes import Request
from model.settings import split_address
from remoting.codec import Command, encode
from remoting.headers import PULL_SUBSCRIPTION, PullHeader
from tests import ROOT

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

BOUND_MB: Final = 1000.0
"""256 of begun frames, 512 of unread answers, 130 of connections, the rest the broker itself; seen: 400."""
ATTACKS: Final = ("begun-frames", "table-downloads", "unread-floods")
SECONDS: Final = 6.0
"""The worst is there after four: 446 MB of 461 after eleven."""
IDLE_FROM: Final = "127.0.0.2"
"""One address has 10,000 (``maxConnectionsPerAddress``); the attackers have another."""
CONNECTIONS: Final = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 2_000)


async def unread(address: str, frames: bytes) -> asyncio.StreamWriter:
    """A connection that sends and reads nothing."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1 << 14)
    writer.write(frames)
    return writer


def pulls(count: int) -> bytes:
    header = PullHeader("g", VICTIM, 0, 0, 32, sys_flag=PULL_SUBSCRIPTION, subscription="*")
    return b"".join(
        encode(Command(int(Request.PULL_MESSAGE), header.to_ext(), opaque=n)) for n in range(count)
    )


def batches(count: int) -> bytes:
    body = packed(1000, b"x" * 500)
    code = int(Request.SEND_BATCH_MESSAGE)
    one = encode(Command(code, send_ext(VICTIM, batch=True), body))
    return one * count


def test_memory_is_bounded_while_slaves_lag_and_nobody_reads() -> None:
    with tempfile.TemporaryDirectory(prefix="keelmq-memory-") as where:
        cluster = LocalCluster.create(Path(where))
        try:
            asyncio.run(cluster.up())
            worst_mb, connections = asyncio.run(measured(cluster))
        finally:
            for node in cluster.layout.broker_nodes:
                cluster.send_signal(node, signal.SIGCONT)
            cluster.down()
    print(f"worst {worst_mb:.0f} MB with {connections} connections")
    assert worst_mb < BOUND_MB
    assert connections >= CONNECTIONS


async def measured(cluster: LocalCluster) -> tuple[float, int]:
    async with Range(cluster) as place:
        for _ in range(64):
            await place.producer.send(Message(topic=VICTIM, body=os.urandom(1 << 19)))
        master, views = await place.masters()
        node = next(n for n in cluster.layout.broker_nodes if n.pid == master["pid"])
        for other in cluster.layout.broker_nodes:
            if other is not node:
                cluster.send_signal(other, signal.SIGSTOP)
        assert len(views) == 3
        where = split_address(master["address"])
        idle = [socket.create_connection(where, source_address=(IDLE_FROM, 0)) for _ in range(CONNECTIONS)]
        processes = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, str(ROOT / "bench" / "attackers.py")),
                *(name, master["address"], str(SECONDS)),
                stdout=asyncio.subprocess.DEVNULL,
            )
            for name in ATTACKS
        ]
        silent = [await unread(master["address"], pulls(200)) for _ in range(20)]
        silent += [await unread(master["address"], batches(20)) for _ in range(10)]
        worst_mb, connections = 0.0, 0
        while any(process.returncode is None for process in processes):
            worst_mb = max(worst_mb, _rss_mb(node.pid))
            connections = max(connections, len(list(Path(f"/proc/{node.pid}/fd").iterdir())))
            await asyncio.sleep(0.1)
        for writer in silent:
            writer.transport.abort()
        for one in idle:
            one.close()
        return worst_mb, connections
