"""How does a message that asks get its reply, and what is known when none came?

A request is a message with three properties more: CORRELATION_ID (which request), REPLY_TO_CLIENT (the id of
its producer's client) and TTL (ms). The consumer sends its reply to ``<cluster>_REPLY_TOPIC`` (``reply_to``);
the broker that takes it pushes it to the client of that id, if that one beats there. So a producer makes
sure, before it asks and while it waits, that every master of the cluster knows it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from client.message import Message, Received, SendFailed, SendResult, SendUnknown
from client.session import Session
from model.codes import Request, Response
from model.compression import plain_body
from model.errors import MqError, Unknown
from model.message import (
    ARRIVE_TIME,
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY,
    REPLY_TO_CLIENT,
    TTL,
    decode_properties,
    reply_topic,
)
from remoting.codec import Command
from remoting.headers import need_int
from remoting.service import Connection
from runtime.env import Env
from runtime.tasks import Tasks, every

log = logging.getLogger(__name__)

KNOWN_FIRST_S: Final = 1.0
"""A request leaves after this time whether or not every broker took the heartbeat before it."""
KNOWN_S: Final = 0.2
"""While replies are awaited, brokers that lost this client hear from it again within this time."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a consumer replied. ``body_unread``: as of ``Received``."""

    topic: str
    body: bytes
    properties: dict[str, str]
    flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    body_unread: str | None = None


class NoReply(Unknown):
    """No reply came in time. ``sent``: where the request lies, None when that is not known either."""

    def __init__(self, text: str, sent: SendResult | None) -> None:
        super().__init__(text)
        self.sent = sent


