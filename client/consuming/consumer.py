"""Who of a group consumes which queue, and how is every message handled at least once?

Each consumer computes the same split of the queues among the group's members (``allocate``), takes its share,
reads each queue by long polling and hands messages to the listener. A queue's offset moves past a message
only when the listener took it, or the broker took it back for a later retry. So a crash repeats messages, and
never skips one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from client.checking import need_async, need_consumer, need_counts, need_least, need_positive
from client.consuming.allocate import Allocate, average
from client.consuming.consume import GRACE_S, HELD_BYTES_MAX, HELD_MAX, SUSPEND_S, Limits, QueueWorker
from client.consuming.locks import LOCK_S, Locks
from client.consuming.operated import Member
from client.consuming.pull import PullConsumer, Pulled, PullStatus
from client.consuming.refused import Refusals
from client.consuming.subscriptions import FROM_FIRST, FROM_LAST, FROM_TIME, Sql, consumer_data, tags_of
from client.consuming.tracing import Tracing
from client.lifecycle import Lifecycle
from client.message import NoMaster, Queue, Received
from client.refusals import is_final
from client.routes import Route
from client.session import POLL_MS, Session
from client.spans import NO_SPANS, Spans
from model.codes import Request, Response
from model.errors import MqError, Refused
from model.message import retry_topic
from remoting import bodies
from remoting.codec import Command
from remoting.keys import Signer
from remoting.service import Connection
from runtime.env import Env
from runtime.tasks import Tasks, every

log = logging.getLogger(__name__)

REBALANCE_S: Final = 20.0
COMMIT_S: Final = 5.0
COMMIT_AGAIN_S: Final = 60.0
"""An offset is committed again so often, and to each new master: a failover may have lost it."""
INCOMPLETE_S: Final = 1.0
"""A topic without a route, or a queue not taken yet, is looked at again after this time."""
SOON_S: Final = 0.1
RETURNS_MAX: Final = 16
NO_END: Final = 2**31 - 1
ORDERLY_GRACE_S: Final = 20.0
"""RocketMQ's ``UNLOCK_DELAY_TIME_MILLS``."""
DEAD_LEVEL: Final = -1
"""The delay level of a message that goes to the dead letters at once."""

Listener = Callable[[list[Received]], Awaitable[bool | None]]
"""Handles messages of one queue. False or an exception = not handled: they come again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """``orderly``: a queue is consumed by one consumer at a time, in order, under the broker's lock; a
    message not handled is tried again here after ``suspend_s``, before the next one. Otherwise up to
    ``concurrency`` calls per queue run at once (1 keeps the order while nothing fails). ``from_first``: where
    a new group begins; ``from_time_ms``: at the first message stored then or later, in ms since 1970.
    ``retry_max``: after so many returns (in order: tries again) a message goes to the dead letters; -1 is 16,
    and in order without end, as in RocketMQ. ``held_max`` messages and ``held_bytes_max`` bytes (and one
    answer of 32 messages) are in hand per queue at most. ``grace_s``: when a queue goes to another member, or
    the consumer stops, calls under way may take so long yet; None is 3 s, and 20 s in order, where the next
    member has the queue once the call has ended. ``allocate``: how members share the queues, ``average`` or
    ``average_by_circle``, the same for all of them. ``trace``: tell of each message consumed
    in ``RMQ_SYS_TRACE_TOPIC``. ``spans``: of calls of the listener, as ``OpenTelemetry()`` tells them.
    ``credentials``: every request is signed, as a cluster with ACL wants it.
    """

    orderly: bool = False
    concurrency: int = 1
    batch_max: int = 1
    from_first: bool = False
    from_time_ms: int | None = None
    retry_max: int = -1
    suspend_s: float = SUSPEND_S
    held_max: int = HELD_MAX
    held_bytes_max: int = HELD_BYTES_MAX
    grace_s: float | None = None
    allocate: Allocate = average
    poll_ms: int = POLL_MS
    rebalance_s: float = REBALANCE_S
    commit_s: float = COMMIT_S
    trace: bool = False
    spans: Spans = NO_SPANS
    credentials: Signer | None = None

    def __post_init__(self) -> None:
        need_counts(self)
        need_least(-1, retry_max=self.retry_max)
        need_least(0, suspend_s=self.suspend_s)
        if self.grace_s is not None:
            need_least(0, grace_s=self.grace_s)
        if self.from_time_ms is not None:
            need_least(0, from_time_ms=self.from_time_ms)
            if self.from_first:
                raise ValueError("a group begins at one place: from_first or from_time_ms")
        need_positive(rebalance_s=self.rebalance_s, commit_s=self.commit_s)

    @property
    def limits(self) -> Limits:
        concurrency = 1 if self.orderly else self.concurrency
        held = (self.held_max, self.held_bytes_max)
        grace_s = self.grace_s
        if grace_s is None:
            grace_s = ORDERLY_GRACE_S if self.orderly else GRACE_S
        return Limits(concurrency, self.batch_max, self.returns_max, *held, self.suspend_s, grace_s)

    @property
    def begin(self) -> str:
        """Where a new group begins, in RocketMQ's words."""
        if self.from_time_ms is not None:
            return FROM_TIME
        return FROM_FIRST if self.from_first else FROM_LAST

    @property
    def returns_max(self) -> int:
        """``retry_max`` as a number, 0 or more."""
        if self.retry_max >= 0:
            return self.retry_max
        return NO_END if self.orderly else RETURNS_MAX


