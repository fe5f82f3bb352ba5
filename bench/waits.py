"""Requests that wait, for ``bench/pull.py``: pulls or pops at empty queues, and how soon one beside wakes.

What waits asks again as soon as it is answered. The figures: the share of one core that the broker takes
meanwhile; and how long after the send of a message the one consumer that waits for it has it, one by one.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bench.pulls import Follower, Reader, open_to, pull_frame
from model.codes import Request
from remoting import codec
from remoting.codec import Command
from remoting.headers import PULL_SUSPEND, SendHeader

if TYPE_CHECKING:
    from bench.send import Side

WAIT_TOPIC: Final = "BenchWaiting"
WAKE_TOPIC: Final = "BenchWake"
ON_A_CONNECTION: Final = 100
SUSPEND_MS: Final = 15_000
GROUPS: Final = 16
"""That pop beside each other: both systems hold at most 1,024 pops of a group for one queue."""
PAUSE_S: Final = 0.01
ANSWER_S: Final = 20.0

Ask = Callable[[int, int], bytes]
"""(connection, number) -> the frame of a request that waits."""


def pull_of(queues: int) -> Ask:
    def ask(_: int, number: int) -> bytes:
        return pull_frame(WAIT_TOPIC, number % queues, 0, 32, number, codec.JSON, PULL_SUSPEND, SUSPEND_MS)

    return ask


def pop_of(queues: int) -> Ask:
    def ask(connection: int, number: int) -> bytes:
        return pop_frame(f"bench_poppers_{connection % GROUPS}", WAIT_TOPIC, number % queues, number)

    return ask


def pop_frame(group: str, topic: str, queue: int, opaque: int) -> bytes:
    fields: dict[str, object] = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": SUSPEND_MS,
        "bornTime": int(time.time() * 1000),
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    ext = {name: str(value) for name, value in fields.items()}
    return codec.encode(Command(int(Request.POP_MESSAGE), ext, b"", opaque))


class PopFollower:
    """A consumer that waits with a pop at each queue of a topic."""

    GROUP: Final = "bench_woken"
    FOUND, NOTHING = 0, (209, 210)

    def __init__(self, address: str, topic: str, queues: int, *others: str) -> None:
        self._reader = Reader(address, topic, *others, keeps=True)
        self.socket = self._reader.socket
        self._topic = topic
        self.socket.sendall(b"".join(self._wait(queue) for queue in range(queues)))

    def _wait(self, queue: int) -> bytes:
        return pop_frame(self.GROUP, self._topic, queue, queue)

    def bodies(self) -> bytes:
        """What came, as it came, and the next pops leave. Raises RuntimeError."""
        asked = bytearray()
        for queue, code, header, _ in self._reader.answers():
            if code != self.FOUND and code not in self.NOTHING:
                raise RuntimeError(f"a pop was answered with {code}: {header!r}")
            asked += self._wait(queue)
        self.socket.sendall(asked)
        return b"".join(self._reader.bodies)


class Waker:
    """Sends a message to the follower, and the next when that one has come."""

    def __init__(self, address: str, queues: int, follower: Follower | PopFollower) -> None:
        self.socket = open_to(address)
        self.follower = follower
        self.waited_ms: list[float] = []
        self._queues = queues
        self._number = 0
        self._sent_at = self._next_at = 0.0
        self._stamp = b""

    def go_on(self) -> None:
        """Raises RuntimeError when a message did not come."""
        now = time.perf_counter()
        if self._stamp and now > self._sent_at + ANSWER_S:
            raise RuntimeError(f"a message did not come within {ANSWER_S:.0f} s")
        if self._stamp or now < self._next_at:
            return
        self._number += 1
        self._stamp = b"stamp %012d" % self._number
        text = f"UNIQ_KEY\x01{self._number:032X}\x02"
        header = SendHeader("bench", WAKE_TOPIC, self._number % self._queues, 0, properties=text)
        command = Command(int(Request.SEND_MESSAGE_V2), header.to_ext(), self._stamp, self._number)
        self._sent_at = time.perf_counter()
        self.socket.sendall(codec.encode(command))

    def look(self) -> None:
        """The follower has something to be read."""
        found = self.follower.bodies()
        if self._stamp and self._stamp in found:
            now = time.perf_counter()
            self.waited_ms.append(1000 * (now - self._sent_at))
            self._stamp, self._next_at = b"", now + PAUSE_S

    def close(self) -> None:
        self.socket.close()
        self.follower.socket.close()


def hold(side: Side, waiting: int, ask: Ask, waker: Waker, seconds: float) -> dict[str, float]:
    """While ``waiting`` requests wait: percent of a core for ``seconds``, then what is woken for as long."""
    ready = selectors.DefaultSelector()
    readers = [Reader(side.address, WAIT_TOPIC, WAKE_TOPIC) for _ in range(-(-waiting // ON_A_CONNECTION))]
    numbers = range(min(ON_A_CONNECTION, waiting))

    def serve(until: float, wakes: bool) -> None:
        while (now := time.perf_counter()) < until:
            if wakes:
                waker.go_on()
            for key, _ in ready.select(PAUSE_S if wakes else min(1.0, until - now)):
                connection = key.data
                if key.fileobj is waker.follower.socket:
                    waker.look()
                elif key.fileobj is waker.socket:
                    waker.socket.recv(1 << 16)
                else:
                    again = [ask(connection, number) for number, *_ in readers[connection].answers()]
                    readers[connection].socket.sendall(b"".join(again))

    try:
        for connection, reader in enumerate(readers):
            ready.register(reader.socket, selectors.EVENT_READ, connection)
            reader.socket.sendall(b"".join(ask(connection, number) for number in numbers))
            time.sleep(0.01)
        ready.register(waker.follower.socket, selectors.EVENT_READ)
        ready.register(waker.socket, selectors.EVENT_READ)
        serve(time.perf_counter() + 2, wakes=False)
        begun, cpu_s = time.perf_counter(), side.cpu_s()
        serve(begun + seconds, wakes=False)
        share = (side.cpu_s() - cpu_s) / (time.perf_counter() - begun)
        serve(time.perf_counter() + seconds, wakes=True)
    finally:
        ready.close()
        waker.close()
        for reader in readers:
            reader.socket.close()
    return {"waiting_percent": 100 * share, **percentiles(waker.waited_ms)}


def percentiles(times_ms: list[float]) -> dict[str, float]:
    """Raises RuntimeError for none."""
    if not times_ms:
        raise RuntimeError("nothing was woken")
    ordered = sorted(times_ms)
    picked = {f"wake_p{p}_ms": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 99)}
    return {**picked, "wakes": float(len(ordered))}


def waiting_pulls(side: Side, queues: int, count: int, seconds: float) -> dict[str, float]:
    waker = Waker(side.address, queues, Follower(side.address, WAKE_TOPIC, queues, WAIT_TOPIC))
    return hold(side, count, pull_of(queues), waker, seconds)


def waiting_pops(side: Side, queues: int, count: int, seconds: float) -> dict[str, float]:
    waker = Waker(side.address, queues, PopFollower(side.address, WAKE_TOPIC, queues, WAIT_TOPIC))
    return hold(side, count, pop_of(queues), waker, seconds)
