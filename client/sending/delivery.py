"""How does one send reach the master of its queue, and what is known when it may not have?

It tries, and on failure asks the NameServers at once and again, with short jittered waits, until a master is
back or its time is over. An attempt ends as stored, not stored or unknown; the next one depends on that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import tenacity

from client.message import Attempt, NoMaster, NoRoute, Queue, SendFailed, SendResult, SendUnknown
from client.refusals import is_acl_1
from client.routes import Route
from client.sending.composing import Sending
from client.sending.latency import Latencies
from client.sending.outcome import check, is_per_broker, may_retry
from client.sending.targets import Targets
from client.session import Session
from model.codes import Response
from model.errors import MqError, PeerError, Refused, Unknown
from model.message import java_hash
from model.topic import AUTO_CREATE_TOPIC
from remoting.codec import FLAG_ONEWAY
from runtime.backoff import backoff_s
from runtime.env import Env

log = logging.getLogger(__name__)

T = TypeVar("T")

WAIT_MIN_S: Final = 0.01
WAIT_MAX_S: Final = 0.05
FRESH_MS: Final = 20.0
"""A route told this lately is not asked for again."""
SLOW_MS: Final = 500.0
"""An answer this late makes the producer ask the NameServers whether the master is still the same."""
OnSent = Callable[[SendResult, str, int], None]
"""Told of each stored message: its result, properties and the bytes of its body."""


class Delivery:
    """The sends of one producer on their way. ``attempt_timeout_s``: for one answer. ``latencies``: brokers
    that answered slowly are avoided."""

    def __init__(
        self,
        env: Env,
        session: Session,
        targets: Targets,
        attempt_timeout_s: float,
        on_sent: OnSent | None,
        latencies: Latencies | None = None,
    ) -> None:
        self._env = env
        self._remoting = session.remoting
        self._routes = session.routes
        self._targets = targets
        self._attempt_timeout_s = attempt_timeout_s
        self._on_sent = on_sent
        self._latencies = latencies
        self._turn = env.random.randrange(1 << 16)
        self._in_flight: dict[int, tuple[str, Queue, float]] = {}
        self._attempt_number = 0
        self._out: dict[asyncio.Timeout, None] = {}
        self._out_until_s: float | None = None
        self._ended = asyncio.Event()

    async def deliver(self, sending: Sending) -> SendResult:
        """Raises SendFailed, SendUnknown."""
        return await self._until_broken_off(sending, self._deliver)

    async def oneway(self, sending: Sending) -> None:
        """Write it to a master's link. Raises SendFailed."""
        await self._until_broken_off(sending, self._oneway)

    def end_within(self, timeout_s: float) -> None:
        """What is on its way after that time, or sets out later, is broken off: it ends as SendUnknown, or as
        SendFailed when no attempt of it can have stored it."""
        self._out_until_s = asyncio.get_running_loop().time() + timeout_s
        for out in self._out:
            if not out.expired():
                out.reschedule(self._out_until_s)

    async def drained(self) -> None:
        """Return when nothing is on its way any more."""
        while self._out:
            self._ended.clear()
            await self._ended.wait()

    async def _until_broken_off(self, sending: Sending, go: Callable[[Sending], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout_at(self._out_until_s) as out:
                self._out[out] = None
                try:
                    return await go(sending)
                finally:
                    del self._out[out]
                    self._ended.set()
        except TimeoutError:  # those of ``go`` are its own: it raises SendFailed and SendUnknown
            raise self.gave_up(sending, MqError("the producer was stopped")) from None

    async def _deliver(self, sending: Sending) -> SendResult:
        try:
            return await self._attempt(sending)
        except (OSError, MqError) as error:
            if not self._again(sending, error):
                raise self.gave_up(sending, error) from error
        # Nearly every send ends above; the machinery of retries is paid for only by those that do not.
        retrying = tenacity.AsyncRetrying(
            sleep=lambda wait_s: self._routes.changed(sending.topic, wait_s),
            retry=tenacity.retry_if_exception(lambda error: self._again(sending, error)),
            stop=lambda _: self.left_s(sending) <= 0,
            wait=lambda _: min(self.wait_s(sending), self.left_s(sending)),
            reraise=True,
        )
        try:
            return await retrying(self._attempt, sending)
        except (OSError, MqError) as error:
            raise self.gave_up(sending, error) from error

    async def _oneway(self, sending: Sending) -> None:
        while True:
            try:
                target, address = await self.aim(sending)
                await self._remoting.oneway(address, sending.command(target, FLAG_ONEWAY))
                return
            except (OSError, MqError) as error:
                wait_s = self.wait_s(sending)
                again = may_retry(error, unknown_retries_left=0)
                if not again or self.left_s(sending) <= wait_s:
                    raise self.gave_up(sending, error) from error
            await asyncio.sleep(wait_s)

    def _again(self, sending: Sending, error: BaseException) -> bool:
        sending.reason = str(error) or type(error).__name__
        if is_per_broker(error) and self._all_refused(sending, error):
            return False
        unknown = sum(1 for attempt in sending.attempts if attempt.outcome == "unknown")
        return may_retry(error, unknown_retries_left=sending.unknown_retries + 1 - unknown)

    def _all_refused(self, sending: Sending, error: BaseException) -> bool:
        """Whether there is no other broker to try, by a route asked for since: their refusal is for good."""
        by_acl = isinstance(error, Refused) and is_acl_1(error.code, error.remark)
        if sending.tries < 2 and not by_acl:
            return False  # it may be no master any more; who is refused by the ACL is so by every role
        route = self._targets.known(sending.topic)
        if sending.queue is not None or sending.sharding_key is not None or route is None:
            return True
        return {route.master(queue.broker_name) for queue in route.writable} <= sending.refused_by

    def wait_s(self, sending: Sending) -> float:
        """Before its next attempt."""
        # The first retry asks the NameServers at once; the waits then grow to 50 ms, or end with a new route.
        if sending.tries <= 1:
            return 0.0
        return backoff_s(sending.tries - 1, WAIT_MIN_S, WAIT_MAX_S, self._env.random)

    def left_s(self, sending: Sending) -> float:
        """Until its time is over."""
        return (sending.deadline_ms - self._env.monotonic_ms()) / 1000

    def gave_up(self, sending: Sending, error: BaseException) -> MqError:
        """How it ended: SendUnknown when an attempt may have stored it, else SendFailed."""
        attempts = tuple(sending.attempts)
        text = f"{error or type(error).__name__} (after {sending.tries} attempts)"
        if attempts and attempts[-1].detail not in text:
            text = f"{text}; the last attempt ended with: {attempts[-1].detail}"
        if any(attempt.outcome == "unknown" for attempt in attempts):
            return SendUnknown(text, attempts)
        code = Response.TOPIC_NOT_EXIST if isinstance(error, NoRoute) else Response.SERVICE_NOT_AVAILABLE
        return SendFailed(text, error.code if isinstance(error, Refused) else code, attempts)

    async def aim(self, sending: Sending) -> tuple[Queue, str]:
        """Where the next attempt goes. After a failure the NameServers are asked first."""
        sending.tries += 1
        # A hundred sends that wait for one new master ask for it together, and go when one of them was told.
        if sending.tries > 1 and self._routes.age_ms(sending.topic) > FRESH_MS:
            made_up = self._targets.forget_made_up(sending.topic)
            try:
                async with asyncio.timeout(max(self.left_s(sending), 0.001)):
                    await self._routes.refresh(AUTO_CREATE_TOPIC if made_up else sending.topic)
            except (NoRoute, TimeoutError) as error:
                # The route known so far may still be good: a NameServer that restarted knows none at first.
                log.debug("route of %s: %s", sending.topic, error)
            if self.left_s(sending) <= 0:
                raise NoMaster(f"no master of topic {sending.topic} took it in time: {sending.reason}")
        route = await self._targets.route(sending.topic)
        queue = self._pick(route, sending)
        address = route.master(queue.broker_name)
        if address is None:
            raise NoMaster(f"group {queue.broker_name} has no master")
        if self._routes.silent(address):
            raise NoMaster(f"master {address} of group {queue.broker_name} is silent")
        return queue, address

    def _pick(self, route: Route, sending: Sending) -> Queue:
        if sending.queue is not None:
            return sending.queue
        if not route.writable:
            raise NoMaster(f"topic {sending.topic} has no writable queue")
        if sending.sharding_key is not None:
            # The queue must not depend on which masters are up, or one key's messages would lie in two
            # queues.
            return route.writable[shard(sending.sharding_key, len(route.writable))]
        self._turn += 1
        count = len(route.writable)
        fallback = slow = None
        for step in range(count):
            queue = route.writable[(self._turn + step) % count]
            address = route.master(queue.broker_name)
            if address is None:
                continue
            if self._routes.is_suspect(address):
                fallback = fallback or queue
            elif self._latencies is not None and self._latencies.is_slow(address):
                slow = slow or queue
            else:
                return queue
        fallback = slow or fallback
        if fallback is None:
            raise NoMaster(f"no group of topic {sending.topic} has a master")
        return fallback

    async def _attempt(self, sending: Sending) -> SendResult:
        target, address = await self.aim(sending)
        timeout_s = min(self._attempt_timeout_s, max(self.left_s(sending), 0.001))
        started_ms = self._env.monotonic_ms()
        self._attempt_number += 1
        number = self._attempt_number
        self._in_flight[number] = (address, target, started_ms)
        answered = False
        try:
            response = await self._remoting.call(address, sending.command(target), timeout_s)
            answered = True
            took_ms = self._env.monotonic_ms() - started_ms
            self._routes.trust(address)
            attempts = (*sending.attempts, Attempt(address, "ok", "", took_ms))
            result = check(response, target, sending.msg_id, attempts)
            if self._on_sent is not None:
                self._on_sent(result, sending.ext["i"], len(sending.body))
            return result
        except asyncio.CancelledError:
            took_ms = self._env.monotonic_ms() - started_ms
            sending.attempts.append(Attempt(address, "unknown", "it was broken off", took_ms))
            raise
        except (OSError, MqError) as error:
            unknown = isinstance(error, Unknown | PeerError)
            took_ms = self._env.monotonic_ms() - started_ms
            text = str(error) or type(error).__name__
            sending.attempts.append(Attempt(address, "unknown" if unknown else "failed", text, took_ms))
            if is_per_broker(error):
                sending.refused_by.add(address)
            if isinstance(error, Refused) and error.code == Response.GO_AWAY:
                # The sends that went out with this one are still answered: to hang up now would make them
                # unknown.
                self._remoting.retire(address, self._attempt_timeout_s)
            if may_retry(error, unknown_retries_left=1):
                silent = unknown and not answered and took_ms >= SLOW_MS
                self._routes.suspect(address, silent=silent)
            if isinstance(error, PeerError):
                raise Unknown(text) from error
            raise
        finally:
            del self._in_flight[number]
            if self._latencies is not None:
                self._latencies.note(address, self._env.monotonic_ms() - started_ms)

    async def watch(self) -> None:
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
                self._remoting.drop(address)


def shard(key: str, count: int) -> int:
    """The number of ``key``'s queue, as RocketMQ's ``SelectMessageQueueByHash`` has it: of a negative hash
    Java's remainder is negative, and counts without its sign."""
    return abs(java_hash(key)) % count
