"""A NameServer and a broker on loopback, and a message as a consumer gets it, for tests of the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from admin.local.layout import free_base_port
from broker.service import Broker
from client.admin import AdminClient
from client.message import NoRoute, Queue, Received
from model.config import BrokerConfig, NamesrvConfig
from namesrv.service import NameServer
from runtime.os_env import OsEnv


@dataclass
class Pair:
    """One NameServer and one broker that is master without a Controller."""

    env: OsEnv
    broker: Broker
    namesrv: str


@asynccontextmanager
async def pair(directory: Path, **settings: Any) -> AsyncIterator[Pair]:
    """``settings``: fields of the broker's configuration."""
    base = free_base_port(10)
    env = OsEnv(seed=3)
    nameserver = NameServer(env, NamesrvConfig(listen_port=base))
    config = BrokerConfig(
        listen_port=base + 3,
        ha_listen_port=base + 4,
        namesrv_addr=f"127.0.0.1:{base}",
        store_path=str(directory),
        segment_bytes=1 << 20,
        queue_file_bytes=20 * 1000,
        index_slots=100,
        index_entries=1000,
        broker_id=0,
        **settings,
    )
    broker = Broker(env, config)
    await nameserver.start()
    try:
        await broker.start()
        try:
            servers = Pair(env, broker, f"127.0.0.1:{base}")
            await routed(servers, "TBW102")
            yield servers
        finally:
            await broker.stop()
    finally:
        await nameserver.stop()


def run(directory: Path, work: Callable[[Pair], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(40), pair(directory, **settings) as servers:
            await work(servers)

    asyncio.run(whole())


async def routed(servers: Pair, topic: str) -> list[Queue]:
    """Wait until the NameServer has ``topic``."""
    async with AdminClient(servers.env, servers.namesrv) as admin:
        for _ in range(200):
            try:
                return list((await admin.route(topic)).writable)
            except NoRoute:
                await asyncio.sleep(0.05)
    raise AssertionError(f"no route of {topic}")


def received(properties: dict[str, str]) -> Received:
    return Received(
        queue=Queue("T", "broker-a", 0),
        queue_offset=0,
        physical_offset=0,
        msg_id="ID",
        offset_msg_id="",
        body=b"ping",
        properties=properties,
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        born_host="",
        store_host="",
        reconsume_times=0,
        flag=0,
        sys_flag=0,
        body_crc=0,
        size_bytes=0,
        stored_topic="T",
    )
