"""A consumer that pops: it takes messages of any queue, and acknowledges each by itself.

Nothing is assigned to a member, so nothing moves when one comes, goes or hangs: what it had in flight comes
to another one when its time is over. A message is acknowledged when the listener took it, so a crash repeats
messages and never loses one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from client.checking import need_async, need_consumer
from client.consuming.operated import Member
from client.consuming.pop.acks import Acks
from client.consuming.pop.batches import Batches
from client.consuming.pop.calls import PopCalls, Popped
from client.consuming.pop.handling import Handler
from client.consuming.pop.in_flight import InFlight
from client.consuming.pop.options import PopOptions
from client.consuming.refused import Refusals
from client.consuming.subscriptions import FROM_FIRST, FROM_LAST, consumer_data, tags_of
from client.consuming.tracing import Tracing
from client.lifecycle import Lifecycle
from client.routes import Route
from client.session import Session
from client.trace import Listener
from model.errors import MqError
from runtime.env import Env
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

LOOK_S: Final = 20.0
INCOMPLETE_S: Final = 1.0
"""A topic without a route is looked at again after this time."""
AGAIN_S: Final = 0.3
"""After a pop that failed, unless the route changes before."""
EMPTY_S: Final = 0.05
"""A broker that does not hold pops answers at once that nothing is there: do not spin."""


class Source(NamedTuple):
    """What is popped from by one task: a topic at one group of brokers."""

    topic: str
    broker_name: str


class PopConsumer(Lifecycle):
    """A member of a consumer group. Use as ``async with``, or ``start`` and ``stop``.

    ``subscriptions``: topic -> ``*``, tags as ``A||B``, or ``Sql(...)``. A listener that returns False, or
    raises, gets the messages again later. Raises ValueError for what cannot work.
    """

    def __init__(
        self,
        env: Env,
        group: str,
        namesrv: str | Sequence[str],
        listener: Listener,
        *,
        subscriptions: Mapping[str, str],
        options: PopOptions | None = None,
    ) -> None:
        need_consumer(env, group, subscriptions)
        need_async("a pop consumer's listener", listener)
        self.group = group
        self._options = options = options or PopOptions()
        self._subscriptions = dict(subscriptions)
        self._sub_version = env.now_ms()
        self.session = Session(env, namesrv, poll_ms=options.poll_ms, credentials=options.credentials)
        listener = options.spans.listening(group, listener)
        self._tracing: Tracing | None = None
        if options.trace:
            nameservers = self.session.routes.nameservers
            self._tracing = Tracing.of(env, group, nameservers, options.poll_ms, options.credentials)
            listener = self._tracing.tracer.listening(listener)
        Member(env, group, listener, self._heartbeat, self._sub_version, options.concurrency).answer(
            self.session
        )
        self._calls = PopCalls(env, self.session, group)
        self._batches = Batches(Handler(env, self._calls, listener, options), options.batch_max)
        self._env = env
        self._tasks = Tasks(f"pop {group}")
        self._sources: dict[Source, asyncio.Task[None]] = {}
        self._acks: dict[Source, Acks] = {}
        self._in_flight: InFlight[Source] = InFlight(options.held_max, options.held_bytes_max)
        self._wake = asyncio.Event()
        self._refusals = Refusals(log, group, env)

    @property
    def held(self) -> int:
        """Messages in flight: popped, and neither acknowledged nor returned yet."""
        return self._in_flight.number

    async def start(self) -> None:
        if self._tracing is not None:
            await self._tracing.start()
        self.session.add_consumer(self.group, self._heartbeat)
        self.session.routes.on_change.append(self._route_changed)
        await self.session.start()
        self._tasks.spawn(self._look_forever(), name="look")

    async def stop(self) -> None:
        """Ask for no more, let the calls under way end within ``grace_s``, and return what is left, or comes
        yet, to the group at once."""
        if self._route_changed not in self.session.routes.on_change:
            return  # it was not started
        if not await self._batches.finish(self._options.grace_s):
            return
        await self._tasks.cancel()
        await self._batches.give_back()
        self.session.routes.on_change.remove(self._route_changed)
        await self.session.remove_consumer(self.group)
        await self.session.stop()
        if self._tracing is not None:
            await self._tracing.stop()

    # --- where messages come from

    async def _look_forever(self) -> None:
        while not self._batches.stopping:
            self._wake.clear()
            found, wait_s = await self._look()
            for source in [source for source in self._sources if source not in found]:
                self._in_flight.close(source)
                self._sources.pop(source).cancel()
            fresh = [source for source in found if source not in self._sources]
            for source in fresh:  # all of them, before one asks for a share
                self._in_flight.open(source)
            for source in fresh:
                self._begin(source)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _look(self) -> tuple[dict[Source, None], float]:
        """What there is to pop from, and in how many seconds to look again."""
        found: dict[Source, None] = {}
        wait_s = LOOK_S
        for topic in self._subscriptions:
            what = f"route of {topic}"
            try:
                route = await self.session.routes.get(topic)
            except MqError as error:
                wait_s = min(wait_s, self._refusals.on_error(what, error, INCOMPLETE_S, needed=True))
                continue
            self._refusals.on_good(what)
            await self.session.be_known(route.masters())  # a group nobody told of is refused
            found.update(dict.fromkeys(Source(topic, queue.broker_name) for queue in route.readable))
        return found, wait_s

    def _begin(self, source: Source) -> None:
        acks = self._acks.get(source)
        if acks is None:  # they go on when the source is gone: messages of it may be in flight
            acks = self._acks[source] = Acks(self._env, self._calls)
            self._tasks.spawn(acks.run(), name=f"ack.{source.topic}")
        self._sources[source] = self._tasks.spawn(self._pop_forever(source, acks), name=f"pop.{source.topic}")

    async def _pop_forever(self, source: Source, acks: Acks) -> None:
        what = f"pop of {source.topic} at {source.broker_name}"
        while not self._batches.stopping:
            room = self._in_flight.room(source)
            if room < 1:
                await self._batches.freed()
                continue
            holding = self._in_flight.on_asked(source, room)
            found: list[Popped] = []
            empty_s = EMPTY_S
            try:
                found = await self._pop(source, room)
                self._refusals.on_good(what)
            except (OSError, MqError) as error:
                empty_s = 0.0
                again_s = self._refusals.on_error(what, error, AGAIN_S, level=logging.DEBUG, needed=True)
                await self.session.routes.changed(source.topic, again_s)
            finally:
                holding.on_answer([one.message.size_bytes for one in found])
                self._batches.on_room()
            if found:
                self._batches.take(found, tags_of(self._subscriptions[source.topic]), acks, holding)
            else:
                await asyncio.sleep(empty_s)

    async def _pop(self, source: Source, count: int) -> list[Popped]:
        options = self._options
        return await self._calls.pop(
            *source,
            count,
            invisible_ms=int(options.invisible_s * 1000),
            poll_ms=int(options.poll_s * 1000),
            expression=self._subscriptions[source.topic],
            from_first=options.from_first,
        )

    # --- what others tell

    def _route_changed(self, former: Route | None, route: Route) -> None:
        if route.topic in self._subscriptions:
            self._wake.set()

    def _heartbeat(self) -> dict[str, Any]:
        begin = FROM_FIRST if self._options.from_first else FROM_LAST
        return consumer_data(self.group, self._subscriptions, self._sub_version, begin=begin)
