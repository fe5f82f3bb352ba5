"""A NameServer on loopback and who talks to it."""

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from model.codes import Request
from model.config import NamesrvConfig
from namesrv.service import NameServer
from remoting.bodies import believed_object, dumps
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.os_env import OsEnv


def topic(name: str, perm: int = 6) -> dict[str, Any]:
    return {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": perm, "topicSysFlag": 0}


def registration(address: str, broker_id: int = 0, *, state: int = 0, **changes: Any) -> Command:
    body = dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": {"counter": 1, "stateVersion": state, "timestamp": 7},
                "topicConfigTable": {"T": topic("T"), "S": topic("S")},
            },
        }
    )
    ext = {
        "brokerName": "broker-a",
        "brokerAddr": address,
        "clusterName": "DefaultCluster",
        "haServerAddr": "10.0.0.1:1",
        "brokerId": str(broker_id),
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }
    return Command(Request.REGISTER_BROKER, {**ext, **changes}, body)


class World:
    """One NameServer and clients of it."""

    def __init__(self, server: NameServer, env: OsEnv) -> None:
        self.server = server
        self.env = env
        self.client = RemotingClient(env, "client")

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: Any
    ) -> Command:
        return await self.client.call(self.server.address, Command(code, ext or {}, body, **more))

    async def register(self, address: str, broker_id: int = 0, **changes: Any) -> Command:
        return await self.client.call(self.server.address, registration(address, broker_id, **changes))

    async def route(self, name: str = "T", **more: Any) -> Any:
        answer = await self.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": name}, **more)
        return believed_object(answer.body) if answer.code == 0 else None


@asynccontextmanager
async def world(**config: Any) -> AsyncIterator[World]:
    env = OsEnv(seed=1)
    server = NameServer(env, NamesrvConfig(listen_port=0, **config))
    await server.start()
    here = World(server, env)
    try:
        yield here
    finally:
        await here.client.close()
        await server.stop()
