"""A full cluster under virtual time, and a client that keeps sending to one broker."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Concatenate, TypeVar

from chaos.history import History
from chaos.sim.cluster import BROKER_PORT, SimCluster, WorldConfig
from chaos.sim.net import NetProfile
from model.codes import Request
from model.errors import MqError
from remoting.codec import Command
from remoting.service import RemotingClient

ALONE = {"allAckInSyncStateSet": "false", "inSyncReplicas": "1"}

SEND = {
    "producerGroup": "p",
    "topic": "TBW102",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "0",
    "flag": "0",
    "properties": "",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "batch": "false",
}


class World:
    """A full cluster, and a client that keeps sending to one broker, whatever the routes say."""

    def __init__(
        self,
        seed: int,
        broker: dict[str, str] | None = None,
        network: NetProfile | None = None,
        controller: dict[str, str] | None = None,
        brokers: int = 3,
    ) -> None:
        config = WorldConfig(
            brokers=brokers,
            broker={} if broker is None else broker,  # ``Kept`` changes it between two starts
            network=network or NetProfile(),
            controller=controller or {},
        )
        self.cluster = SimCluster(seed, config, History())
        self.answers: list[tuple[float, int | None]] = []  # when asked, code; None = no answer

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def inside() -> None:
            for node in [*self.cluster.of("namesrv"), *self.cluster.of("broker")]:
                self.cluster.start(node.name)
            assert await self.cluster.until(self.cluster.converged, 20.0) is None
            await main()

        collecting = gc.isenabled()
        gc.disable()
        try:
            self.cluster.loop.run_until_complete(inside())
        finally:
            self.cluster.close()
            if collecting:
                gc.enable()

    def send_to(self, broker: str) -> None:
        node, env = self.cluster.client("sender")
        client = RemotingClient(env, "sender")
        address = f"{self.cluster.nodes[broker].host}:{BROKER_PORT}"

        async def send() -> None:
            while True:
                begun_ms = self.cluster.clock()
                code: int | None = None
                try:
                    command = Command(Request.SEND_MESSAGE, dict(SEND), b"x")
                    code = (await client.call(address, command, 10.0)).code
                except (MqError, OSError):
                    client.drop(address)
                self.answers.append((begun_ms, code))
                await asyncio.sleep(0.02)

        self.cluster.inside(node, send(), name="send")

    def cut_off(self, broker: str) -> None:
        """From Controllers and brokers, which see its connections end; not from clients."""
        cluster = self.cluster
        for other in [*cluster.of("namesrv"), *cluster.of("broker")]:
            if other.name != broker:
                cluster.cut(broker, other.name)
                cluster.fabric.reset(cluster.nodes[broker].host, other.host)

    def times(self, event: str) -> list[float]:
        return [e.at_ms for e in self.cluster.history.happened() if e.name == event]

    def codes(self, since_ms: float) -> set[int | None]:
        return {code for begun_ms, code in self.answers if begun_ms >= since_ms}


def by_id(cluster: SimCluster) -> list[str]:
    """Of equal logs the first one's leads."""
    return sorted(cluster.of_group(), key=lambda name: cluster.nodes[name].server.role.broker_id)  # type: ignore[union-attr]


W = TypeVar("W", bound=World)


def simulated(
    make: Callable[..., W],
) -> Callable[[Callable[Concatenate[W, ...], Awaitable[None]]], Callable[..., None]]:
    """A test that runs inside a world, which has a master by then; it gets the world and its own arguments.

    ``make`` makes the world out of those arguments of the test that it names.
    """
    named = inspect.signature(make).parameters.keys()

    def inside(test: Callable[Concatenate[W, ...], Awaitable[None]]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @wraps(test)
        def run(**arguments: Any) -> None:
            world = make(**{name: arguments[name] for name in named & arguments.keys()})
            world.run(lambda: test(world, **arguments))

        own = [p for name, p in signature.parameters.items() if name != "world"]
        run.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return run

    return inside
