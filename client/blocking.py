"""The same clients for programs without asyncio: each method waits for its result.

``with BlockingProducer("payers", namesrv) as producer: producer.send(...)``. An event loop on a thread of its
own does the work. A listener is a plain function; it is called on threads of its own, ``concurrency`` at
once. Every method may be called from any thread, and from a listener.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from client.checking import need_group, need_plain, need_subscriptions
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pop.consumer import PopConsumer
from client.consuming.pop.options import PopOptions
from client.lifecycle import Lifecycle
from client.message import Message, Queue, Received, SendResult
from client.sending.options import SendOptions
from client.sending.producer import REQUEST_S, Producer
from client.sending.request_reply import Reply
from client.sending.transactions import Decision, Transaction
from runtime.env import Env
from runtime.loop_thread import Future, LoopThread
from runtime.os_env import OsEnv

C = TypeVar("C", bound=Lifecycle)

PlainListener = Callable[[list[Received]], bool | None]
"""Handles messages. False or an exception = not handled: they come again later."""
PlainWork = Callable[[SendResult], Decision]
"""Done once the message of a transaction is prepared."""
PlainCheck = Callable[[Received], Decision]
"""What became of the work of a message prepared earlier, perhaps by another producer of the group."""

WORKERS: Final = 4
"""Threads of a producer, for the work of transactions and the checks of them."""


class Blocking(ABC, Generic[C]):
    """Started by ``with`` or by ``start``; ``stop`` ends it for good."""

    def __init__(self, group: str, env: Env | None, workers_max: int = 1) -> None:
        self._env = env or OsEnv()
        self._thread = LoopThread(f"keelmq {group}", workers_max)
        self._client: C | None = None

    @abstractmethod
    async def _make(self) -> C:
        """On the loop's thread."""

    def start(self) -> None:
        """Raises as the asyncio client's ``start``; then it is stopped."""

        async def begin() -> C:
            return await (await self._make()).__aenter__()

        try:
            self._client = self._thread.run(begin())
        except BaseException:
            self._thread.stop()
            raise

    def stop(self) -> None:
        """Return when the asyncio client has stopped. May be called again."""
        with self._thread.ending:  # one that is called meanwhile waits for the same end
            client, self._client = self._client, None
            try:
                if client is not None:
                    self._thread.run(client.stop())
            finally:
                self._thread.stop()

    @property
    def client(self) -> C:
        """The asyncio client, for the loop's thread only."""
        if self._client is None:
            raise RuntimeError("it is not started, or stopped")
        return self._client

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class BlockingProducer(Blocking[Producer]):
    """``Producer``, whose methods say what they raise. ``check``: a plain function."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        options: SendOptions | None = None,
        *,
        check: PlainCheck | None = None,
        env: Env | None = None,
    ) -> None:
        need_group(group)
        if check is not None:
            need_plain("check", check)
        super().__init__(group, env, WORKERS)
        self._with = (group, namesrv, options, self._thread.worker(check) if check is not None else None)

    async def _make(self) -> Producer:
        return Producer(self._env, *self._with)

    def send(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        return self._thread.run(
            self.client.send(message, queue=queue, sharding_key=sharding_key, timeout_s=timeout_s)
        )

    def send_async(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        timeout_s: float | None = None,
    ) -> Future[SendResult]:
        """Return when the send has begun. While too many are out already, this waits (``Producer.room``)."""
        producer = self.client

        async def begin() -> asyncio.Future[SendResult]:
            await producer.room(message)
            return producer.send_async(message, queue=queue, timeout_s=timeout_s)

        async def end(begun: asyncio.Future[SendResult]) -> SendResult:
            return await begun

        return self._thread.begin(end(self._thread.run(begin())))

    def send_oneway(self, message: Message, *, queue: Queue | None = None) -> None:
        self._thread.run(self.client.send_oneway(message, queue=queue))

    def send_in_transaction(
        self,
        message: Message,
        work: PlainWork,
        *,
        queue: Queue | None = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Transaction:
        """``work`` is called on a thread of the producer."""
        need_plain("work", work)
        return self._thread.run(
            self.client.send_in_transaction(
                message,
                self._thread.worker(work),
                queue=queue,
                sharding_key=sharding_key,
                timeout_s=timeout_s,
            )
        )

    def send_batch(
        self, messages: Sequence[Message], *, queue: Queue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        return self._thread.run(self.client.send_batch(messages, queue=queue, timeout_s=timeout_s))

    def request(self, message: Message, *, timeout_s: float = REQUEST_S) -> Reply:
        return self._thread.run(self.client.request(message, timeout_s=timeout_s))

    def reply(self, request: Received, body: bytes, *, timeout_s: float | None = None) -> SendResult:
        return self._thread.run(self.client.reply(request, body, timeout_s=timeout_s))

    def recall(self, topic: str, handle: str) -> str:
        return self._thread.run(self.client.recall(topic, handle))

    def queues(self, topic: str) -> list[Queue]:
        return self._thread.run(self.client.queues(topic))


class BlockingPushConsumer(Blocking[PushConsumer]):
    """``PushConsumer`` with a plain function as its listener."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        listener: PlainListener,
        *,
        subscriptions: Mapping[str, str],
        options: ConsumeOptions | None = None,
        env: Env | None = None,
        threads_max: int = 16,
    ) -> None:
        """``threads_max``: listeners called at once, whatever the number of queues."""
        need_group(group)
        need_subscriptions(subscriptions)
        need_plain("a listener", listener)
        super().__init__(group, env, threads_max)
        self._with = (group, namesrv, self._thread.worker(listener))
        self._wants = subscriptions
        self._options = options

    async def _make(self) -> PushConsumer:
        return PushConsumer(self._env, *self._with, subscriptions=self._wants, options=self._options)


class BlockingPopConsumer(Blocking[PopConsumer]):
    """``PopConsumer`` with a plain function as its listener."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        listener: PlainListener,
        *,
        subscriptions: Mapping[str, str],
        options: PopOptions | None = None,
        env: Env | None = None,
    ) -> None:
        need_group(group)
        need_subscriptions(subscriptions)
        need_plain("a listener", listener)
        self._options = options or PopOptions()
        super().__init__(group, env, self._options.concurrency)
        self._with = (group, namesrv, self._thread.worker(listener))
        self._wants = subscriptions

    async def _make(self) -> PopConsumer:
        return PopConsumer(self._env, *self._with, subscriptions=self._wants, options=self._options)
