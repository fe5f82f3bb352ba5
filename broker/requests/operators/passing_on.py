"""What do operators ask one member of a group, by way of its broker?

GET_CONSUMER_RUNNING_INFO (307): what it reads and how fast. CONSUME_MESSAGE_DIRECTLY (309): it is to handle
one stored message now, whatever its offset is; the broker puts the message into the question.
"""

from __future__ import annotations

from typing import Final

from broker.context import BrokerContext
from broker.requests.operators.query import READ
from broker.state.underway import Underway, size_of
from model.codes import Response
from model.errors import Refused, Unknown
from model.message import parse_message_id
from remoting.codec import Command
from remoting.headers import need
from remoting.keys import to_client
from remoting.service import Connection
from store.files.record import decode

RUNNING_S: Final = 5.0
HANDLING_S: Final = 10.0
"""So long the original waits for a listener."""
ASKED_MAX: Final = 1_000
"""Questions to members that are not answered yet."""
ASKED_BYTES_MAX: Final = 32 << 20
"""Their headers, and the messages in them."""
ANSWER_BYTES_MAX: Final = 8 << 20
"""Of what a member says: 25,000 queues, or a thread dump."""


class PassingOn:
    """Answers 307 and 309."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._underway = Underway(ASKED_MAX, ASKED_BYTES_MAX)

    async def running_info(self, connection: Connection, request: Command) -> Command:
        """No client reads a body of this question: none is handed on, nor kept until the answer."""
        request.body = b""
        return await self._ask(request, to_client(request), RUNNING_S)

    async def consume(self, connection: Connection, request: Command) -> Command:
        """Raises Refused also when the message is not there, or its topic not the asker's to read."""
        context, text = self._context, need(request.ext, "msgId")
        try:
            offset = parse_message_id(text)[1]
        except ValueError as error:
            raise Refused(str(error), Response.SYSTEM_ERROR) from None
        raw = context.store.lookup(offset) if offset < context.store.confirmed else None
        if raw is None:
            raise Refused(f"can not find message by the offset, {offset}", Response.SYSTEM_ERROR)
        context.trust.need_record(connection, request, decode(raw, check_crc=False).topic, READ)
        request.body = b""
        told = to_client(request)
        told.body = raw
        told.ext["brokerName"] = context.config.broker_name
        topic = context.topics.get(request.ext.get("topic") or "")
        group = context.groups.table.get(need(request.ext, "consumerGroup"))
        if topic is not None:
            told.ext["topicSysFlag"] = str(topic.sys_flag)
        if group is not None:
            told.ext["groupSysFlag"] = str(group.group_sys_flag)
        return await self._ask(request, told, HANDLING_S)

    async def _ask(self, request: Command, told: Command, timeout_s: float) -> Command:
        group, client_id = need(request.ext, "consumerGroup"), need(request.ext, "clientId")
        member = self._context.clients.find_consumer(group, client_id)
        if member is None:
            raise Refused(f"The Consumer <{group}> <{client_id}> not online", Response.SYSTEM_ERROR)
        size = size_of(told)
        member.connection.need_room(size)
        if not self._underway.has_room(size):
            raise Refused(
                f"{self._underway.count} questions to members wait for an answer, try again",
                Response.SYSTEM_BUSY,
            )
        try:
            with self._underway.hold(size):
                answer = await member.connection.call(told, timeout_s=timeout_s)
        except (Unknown, ConnectionError) as error:
            raise Refused(f"consumer <{group}> <{client_id}>: {error}", Response.SYSTEM_ERROR) from None
        if len(answer.body) > ANSWER_BYTES_MAX:
            raise Refused(
                f"consumer <{group}> <{client_id}> said {len(answer.body)} bytes,"
                f" at most {ANSWER_BYTES_MAX} are passed on",
                Response.SYSTEM_ERROR,
            )
        return request.reply(answer.code, remark=answer.remark, ext=answer.ext, body=answer.body)
