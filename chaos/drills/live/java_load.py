"""The load of a drill by the official Java client: its process, and what it tells into the history.

``chaos/worlds/JavaClients.java`` sends and reads, ``chaos/java_events.py`` translates. The process ends with
its drill: it reads a pipe that ends when the drill does, however that was.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from chaos.drills.load import DrillLoad, DrillPlan
from chaos.history import History
from chaos.java_events import JavaClock, JavaEvents, not_received, parsed
from chaos.live.ground import client_home
from chaos.workload import Clock, Load
from chaos.worlds import rocketmq
from chaos.worlds.live import CannotDrill, World
from client.message import Queue
from runtime.env import Env
from runtime.tasks import Tasks

JAVA: Final = "java"
SOURCE: Final = Path(rocketmq.__file__).with_name("JavaClients.java")
HEAP_MB: Final = 128
OPTIONS: Final = f"{rocketmq.PLAIN} -XX:MaxDirectMemorySize=64m -Drocketmq.client.rebalance.waitInterval=2000"
MEMBERS: Final = 2
SEND_TIMEOUT_MS: Final = 1500
"""A send to a frozen master is over before liveness asks for an answer; the client's default is 3 s."""
ASK_TIMEOUT_MS: Final = 2000
POLL_MS: Final = 1000
"""So often it asks for routes, as our client of a drill does; its default is 30 s."""
READY_S: Final = 60.0
PINGS: Final = 20
PING_S: Final = 1.0
ENDS_S: Final = 5.0
CAUGHT_UP_S: Final = 60.0
"""A pull to a master that was cut off is given up after 25 s, and its next may be held for 20."""
LINE_BYTES_MAX: Final = 1_000_000
LOG_SHOWN: Final = 1500


def check_available() -> None:
    """Raises CannotDrill where that client cannot run."""
    if (missing := rocketmq.unavailable()) is not None:
        raise CannotDrill(
            f"the official Java client cannot run here: {missing}; install that, or leave out --client {JAVA}"
        )