def reply_to(request: Received, body: bytes) -> Message:
    """The reply to a message that asks for one. Raises ValueError when it does not."""
    found = request.properties
    lacks = [name for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT) if not found.get(name)]
    if lacks:
        raise ValueError(f"message {request.msg_id} asks for no reply: it lacks {', '.join(lacks)}")
    kept: dict[str, str] = {
        name: found[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in found
    }
    return Message(topic=reply_topic(found[CLUSTER]), body=body, properties={MSG_TYPE: REPLY, **kept})


def ttl_s(request: Received, most_s: float) -> float:
    """How long the client that asked waits at most; ``most_s`` where the request does not say."""
    text = request.properties.get(TTL, "")
    return min(int(text) / 1000, most_s) if text.isascii() and text.isdigit() and len(text) < 20 else most_s


class Requests:
    """The requests of one producer that wait for their replies: at most ``most``."""

    def __init__(self, env: Env, session: Session, most: int) -> None:
        self._env = env
        self._session = session
        self._most = most
        self._tasks = Tasks("requests")
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._clusters: dict[str, None] = {}
        session.handle(Request.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)

    @property
    def waiting(self) -> list[asyncio.Future[Reply]]:
        return list(self._waiting.values())

    def start(self) -> None:
        self._tasks.spawn(every(KNOWN_S, self._stay_known, what="staying known to brokers"), name="known")

    async def stop(self, timeout_s: float) -> None:
        """Wait so long for the replies; those still waiting end with NoReply."""
        if self._waiting:
            await asyncio.wait(self.waiting, timeout=timeout_s)
        for reply in self.waiting:
            if not reply.done():
                reply.set_exception(NoReply("the producer was stopped before a reply came", None))
        await self._tasks.cancel()

    async def ask(
        self,
        message: Message,
        clusters: list[str],
        send: Callable[[Message], Awaitable[SendResult]],
        left_s: float,
    ) -> Reply:
        """Send ``message`` by ``send`` and wait for its reply. Raises SendFailed, NoReply."""
        if len(self._waiting) >= self._most:
            raise SendFailed(f"{self._most} requests wait for their replies", Response.SYSTEM_BUSY, ())
        number = f"{self._env.random.getrandbits(128):032x}"
        asks: dict[str, str] = {
            CORRELATION_ID: number,
            REPLY_TO_CLIENT: self._session.client_id,
            TTL: str(max(1, int(left_s * 1000))),
        }
        asking = dataclasses.replace(message, properties={**message.properties, **asks})
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        until_ms = self._env.monotonic_ms() + left_s * 1000
        sending: asyncio.Task[SendResult | MqError] | None = None
        try:
            await self._known_in(clusters, min(left_s, KNOWN_FIRST_S))
            sending = self._tasks.spawn(_sent(send, asking), name="send")
            # The reply may be here before the request is known to be stored: its answer was lost, say.
            await asyncio.wait(
                (sending, reply), timeout=self._left(until_ms), return_when=asyncio.FIRST_COMPLETED
            )
            if not reply.done() and sending.done():
                outcome = sending.result()
                if isinstance(outcome, SendFailed):
                    raise outcome  # nobody can reply to what is not stored
                await asyncio.wait((reply,), timeout=self._left(until_ms))
            if reply.done():
                return reply.result()
            raise self._none(asking, sending, left_s)
        finally:
            del self._waiting[number]
            if sending is not None and not sending.done():
                sending.cancel()

    def _left(self, until_ms: float) -> float:
        return max(0.0, (until_ms - self._env.monotonic_ms()) / 1000)

    @staticmethod
    def _none(asking: Message, sending: asyncio.Task[SendResult | MqError], waited_s: float) -> NoReply:
        outcome = sending.result() if sending.done() else None
        sent = outcome if isinstance(outcome, SendResult) else None
        what = f"it is stored at {sent.queue} offset {sent.queue_offset}" if sent else "it may not be stored"
        if isinstance(outcome, SendUnknown):
            what = f"{what}: {outcome}"
        return NoReply(f"no reply to a request to {asking.topic} within {waited_s:.1f} s; {what}", sent)

    async def _on_reply(self, _: Connection, command: Command) -> Command:
        """Any broker this client talks to may push: only a reply to what waits is looked into."""
        properties = decode_properties(command.ext.get("properties", ""))
        reply = self._waiting.get(properties.get(CORRELATION_ID, ""))
        if reply is None or reply.done():
            log.debug("a reply came that nothing waits for: %s", properties.get(CORRELATION_ID))
            return command.reply()  # as the original: it has arrived
        body, unread = command.body, None
        try:
            body = plain_body(body, need_int(command.ext, "sysFlag"))
        except ValueError as error:
            unread = str(error)
        found = Reply(
            topic=command.ext.get("topic", ""),
            body=body,
            properties={**properties, ARRIVE_TIME: str(self._env.now_ms())},
            flag=need_int(command.ext, "flag"),
            born_timestamp_ms=need_int(command.ext, "bornTimestamp"),
            store_timestamp_ms=need_int(command.ext, "storeTimestamp"),
            body_unread=unread,
        )
        reply.set_result(found)
        return command.reply()

    # --- who knows this client

    async def _known_in(self, clusters: list[str], timeout_s: float) -> None:
        """Beat at every master of ``clusters`` that does not know this client, ``timeout_s`` at most."""
        self._clusters.update(dict.fromkeys(filter(None, clusters)))
        try:
            async with asyncio.timeout(timeout_s):
                for cluster in self._clusters:
                    await self._session.routes.get(reply_topic(cluster))
                await self._session.be_known(self._masters())
        except (MqError, TimeoutError) as error:
            # The request may find its consumer all the same; the next look is KNOWN_S away.
            log.debug("brokers of %s: %s", ", ".join(clusters), error or "silent")

    async def _stay_known(self) -> None:
        if self._waiting:
            await self._session.be_known(self._masters())

    def _masters(self) -> list[str]:
        routes = [self._session.routes.cached(reply_topic(cluster)) for cluster in self._clusters]
        return list(dict.fromkeys(address for route in routes if route for address in route.masters()))


async def _sent(send: Callable[[Message], Awaitable[SendResult]], message: Message) -> SendResult | MqError:
    """What became of a send, as a value: its task may be left behind."""
    try:
        return await send(message)
    except (SendFailed, SendUnknown) as error:
        return error
