"""What ACL costs a send: CPU per message of one broker in this process, off, on, and on without the fast way.

    python bench/signed_send.py [--size 1024] [--in-flight 64] [--rounds 60]

The frames are made and signed beforehand and sent over loopback again and again, ``--in-flight`` in one
write; the CPU is this process's, with the little that sending costs. Each figure is the least of the rounds,
the ways in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.local.layout import free_base_port  # noqa: E402
from broker.service import Broker  # noqa: E402
from model.config import BrokerConfig  # noqa: E402
from model.topic import TopicConfig  # noqa: E402
from remoting import codec  # noqa: E402
from remoting.auth import Credentials  # noqa: E402
from remoting.codec import Command  # noqa: E402
from remoting.headers import SendHeader  # noqa: E402
from runtime.os_env import OsEnv  # noqa: E402

KEY = Credentials("alice", "alice-secret")
OFF: dict[str, str] = {}
ON = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": KEY.access_key, "password": KEY.secret_key}),
}


def frames(size: int, count: int, *, signed: bool) -> bytes:
    made = []
    for number in range(count):
        properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02"
        ext = SendHeader("pg", "T", number % 4, 1_700_000_000_000, properties=properties).to_ext()
        command = Command(310, ext, b"x" * size, opaque=number + 1)
        made.append(codec.encode(KEY.signed(command) if signed else command))
    return b"".join(made)


class Way:
    """One broker, and what is sent to it."""

    def __init__(self, name: str, directory: Path, port: int, keys: dict[str, str], ordinary: bool) -> None:
        self.name = name
        self.least_us = float("inf")
        self._ordinary = ordinary
        values = {"storePathRootDir": str(directory / name), "listenPort": str(port), "brokerId": "0", **keys}
        self.broker = Broker(OsEnv(), BrokerConfig.from_mapping({**values, "enableFastPort": "false"}))

    async def start(self) -> None:
        await self.broker.start()
        self.broker.topics.put(TopicConfig("T", 4, 4))
        if self._ordinary:
            self.broker.server._endpoint.fast = None
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.broker.port)

    async def round(self, data: bytes, count: int, times: int) -> None:
        began = time.process_time()
        for _ in range(times):
            self.writer.write(data)
            for _ in range(count):
                size = int.from_bytes(await self.reader.readexactly(4), "big")
                answer = await self.reader.readexactly(size)
                assert b'"code":0' in answer, answer
        self.least_us = min(self.least_us, (time.process_time() - began) / (times * count) * 1e6)


async def bench(given: argparse.Namespace, scratch: Path) -> None:
    port = free_base_port(40)
    ways = [
        Way("off", scratch, port, OFF, False),
        Way("on", scratch, port + 10, ON, False),
        Way("off-ordinary", scratch, port + 20, OFF, True),
        Way("on-ordinary", scratch, port + 30, ON, True),
    ]
    data = {signed: frames(given.size, given.in_flight, signed=signed) for signed in (False, True)}
    async with AsyncExitStack() as stack:
        for way in ways:
            stack.push_async_callback(way.broker.stop)
            await way.start()
        for _ in range(given.rounds):
            for way in ways:
                await way.round(
                    data[way.name.startswith("on")], given.in_flight, max(1, 256 // given.in_flight)
                )
        for way in ways:
            fast = way.broker.context.stats.put_fast_total / way.broker.context.stats.put_total
            print(f"{way.name:14} {way.least_us:7.1f} us a message, {fast:.0%} of them on the fast way")
            way.writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(bench(given, Path(scratch)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
