"""How does any send become a record, when the fast path does not take it?

SEND_MESSAGE (10, 310), SEND_BATCH_MESSAGE (320) and CONSUMER_SEND_MSG_BACK (36): topics made at the first
send, retry and dead-letter topics, delay levels, and every refusal. For a fast send it stores and answers
exactly what ``broker/requests/fast_path`` does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Final

from broker.context import BrokerContext, not_available
from broker.requests.batch import BORN_HOST, LONG_BYTES, in_order, inner_messages
from broker.requests.fast_path import born_host
from broker.requests.moving import once_more
from broker.requests.properties import changed, closed, has, int_property
from broker.requests.send_format import extra_properties, is_special, region_properties, send_ext
from broker.tables.topics import HALF_TOPIC
from broker.timers.core import is_timer
from broker.timers.placing import TIMERS, TimerPlacing
from model.acl.plain import Perm
from model.codes import Response
from model.errors import DiskError, Refused
from model.message import (
    BORN_HOST_V6,
    BROKERS_OWN,
    CLUSTER,
    DELAY,
    DLQ_PREFIX,
    INNER_BATCH,
    INNER_NUM,
    LMQ_PREFIX,
    ORIGIN_MESSAGE_ID,
    PROPERTIES_BYTES_MAX,
    REAL_QID,
    REAL_TOPIC,
    RETRY_PREFIX,
    RETRY_TOPIC,
    SCHEDULE_TOPIC,
    STORE_HOST_V6,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED_PROPERTY,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    dlq_topic,
    encode_properties,
    message_id,
    property_of,
    retry_topic,
)
from model.pop import REVIVE_TOPIC_PREFIX
from model.topic import (
    NOT_FOR_CLIENT_SENDS,
    PERM_WRITE,
    SubscriptionGroupConfig,
    TopicConfig,
    topic_name_error,
)
from remoting import codec
from remoting.acl.gate import NeededRight
from remoting.codec import Command
from remoting.headers import SendBackHeader, SendHeader
from remoting.service import Connection
from store.files.consume_queue import is_queue_name
from store.files.record import NewMessage, decode
from store.flow.writing import Prepared, Put

log = logging.getLogger(__name__)

RETRY_ROOM_BYTES: Final = 512
"""For the names of a retry topic and its queue, twice, and what brokers note beside them."""
_KEPT_ON_RETRY: Final = frozenset({UNIQ_KEY, TAGS, RETRY_TOPIC, DELAY, WAIT})
_OF_ITS_TIME: Final = (*BROKERS_OWN, *TIMERS, TIMER_DEL_UNIQKEY)
"""What a message that was delivered has behind it: a retry or a dead letter is for no time of its own, and
what brokers alone write is not believed of a record that a request names by its place."""
MAX_RECONSUME_VERSION: Final = 121  # clients from 3.4.9 on may set maxReconsumeTimes
FIRST_RETRY_LEVEL: Final = 3
TRANSACTION_ID: Final = "__transactionId__"
LIGHT_MESSAGES_MAX: Final = 64
LIGHT_BYTES_MAX: Final = 64 << 10
"""Of a batch: messages that name light queues, and the properties of these."""
TOO_LIGHT: Final = (
    f"of a batch at most {LIGHT_MESSAGES_MAX} messages, with {LIGHT_BYTES_MAX} bytes of properties,"
    " name light queues (INNER_MULTI_DISPATCH)"
)
LONG_PUTS: Final = 512
LONG_BODY_BYTES: Final = 256 << 10
"""A longer message is looked up, encoded and written in a turn of the loop each."""
TOO_LONG: Final = (
    "the message is illegal, maybe msg body or properties length not matched."
    " msg body length limit {body} B, msg properties length limit 32 KiB."
)


class SendProcessor:
    """Answers 10, 310, 320 and 36."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._config = context.config
        self._extra = extra_properties(context.config)
        self._reply_extra = encode_properties(region_properties(context.config))
        self._levels = len(context.config.delay_levels.split())
        self.timers = TimerPlacing(context.config, context.env.now_ms, context.env.random.randrange)

    async def send(self, connection: Connection, request: Command) -> Command | None:
        """One message or one batch. Its answer waits in PendingAcks, hence None."""
        async with in_order(connection, request.body):
            await self._context.admit(connection, request)
            header = SendHeader.parse(request.code, request.ext)
            topic = self._topic(connection, header)
            queue_id = self._queue(header, topic)
            recall_handle: str | None = None
            if header.batch:
                puts = await self._put_batch(connection, header, queue_id, request.body)
                transaction_id = property_of(header.properties, UNIQ_KEY) or ""
            else:
                message = self._single(connection, header, queue_id, request, extra=self._extra)
                puts = self.put([message])
                recall_handle = self.timers.recall_handle(message)
                transaction_id = property_of(message.properties, UNIQ_KEY) or ""
            if len(puts) > LONG_PUTS:
                await asyncio.sleep(0)  # they are stored: what follows is another piece of work
            host = self._context.store_host
            ids = ",".join([message_id(host, put.physical_offset) for put in puts])
            answer = request.reply(
                ext=send_ext(self._config, queue_id, transaction_id, ids, puts[0].queue_offset)
            )
            if recall_handle is not None:
                answer.ext["recallHandle"] = recall_handle
            wait = property_of(header.properties, WAIT)
            safe = wait is None or wait.lower() != "false"
            return self.answer(connection, request, answer, puts, wait=safe)

    async def send_back(self, connection: Connection, request: Command) -> Command | None:
        """A consumer could not handle a message: store it again for later, or as a dead letter.

        The answer waits for replication like that of a send: the consumer commits past the message next.
        """
        context = self._context
        await context.admit(connection, request)
        header = SendBackHeader.parse(request.ext)
        group = self._need_group(header.group)
        self._need_broker_writable()
        if group.retry_queues <= 0:
            return request.reply()
        name = retry_topic(header.group)
        topic = context.topics.ensure(name, group.retry_queues)
        if not topic.perm & PERM_WRITE:
            raise Refused(f"the topic[{name}] sending message is forbidden", Response.NO_PERMISSION)
        async with context.pace.turn(connection, context.store.record_bytes(header.physical_offset)):
            refused = context.refuse_write()
            if refused is not None:
                raise refused
            puts = await self._put_back(connection, request, header, group)
        return self.answer(connection, request, request.reply(), puts, wait=True)

    async def _put_back(
        self,
        connection: Connection,
        request: Command,
        header: SendBackHeader,
        group: SubscriptionGroupConfig,
    ) -> list[Put]:
        """Store a message for later, or as a dead letter. Raises Refused."""
        context = self._context
        name = retry_topic(header.group)
        raw = context.store.lookup(header.physical_offset)
        if raw is None:
            raise Refused(f"look message by offset failed, {header.physical_offset}", Response.SYSTEM_ERROR)
        record = decode(raw)
        asked = NeededRight(("Sub",), Perm.SUB, header.group)
        context.trust.need_record(connection, request, record.topic, asked)
        if len(record.body) >= LONG_BODY_BYTES:
            await asyncio.sleep(0)
            refused = context.refuse_write()
            if refused is not None:
                raise refused
        maximum = group.retry_max_times
        if request.version >= MAX_RECONSUME_VERSION and header.max_reconsume_times is not None:
            maximum = header.max_reconsume_times
        put = {WAIT: "false"}
        # What a record says of where it comes from is believed where it came back before.
        came_back = record.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        if not came_back or not has(record.properties, RETRY_TOPIC):
            put[RETRY_TOPIC] = record.topic
        if not came_back or not has(record.properties, ORIGIN_MESSAGE_ID):
            put[ORIGIN_MESSAGE_ID] = message_id(record.store_host, record.physical_offset)
        if record.reconsume_times >= maximum or header.delay_level < 0:
            name = dlq_topic(header.group)
            context.topics.ensure(name, 1)
            queue_id = 0
            put[DELAY] = "0"
        else:
            queue_id = context.env.random.randrange(group.retry_queues)
            put[DELAY] = str(header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times)
        message = NewMessage(
            topic=name,
            queue_id=queue_id,
            flag=record.flag,
            sys_flag=record.sys_flag & ~(STORE_HOST_V6 | TRANSACTION_MASK) | self._store_host_flag(),
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            store_host=context.store_host,
            reconsume_times=once_more(record.reconsume_times),
            prepared_transaction_offset=0,
            body=record.body,
            properties=_with_room(changed(record.properties, put, _OF_ITS_TIME)),
        )
        return await self.put_moved([self.delayed(message)])

    def of_reply(
        self, connection: Connection, header: SendHeader, request: Command
    ) -> tuple[NewMessage, int]:
        """The record of a reply (324, 325) and its queue, by the rules of a send. Raises Refused."""
        queue_id = self._queue(header, self._topic(connection, header))
        message = self._single(connection, header, queue_id, request, extra=self._reply_extra)
        self._need_short(message)
        return message, queue_id

    def put(self, messages: list[NewMessage], *, stored_before: bool = False) -> list[Put]:
        """Store messages, all of them or none. Raises Refused 13 or 14; then nothing was stored.

        ``stored_before``: they lie in the log already and only move on. A ``maxMessageSize`` lowered since
        then must not keep them, and all that waits behind them, where they are.
        """
        for message in messages:
            self._need_short(message, stored_before)
        return self._stored(lambda: self._context.store.put(messages, stored_before=stored_before))

    async def put_moved(self, messages: list[NewMessage]) -> list[Put]:
        """``put`` of messages ``stored_before``. Long ones are encoded in another turn of the loop than that
        in which they are written: 4 MiB take 5 ms of each. Raises Refused, also when this broker takes no
        writes any more."""
        if sum(len(message.body) for message in messages) < LONG_BODY_BYTES:
            return self.put(messages, stored_before=True)
        prepared = [self.prepare(message) for message in messages]
        await asyncio.sleep(0)
        refused = self._context.refuse_write()
        if refused is not None:
            raise refused
        return self.put_prepared(prepared)

    def prepare(self, message: NewMessage) -> Prepared:
        """What takes long of ``put`` of a message ``stored_before``. Raises Refused."""
        self._need_short(message, stored_before=True)
        return self._context.store.writer.prepare(message, stored_before=True)

    def put_prepared(self, messages: list[Prepared]) -> list[Put]:
        """The rest of it. Raises Refused 13 or 14; then nothing was stored."""
        return self._stored(lambda: self._context.store.put_prepared(messages, stored_before=True))

    def need_body(self, size: int) -> None:
        """Raises Refused for a message, or a batch, whose body has so many bytes. Asked before it waits for
        anything (``remoting/long_bodies``), and when it is stored: the configuration may change."""
        longest = self._config.message_bytes_max
        if size > longest:
            raise Refused(TOO_LONG.format(body=longest), Response.MESSAGE_ILLEGAL)

    def _need_short_header(self, header: SendHeader) -> None:
        """Raises Refused before properties are taken apart: hundreds of thousands hold the event loop."""
        if len(header.properties) > PROPERTIES_BYTES_MAX:
            raise Refused(TOO_LONG.format(body=self._config.message_bytes_max), Response.MESSAGE_ILLEGAL)

    def _need_short(self, message: NewMessage, stored_before: bool = False) -> None:
        if not stored_before:
            self.need_body(len(message.body))
        if len(message.properties.encode()) > PROPERTIES_BYTES_MAX:
            raise Refused(TOO_LONG.format(body=self._config.message_bytes_max), Response.MESSAGE_ILLEGAL)

    def _stored(self, put: Callable[[], list[Put]]) -> list[Put]:
        try:
            puts = put()
        except DiskError as error:
            raise Refused(not_available(str(error)), Response.SERVICE_NOT_AVAILABLE) from error
        self._context.stats.put(len(puts), sum([put.size for put in puts]))
        return puts

    def answer(
        self, connection: Connection, request: Command, answer: Command, puts: list[Put], *, wait: bool
    ) -> Command | None:
        """Let ``answer`` leave when ``puts`` are safe: at once (it is returned) without ``wait``."""
        if not wait:
            return answer
        end = puts[-1].physical_offset + puts[-1].size
        if request.is_oneway:
            if self._config.flush_disk_type == "SYNC_FLUSH":
                self._context.store.sync_to(end)
            return None
        self._context.pending_acks.add(connection, codec.encode(answer), end)
        return None

    def _topic(self, connection: Connection, header: SendHeader) -> TopicConfig:
        """The topic a send goes to, made if it may be. Raises Refused."""
        name = header.topic
        need_for_clients(name)
        self._need_broker_writable()
        topics = self._context.topics
        topic = topics.get(name)
        if topic is None:
            if name.startswith(RETRY_PREFIX):
                self._need_group(name.removeprefix(RETRY_PREFIX))
                # As many as the client takes of the default topic: it sends to any of them.
                queues = topics.inherited_queues(header.default_topic, header.default_topic_queues)
                topic = topics.ensure(name, 1 if queues is None else queues)
            else:
                problem = topic_name_error(name)
                if problem is not None:
                    raise Refused(problem, Response.INVALID_PARAMETER)
                topic = topics.create_for_send(name, header.default_topic, header.default_topic_queues)
        if not topic.perm & PERM_WRITE:
            raise Refused(f"the topic[{name}] sending message is forbidden", Response.NO_PERMISSION)
        return topic

    def _queue(self, header: SendHeader, topic: TopicConfig) -> int:
        queues = max(topic.read_queues, topic.write_queues)
        if header.queue_id >= queues:
            raise Refused(
                f"request queueId[{header.queue_id}] is illegal,"
                f" topic[{topic.name}] has {topic.read_queues} read and {topic.write_queues} write queues",
                Response.INVALID_PARAMETER,
            )
        if header.queue_id >= 0:
            return header.queue_id
        return self._context.env.random.randrange(max(1, topic.write_queues))

    def _single(
        self, connection: Connection, header: SendHeader, queue_id: int, request: Command, *, extra: str
    ) -> NewMessage:
        """``extra``: properties of this broker behind those of the client."""
        self._need_short_header(header)
        text = closed(header.properties)
        if is_special(text):
            # Rewritten only when there is something to rewrite: others keep their text byte for byte.
            if has(text, INNER_NUM):
                raise Refused(f"{header.topic} has no batch queues", Response.MESSAGE_ILLEGAL)
            text = changed(text, {}, ("MSG_REGION", "TRACE_ON", CLUSTER, "POP_CK", *BROKERS_OWN))
        self._need_known_kind(text)
        if not has(text, UNIQ_KEY):
            text += f"{UNIQ_KEY}\x01{self._context.env.random.getrandbits(128):032X}\x02"
        name = header.topic
        if name.startswith(RETRY_PREFIX):
            name, queue_id, text = self._retried(header, request, queue_id, text)
        message = self._message(connection, header, name, queue_id, header.flag, request.body, text + extra)
        if property_of(text, TRANSACTION_PREPARED_PROPERTY) == "true" and name == header.topic:
            return self._half(message)
        return self.delayed(message)

    def _half(self, message: NewMessage) -> NewMessage:
        """A half message goes where no consumer looks until it ends (``broker/requests/transactions``)."""
        _need_place(message)
        unique = property_of(message.properties, UNIQ_KEY) or ""
        return dataclasses.replace(
            message,
            topic=HALF_TOPIC,
            queue_id=0,
            sys_flag=message.sys_flag & ~TRANSACTION_MASK,
            properties=changed(
                message.properties,
                {TRANSACTION_ID: unique, REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id)},
            ),
        )

    def _retried(
        self, header: SendHeader, request: Command, queue_id: int, text: str
    ) -> tuple[str, int, str]:
        """(topic, queue, properties) of a message a consumer itself sends to its group's retry topic."""
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._need_group(name)
        maximum = group.retry_max_times
        if request.version >= MAX_RECONSUME_VERSION and header.max_reconsume_times is not None:
            maximum = header.max_reconsume_times
        locked = self._context.locks.group_has_locks(name, self._context.env.monotonic_ms())
        if header.reconsume_times <= maximum and not locked:
            return header.topic, queue_id, text
        dead = dlq_topic(name)
        self._context.topics.ensure(dead, 1)
        return dead, 0, changed(text, {DELAY: "0"})

    async def _put_batch(
        self, connection: Connection, header: SendHeader, queue_id: int, body: bytes
    ) -> list[Put]:
        """Store the messages of a packed batch."""
        if header.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise Refused("batch request does not support retry group", Response.MESSAGE_ILLEGAL)
        self._need_short_header(header)
        late = (int_property(header.properties, DELAY) or 0) > 0 or is_timer(header.properties)
        if header.sys_flag & TRANSACTION_MASK or late:
            raise Refused("a batch can be neither delayed nor transactional", Response.MESSAGE_ILLEGAL)
        self.need_body(len(body))
        context = self._context
        writer = context.store.writer
        name = header.topic
        parts = inner_messages(body, self._config.batch_messages_max)
        if len(body) < LONG_BYTES:
            return self.put([self._message(connection, header, name, queue_id, *part) for part in parts])
        prepared = []
        light = light_bytes = 0
        async with context.turns.take(connection) as turn:
            for part in parts:
                message = self._message(connection, header, name, queue_id, *part)
                self._need_short(message)
                if writer.is_light(message):
                    # Its record is made with all others' places, in one piece.
                    light, light_bytes = light + 1, light_bytes + len(message.properties)
                    if light > LIGHT_MESSAGES_MAX or light_bytes > LIGHT_BYTES_MAX:
                        raise Refused(TOO_LIGHT, Response.MESSAGE_ILLEGAL)
                prepared.append(writer.prepare(message))
                await turn.breathe()
            gathered = writer.gather(prepared)
            del prepared
            await turn.pause()
            # Others ran meanwhile: the role may have ended, and the topic may be gone or narrower.
            refused = context.refuse_write()
            if refused is not None:
                raise refused
            self._queue(header, self._topic(connection, header))
            return self._stored(lambda: context.store.put_prepared(gathered))

    def _message(
        self,
        connection: Connection,
        header: SendHeader,
        topic: str,
        queue_id: int,
        flag: int,
        body: bytes,
        properties: str,
    ) -> NewMessage:
        if header.sys_flag & INNER_BATCH:
            raise Refused(f"{topic} has no batch queues", Response.MESSAGE_ILLEGAL)
        host = connection.attributes.get(BORN_HOST) or born_host(connection.remote)
        sys_flag = header.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6) | self._store_host_flag()
        return NewMessage(
            topic=topic,
            queue_id=queue_id,
            flag=flag,
            sys_flag=sys_flag | (BORN_HOST_V6 if len(host) == 20 else 0),
            born_timestamp_ms=header.born_timestamp_ms,
            born_host=host or b"\x00" * 8,
            store_host=self._context.store_host,
            reconsume_times=header.reconsume_times,
            prepared_transaction_offset=0,
            body=body,
            properties=properties,
        )

    def delayed(self, message: NewMessage) -> NewMessage:
        """A message with a delay level goes to the schedule topic, one for a time of its own to the timer
        topic; where it belongs is kept in properties. Raises Refused."""
        level = int_property(message.properties, DELAY) or 0
        if level <= 0:
            later = self.timers.place(message)
            if later is not message:
                _need_place(message)
            return later
        _need_place(message)
        level = min(level, self._levels)
        return dataclasses.replace(
            message,
            topic=SCHEDULE_TOPIC,
            queue_id=level - 1,
            properties=changed(
                message.properties,
                {DELAY: str(level), REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id)},
                TIMERS,
            ),
        )

    def _need_group(self, name: str) -> SubscriptionGroupConfig:
        group = self._context.groups.find(name)
        if group is None:
            raise Refused(f"subscription group not exist, {name}", Response.SUBSCRIPTION_GROUP_NOT_EXIST)
        return group

    def _need_known_kind(self, text: str) -> None:
        prepared = property_of(text, TRANSACTION_PREPARED_PROPERTY) == "true"
        if prepared and self._config.reject_transaction_message:
            raise Refused(
                f"the broker[{self._config.broker_ip1}] sending transaction message is forbidden",
                Response.NO_PERMISSION,
            )
        level = int_property(text, DELAY)
        if level is None and has(text, DELAY):
            raise Refused("the property DELAY is no whole number", Response.MESSAGE_ILLEGAL)
        if (level or 0) <= 0:
            self.timers.need_enabled(text)

    def _need_broker_writable(self) -> None:
        if not self._config.broker_permission & PERM_WRITE:
            raise Refused(
                f"the broker[{self._config.broker_ip1}] sending message is forbidden", Response.NO_PERMISSION
            )

    def _store_host_flag(self) -> int:
        return STORE_HOST_V6 if len(self._context.store_host) == 20 else 0


