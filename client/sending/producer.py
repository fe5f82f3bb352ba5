"""A producer: sends that end as stored, not stored or unknown, and requests that wait for a reply.

A send ends in one of three ways: a ``SendResult`` (the master holds the message), ``SendFailed`` (definitely
not stored) or ``SendUnknown`` (perhaps stored). Each lists its attempts.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from client.checking import need_async, need_env, need_group
from client.message import Attempt, Message, Queue, Received, SendFailed, SendResult, SendUnknown
from client.sending.composing import Composer
from client.sending.delivery import Delivery
from client.sending.gathering import Gatherer
from client.sending.in_flight import InFlight
from client.sending.latency import Latencies
from client.sending.options import SendOptions
from client.sending.recall import Recalling
from client.sending.request_reply import Reply, Requests, reply_to, ttl_s
from client.sending.targets import Targets
from client.sending.transactions import Check, Transaction, Transactions, Work
from client.session import Session
from client.trace import Tracer
from model.codes import Response
from model.errors import MqError, Refused
from runtime.backoff import backoff_s
from runtime.env import Env
from runtime.tasks import Tasks, every

WATCH_S: Final = 0.2
DRAIN_S: Final = 3.0
REQUEST_S: Final = 3.0
REPLY_WAIT_MIN_S: Final = 0.1
REPLY_WAIT_MAX_S: Final = 0.5
"""Between two tries of a reply."""


class _State(enum.Enum):
    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"


class Producer(Recalling):
    """Sends to the topics of one cluster. Use as ``async with``, or ``start`` and ``stop``.

    ``namesrv``: ``host:port;...`` or a list. ``check``: brokers ask it what became of a transaction that a
    producer of this group began. Raises ValueError for a group that brokers do not take. Once it is stopped,
    a send is SendFailed at once.
    """

    def __init__(
        self,
        env: Env,
        group: str,
        namesrv: str | Sequence[str] = (),
        options: SendOptions | None = None,
        check: Check | None = None,
    ) -> None:
        need_env(env)
        need_group(group)
        if check is not None:
            need_async("check", check)
        self._options = options = options or SendOptions()
        self._env = env
        self.group = group
        self.session = Session(
            env,
            namesrv,
            poll_ms=options.poll_ms,
            client_ip=options.client_ip,
            credentials=options.credentials,
        )
        self._compose = Composer(env, group, options)
        self._tasks = Tasks(f"producer {group}")
        self._targets = Targets(self.session.routes, self._tasks, options.default_topic_queues)
        self._tracer = Tracer(env, group, self._send_alone) if options.trace else None
        on_sent = self._tracer.on_sent if self._tracer is not None else None
        latencies = Latencies(env) if options.avoid_slow else None
        self._delivery = Delivery(
            env, self.session, self._targets, options.attempt_timeout_s, on_sent, latencies
        )
        self._gatherer: Gatherer | None = None
        if options.gather is not None:
            self._gatherer = Gatherer(options, options.gather, self._compose, self._delivery.deliver)
        self._in_flight = InFlight(options.in_flight_max, options.in_flight_bytes_max)
        self._requests = Requests(env, self.session, options.requests_max)
        self._spans = options.spans
        self._transactions = Transactions(self.session, group, check)
        self._state = _State.NEW

    async def start(self) -> None:
        self._state = _State.RUNNING
        self.session.add_producer(self.group)
        await self.session.start()
        self._tasks.spawn(every(WATCH_S, self._delivery.watch, what="watching slow sends"), name="watch")
        self._requests.start()
        if self._tracer is not None:
            self._tracer.start()

    async def stop(self) -> None:
        """Wait up to 3 s for sends and for replies; those still out end as SendUnknown, as SendFailed where
        nothing can be stored, and as NoReply."""
        if self._state is not _State.RUNNING:
            return
        self._state = _State.STOPPED
        self._delivery.end_within(DRAIN_S)
        ends = [self._delivery.drained(), self._requests.stop(DRAIN_S)]
        if self._gatherer is not None:
            ends.append(self._gatherer.stop(DRAIN_S))
        await asyncio.gather(*ends)
        await self._transactions.stop()
        if self._tracer is not None:
            self._delivery.end_within(DRAIN_S)
            await self._tracer.stop()
        await self._tasks.cancel()
        await self.session.remove_producer(self.group)
        await self.session.stop()

    async def queues(self, topic: str) -> list[Queue]:
        """The writable queues of ``topic``, in the order ``sharding_key`` counts them."""
        return list((await self._targets.route(topic)).writable)

    async def send(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send to ``queue``, to the queue ``sharding_key`` falls on (the same as Java's
        ``SelectMessageQueueByHash`` says), or to the next one in turn.

        Raises SendFailed (not stored), SendUnknown (perhaps stored), ValueError (cannot be encoded).
        """
        self._need_open()
        return await self._send(message, queue, sharding_key, timeout_s)

    def _need_open(self) -> None:
        if self._state is _State.STOPPED:
            raise SendFailed(f"producer {self.group} is stopped", Response.SERVICE_NOT_AVAILABLE, ())

    async def _send(
        self, message: Message, queue: Queue | None, sharding_key: str | None, timeout_s: float | None
    ) -> SendResult:
        with self._spans.sending(self.group, [message]) as told:
            [message] = told.messages
            if self._gatherer is not None and timeout_s is None and self._gatherer.takes(message):
                return told.stored(await self._gatherer.send(message, queue, sharding_key))
            sending = self._compose.single(message, queue, sharding_key, timeout_s)
            return told.stored(await self._delivery.deliver(sending))

    async def _send_alone(self, message: Message) -> SendResult:
        return await self._delivery.deliver(self._compose.single(message, None, None, None))

    async def send_in_transaction(
        self,
        message: Message,
        work: Work,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Transaction:
        """Prepare ``message``, await ``work(SendResult)``, and commit or roll back as it decides.

        Consumers see the message once it is committed. Raises as ``send`` while nothing was prepared (of one
        that may have been, the broker asks ``check``), and what ``work`` raises: ``check`` decides then.
        """
        need_async("work", work)
        half = self._transactions.prepared(message)
        sent = await self.send(half, queue=queue, sharding_key=sharding_key, timeout_s=timeout_s)
        return await self._transactions.complete(sent, work)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: Queue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Store all messages, or none, one after the other in one queue. They share a topic, none is delayed.

        Raises as ``send``.
        """
        self._need_open()
        with self._spans.sending(self.group, messages) as told:
            sending = self._compose.batch(told.messages, queue, timeout_s)
            return told.stored(await self._delivery.deliver(sending))

    def send_async(
        self, message: Message, *, queue: Queue | None = None, timeout_s: float | None = None
    ) -> asyncio.Future[SendResult]:
        """Begin a send; the future ends as ``send`` does. Cancelled, it ends no send: that is out until its
        own end. Raises SendFailed when too many, or too many bytes, are out already (``room`` waits for
        that), and ValueError."""
        self._need_open()
        told = self._spans.sending(self.group, [message])
        [message] = told.messages
        try:
            sending = self._compose.single(message, queue, None, timeout_s)
            future = self._in_flight.add(len(message.body))
        except (ValueError, MqError) as error:
            told.end(error)
            raise
        future.add_done_callback(told.ended)
        gatherer = self._gatherer
        work = functools.partial(self._delivery.deliver, sending)
        if gatherer is not None and timeout_s is None and gatherer.takes(message):
            work = functools.partial(gatherer.send, message, queue, None)
        task = self._tasks.spawn(self._fulfil(work, sending.attempts, future), name="send")
        task.add_done_callback(lambda _: self._in_flight.end(future))  # also of one that never ran
        return future

    async def room(self, message: Message) -> None:
        """Return when ``send_async`` of ``message`` would not be refused for those that are out already."""
        await self._in_flight.room(len(message.body))

    async def send_oneway(self, message: Message, *, queue: Queue | None = None) -> None:
        """Write the message to the master's link and expect no answer: whether it was stored stays unknown.

        Raises SendFailed when no master could be reached in time.
        """
        self._need_open()
        with self._spans.sending(self.group, [message]) as told:
            await self._delivery.oneway(self._compose.single(told.messages[0], queue, None, None))

    async def request(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        timeout_s: float = REQUEST_S,
    ) -> Reply:
        """Send as ``send`` does and return what a consumer replies (``reply``, or that of another client).

        Raises SendFailed (not stored: nobody can reply), NoReply (none came within ``timeout_s``; the message
        is or may be stored, and a consumer may handle it yet), ValueError.
        """
        self._need_open()
        self._compose.single(message, queue, sharding_key, timeout_s)  # a mistake of the caller shows at once
        until_ms = self._env.monotonic_ms() + timeout_s * 1000
        try:
            async with asyncio.timeout(timeout_s):
                route = await self._targets.route(message.topic)
        except (TimeoutError, MqError) as error:
            text = f"no route of {message.topic}: {error or f'none within {timeout_s} s'}"
            code = error.code if isinstance(error, Refused) else Response.TOPIC_NOT_EXIST
            raise SendFailed(text, code, ()) from error
        self._need_open()

        async def send(asking: Message) -> SendResult:
            left_s = max(0.001, (until_ms - self._env.monotonic_ms()) / 1000)
            return await self._send(asking, queue, sharding_key, left_s)

        clusters = list(dict.fromkeys(route.clusters.values()))
        left_s = max(0.001, (until_ms - self._env.monotonic_ms()) / 1000)
        return await self._requests.ask(message, clusters, send, left_s)

    async def reply(self, request: Received, body: bytes, *, timeout_s: float | None = None) -> SendResult:
        """Send ``body`` to the client whose ``request`` a consumer of ours got, until that client has it.

        Tries as long as that client waits, ``timeout_s`` at most: while a new master takes over, it does not
        know that client yet. Raises SendUnknown (that client may not have it), SendFailed (it has it not),
        ValueError (it asks for no reply).
        """
        self._need_open()
        with self._spans.sending(self.group, [reply_to(request, body)]) as told:
            return told.stored(await self._reply(request, told.messages[0], timeout_s))

    async def _reply(self, request: Received, message: Message, timeout_s: float | None) -> SendResult:
        left_s = ttl_s(request, self._options.timeout_s if timeout_s is None else timeout_s)
        until_ms = self._env.monotonic_ms() + left_s * 1000
        # The client that asked is known where it sent its request; not every client beats elsewhere.
        near = Queue(message.topic, request.queue.broker_name, 0)
        for tries in itertools.count(1):
            left_s = max(0.001, (until_ms - self._env.monotonic_ms()) / 1000)
            sending = self._compose.single(message, near, None, left_s)
            sending.unknown_retries = 0  # each try is stored: not as fast as a send repeats
            try:
                return await self._delivery.deliver(sending)
            except SendUnknown:
                wait_s = backoff_s(tries, REPLY_WAIT_MIN_S, REPLY_WAIT_MAX_S, self._env.random)
                if self._delivery.left_s(sending) <= wait_s:
                    raise
                await asyncio.sleep(wait_s)
                if self._state is _State.STOPPED:
                    raise
        raise AssertionError("count ends never")

    async def _fulfil(
        self,
        work: Callable[[], Awaitable[SendResult]],
        attempts: list[Attempt],
        future: asyncio.Future[SendResult],
    ) -> None:
        try:
            try:
                result = await work()
            finally:
                self._in_flight.end(future)  # before whoever waits for it sends the next one
        except MqError as error:
            if not future.done():
                future.set_exception(error)
        except BaseException as error:
            # Stopped, or a mistake of our own: whoever waits for the future must not wait for ever.
            if not future.done():
                text = f"the send was broken off ({type(error).__name__})"
                future.set_exception(SendUnknown(text, tuple(attempts)))
            raise
        else:
            if not future.done():
                future.set_result(result)
