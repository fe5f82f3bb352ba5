"""How does a client ask for the queues it is to consume in order?

LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).
"""

from __future__ import annotations

from typing import Final

from broker.context import BrokerContext
from broker.requests.answers import strict
from broker.state.locks import Queue
from model.codes import Response
from model.errors import PeerError, Refused
from remoting import bodies
from remoting.codec import Command
from remoting.service import Connection

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
            group, client_id, queues = self._parse(request)
            mine: list[Queue] = []
            for at in range(0, len(queues), STEP):
                mine += self._locks.lock(group, client_id, queues[at : at + STEP], self._now_ms())
                await turn.breathe()
            table = [{"brokerName": name, "queueId": queue, "topic": topic} for name, topic, queue in mine]
            body = await strict(turn, {"lockOKMQSet": table})
        return request.reply(body=body)

    async def unlock(self, connection: Connection, request: Command) -> Command:
        group, client_id, queues = self._parse(request)
        self._locks.unlock(group, client_id, queues)
        return request.reply()

    def _parse(self, request: Command) -> tuple[str, str, list[Queue]]:
        most = self._context.config.lock_queues_max
        try:
            if len(request.body) > most * QUEUE_BYTES:
                raise Refused(f"a lock request has at most {most * QUEUE_BYTES} bytes", Response.SYSTEM_ERROR)
            data = bodies.loads_object(request.body)
            if len(data["mqSet"]) > most:
                raise Refused(
                    f"a lock request names at most {most} queues (maxQueuesInLock)", Response.SYSTEM_ERROR
                )
            queues = [(str(mq["brokerName"]), str(mq["topic"]), int(mq["queueId"])) for mq in data["mqSet"]]
            return str(data["consumerGroup"]), str(data["clientId"]), queues
        except (PeerError, ValueError, KeyError, TypeError) as error:
            raise Refused(f"the body is not a lock request: {error!r}", Response.SYSTEM_ERROR) from None
