"""What of a message travels, and what is known of one send across its attempts?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from client.checking import need_positive, need_topic
from client.ids import UniqueIds
from client.message import Attempt, Message, Queue, pack_batch, packed
from client.sending.options import SendOptions
from model.codes import Request
from model.message import MSG_TYPE, REPLY, RETRY_PREFIX, TRANSACTION_PREPARED, TRANSACTION_PREPARED_PROPERTY
from model.topic import AUTO_CREATE_TOPIC
from remoting.codec import Command
from remoting.headers import SendHeader
from runtime.env import Env

FLAGS: Final = 1 << 31


@dataclass(slots=True)
class Sending:
    """One send across its attempts."""

    code: int
    ext: dict[str, str]
    body: bytes
    topic: str
    msg_id: str
    queue: Queue | None
    sharding_key: str | None
    deadline_ms: float
    unknown_retries: int
    attempts: list[Attempt] = field(default_factory=list)
    tries: int = 0
    refused_by: set[str] = field(default_factory=set)
    """Brokers that take no messages of this topic, whoever is their master."""
    reason: str = ""
    """Why the last try failed, also one that found nowhere to go."""

    def command(self, target: Queue, flag: int = 0) -> Command:
        """The request of one attempt."""
        ext = {**self.ext, "e": str(target.queue_id), "n": target.broker_name}
        return Command(self.code, ext, self.body, flag=flag)


class Composer:
    """Makes sends of a group's messages. Raises ValueError for what no broker would take."""

    def __init__(self, env: Env, group: str, options: SendOptions) -> None:
        self._env = env
        self._group = group
        self._options = options
        self._ids = UniqueIds(env.random, options.client_ip)

    def single(
        self, message: Message, queue: Queue | None, sharding_key: str | None, timeout_s: float | None
    ) -> Sending:
        """One message. ``timeout_s``: with all its attempts, None = as the options say."""
        self._check(message)
        msg_id = message.properties.get("UNIQ_KEY") or self._ids.next(self._env.now_ms())
        body, sys_flag = message.body, 0
        if self._options.compress_over_bytes is not None and len(body) > self._options.compress_over_bytes:
            body, sys_flag = packed(body)
        if message.properties.get(TRANSACTION_PREPARED_PROPERTY) == "true":
            sys_flag |= TRANSACTION_PREPARED
        ext = self._header(message, message.wire_properties(msg_id), sys_flag, batch=False)
        is_reply = message.properties.get(MSG_TYPE) == REPLY
        code = Request.SEND_REPLY_MESSAGE_V2 if is_reply else Request.SEND_MESSAGE_V2
        return self._sending(code, ext, body, message.topic, msg_id, queue, sharding_key, timeout_s)

    def batch(
        self,
        messages: Sequence[Message],
        queue: Queue | None,
        timeout_s: float | None,
        sharding_key: str | None = None,
    ) -> Sending:
        """Several as one request: stored one after the other, or not at all."""
        if not messages:
            raise ValueError("a batch needs at least one message")
        topic = messages[0].topic
        parts, ids = [], []
        for message in messages:
            self._check(message)
            if message.topic != topic:
                raise ValueError(f"a batch has one topic, found {topic} and {message.topic}")
            if message.is_delayed or topic.startswith(RETRY_PREFIX):
                raise ValueError("a batch cannot hold delayed or retried messages")
            ids.append(message.properties.get("UNIQ_KEY") or self._ids.next(self._env.now_ms()))
            parts.append((message, message.wire_properties(ids[-1])))
        body = pack_batch(parts)
        if len(body) > self._options.message_bytes_max:
            raise ValueError(
                f"the batch is {len(body)} bytes, at most {self._options.message_bytes_max} are allowed"
            )
        whole = Message(topic=topic, body=b"")
        header = whole.wire_properties(self._ids.next(self._env.now_ms()))
        ext = self._header(whole, header, 0, batch=True)
        return self._sending(
            Request.SEND_BATCH_MESSAGE, ext, body, topic, ",".join(ids), queue, sharding_key, timeout_s
        )

    def _check(self, message: Message) -> None:
        need_topic(message.topic)
        if not isinstance(message.body, bytes | bytearray | memoryview):
            raise ValueError(f"the body is {type(message.body).__name__}, not bytes")
        if not isinstance(message.flag, int) or not -FLAGS <= message.flag < FLAGS:
            raise ValueError(f"flag is a whole number of 32 bits, not {message.flag!r}")
        if not message.body:
            raise ValueError("a message needs a body of at least one byte")
        size, most = len(message.body), self._options.message_bytes_max
        if size > most:
            raise ValueError(f"the body is {size} bytes, at most {most} are allowed")

    def _header(self, message: Message, properties: str, sys_flag: int, *, batch: bool) -> dict[str, str]:
        header = SendHeader(
            self._group,
            message.topic,
            queue_id=-1,  # set by each attempt
            born_timestamp_ms=self._env.now_ms(),
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queues=self._options.default_topic_queues,
            sys_flag=sys_flag,
            flag=message.flag,
            properties=properties,
            batch=batch,
        )
        return header.to_ext()

    def _sending(
        self,
        code: int,
        ext: dict[str, str],
        body: bytes,
        topic: str,
        msg_id: str,
        queue: Queue | None,
        sharding_key: str | None,
        timeout_s: float | None,
    ) -> Sending:
        if queue is not None and queue.topic != topic:
            raise ValueError(f"queue {queue} is not of topic {topic}")
        if queue is not None and queue.queue_id < 0:
            raise ValueError(f"queue {queue}: a queue's number is at least 0")
        if timeout_s is not None:
            need_positive(timeout_s=timeout_s)
        deadline_ms = (
            self._env.monotonic_ms() + (self._options.timeout_s if timeout_s is None else timeout_s) * 1000
        )
        return Sending(
            code, ext, body, topic, msg_id, queue, sharding_key, deadline_ms, self._options.unknown_retries
        )
