"""How does a client ask for the queues it is to consume in order?

LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).
"""

from __future__ import annotations

from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.answers import gathered, strict
from broker.state.locks import Queue
from model.codes import Response
from model.errors import PeerError, Refused
from remoting.codec import Command
from remoting.named import queues_in
from remoting.request_bodies import request_object
from remoting.service import Connection
from runtime.turns import Turn

QUEUE_BYTES: Final = 512
"""More than one queue's names and braces take in a request."""
STEP: Final = 256


class LockProcessor:
    """Answers 41 and 42. A request over the bounds is refused before its body is read."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._locks = context.locks
        self._now_ms = context.env.monotonic_ms

    async def lock(self, connection: Connection, request: Command) -> Command:
        async with self._context.turns.take(connection) as turn:
            group, client_id, queues = await self._parse(request, turn)
            mine: list[Queue] = []
            for at in range(0, len(queues), STEP):
                mine += self._locks.lock(group, client_id, queues[at : at + STEP], self._now_ms())
                await turn.breathe()
            table = [{"brokerName": name, "queueId": queue, "topic": topic} for name, topic, queue in mine]
            body = await strict(turn, {"lockOKMQSet": table})
        return request.reply(body=body)

    async def unlock(self, connection: Connection, request: Command) -> Command:
        async with self._context.turns.take(connection) as turn:
            group, client_id, queues = await self._parse(request, turn)
            for at in range(0, len(queues), STEP):
                self._locks.unlock(group, client_id, queues[at : at + STEP])
                await turn.breathe()
        return request.reply()

    async def _parse(self, request: Command, turn: Turn) -> tuple[str, str, list[Queue]]:
        most = self._context.config.lock_queues_max
        try:
            if len(request.body) > most * QUEUE_BYTES:
                raise Refused(f"a lock request has at most {most * QUEUE_BYTES} bytes", Response.SYSTEM_ERROR)
            data = request_object(request)
            named = queues_in(data)
            if len(named) > most:
                raise Refused(
                    f"a lock request names at most {most} queues (maxQueuesInLock)", Response.SYSTEM_ERROR
                )
            queues = await gathered(turn, named, _queue)
            return str(data["consumerGroup"]), str(data["clientId"]), queues
        except (PeerError, ValueError, KeyError, TypeError) as error:
            raise Refused(f"the body is not a lock request: {error!r}", Response.SYSTEM_ERROR) from None


def _queue(named: dict[str, Any]) -> Queue:
    """Raises KeyError, TypeError, ValueError."""
    return str(named["brokerName"]), str(named["topic"]), int(named["queueId"])
