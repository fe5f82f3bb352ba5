"""Where is a topic now, and who is master of each group?

Routes are kept per topic and asked for again each ``poll_ms``. A failed send or a closed link to a master
asks all NameServers at once and takes the first answer that names a master not known to have failed. A dead
NameServer costs nothing: the others are asked beside it, not after it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from client.message import NameServersSilent, NoRoute, Queue, RouteRefused
from client.refusals import is_by_rights
from model.codes import Request, Response
from model.errors import MqError, PeerError
from model.topic import PERM_READ, PERM_WRITE
from remoting import bodies
from remoting.codec import Command
from runtime.env import Env
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

HEDGE_S: Final = 0.1
"""A calm question goes to one NameServer; the next one is asked as well when no answer came for this long."""
OTHERS_S: Final = 0.5
"""When one NameServer has answered, though without a master, the others are waited for so long."""
SUSPECT_MS: Final = 1000.0
"""How long one failure keeps an address suspect, unless it answers."""
REPAIR_S: Final = 10.0
"""How long a closed link keeps asking for the new master by itself; later the poll finds it."""
REPAIR_WAIT_MIN_S: Final = 0.02
REPAIR_WAIT_GROWTH: Final = 1.25
REPAIR_WAIT_MAX_S: Final = 0.2


class Caller(Protocol):
    """What routes need of ``remoting.service.RemotingClient``."""

    async def call(self, address: str, command: Command, timeout_s: float = 3.0) -> Command: ...


@dataclass(frozen=True, slots=True)
class Route:
    """One topic's queues, and the addresses of its groups by broker id (0 = master)."""

    topic: str
    brokers: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    clusters: Mapping[str, str] = field(default_factory=dict)
    writable: tuple[Queue, ...] = ()
    readable: tuple[Queue, ...] = ()

    def master(self, broker_name: str) -> str | None:
        return self.brokers.get(broker_name, {}).get(0)

    def masters(self) -> list[str]:
        return [ids[0] for ids in self.brokers.values() if 0 in ids]

    def addresses(self) -> list[str]:
        return [address for ids in self.brokers.values() for address in ids.values()]

    @classmethod
    def parse(cls, topic: str, body: bytes) -> Route:
        """Read a TopicRouteData body, strict JSON or fastjson's dialect. Raises PeerError."""
        try:
            data = bodies.loads(body, bodies.BELIEVED)
            brokers, clusters = {}, {}
            for broker in sorted(data.get("brokerDatas") or [], key=lambda b: str(b["brokerName"])):
                addresses = broker.get("brokerAddrs") or {}
                ids = sorted((int(i), str(address)) for i, address in addresses.items())
                brokers[str(broker["brokerName"])] = dict(ids)
                clusters[str(broker["brokerName"])] = str(broker.get("cluster", ""))
            datas: list[dict[str, Any]] = sorted(
                data.get("queueDatas") or [], key=lambda q: str(q["brokerName"])
            )
            return cls(
                topic,
                brokers,
                clusters,
                cls._queues(topic, datas, PERM_WRITE, "writeQueueNums"),
                cls._queues(topic, datas, PERM_READ, "readQueueNums"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PeerError(f"route of {topic}: not a TopicRouteData: {error!r}") from None

    @staticmethod
    def _queues(topic: str, datas: list[dict[str, Any]], perm: int, count: str) -> tuple[Queue, ...]:
        return tuple(
            Queue(topic, str(data["brokerName"]), queue_id)
            for data in datas
            if int(data.get("perm", 6)) & perm
            for queue_id in range(int(data.get(count, 0)))
        )


class Silence:
    """NameServers that do not answer. ``on_silent`` hears of each once, until it answers again."""

    def __init__(self) -> None:
        self.on_silent: list[Callable[[str], None]] = []
        self._silent: set[str] = set()

    def note(self, address: str, answer: Route | MqError) -> None:
        if not isinstance(answer, NameServersSilent):
            self._silent.discard(address)
        elif address not in self._silent:
            self._silent.add(address)
            for hook in self.on_silent:
                hook(str(answer))


_parsed: Final = functools.lru_cache(maxsize=64)(Route.parse)
"""Most answers say what the one before said."""


class Routes:
    """The routes one client uses. ``start`` begins to poll; ``stop`` ends every task."""

    def __init__(
        self,
        env: Env,
        caller: Caller,
        nameservers: Sequence[str],
        *,
        poll_ms: int = 5_000,
        timeout_s: float = 3.0,
    ) -> None:
        if not nameservers:
            raise ValueError("no NameServer address given")
        self._env = env
        self._caller = caller
        self.nameservers = list(nameservers)
        self._poll_ms = poll_ms
        self._timeout_s = timeout_s
        self._tasks = Tasks("routes")
        self._routes: dict[str, Route] = {}
        self._asking: dict[str, asyncio.Task[Route | MqError]] = {}
        self._suspects: dict[str, tuple[float, bool]] = {}  # address -> until when (monotonic ms), silent
        self._repairing: dict[str, asyncio.Task[None]] = {}
        self._preferred = 0
        self._changed: dict[str, asyncio.Event] = {}
        self._told_ms: dict[str, float] = {}
        self.on_change: list[Callable[[Route | None, Route], None]] = []
        self.silence = Silence()

    def start(self) -> None:
        self._tasks.spawn(self._poll(), name="poll")

    async def stop(self) -> None:
        self.silence.on_silent.clear()  # what is still asked is not answered because we hang up
        await self._tasks.cancel()

    @property
    def topics(self) -> list[str]:
        return list(self._routes)

    def all(self) -> list[Route]:
        return list(self._routes.values())

    def cached(self, topic: str) -> Route | None:
        return self._routes.get(topic)

    def forget(self, topic: str) -> None:
        self._routes.pop(topic, None)
        self._told_ms.pop(topic, None)

    def age_ms(self, topic: str) -> float:
        """How long ago a NameServer told the known route; infinite when none did."""
        return self._env.monotonic_ms() - self._told_ms.get(topic, float("-inf"))

    async def get(self, topic: str) -> Route:
        """The known route, or ask for it. Raises NoRoute, RouteRefused, NameServersSilent, PeerError."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> Route:
        """Ask now; callers that come while the question is out share its answer. Raises as ``get``."""
        task = self._asking.get(topic)
        if task is None:
            task = self._tasks.spawn(self._ask(topic), name=f"ask.{topic}")
            self._asking[topic] = task
            task.add_done_callback(lambda _: self._asking.pop(topic, None))
        # Shielded: one caller that gives up must not take the answer from the others.
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller and caller.cancelling()):
                raise NameServersSilent("the client was stopped while asking") from None
            raise
        if isinstance(answer, MqError):
            raise answer
        return answer

    def suspect(self, address: str, *, silent: bool = False) -> None:
        """An attempt at ``address`` failed: while it is suspect, answers naming another master are preferred.

        ``silent``: it takes requests and does not answer, so a new one would hang as well.
        """
        self._suspects[address] = (self._env.monotonic_ms() + SUSPECT_MS, silent)
        self._seek_successor(address)

    async def changed(self, topic: str, timeout_s: float) -> None:
        """Wait until the route of ``topic`` is another one, ``timeout_s`` at most: who waits for a new master
        goes on the moment it is known."""
        event = self._changed.setdefault(topic, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return

    def trust(self, address: str) -> None:
        """``address`` answered."""
        self._suspects.pop(address, None)

    def is_suspect(self, address: str) -> bool:
        return self._suspicion(address) is not None

    def silent(self, address: str) -> bool:
        """``address`` lately left requests without an answer."""
        return bool(self._suspicion(address))

    def _suspicion(self, address: str) -> bool | None:
        found = self._suspects.get(address)
        if found is None:
            return None
        if found[0] < self._env.monotonic_ms():
            del self._suspects[address]
            return None
        return found[1]

    def link_closed(self, address: str) -> None:
        """The link to ``address`` ended. If a route names it master, look for its successor at once."""
        if any(address in route.masters() for route in self.all()):
            self.suspect(address)

    def _seek_successor(self, address: str) -> None:
        if address in self._repairing or not any(address in route.masters() for route in self.all()):
            return
        task = self._tasks.spawn(self._repair(address), name=f"repair.{address}")
        self._repairing[address] = task
        task.add_done_callback(lambda _: self._repairing.pop(address, None))

    async def _repair(self, address: str) -> None:
        give_up_ms = self._env.monotonic_ms() + REPAIR_S * 1000
        wait_s = REPAIR_WAIT_MIN_S
        while self._env.monotonic_ms() < give_up_ms:
            stale = [route.topic for route in self.all() if self._waits_for_master(route, address)]
            if not stale:
                return
            for topic in stale:
                try:
                    await self.refresh(topic)
                except MqError as error:
                    log.debug("route of %s: %s", topic, error)
            await asyncio.sleep(wait_s * self._env.random.uniform(0.5, 1.0))
            wait_s = min(wait_s * REPAIR_WAIT_GROWTH, REPAIR_WAIT_MAX_S)

    def _waits_for_master(self, route: Route, lost: str) -> bool:
        if not self.is_suspect(lost) and lost in route.masters():
            return False  # it answered meanwhile, or the suspicion ran out: it is the master after all
        return any(ids.get(0) in (None, lost) for ids in route.brokers.values())

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_ms / 1000 * self._env.random.uniform(0.9, 1.0))
            for topic in self.topics:
                try:
                    await self.refresh(topic)
                except MqError as error:
                    log.warning("route of %s not refreshed: %s", topic, error)

    async def _ask(self, topic: str) -> Route | MqError:
        """First answer in which every group has a master that is not suspect; else the best one there is."""
        answers: asyncio.Queue[tuple[int, Route | MqError]] = asyncio.Queue()
        count = len(self.nameservers)
        known = self._routes.get(topic)
        urgent = known is None or self._good_masters(known) < len(known.brokers)
        askers = [
            self._tasks.spawn(
                self._ask_one(
                    topic, (self._preferred + turn) % count, 0.0 if urgent else turn * HEDGE_S, answers
                ),
                name=f"ask.{topic}.{turn}",
            )
            for turn in range(count)
        ]
        try:
            best, errors = await self._first_good(answers)
        finally:
            for asker in askers:
                asker.cancel()
        if best is None:
            # One that refuses, or else one that says "no such topic", outweighs others that say nothing.
            refused = [error for error in errors if isinstance(error, RouteRefused)]
            missing = [error for error in errors if isinstance(error, NoRoute)]
            return (refused or missing or errors)[0]
        self._adopt(best)
        return best

    async def _first_good(
        self, answers: asyncio.Queue[tuple[int, Route | MqError]]
    ) -> tuple[Route | None, list[MqError]]:
        """The best route that was told, None without any, and what was said instead of one."""
        best: Route | None = None
        errors: list[MqError] = []
        until_s: float | None = None
        unheard = set(range(len(self.nameservers)))
        try:
            while unheard:
                async with asyncio.timeout_at(until_s):
                    index, answer = await answers.get()
                unheard.discard(index)
                if not isinstance(answer, NameServersSilent):
                    until_s = until_s or asyncio.get_running_loop().time() + OTHERS_S
                if isinstance(answer, MqError):
                    errors.append(answer)
                    continue
                self._preferred = index
                if best is None or self._good_masters(answer) > self._good_masters(best):
                    best = answer
                if self._good_masters(best) == len(best.brokers) > 0:
                    break
        except TimeoutError:
            # What has been said is what there is.
            for index in unheard:
                address = self.nameservers[index]
                text = f"NameServer {address} does not answer, the others are believed"
                self.silence.note(address, NameServersSilent(text))
        return best, errors

    async def _ask_one(
        self, topic: str, index: int, delay_s: float, answers: asyncio.Queue[tuple[int, Route | MqError]]
    ) -> None:
        await asyncio.sleep(delay_s)
        address = self.nameservers[index]
        command = Command(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"})
        answer: Route | MqError
        try:
            response = await self._caller.call(address, command, self._timeout_s)
            if response.code == Response.SUCCESS:
                answer = _parsed(topic, response.body)
            elif response.code == Response.TOPIC_NOT_EXIST:
                why = response.remark or "unknown topic"
                whole = why.startswith("no route for topic ")  # what our own NameServers say
                answer = NoRoute(why if whole else f"no route of topic {topic}: {why}")
            elif is_by_rights(response.code, response.remark):
                text = f"NameServer {address} refuses the route of topic {topic}: {response.remark}"
                answer = RouteRefused(text, response.code)
            else:
                answer = NameServersSilent(
                    f"NameServer {address} answered {response.code}: {response.remark}"
                )
        except (OSError, MqError) as error:
            answer = NameServersSilent(f"NameServer {address}: {error or type(error).__name__}")
        self.silence.note(address, answer)
        answers.put_nowait((index, answer))

    def _good_masters(self, route: Route) -> int:
        return sum(1 for ids in route.brokers.values() if 0 in ids and not self.is_suspect(ids[0]))

    def _adopt(self, route: Route) -> None:
        former = self._routes.get(route.topic)
        self._routes[route.topic] = route
        self._told_ms[route.topic] = self._env.monotonic_ms()
        if former != route:
            if (event := self._changed.pop(route.topic, None)) is not None:
                event.set()
            for hook in self.on_change:
                hook(former, route)
