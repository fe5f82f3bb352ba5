"""How does a message reach the master of its queue, and what is known when it may not have?

A send tries, and on failure asks the NameServers at once and again, with short jittered waits, until a master
is back or its time is over. It ends in one of three ways: a ``SendResult`` (the master holds the message),
``SendFailed`` (definitely not stored) or ``SendUnknown`` (perhaps stored). Each lists its attempts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tenacity

from client.ids import UniqueIds
from client.message import (
    Attempt,
    Message,
    NoMaster,
    NoRoute,
    Queue,
    Received,
    SendFailed,
    SendResult,
    SendUnknown,
    pack_batch,
    packed,
)
from client.recall import Recalling
from client.request_reply import Reply, Requests, reply_to, ttl_s
from client.routes import Route, Routes
from client.sending import PER_BROKER_CODES, check, may_retry
from client.session import POLL_MS, Session
from client.trace import Tracer
from model.codes import Request, Response
from model.errors import MqError, PeerError, Refused, Unknown
from model.message import DLQ_PREFIX, MSG_TYPE, REPLY, RETRY_PREFIX, java_hash
from model.topic import AUTO_CREATE_TOPIC, topic_name_error
from remoting.codec import FLAG_ONEWAY, Command
from remoting.headers import SendHeader
from remoting.keys import Signer
from runtime.backoff import backoff_s
from runtime.env import Env
from runtime.tasks import Tasks, every

log = logging.getLogger(__name__)

WAIT_MIN_S: Final = 0.01
WAIT_MAX_S: Final = 0.05
FRESH_MS: Final = 20.0
"""A route told this lately is not asked for again."""
SLOW_MS: Final = 500.0
"""An answer this late makes the producer ask the NameServers whether the master is still the same."""
WATCH_S: Final = 0.2
DRAIN_S: Final = 3.0
REQUEST_S: Final = 3.0
REPLY_WAIT_MIN_S: Final = 0.1
REPLY_WAIT_MAX_S: Final = 0.5
"""Between two tries of a reply."""


@dataclass(slots=True)
class _Sending:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """``timeout_s``: a send with all its retries; ``attempt_timeout_s``: one answer. ``unknown_retries``: how
    often an attempt whose outcome is unknown is repeated, which may store the message twice (0 = never).
    ``in_flight_max`` sends of ``send_async``, ``requests_max`` requests without a reply yet.
    ``compress_over_bytes``: zlib for longer bodies, None = never. ``poll_ms``: routes are asked for so often.
    ``trace``: tell of each message sent in ``RMQ_SYS_TRACE_TOPIC``. ``credentials``: every request is signed,
    as a cluster with ACL wants it.
    """

    timeout_s: float = 10.0
    attempt_timeout_s: float = 3.0
    unknown_retries: int = 2
    default_topic_queues: int = 4
    compress_over_bytes: int | None = None
    message_bytes_max: int = 4_194_304
    in_flight_max: int = 10_000
    requests_max: int = 10_000
    poll_ms: int = POLL_MS
    client_ip: str = "127.0.0.1"
    trace: bool = False
    credentials: Signer | None = None


class Producer(Recalling):
    """Sends to the topics of one cluster. Use as ``async with``, or ``start`` and ``stop``.

    ``namesrv``: ``host:port;...`` or a list.
    """

    def __init__(
        self,
        env: Env,
        group: str,
        namesrv: str | Sequence[str] = (),
        options: SendOptions | None = None,
    ) -> None:
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
        self._ids = UniqueIds(env.random, options.client_ip)
        self._tasks = Tasks(f"producer {group}")
        self._turn = env.random.randrange(1 << 16)
        self._provisional: dict[str, Route] = {}
        self._probing: set[str] = set()
        self._in_flight: dict[int, tuple[str, Queue, float]] = {}
        self._attempt_number = 0
        self._futures: dict[asyncio.Future[SendResult], None] = {}
        self._tracer = Tracer(env, group, self.send) if options.trace else None
        self._requests = Requests(env, self.session, options.requests_max)
        self._running = False

    @property
    def _routes(self) -> Routes:
        return self.session.routes

    async def start(self) -> None:
        self._running = True
        self.session.add_producer(self.group)
        await self.session.start()
        self._tasks.spawn(every(WATCH_S, self._watch, what="watching slow sends"), name="watch")
        self._requests.start()
        if self._tracer is not None:
            self._tracer.start()

    async def stop(self) -> None:
        """Wait up to 3 s for sends begun by ``send_async`` and for replies; those still out end as
        SendUnknown and NoReply."""
        if not self._running:
            return
        self._running = False
        out: list[asyncio.Future[Any]] = [*self._futures, *self._requests.waiting]
        if out:
            await asyncio.wait(out, timeout=DRAIN_S)
        await self._requests.stop()
        if self._tracer is not None:
            await self._tracer.stop()
        await self._tasks.cancel()
        await self.session.remove_producer(self.group)
        await self.session.stop()

    async def queues(self, topic: str) -> list[Queue]:
        """The writable queues of ``topic``, in the order ``sharding_key`` counts them."""
        return list((await self._route(topic)).writable)

    async def send(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send to ``queue``, to the queue ``sharding_key`` falls on, or to the next one in turn.

        Raises SendFailed (not stored), SendUnknown (perhaps stored), ValueError (cannot be encoded).
        """
        return await self._deliver(self._single(message, queue, sharding_key, timeout_s))

    async def send_batch(
        self, messages: Sequence[Message], *, queue: Queue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Store all messages, or none, one after the other in one queue. They share a topic, none is delayed.

        Raises as ``send``.
        """
        return await self._deliver(self._batch(messages, queue, timeout_s))

    def send_async(
        self, message: Message, *, queue: Queue | None = None, timeout_s: float | None = None
    ) -> asyncio.Future[SendResult]:
        """Begin a send; the future ends as ``send`` does. Raises SendFailed when too many are out already."""
        if len(self._futures) >= self._options.in_flight_max:
            raise SendFailed(f"{self._options.in_flight_max} sends are in flight", Response.SYSTEM_BUSY, ())
        sending = self._single(message, queue, None, timeout_s)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        future.add_done_callback(lambda done: self._futures.pop(done, None))
        self._tasks.spawn(self._fulfil(sending, future), name="send")
        return future

    async def send_oneway(self, message: Message, *, queue: Queue | None = None) -> None:
        """Write the message to the master's link and expect no answer: whether it was stored stays unknown.

        Raises SendFailed when no master could be reached in time.
        """
        sending = self._single(message, queue, None, None)
        while True:
            try:
                target, address = await self._aim(sending)
                await self.session.remoting.oneway(address, self._command(sending, target, FLAG_ONEWAY))
                return
            except (OSError, MqError) as error:
                wait_s = self._wait_s(sending)
                if not may_retry(error, unknown_retries_left=0) or self._left_s(sending) <= wait_s:
                    raise self._gave_up(sending, error) from error
            await asyncio.sleep(wait_s)

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
        until_ms = self._env.monotonic_ms() + timeout_s * 1000
        self._single(message, queue, sharding_key, timeout_s)  # a mistake of the caller shows at once
        try:
            async with asyncio.timeout(timeout_s):
                route = await self._route(message.topic)
        except (TimeoutError, MqError) as error:
            text = f"no route of {message.topic}: {error or f'none within {timeout_s} s'}"
            raise SendFailed(text, Response.TOPIC_NOT_EXIST, ()) from error

        async def send(asking: Message) -> SendResult:
            left_s = max(0.0, (until_ms - self._env.monotonic_ms()) / 1000)
            return await self.send(asking, queue=queue, sharding_key=sharding_key, timeout_s=left_s)

        clusters = list(dict.fromkeys(route.clusters.values()))
        left_s = max(0.001, (until_ms - self._env.monotonic_ms()) / 1000)
        return await self._requests.ask(message, clusters, send, left_s)

    async def reply(self, request: Received, body: bytes, *, timeout_s: float | None = None) -> SendResult:
        """Send ``body`` to the client whose ``request`` a consumer of ours got, until that client has it.

        Tries as long as that client waits, ``timeout_s`` at most: while a new master takes over, it does not
        know that client yet. Raises SendUnknown (that client may not have it), SendFailed (it has it not),
        ValueError (it asks for no reply).
        """
        message = reply_to(request, body)
        left_s = ttl_s(request, self._options.timeout_s if timeout_s is None else timeout_s)
        until_ms = self._env.monotonic_ms() + left_s * 1000
        # The client that asked is known where it sent its request; not every client beats elsewhere.
        near = Queue(message.topic, request.queue.broker_name, 0)
        for tries in itertools.count(1):
            left_s = max(0.001, (until_ms - self._env.monotonic_ms()) / 1000)
            sending = self._single(message, near, None, left_s)
            sending.unknown_retries = 0  # each try is stored: not as fast as a send repeats
            try:
                return await self._deliver(sending)
            except SendUnknown:
                wait_s = backoff_s(tries, REPLY_WAIT_MIN_S, REPLY_WAIT_MAX_S, self._env.random)
                if self._left_s(sending) <= wait_s:
                    raise
            await asyncio.sleep(wait_s)
        raise AssertionError("count ends never")

    # --- what travels

    def _single(
        self, message: Message, queue: Queue | None, sharding_key: str | None, timeout_s: float | None
    ) -> _Sending:
        self._check(message)
        msg_id = message.properties.get("UNIQ_KEY") or self._ids.next(self._env.now_ms())
        body, sys_flag = message.body, 0
        if self._options.compress_over_bytes is not None and len(body) > self._options.compress_over_bytes:
            body, sys_flag = packed(body)
        ext = self._header(message, message.wire_properties(msg_id), sys_flag, batch=False)
        is_reply = message.properties.get(MSG_TYPE) == REPLY
        code = Request.SEND_REPLY_MESSAGE_V2 if is_reply else Request.SEND_MESSAGE_V2
        return self._sending(code, ext, body, message.topic, msg_id, queue, sharding_key, timeout_s)

    def _batch(self, messages: Sequence[Message], queue: Queue | None, timeout_s: float | None) -> _Sending:
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
            Request.SEND_BATCH_MESSAGE, ext, body, topic, ",".join(ids), queue, None, timeout_s
        )

    def _check(self, message: Message) -> None:
        problem = topic_name_error(message.topic)
        if problem is not None and not message.topic.startswith(RETRY_PREFIX):
            raise ValueError(problem)  # a broker would refuse it, or the NameServers never know it
        if not message.body:
            raise ValueError("a message needs a body of at least one byte")
        size, most = len(message.body), self._options.message_bytes_max
        if size > most:
            raise ValueError(f"the body is {size} bytes, at most {most} are allowed")

    def _header(self, message: Message, properties: str, sys_flag: int, *, batch: bool) -> dict[str, str]:
        header = SendHeader(
            self.group,
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
    ) -> _Sending:
        if queue is not None and queue.topic != topic:
            raise ValueError(f"queue {queue} is not of topic {topic}")
        deadline_ms = (
            self._env.monotonic_ms() + (self._options.timeout_s if timeout_s is None else timeout_s) * 1000
        )
        return _Sending(
            code, ext, body, topic, msg_id, queue, sharding_key, deadline_ms, self._options.unknown_retries
        )

    @staticmethod
    def _command(sending: _Sending, target: Queue, flag: int = 0) -> Command:
        ext = {**sending.ext, "e": str(target.queue_id), "n": target.broker_name}
        return Command(sending.code, ext, sending.body, flag=flag)

    # --- attempts

    async def _fulfil(self, sending: _Sending, future: asyncio.Future[SendResult]) -> None:
        try:
            result = await self._deliver(sending)
        except MqError as error:
            if not future.done():
                future.set_exception(error)
        except BaseException as error:
            # Stopped, or a mistake of our own: whoever waits for the future must not wait for ever.
            if not future.done():
                text = f"the send was broken off ({type(error).__name__})"
                future.set_exception(SendUnknown(text, tuple(sending.attempts)))
            raise
        else:
            if not future.done():
                future.set_result(result)

    async def _deliver(self, sending: _Sending) -> SendResult:
        try:
            return await self._attempt(sending)
        except (OSError, MqError) as error:
            if not self._again(sending, error):
                raise self._gave_up(sending, error) from error
        # Nearly every send ends above; the machinery of retries is paid for only by those that do not.
        retrying = tenacity.AsyncRetrying(
            sleep=lambda wait_s: self._routes.changed(sending.topic, wait_s),
            retry=tenacity.retry_if_exception(lambda error: self._again(sending, error)),
            stop=lambda _: self._left_s(sending) <= 0,
            wait=lambda _: min(self._wait_s(sending), self._left_s(sending)),
            reraise=True,
        )
        try:
            return await retrying(self._attempt, sending)
        except (OSError, MqError) as error:
            raise self._gave_up(sending, error) from error

    def _again(self, sending: _Sending, error: BaseException) -> bool:
        if isinstance(error, Refused) and error.code in PER_BROKER_CODES and self._all_refused(sending):
            return False
        unknown = sum(1 for attempt in sending.attempts if attempt.outcome == "unknown")
        return may_retry(error, unknown_retries_left=sending.unknown_retries + 1 - unknown)

    def _all_refused(self, sending: _Sending) -> bool:
        """Whether there is no other broker to try, by a route asked for since: their refusal is for good."""
        if sending.tries < 2:
            return False
        route = self._routes.cached(sending.topic) or self._provisional.get(sending.topic)
        if sending.queue is not None or sending.sharding_key is not None or route is None:
            return True
        return {route.master(queue.broker_name) for queue in route.writable} <= sending.refused_by

    def _wait_s(self, sending: _Sending) -> float:
        # The first retry asks the NameServers at once; the waits then grow to 50 ms, or end with a new route.
        if sending.tries <= 1:
            return 0.0
        return backoff_s(sending.tries - 1, WAIT_MIN_S, WAIT_MAX_S, self._env.random)

    def _left_s(self, sending: _Sending) -> float:
        return (sending.deadline_ms - self._env.monotonic_ms()) / 1000

    def _gave_up(self, sending: _Sending, error: BaseException) -> MqError:
        attempts = tuple(sending.attempts)
        text = f"{error or type(error).__name__} (after {sending.tries} attempts)"
        if attempts and attempts[-1].detail not in text:
            text = f"{text}; the last attempt ended with: {attempts[-1].detail}"
        if any(attempt.outcome == "unknown" for attempt in attempts):
            return SendUnknown(text, attempts)
        code = Response.TOPIC_NOT_EXIST if isinstance(error, NoRoute) else Response.SERVICE_NOT_AVAILABLE
        return SendFailed(text, error.code if isinstance(error, Refused) else code, attempts)

    async def _aim(self, sending: _Sending) -> tuple[Queue, str]:
        """Where the next attempt goes. After a failure the NameServers are asked first."""
        sending.tries += 1
        # A hundred sends that wait for one new master ask for it together, and go when one of them was told.
        if sending.tries > 1 and self._routes.age_ms(sending.topic) > FRESH_MS:
            made_up = self._provisional.pop(sending.topic, None) is not None
            try:
                async with asyncio.timeout(max(self._left_s(sending), 0.001)):
                    await self._routes.refresh(AUTO_CREATE_TOPIC if made_up else sending.topic)
            except (NoRoute, TimeoutError) as error:
                # The route known so far may still be good: a NameServer that restarted knows none at first.
                log.debug("route of %s: %s", sending.topic, error)
            if self._left_s(sending) <= 0:
                raise NoMaster(f"no master of topic {sending.topic} was found in time")
        route = await self._route(sending.topic)
        queue = self._pick(route, sending)
        address = route.master(queue.broker_name)
        if address is None:
            raise NoMaster(f"group {queue.broker_name} has no master")
        if self._routes.silent(address):
            raise NoMaster(f"master {address} of group {queue.broker_name} is silent")
        return queue, address

    def _pick(self, route: Route, sending: _Sending) -> Queue:
        if sending.queue is not None:
            return sending.queue
        if not route.writable:
            raise NoMaster(f"topic {sending.topic} has no writable queue")
        if sending.sharding_key is not None:
            # The queue must not depend on which masters are up, or one key's messages would lie in two
            # queues.
            return route.writable[java_hash(sending.sharding_key) % len(route.writable)]
        self._turn += 1
        count = len(route.writable)
        fallback = None
        for step in range(count):
            queue = route.writable[(self._turn + step) % count]
            address = route.master(queue.broker_name)
            if address is None:
                continue
            if not self._routes.is_suspect(address):
                return queue
            fallback = fallback or queue
        if fallback is None:
            raise NoMaster(f"no group of topic {sending.topic} has a master")
        return fallback

    async def _attempt(self, sending: _Sending) -> SendResult:
        target, address = await self._aim(sending)
        timeout_s = min(self._options.attempt_timeout_s, max(self._left_s(sending), 0.001))
        started_ms = self._env.monotonic_ms()
        self._attempt_number += 1
        number = self._attempt_number
        self._in_flight[number] = (address, target, started_ms)
        answered = False
        try:
            response = await self.session.remoting.call(address, self._command(sending, target), timeout_s)
            answered = True
            took_ms = self._env.monotonic_ms() - started_ms
            self._routes.trust(address)
            attempts = (*sending.attempts, Attempt(address, "ok", "", took_ms))
            result = check(response, target, sending.msg_id, attempts)
            if self._tracer is not None:
                self._tracer.on_sent(result, sending.ext["i"], len(sending.body))
            return result
        except (OSError, MqError) as error:
            unknown = isinstance(error, Unknown | PeerError)
            took_ms = self._env.monotonic_ms() - started_ms
            text = str(error) or type(error).__name__
            sending.attempts.append(Attempt(address, "unknown" if unknown else "failed", text, took_ms))
            if isinstance(error, Refused) and error.code in PER_BROKER_CODES:
                sending.refused_by.add(address)
            if isinstance(error, Refused) and error.code == Response.GO_AWAY:
                # The sends that went out with this one are still answered: to hang up now would make them
                # unknown.
                self.session.remoting.retire(address, self._options.attempt_timeout_s)
            if may_retry(error, unknown_retries_left=1):
                silent = unknown and not answered and took_ms >= SLOW_MS
                self._routes.suspect(address, silent=silent)
            if isinstance(error, PeerError):
                raise Unknown(text) from error
            raise
        finally:
            del self._in_flight[number]

    # --- routes

    async def _route(self, topic: str) -> Route:
        cached = self._routes.cached(topic)
        if cached is not None:
            return cached
        provisional = self._provisional.get(topic)
        if provisional is not None:
            self._probe(topic)
            return provisional
        try:
            return await self._routes.get(topic)
        except NoRoute:
            # The broker makes an unknown topic on its first message, as its default topic says.
            try:
                default = await self._routes.get(AUTO_CREATE_TOPIC)
            except NoRoute:
                default = Route(topic)
            if not default.writable:
                raise
            queues = tuple(
                Queue(topic, queue.broker_name, queue.queue_id)
                for queue in default.writable
                if queue.queue_id < self._queues_of_new(topic)
            )
            self._provisional[topic] = Route(topic, default.brokers, default.clusters, queues, queues)
            return self._provisional[topic]

    def _queues_of_new(self, topic: str) -> int:
        """How many queues a broker makes for a topic it does not know."""
        own = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        return 1 if own else self._options.default_topic_queues

    def _probe(self, topic: str) -> None:
        if topic not in self._probing:
            self._probing.add(topic)
            self._tasks.spawn(self._learn(topic), name=f"learn.{topic}")

    async def _learn(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic)
            self._provisional.pop(topic, None)
        except MqError as error:
            log.debug("topic %s is not at the NameServers yet: %s", topic, error)
            await asyncio.sleep(0.05)
        finally:
            self._probing.discard(topic)

    async def _watch(self) -> None:
        """A master that went silent: learn of its successor while the answers are awaited, not after."""
        now_ms = self._env.monotonic_ms()
        slow: dict[str, Queue] = {}
        for address, queue, started_ms in self._in_flight.values():
            if now_ms - started_ms < SLOW_MS:
                break  # in order of start
            slow.setdefault(address, queue)
        for address, queue in slow.items():
            self._routes.suspect(address, silent=True)
            try:
                route = await self._routes.refresh(queue.topic)
            except MqError as error:
                log.debug("route of %s: %s", queue.topic, error)
                continue
            if route.master(queue.broker_name) not in (None, address):
                # Ends the waiting calls as unknown; whoever may retry goes to the new master now.
                self.session.remoting.drop(address)