class PushConsumer(Lifecycle):
    """A member of a consumer group. Use as ``async with``, or ``start`` and ``stop``.

    ``subscriptions``: topic -> ``*``, tags as ``A||B``, or ``Sql(...)``. Raises ValueError for what cannot
    work.
    """

    def __init__(
        self,
        env: Env,
        group: str,
        namesrv: str | Sequence[str] = (),
        listener: Listener | None = None,
        *,
        subscriptions: Mapping[str, str],
        session: Session | None = None,
        options: ConsumeOptions | None = None,
    ) -> None:
        need_consumer(env, group, subscriptions)
        need_async("a push consumer's listener", listener)
        assert listener is not None
        self.group = group
        self._options = options = options or ConsumeOptions()
        self._listener = listener = options.spans.listening(group, listener)
        self._subscriptions = {**subscriptions, retry_topic(group): "*"}
        self._sub_version = env.now_ms()
        self.puller = PullConsumer(
            env, group, namesrv, session=session, poll_ms=options.poll_ms, credentials=options.credentials
        )
        self.session = self.puller.session
        self._routes = self.session.routes
        self._tasks = Tasks(f"consumer {group}")
        self._workers: dict[Queue, QueueWorker] = {}
        self._wake = asyncio.Event()
        self._refusals = Refusals(log, group, env)
        self._locks = Locks(env, self.puller, self._refusals)
        self._tracing: Tracing | None = None
        if options.trace:
            nameservers = self._routes.nameservers
            self._tracing = Tracing.of(env, group, nameservers, options.poll_ms, options.credentials)
            self._listener = self._tracing.tracer.listening(listener)
        self.session.handle(Request.NOTIFY_CONSUMER_IDS_CHANGED, self._ids_changed)
        Member(
            env,
            group,
            self._listener,
            self._heartbeat,
            self._sub_version,
            options.concurrency,
            options.orderly,
            self._handled,
            self._seek,
        ).answer(self.session)

    @property
    def queues(self) -> list[Queue]:
        """The queues this member consumes now."""
        return sorted(self._workers)

    async def start(self) -> None:
        self.session.add_consumer(self.group, self._heartbeat)
        self._routes.on_change.append(self._route_changed)
        await self.puller.start()
        if self._tracing is not None:
            await self._tracing.start()
        # Until here nothing waits: who breaks a start off finds all of it to stop.
        for topic in self._subscriptions:
            try:
                await self._routes.get(topic)
            except MqError as error:
                # A topic that comes later is found by the rebalance loop.
                self._refusals.on_error(f"rebalance of {topic}", error, 0.0)
        await self.session.beat()
        self._tasks.spawn(self._rebalance_forever(), name="rebalance")
        self._tasks.spawn(
            every(self._options.commit_s, self.commit, what=f"commit of {self.group}"), name="commit"
        )
        again = every(COMMIT_AGAIN_S, self._doubt_commits, what=f"commit of {self.group}")
        self._tasks.spawn(again, name="commit again")
        if self._options.orderly:
            self._tasks.spawn(every(LOCK_S, self._keep_locks, what=f"locks of {self.group}"), name="lock")

    async def stop(self) -> None:
        """Let the calls under way end within ``grace_s``, commit the offsets, give the queues back."""
        if self._route_changed not in self._routes.on_change:
            return  # it was not started
        self._routes.on_change.remove(self._route_changed)
        await self._tasks.cancel()
        await asyncio.gather(*map(self._give_up, list(self._workers)))
        await self.session.remove_consumer(self.group)
        await self.puller.stop()
        if self._tracing is not None:
            await self._tracing.stop()

    async def commit(self) -> None:
        """Tell the masters how far each queue was handled. A failure is logged; the next turn repairs it."""
        for queue, worker in list(self._workers.items()):
            if self._workers.get(queue) is worker:  # else another member may be further already
                await self._commit_one(queue, worker)

    # --- the split

    async def _rebalance_forever(self) -> None:
        while True:
            self._wake.clear()
            wait_s = self._options.rebalance_s
            for topic in self._subscriptions:
                what = f"rebalance of {topic}"
                try:
                    wait_s = min(wait_s, await self._rebalance(topic))
                    self._refusals.on_good(what)
                except (OSError, MqError) as error:
                    named = topic != retry_topic(self.group)
                    again_s = self._refusals.on_error(what, error, INCOMPLETE_S, needed=named)
                    wait_s = min(wait_s, again_s)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
                # Several members that come or go at once cause one rebalance, not one each.
                await asyncio.sleep(SOON_S)
            except TimeoutError:
                continue

    async def _rebalance(self, topic: str) -> float:
        """Take and give back queues of ``topic``. How soon, in seconds, it is to be looked at again."""
        route = self._routes.cached(topic) or await self._routes.refresh(topic)
        queues = sorted(route.readable)
        members = await self._members(route)
        mine = dict.fromkeys(self._options.allocate(queues, members, self.session.client_id))
        for queue, worker in self._workers.items():
            if queue.topic == topic and queue not in mine and not worker.stopped:
                self._tasks.spawn(self._give_up(queue), name="give up")
        return await self._take(mine)

    async def _take(self, mine: Iterable[Queue]) -> float:
        """Begin to consume those of ``mine`` that are not consumed yet, as far as the brokers let us."""
        fresh = [queue for queue in mine if queue not in self._workers]
        wait_s, again_s = self._options.rebalance_s, INCOMPLETE_S
        if self._options.orderly:
            again_s = await self._locks.ask(fresh, INCOMPLETE_S, anew=True) or INCOMPLETE_S
            fresh = [queue for queue in fresh if self._locks.holds(queue)]
        for queue in fresh:
            what = f"offset of {queue.topic} at {queue.broker_name}"
            try:
                offset = await self._start_offset(queue)
            except (OSError, MqError) as error:
                wait_s = min(wait_s, self._refusals.on_error(what, error, INCOMPLETE_S))
                if is_final(error):
                    break  # the other queues would be answered the same
                continue
            self._refusals.on_good(what)
            self._begin(queue, offset)
        else:
            if any(queue not in self._workers or self._workers[queue].stopped for queue in mine):
                wait_s = min(wait_s, again_s)
        return wait_s

    async def _members(self, route: Route) -> list[str]:
        error: Exception = NoMaster(f"topic {route.topic} has no broker that can be asked")
        # Masters first: the heartbeats of all members reach them.
        for address in dict.fromkeys(route.masters() + route.addresses()):
            try:
                response = await self.session.call(
                    address, Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group}
                )
                return sorted(
                    str(i) for i in bodies.believed_object(response.body).get("consumerIdList") or []
                )
            except (OSError, MqError) as failure:
                # The broker may have lost its memory of us: a heartbeat restores it before the next try.
                await self.session.beat(address)
                error = await self._no_group(address) or failure
        raise error

    async def _no_group(self, address: str) -> Refused | None:
        """What a broker says of a group that is not there, and that it makes not: it only counts no members
        of it."""
        try:
            await self.session.call(address, Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": self.group})
        except Refused as error:
            return error if error.code == Response.SUBSCRIPTION_GROUP_NOT_EXIST else None
        except (OSError, MqError):
            return None  # the failure before says it
        return None

    async def _start_offset(self, queue: Queue) -> int:
        committed = await self.puller.committed(queue, or_zero=self._options.from_time_ms is None)
        if committed is not None and committed >= 0:
            return committed
        if self._options.from_first or queue.topic == retry_topic(self.group):
            return await self.puller.min_offset(queue)
        if self._options.from_time_ms is not None:
            return await self.puller.offset_by_time(queue, self._options.from_time_ms)
        return await self.puller.max_offset(queue)

    def _begin(self, queue: Queue, offset: int) -> None:
        worker = QueueWorker(
            queue,
            offset,
            self._options.limits,
            orderly=self._options.orderly,
            pull=lambda at: self._pull(queue, at),
            listener=self._listener,
            give_back=lambda message: self._give_back(queue, message),
            allowed=lambda: not self._options.orderly or self._locks.holds(queue),
        )
        self._workers[queue] = worker
        worker.start()

    async def _give_up(self, queue: Queue) -> None:
        """It is ours until all of this is done: a stop in the middle does it again."""
        worker = self._workers[queue]
        await worker.stop()
        await self._commit_one(queue, worker)
        await self._locks.give_back(queue)
        del self._workers[queue]

    # --- what a worker needs

    async def _pull(self, queue: Queue, offset: int) -> Pulled:
        expression = self._subscriptions[queue.topic]
        what = f"pull of {queue.topic} at {queue.broker_name}"
        try:
            pulled = await self.puller.pull(
                queue, offset, expression=expression, sub_version=self._sub_version, suspend_ms=15_000
            )
        except (OSError, MqError) as error:
            # A broker without the SQL filter refuses no subscription, only what is asked by it.
            needed = isinstance(expression, Sql)
            again_s = self._refusals.on_error(what, error, 0.0, level=logging.DEBUG, needed=needed)
            await asyncio.sleep(again_s)
            raise
        self._refusals.on_good(what)
        wanted = tags_of(expression)
        if wanted and pulled.status is PullStatus.FOUND:
            # The broker compares hashes; two tags may share one.
            kept = [message for message in pulled.messages if message.tags in wanted]
            return Pulled(pulled.status, kept, pulled.next_offset, pulled.min_offset, pulled.max_offset)
        return pulled

    async def _give_back(self, queue: Queue, message: Received) -> None:
        """Let the broker store ``message`` for a later retry; in order, where retries are over, as a dead
        letter. Raises Refused, Unknown, OSError, NoMaster."""
        address = (await self._routes.get(queue.topic)).master(queue.broker_name)
        if address is None:
            raise NoMaster(f"group {queue.broker_name} has no master")
        await self.session.call(
            address,
            Request.CONSUMER_SEND_MSG_BACK,
            {
                "offset": str(message.physical_offset),
                "group": self.group,
                "delayLevel": str(DEAD_LEVEL if self._options.orderly else 0),
                "originMsgId": message.msg_id,
                "originTopic": message.topic,
                "unitMode": "false",
                "maxReconsumeTimes": str(self._options.returns_max),
                "bname": queue.broker_name,
            },
        )

    async def _keep_locks(self) -> None:
        # In a task of its own: a broker that is silent delays the next renewal of no other one.
        self._tasks.spawn(self._locks.keep(self._workers, INCOMPLETE_S), name="keep locks")

    def _doubt_commits(self) -> None:
        for worker in self._workers.values():
            worker.committed = -1

    async def _commit_one(self, queue: Queue, worker: QueueWorker) -> None:
        offset, before = worker.handled, worker.committed
        if offset == before:
            return
        what = f"commit of {queue.topic} at {queue.broker_name}"
        try:
            if not await self.puller.commit(queue, offset):
                # A worker that has its hands full does not pull, and would not hear of it.
                moved = await self.puller.committed(queue)
                if moved is not None and worker.handled == offset:
                    worker.seek(moved)
            elif worker.committed == before:  # else that is in doubt since
                worker.committed = offset
            self._refusals.on_good(what)
        except (OSError, MqError) as error:
            self._refusals.on_error(what, error, 0.0)

    # --- what others tell

    async def _ids_changed(self, _: Connection, command: Command) -> Command | None:
        if command.ext.get("consumerGroup") == self.group:
            self._wake.set()
        return None

    def _handled(self) -> dict[Queue, int]:
        return {queue: self._workers[queue].handled for queue in self.queues}

    async def _seek(self, offsets: Mapping[Queue, int]) -> None:
        """Read these queues from other offsets on; calls under way end first, and count no more."""
        for queue, offset in offsets.items():
            worker = self._workers.get(queue)
            if worker is not None and not worker.stopped:
                worker.seek(offset)
                # What was committed on the way may have come behind the reset.
                await self._commit_one(queue, worker)

    def _route_changed(self, former: Route | None, route: Route) -> None:
        if route.topic in self._subscriptions and (former is None or former.brokers != route.brokers):
            self._wake.set()
            for queue, worker in self._workers.items():
                known = former.master(queue.broker_name) if former is not None else None
                if queue.topic == route.topic and known != route.master(queue.broker_name):
                    worker.committed = -1
            if self._options.orderly:
                # A new master holds no locks: ask for them before consuming on.
                self._tasks.spawn(self._keep_locks(), name="relock")

    def _heartbeat(self) -> dict[str, Any]:
        return consumer_data(self.group, self._subscriptions, self._sub_version, begin=self._options.begin)


__all__ = ["Listener", "PullConsumer", "PushConsumer"]
