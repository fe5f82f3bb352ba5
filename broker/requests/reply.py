"""How does a reply reach the client that asked, and what does the one that replies learn?

SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325). The broker pushes the reply over the connection on
which the asking client beats (PUSH_REPLY_MESSAGE_TO_CLIENT, 326), waits for its answer, and stores the reply
whatever came of that (``storeReplyMessageEnable``). Its own answer says how the push went, and nothing of the
store, as in the original: a reply that could not be stored has arrived all the same.

Who replies shall not stand still for a client that says nothing. Who has too many bytes of requests under way
is read no further (``remoting/transport``): so after ``READ_ON_S`` a push goes on by itself. It has bounds of
its own, in all and for each client that is pushed to.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.properties import changed
from broker.requests.send import SendProcessor
from broker.requests.send_format import region_properties, send_ext
from broker.state.underway import Underway, size_of
from model.codes import Request, Response
from model.errors import Refused, Unknown
from model.message import PUSH_REPLY_TIME, REPLY_TO_CLIENT, WAIT, message_id, property_of
from remoting.codec import Command
from remoting.headers import SendHeader
from remoting.service import Connection
from runtime.tasks import Tasks
from runtime.turns import Shares
from store.files.record import NewMessage
from store.flow.writing import Put

log = logging.getLogger(__name__)

PUSH_S: Final = 10.0
"""How long the asking client's answer is awaited, as in the original."""
PUSHES_MAX: Final = 10_000
"""Replies on their way at once."""
PUSHED_BYTES_MAX: Final = 64 << 20
"""Their headers and bodies, which wait with them to be stored."""
PUSHED_BYTES_TO_ONE: Final = 16 << 20
"""Of these, those to one client, unless it is one reply alone."""
READ_ON_S: Final = 1.0
"""So long the bytes of a reply hold back the one that replies."""
NOT_STORED_ID: Final = "0"


def _failed(client_id: str) -> str:
    return f"push reply message to {client_id}fail."


def _send(
    connection: Connection,
    request: Command,
    answer: Callable[[Put | None, str | None], Command | None],
    work: asyncio.Task[tuple[Put | None, str | None]],
) -> None:
    """Of a push that went on by itself."""
    if work.cancelled() or work.exception() is not None:
        return  # the broker stops; or it was told as a mistake of ours
    answered = answer(*work.result())
    if answered is not None and not request.is_oneway:
        connection.send(answered)


