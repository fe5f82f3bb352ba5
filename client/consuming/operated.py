"""What do operators ask of a member of a consumer group, by way of its broker?

    220  read some queues from other offsets on: they were reset
    221  how far are you in a topic?
    307  what do you read?
    309  handle this one message now, whatever your offsets are

The answers are those of RocketMQ's clients: mqadmin and dashboards show them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from client.admin import queue_of
from client.consuming.calling import FAILURES, raise_if_asked
from client.consuming.pull import parse_records
from client.message import Queue
from client.session import Session
from client.trace import Listener
from model.codes import Request, Response
from model.errors import MqError
from remoting import bodies
from remoting.bodies import Members, queue_key
from remoting.codec import Command
from remoting.headers import flag
from remoting.service import Connection
from runtime.env import Env

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer, as operators ask it. ``told``: its part of a heartbeat. ``handled``: how far it is in each
    queue that is its own. ``seek``: read queues from these offsets on."""

    env: Env
    group: str
    listener: Listener
    told: Callable[[], dict[str, Any]]
    started_ms: int
    concurrency: int
    orderly: bool = False
    handled: Callable[[], Mapping[Queue, int]] = dict
    seek: Callable[[Mapping[Queue, int]], Awaitable[None]] | None = None

    def answer(self, session: Session) -> None:
        """From now on it answers what comes over ``session``."""
        session.handle(Request.GET_CONSUMER_RUNNING_INFO, self._running_info)
        session.handle(Request.CONSUME_MESSAGE_DIRECTLY, self._consume)
        session.handle(Request.GET_CONSUMER_STATUS_FROM_CLIENT, self._status)
        if self.seek is not None:
            session.handle(Request.RESET_CONSUMER_CLIENT_OFFSET, self._reset)

    async def _running_info(self, _: Connection, command: Command) -> Command | None:
        if command.ext.get("consumerGroup") != self.group:
            return None
        told = self.told()
        queues = (
            (_key(queue), {"droped": False, "commitOffset": at}) for queue, at in self.handled().items()
        )
        properties = {
            "PROP_CONSUME_TYPE": told["consumeType"],
            "PROP_CONSUMEORDERLY": flag(self.orderly),
            "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
            "PROP_THREADPOOL_CORE_SIZE": str(self.concurrency),
        }
        body = {
            "mqTable": Members(queues),
            "properties": properties,
            "statusTable": {},
            "subscriptionSet": told["subscriptionDataSet"],
        }
        return command.reply(body=bodies.dumps_dialect(body))

    async def _status(self, _: Connection, command: Command) -> Command | None:
        if command.ext.get("group") != self.group:
            return None
        topic = command.ext.get("topic")
        found = ((_key(queue), at) for queue, at in self.handled().items() if queue.topic == topic)
        return command.reply(body=bodies.dumps_dialect({"messageQueueTable": Members(found)}))

    async def _consume(self, _: Connection, command: Command) -> Command | None:
        if command.ext.get("consumerGroup") != self.group:
            return None
        try:
            [message] = parse_records(command.body, command.ext.get("brokerName") or "")
        except (MqError, ValueError) as error:
            return command.reply(Response.SYSTEM_ERROR, remark=f"no message to consume: {error}")
        began_ms = self.env.monotonic_ms()
        result: dict[str, Any] = {"autoCommit": True, "order": self.orderly}
        try:
            taken = await self.listener([message])
            result["consumeResult"] = "CR_LATER" if taken is False else "CR_SUCCESS"
        except FAILURES as error:
            raise_if_asked(error)  # else the operator is told of it
            log.exception("the listener failed on %s, which an operator asked for", message.msg_id)
            result |= {"consumeResult": "CR_THROW_EXCEPTION", "remark": repr(error)}
        result["spentTimeMills"] = int(self.env.monotonic_ms() - began_ms)
        return command.reply(body=bodies.dumps_dialect(result))

    async def _reset(self, _: Connection, command: Command) -> Command | None:
        topic = command.ext.get("topic")
        if command.ext.get("group") != self.group or self.seek is None:
            return None
        table = bodies.believed_object(command.body).get("offsetTable") or {}
        offsets = {queue_of(key): int(at) for key, at in table.items()}
        log.warning("an operator reset %s of %s in %d queues", topic, self.group, len(offsets))
        await self.seek({queue: at for queue, at in offsets.items() if queue.topic == topic})
        return None


def _key(queue: Queue) -> bodies.ObjectKey:
    return queue_key(queue.topic, queue.broker_name, queue.queue_id)