def _with_room(text: str) -> str:
    """``text`` with room for what a retry and its delay add: what a send accepted can always be sent back.

    The longest of the program's own properties go first, and are lost; the body stays."""
    properties = decode_properties(text)
    try:
        over = len(text.encode()) + RETRY_ROOM_BYTES - PROPERTIES_BYTES_MAX
    except UnicodeEncodeError:
        raise Refused("the message's properties are not UTF-8", Response.MESSAGE_ILLEGAL) from None
    dropped: list[str] = []
    for name in sorted(properties, key=lambda name: len(properties[name]), reverse=True):
        if over <= 0:
            break
        if name not in _KEPT_ON_RETRY:
            over -= len(f"{name}{properties.pop(name)}".encode()) + 2
            dropped.append(name[:64])
    if dropped:
        log.warning("a message that is sent back has no room for its properties: %s left out", dropped)
    return encode_properties(properties) if dropped else text


def need_for_clients(topic: str) -> None:
    """Raises Refused for a topic that no client writes to, whatever request it asks with."""
    if topic in NOT_FOR_CLIENT_SENDS or topic.startswith((LMQ_PREFIX, REVIVE_TOPIC_PREFIX)):
        # A light queue is a list of other topics' messages: a record of its own would not be in it.
        # What stands in the revive topic brings back messages: the broker alone may say so.
        raise Refused(f"Sending message to topic[{topic}] is forbidden.", Response.NO_PERMISSION)


def _need_place(message: NewMessage) -> None:
    """A message that is kept elsewhere first must be able to go on: one that cannot holds all behind it."""
    if not is_queue_name(message.topic, message.queue_id):
        raise Refused(f"no queue can be named {message.topic!r}", Response.MESSAGE_ILLEGAL)