class ReplyProcessor:
    """Answers 324 and 325."""

    def __init__(self, context: BrokerContext, sender: SendProcessor) -> None:
        self._context = context
        self._sender = sender
        self._underway = Underway(PUSHES_MAX, PUSHED_BYTES_MAX)
        self._underway_to: Counter[Connection] = Counter()  # bytes
        self._shares = Shares()
        self._tasks = Tasks("replies")

    @property
    def pushing(self) -> int:
        """How many replies are on their way, or were and are not stored yet."""
        return self._underway.count

    async def reply(self, connection: Connection, request: Command) -> Command | None:
        """Push a reply to the client it is for, and keep it. Raises Refused before anything is pushed."""
        await self._admit(connection, request)
        header = SendHeader.parse(request.code, request.ext)
        message, queue_id = self._sender.of_reply(connection, header, request)
        size = size_of(request)
        asking, failure = self._asking(header, size)
        if asking is None:
            return self._answer(connection, request, header, queue_id, self._stored(message), failure)
        with ExitStack() as held:
            held.enter_context(self._held(asking, size))
            pushed = self._push(asking, header, self._pushed(connection, header), request.body)
            going_on = self._go_on(pushed, message, size, held.pop_all())
        work = self._tasks.spawn(going_on, name="push")
        done, _ = await asyncio.wait((work,), timeout=READ_ON_S)
        answer = partial(self._answer, connection, request, header, queue_id)
        if done:
            return answer(*work.result())
        work.add_done_callback(partial(_send, connection, request, answer))
        return None

    async def stop(self) -> None:
        """Nothing is pushed any more when this returns."""
        await self._tasks.cancel()

    async def _go_on(
        self, pushed: Coroutine[Any, Any, str | None], message: NewMessage, size: int, held: ExitStack
    ) -> tuple[Put | None, str | None]:
        """Where the reply lies, and why the client that asked did not get it."""
        with held:
            failure = await pushed
            # All that one client was asked end together when it leaves, or says nothing.
            await self._shares.take(size)
            return self._stored(message), failure

    def _answer(
        self,
        connection: Connection,
        request: Command,
        header: SendHeader,
        queue_id: int,
        put: Put | None,
        failure: str | None,
    ) -> Command | None:
        ext = self._ext(queue_id, put)
        if failure is not None:
            return request.reply(Response.SYSTEM_ERROR, remark=failure, ext=ext)
        answer = request.reply(ext=ext)
        if put is None:
            return answer
        wait = (property_of(header.properties, WAIT) or "").lower() != "false"
        return self._sender.answer(connection, request, answer, [put], wait=wait)

    @contextmanager
    def _held(self, asking: Connection, size: int) -> Iterator[None]:
        """It counts as under way to this client."""
        to = self._underway_to
        to[asking] += size
        try:
            with self._underway.hold(size):
                yield
        finally:
            to[asking] -= size
            if not to[asking]:
                del to[asking]

    async def _admit(self, connection: Connection, request: Command) -> None:
        """A broker that is no master takes no reply: the client that asked beats at the one that is. A full
        disk, or too few copies, keep no reply from that client; they are asked about before it is stored."""
        role = self._context.role_state
        if await role.handed_over(connection, request) and connection.closed:
            raise Refused("its sender left", Response.SERVICE_NOT_AVAILABLE)
        refused = role.refuse()
        if refused is not None:
            raise refused

    def _asking(self, header: SendHeader, size: int) -> tuple[Connection | None, str | None]:
        """Where the client that asked is, or why it will not get the reply, in the original's words."""
        client_id = property_of(header.properties, REPLY_TO_CLIENT)
        if client_id is None:
            return None, f"reply message properties[{REPLY_TO_CLIENT}] is null"
        asking = self._context.clients.producer_connection(client_id)
        if asking is None:
            return None, f"push reply message fail, channel of <{client_id}> not found."
        to_one = self._underway_to.get(asking, 0)
        if not self._underway.has_room(size) or (to_one and to_one + size > PUSHED_BYTES_TO_ONE):
            log.debug("reply to %s: %d replies are on their way", client_id, self.pushing)
            return None, _failed(client_id)
        try:
            asking.need_room(size)
        except Refused as refused:
            log.debug("reply to %s: %s", client_id, refused)
            return None, _failed(client_id)
        return asking, None

    async def _push(
        self, asking: Connection, header: SendHeader, ext: dict[str, str], body: bytes
    ) -> str | None:
        """Why the client that asked did not get it, or None."""
        client_id = property_of(header.properties, REPLY_TO_CLIENT) or ""
        try:
            answer = await asking.call(Command(int(Request.PUSH_REPLY_MESSAGE_TO_CLIENT), ext, body), PUSH_S)
        except (Unknown, ConnectionError) as error:
            log.debug("reply to %s: %s", client_id, error)
            return _failed(client_id)
        return None if answer.code == Response.SUCCESS else _failed(client_id)

    def _pushed(self, connection: Connection, header: SendHeader) -> dict[str, str]:
        """The header of 326: that of the reply by its full names, where it came from and when it was here."""
        now_ms = str(self._context.env.now_ms())
        ext = header.to_ext(full_names=True)
        for name in ("batch", "maxReconsumeTimes", "bname"):
            ext.pop(name, None)
        added = {**region_properties(self._context.config), PUSH_REPLY_TIME: now_ms}
        ext["properties"] = changed(header.properties, added)
        ext["bornHost"] = connection.remote
        ext["storeHost"] = self._context.config.address
        ext["storeTimestamp"] = now_ms
        return ext

    def _stored(self, message: NewMessage) -> Put | None:
        """Where the reply lies; None when it is not kept: the original's answer does not tell that either."""
        context = self._context
        if not context.config.store_reply_message:
            return None
        try:
            refused = context.refuse_write()  # the role may have ended while the client was waited for
            if refused is not None:
                raise refused
            return self._sender.put([message])[0]
        except Refused as error:
            log.debug("a reply in %s is not stored: %s", message.topic, error)
            return None

    def _ext(self, queue_id: int, put: Put | None) -> dict[str, str]:
        context = self._context
        if put is None:
            ext = send_ext(context.config, queue_id, "", NOT_STORED_ID, 0)
        else:
            place = message_id(context.store_host, put.physical_offset)
            ext = send_ext(context.config, queue_id, "", place, put.queue_offset)
        del ext["transactionId"]
        return ext
