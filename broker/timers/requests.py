"""What do clients and brokers ask about timer messages?

RECALL_MESSAGE (370) takes one back: a message of its own goes into the slot of that one, and when the slot is
due neither comes. GET_TIMER_CHECK_POINT (60) is how far this broker is, GET_TIMER_METRICS (61) how many
messages of each topic wait.
"""

from __future__ import annotations

from typing import Final

from broker.context import BrokerContext
from broker.requests.batch import BORN_HOST
from broker.requests.fast_path import born_host
from broker.requests.send import SendProcessor, need_for_clients
from broker.timers.codec import encode_told
from broker.timers.core import Rules, delete_key
from broker.timers.delivery import TimerService
from broker.timers.progress import TimerProgress
from model.codes import Response
from model.errors import Refused
from model.message import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    encode_properties,
)
from model.recall import RecallHandle
from model.topic import LONG_GROUP_CHARS_MAX, PERM_WRITE, group_name_error
from remoting import bodies
from remoting.codec import Command
from remoting.headers import need
from remoting.service import Connection
from store.files.record import NewMessage

RECALL_TAG: Final = "_RECALL_TAG_"
TIME_DIGITS_MAX: Final = 19
_NOT_NOW: Final = "recall failed, broker service not available"


class TimerProcessor:
    """Answers 370, 60 and 61."""

    def __init__(
        self,
        context: BrokerContext,
        progress: TimerProgress,
        service: TimerService,
        sender: SendProcessor,
    ) -> None:
        self._context = context
        self._progress = progress
        self._service = service
        self._sender = sender

    async def recall(self, connection: Connection, request: Command) -> Command | None:
        """Take a timer message back. Raises Refused."""
        config = self._context.config
        if not config.recall_message_enable:
            raise Refused("recall failed, operation is forbidden", Response.NO_PERMISSION)
        if self._context.role_state.role == "slave":
            raise Refused(_NOT_NOW, Response.SLAVE_NOT_AVAILABLE)
        if not config.broker_permission & PERM_WRITE and not config.recall_when_not_writable:
            raise Refused(_NOT_NOW, Response.SERVICE_NOT_AVAILABLE)
        await self._context.admit(connection, request)
        topic = need(request.ext, "topic")
        if self._context.topics.get(topic) is None:
            raise Refused(f"recall failed, the topic[{topic}] not exist", Response.TOPIC_NOT_EXIST)
        need_for_clients(topic)
        handle = RecallHandle.decode(request.ext.get("recallHandle", ""), Response.ILLEGAL_OPERATION)
        if handle.topic != topic:
            raise Refused("recall failed, topic not match", Response.ILLEGAL_OPERATION)
        if handle.broker_name != config.broker_name:
            raise Refused(_NOT_NOW, Response.ILLEGAL_OPERATION)
        now_ms = self._context.env.now_ms()
        text = handle.deliver_ms
        is_time = len(text) <= TIME_DIGITS_MAX and text.isascii() and text.isdigit()
        left_ms = int(text) - now_ms if is_time else -1
        if not 0 < left_ms < Rules.of(config).delay_max_ms:
            raise Refused("recall failed, timestamp invalid", Response.ILLEGAL_OPERATION)
        group = request.ext.get("producerGroup", "")
        if group and group_name_error(group, LONG_GROUP_CHARS_MAX):
            raise Refused(f"recall failed, {group!r} names no group", Response.ILLEGAL_OPERATION)
        recall = self._recall(connection, group, handle, now_ms)
        puts = self._sender.put([self._sender.timers.place(recall)])
        answer = request.reply(ext={"msgId": handle.uniq_key, "MSG_REGION": config.region_id})
        return self._sender.answer(connection, request, answer, puts, wait=True)

    def _recall(self, connection: Connection, group: str, handle: RecallHandle, now_ms: int) -> NewMessage:
        names_topic = self._context.config.recall_names_topic
        properties = {
            TAGS: RECALL_TAG,
            TIMER_DEL_UNIQKEY: delete_key(handle.topic, handle.uniq_key) if names_topic else handle.uniq_key,
            UNIQ_KEY: handle.uniq_key,
            TIMER_DELIVER_MS: handle.deliver_ms,
            "BORN_TIMESTAMP": str(now_ms),
            "PGROUP": group,
        }
        born = connection.attributes.get(BORN_HOST) or born_host(connection.remote)
        store_host = self._context.store_host
        return NewMessage(
            topic=handle.topic,
            queue_id=0,
            flag=0,
            sys_flag=(BORN_HOST_V6 if len(born) == 20 else 0)
            | (STORE_HOST_V6 if len(store_host) == 20 else 0),
            born_timestamp_ms=now_ms,
            born_host=born or bytes(8),
            store_host=store_host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=b"0",
            properties=encode_properties({name: value for name, value in properties.items() if value}),
        )

    async def check_point(self, connection: Connection, request: Command) -> Command:
        if not self._context.config.timer_wheel_enable:
            raise Refused("The checkpoint is null", Response.SYSTEM_ERROR)
        return request.reply(body=encode_told(self._progress.note, self._progress.version))

    async def metrics(self, connection: Connection, request: Command) -> Command:
        if not self._context.config.timer_wheel_enable:
            raise Refused("The timer message store is null", Response.SYSTEM_ERROR)
        there = self._context.topics.get
        table = self._service.counts.to_json(lambda topic: there(topic) is not None)
        return request.reply(body=bodies.dumps(table))