class JavaClient:
    """One process: from its start to its stop its events go into the history. ``note`` is told its pid."""

    def __init__(
        self,
        env: Env,
        directory: Path,
        options: Mapping[str, object],
        events: JavaEvents,
        history: History,
        clock: Clock,
        note: Callable[[int], None],
    ) -> None:
        self._env, self._directory, self._options = env, directory, options
        self._events, self._history, self._clock, self._note = events, history, clock, note
        self._tasks = Tasks("java", on_error=self._fail)
        self._process: asyncio.subprocess.Process | None = None
        self._told: dict[str, asyncio.Event] = {name: asyncio.Event() for name in ("ready", "stopped", "end")}
        self._asked: dict[int, float] = {}
        self._answered = asyncio.Event()
        self._closing = False
        self.error: str | None = None
        """What ended it before its time."""

    async def start(self) -> None:
        """Returns when it is connected. Raises CannotDrill."""
        home, log = client_home(self._directory), self._directory / "log" / "java-client.log"
        home.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        command = await self._env.offload(lambda: self._command(home))
        with log.open("ab") as err:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=err,
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )
        self._note(self._process.pid)
        self._tasks.spawn(self._listen(self._process), name="listen")
        if not await self._heard("ready", READY_S):
            raise CannotDrill(f"the official Java client did not start: {self.error or 'it says nothing'}")

    def _command(self, home: Path) -> list[str]:
        classes = rocketmq.compile_java(SOURCE)
        given = [f"{name}={value}" for name, value in self._options.items()]
        return rocketmq.java(
            SOURCE.stem, *given, classes=classes, user_home=home, heap_mb=HEAP_MB, options=OPTIONS
        )

    async def begin(self) -> None:
        """Find out where its clock lies, then let it send and read. Raises CannotDrill."""
        for number in range(PINGS):
            self._answered.clear()
            self._ping(number)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), PING_S)
        if self._events.clock.error_ms == float("inf"):
            raise CannotDrill("the official Java client does not tell its time")
        self._say("go")
        self._tasks.spawn(self._keep_asking(), name="clock")

    async def end_sends(self, timeout_s: float) -> None:
        """What is not answered then stays unknown."""
        self._say("stop")
        await self._heard("stopped", timeout_s)

    async def stop(self) -> None:
        self._closing = True
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), ENDS_S)
            if process.returncode is None:
                process.kill()
                await process.wait()
        await self._tasks.cancel()

    async def _heard(self, name: str, timeout_s: float) -> bool:
        """Whether it said that in time; it never does once it has ended."""
        waits = [self._tasks.spawn(self._told[one].wait(), name=one) for one in (name, "end")]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        return self._told[name].is_set()

    async def _keep_asking(self) -> None:
        number = PINGS
        while True:
            await asyncio.sleep(PING_S)
            self._ping(number)
            number += 1

    def _ping(self, number: int) -> None:
        self._asked[number] = self._clock()
        self._say(f"ping {number}")

    def _say(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        if not self._told["end"].is_set():
            self._process.stdin.write(line.encode() + b"\n")

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if (told := parsed(line)) is not None:
                self._take(told)
        code = await process.wait()
        if not self._closing:
            self.error = f"it ended with exit code {code}: {self._log()}"
        self._told["end"].set()

    def _take(self, told: dict[str, Any]) -> None:
        if told["event"] == "pong":
            self._events.clock.note(self._asked.pop(told["number"]), told["at_ns"], self._clock())
            self._answered.set()
        elif (heard := self._told.get(told["event"])) is not None:
            heard.set()
        elif (event := self._events.event(told)) is not None:
            self._history.add(event)

    def _fail(self, error: BaseException) -> None:
        self.error = repr(error)
        self._told["end"].set()

    def _log(self) -> str:
        path = self._directory / "log" / "java-client.log"
        return path.read_text(encoding="utf-8", errors="replace")[-LOG_SHOWN:].strip()


class JavaLoad(DrillLoad):
    """What others join is of our own client (``beside``); all else is sent and read by Java."""

    _client: JavaClient

    def __init__(
        self,
        env_of: Callable[[int], Env],
        world: World,
        plan: DrillPlan,
        queues: Sequence[Queue],
        chance: random.Random,
        directory: Path,
        note: Callable[[int], None],
    ) -> None:
        assert plan.load is not None
        self._events = JavaEvents(queues[0].topic, world.group, JavaClock())
        self.group = "GID_drill0jc"
        options = {
            **shape(plan.load, len(queues)),
            "name": "drill0j",
            "namesrv": ";".join(world.namesrv),
            "broker": world.group,
            "seed": chance.getrandbits(31),
        }

        def follow(_: Sequence[Queue], history: History, clock: Clock) -> JavaClient:
            self._client = JavaClient(env_of(1), directory, options, self._events, history, clock, note)
            return self._client

        nobody = replace(plan, load=replace(plan.load, producers=0))
        super().__init__(env_of, world, nobody, queues, 0, chance, follow=follow)

    async def start(self) -> None:
        await super().start()
        await self._client.begin()

    async def stop(self, timeout_s: float) -> None:
        await asyncio.gather(super().stop(timeout_s), self._client.end_sends(timeout_s))

    def errors(self) -> list[str]:
        own = [] if self._client.error is None else [f"the official Java client: {self._client.error}"]
        return [*super().errors(), *own]

    async def not_consumed(self, timeout_s: float) -> list[str]:
        """What its group was never given, if it is not within CAUGHT_UP_S."""
        until_ms = self.clock() + max(timeout_s, CAUGHT_UP_S) * 1000
        while True:
            told = not_received(self.history, self._events, self.group)
            if not told or self.clock() > until_ms:
                return told
            await asyncio.sleep(0.2)

    @property
    def consumes(self) -> bool:
        return True

    @property
    def unsure(self) -> str | None:
        gone_ms = self._events.clock.gone_ms
        return f"Java's clock and the drill's went apart by {gone_ms:.1f} ms" if gone_ms else None

    def described(self) -> dict[str, Any]:
        return {
            "version": rocketmq.VERSION,
            "java": rocketmq.described()["java"],
            "options": f"-Xmx{HEAP_MB}m {OPTIONS}",
            "send_timeout_ms": SEND_TIMEOUT_MS,
            "send_retries": 0,
            "members": MEMBERS,
            "received": self._events.counts["received"],
            "committed": self._events.counts["committed"],
            "clock_error_ms": round(self._events.clock.error_ms, 3),
        }


def shape(load: Load, queues: int) -> dict[str, object]:
    """The load as Java is given it: as many messages a second, from producers of one queue each, which have
    one send out at a time."""
    each = max(1, round(load.producers * load.in_flight_max / queues))
    low, high = load.body_bytes
    return {
        "topic": load.topic,
        "queues": queues,
        "producers": each,
        "per_second": load.producers * load.per_second / (queues * each),
        "body_min": low,
        "body_max": high,
        "make_up_ms": round(load.make_up_s * 1000),
        "members": MEMBERS,
        "send_timeout_ms": SEND_TIMEOUT_MS,
        "ask_timeout_ms": ASK_TIMEOUT_MS,
        "poll_ms": POLL_MS,
    }
