"""The promise of a pop consumer that stops: it asks for no more, and what comes yet goes back at once."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from client.consuming.pop.calls import Popped
from client.consuming.pop.consumer import PopConsumer
from client.consuming.pop.options import PopOptions
from client.message import Queue, Received
from client.routes import Route
from runtime.os_env import OsEnv
from tests.client.servers import received
from tests.client.virtual import virtually


class Clocked(OsEnv):
    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


def test_a_consumer_that_stops_asks_for_no_more_and_gives_back_what_comes_yet() -> None:
    async def work() -> None:
        env = Clocked(seed=1)
        pops, acks, returns = list[str](), list[str](), list[tuple[str, int, bool]]()

        async def listener(messages: list[Received]) -> None:
            await asyncio.sleep(2)

        options = PopOptions(concurrency=2)
        consumer = PopConsumer(env, "g", "nowhere:1", listener, subscriptions={"T": "*"}, options=options)
        queue = (Queue("T", "a", 0),)

        async def get(topic: str) -> Route:
            return Route(topic, {"a": {0: "a:1"}}, {"a": "c"}, queue, queue)

        async def nothing(*_: Any, **__: Any) -> None:
            pass

        async def pop(topic: str, broker_name: str, count: int, **_: Any) -> list[Popped]:
            await asyncio.sleep(0.1)
            pops.append(str(len(pops)))
            message = dataclasses.replace(received({}), msg_id=pops[-1])
            info: Any = None
            return [Popped(message, topic, broker_name, info, env.monotonic_ms() + 60_000)]

        async def change(popped: Popped, invisible_ms: int, *, suspend: bool = False) -> None:
            returns.append((popped.message.msg_id, invisible_ms, suspend))

        async def ack(popped: list[Popped]) -> None:
            acks.extend(one.message.msg_id for one in popped)

        session, calls = consumer.session, consumer._calls
        for part, name, fake in (
            (session.routes, "get", get),
            (session, "be_known", nothing),
            (session, "beat", nothing),
            (session, "call", nothing),
            (calls, "pop", pop),
            (calls, "change", change),
            (calls, "ack", ack),
        ):
            setattr(part, name, fake)
        await consumer.start()
        await asyncio.sleep(0.55)
        assert len(pops) == 5
        await consumer.stop()
        assert len(pops) == 6, "the one that was under way"
        assert acks == ["0", "1"]
        assert sorted(returns) == [(name, 0, True) for name in "2345"]
        assert consumer.held == 0

    virtually(work)
