"""How do sends of many callers travel as few requests? Those for one place wait a moment for each other.

The rule is that of RocketMQ's ``ProduceAccumulator``: one batch for a topic, queue and sharding key, closed
when it is old or large enough. Each caller gets a result of its own message.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from client.message import BATCH_HEAD, Message, Queue, SendResult, SendUnknown
from client.sending.composing import Composer, Sending
from client.sending.options import Gather, SendOptions
from model.errors import MqError
from model.message import RETRY_PREFIX, TRANSACTION_PREPARED_PROPERTY, UNIQ_KEY
from runtime.tasks import Tasks

Where = tuple[str, Queue | None, str | None]
Deliver = Callable[[Sending], Awaitable[SendResult]]


@dataclass(slots=True)
class Bundle:
    """Messages that will go together; ``full``: now."""

    where: Where
    messages: list[Message] = field(default_factory=list)
    futures: list[asyncio.Future[SendResult]] = field(default_factory=list)
    size_bytes: int = 0
    full: asyncio.Event = field(default_factory=asyncio.Event)


class Gatherer:
    """The open bundles of one producer."""

    def __init__(self, options: SendOptions, gather: Gather, compose: Composer, deliver: Deliver) -> None:
        self._wait_s = gather.wait_ms / 1000
        self._bytes_max = min(gather.bytes_max, options.message_bytes_max)  # no request may be larger
        self._alone_over_bytes = min(gather.bytes_max, options.compress_over_bytes or gather.bytes_max)
        self._compose = compose
        self._deliver = deliver
        self._open: dict[Where, Bundle] = {}
        self._tasks = Tasks("gathered sends")

    def takes(self, message: Message) -> bool:
        """Whether it may wait for others: a batch holds none that is delayed, prepared, or compressed, and
        parts ids by commas."""
        return (
            len(message.body) <= self._alone_over_bytes
            and not message.is_delayed
            and not message.topic.startswith(RETRY_PREFIX)
            and TRANSACTION_PREPARED_PROPERTY not in message.properties
            and "," not in message.properties.get(UNIQ_KEY, "")
        )

    async def send(self, message: Message, queue: Queue | None, sharding_key: str | None) -> SendResult:
        """Raises as ``Producer.send``; a mistake of the message is its caller's alone."""
        alone = self._compose.single(message, queue, sharding_key, None)
        size_bytes = BATCH_HEAD.size + len(message.body) + len(alone.ext["i"].encode())
        where = (message.topic, queue, sharding_key)
        bundle = self._open.get(where)
        if bundle is not None and bundle.size_bytes + size_bytes > self._bytes_max:
            self._close(bundle)
            bundle = None
        if bundle is None:
            bundle = self._open[where] = Bundle(where)
            self._tasks.spawn(self._carry(bundle), name="bundle")
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        bundle.messages.append(message)
        bundle.futures.append(future)
        bundle.size_bytes += size_bytes
        return await future

    async def stop(self, drain_s: float) -> None:
        """Send what waits, and wait ``drain_s`` for the answers; those still out end as SendUnknown."""
        for bundle in list(self._open.values()):
            self._close(bundle)
        try:
            async with asyncio.timeout(drain_s):
                await self._tasks.join()
        except TimeoutError:
            await self._tasks.cancel()

    def _close(self, bundle: Bundle) -> None:
        if self._open.get(bundle.where) is bundle:
            del self._open[bundle.where]
        bundle.full.set()

    async def _carry(self, bundle: Bundle) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await bundle.full.wait()
        except TimeoutError:
            self._close(bundle)
        try:
            results = list(zip(bundle.futures, await self._sent(bundle), strict=True))
        except MqError as error:
            self._fail(bundle, error)
        except BaseException as error:
            # Stopped, or a mistake of our own: no caller may wait for ever.
            self._fail(bundle, SendUnknown(f"the send was broken off ({type(error).__name__})", ()))
            raise
        else:
            for future, result in results:
                if not future.done():
                    future.set_result(result)

    async def _sent(self, bundle: Bundle) -> list[SendResult]:
        _, queue, sharding_key = bundle.where
        if len(bundle.messages) == 1:
            sending = self._compose.single(bundle.messages[0], queue, sharding_key, None)
            return [await self._deliver(sending)]
        sending = self._compose.batch(bundle.messages, queue, None, sharding_key)
        return parts(await self._deliver(sending))

    @staticmethod
    def _fail(bundle: Bundle, error: MqError) -> None:
        for future in bundle.futures:
            if not future.done():
                future.set_exception(error)


def parts(batch: SendResult) -> list[SendResult]:
    """The result of each message of ``batch``, in its order."""
    ids = batch.msg_id.split(",")
    offset_ids = batch.offset_msg_id.split(",")
    offset_ids += [""] * (len(ids) - len(offset_ids))  # an old broker may name the first one only
    return [
        dataclasses.replace(batch, queue_offset=batch.queue_offset + at, msg_id=one, offset_msg_id=offset_id)
        for at, (one, offset_id) in enumerate(zip(ids, offset_ids, strict=False))
    ]
