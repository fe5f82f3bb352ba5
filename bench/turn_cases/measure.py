"""How long does one piece of work hold the event loop, in CPU time of its thread?

A piece is what runs between two waits: a read, a step of a task, a callback. The server runs in this
process on asyncio's own loop, whose callbacks are timed by ``time.thread_time``; the client is another
thread, so what it does counts nowhere. Slices (``runtime/turns``) end by the same clock: a busy machine makes
none shorter.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from model.codes import Request, name_of
from remoting.codec import FLAG_RESPONSE, Command, decode, encode
from runtime.turns import Slice

LIMIT_MS: Final = 20.0
RUNS: Final = 3
NOTED_MS: Final = 1.0
QUIET_S: Final = 0.05
SETTLES_S: Final = 3.0
ANSWER_S: Final = 60.0
DRIVER: Final = "driver"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. ``code``: another one than that of its case, for what only prepares."""

    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Case:
    """The dearest request of one code, or one of several candidates. ``make(site, run)`` prepares and gives
    it."""

    code: Request
    what: str
    make: Callable[[Any, int], Ask | Awaitable[Ask]]


@dataclass(slots=True)
class Row:
    """What was measured of one case. ``where``: which piece took longest."""

    code: int
    name: str
    what: str
    worst_ms: float
    runs_ms: list[float]
    where: str
    answer: str
    answer_bytes: int
    sent_bytes: int
    others: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Pieces:
    """The longest piece by what ran, since ``begin``."""

    def __init__(self) -> None:
        self.longest_ms: dict[str, float] = {}
        self.last_s = 0.0

    def begin(self) -> None:
        self.longest_ms = {}
        self.last_s = time.monotonic()

    def note(self, took_ms: float, handle: asyncio.Handle) -> None:
        name = _name(handle)
        if name == DRIVER:
            return
        self.last_s = time.monotonic()
        self.longest_ms[name] = max(took_ms, self.longest_ms.get(name, 0.0))


def _name(handle: asyncio.Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]  # what asyncio runs is told nowhere else
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(owner.get_name())
    return str(getattr(callback, "__qualname__", callback))


@contextmanager
def timed(pieces: Pieces) -> Iterator[None]:
    """Time each callback of asyncio's loop, and let slices end by CPU time."""
    run = asyncio.Handle._run  # all that the loop does goes through it
    init = Slice.__init__
    clock = time.thread_time

    def timed_run(handle: asyncio.Handle) -> None:
        began = clock()
        run(handle)
        took_ms = (clock() - began) * 1000
        if took_ms >= NOTED_MS:
            pieces.note(took_ms, handle)

    def cpu_init(self: Slice, clock_ms: Callable[[], float]) -> None:
        init(self, lambda: clock() * 1000)

    setattr(asyncio.Handle, "_run", timed_run)  # noqa: B010 - mypy would not let it be assigned
    setattr(Slice, "__init__", cpu_init)  # noqa: B010
    try:
        yield
    finally:
        setattr(asyncio.Handle, "_run", run)  # noqa: B010
        setattr(Slice, "__init__", init)  # noqa: B010


class Site:
    """A filled server of a port of its own. ``share``: so much of its full tables."""

    def __init__(self, port: int, share: float) -> None:
        self.port = port
        self.share = share

    def peer(self) -> Peer:
        return Peer(self.port)

    def done(self, peer: Peer) -> None:
        """One run is over."""
        peer.close()

    def size(self, full: int) -> int:
        """So much of a full table as this run fills."""
        return max(4, int(full * self.share))


class Peer:
    """A client on a socket of its own, used by one thread at a time. What it is asked it answers at once."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opaque = 0
        self.says: bytes = b""
        """The body of what it answers."""

    def exchange(self, code: int, ask: Ask) -> Command | None:
        """Its answer; None when the connection ended or none came in time."""
        self._opaque += 1
        try:
            self._socket.sendall(encode(Command(int(code), ask.ext, ask.body, self._opaque)))
            while True:
                found = self._read()
                if found.flag & FLAG_RESPONSE:
                    if found.opaque == self._opaque:
                        return found
                elif not found.is_oneway:
                    self._socket.sendall(encode(_answered(found, self.says)))
        except (OSError, EOFError):
            return None

    def send(self, code: int, ask: Ask) -> None:
        """Without waiting for the answer."""
        self._opaque += 1
        self._socket.sendall(encode(Command(int(code), ask.ext, ask.body, self._opaque)))

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> Command:
        (size,) = struct.unpack(">i", self._bytes(4))
        return decode(struct.pack(">i", size) + self._bytes(size))

    def _bytes(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(1 << 20, size - len(data)))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def _answered(request: Command, body: bytes) -> Command:
    answer = request.reply(body=body)
    answer.opaque, answer.flag = request.opaque, answer.flag | FLAG_RESPONSE
    return answer


async def until(there: Callable[[], bool]) -> None:
    """Wait for what the server does by itself."""
    while not there():  # noqa: ASYNC110 - nobody sets an event for it
        await asyncio.sleep(QUIET_S)


async def settled(pieces: Pieces) -> None:
    """Until nothing long ran for a moment."""
    for _ in range(int(SETTLES_S / QUIET_S)):
        await asyncio.sleep(QUIET_S)
        if time.monotonic() - pieces.last_s >= QUIET_S:
            return


async def measured(case: Case, site: Any, pieces: Pieces) -> Row:
    """The median of ``RUNS`` runs of one case, each with a connection of its own."""
    runs: list[tuple[float, str]] = []
    others: dict[str, float] = {}
    answer: Command | None = None
    sent = 0
    for run in range(RUNS):
        made = case.make(site, run)
        ask = made if isinstance(made, Ask) else await made
        sent = max(sent, len(ask.body) + sum(len(k) + len(v) for k, v in ask.ext.items()))
        await settled(pieces)
        peer = site.peer() if site.peer is not None else None
        assert peer is not None
        pieces.begin()
        answer = await asyncio.to_thread(peer.exchange, case.code, ask)
        await settled(pieces)
        own = {n: ms for n, ms in pieces.longest_ms.items() if _is_own(n, case.code)}
        for name, ms in pieces.longest_ms.items():
            if name not in own:
                others[name] = max(ms, others.get(name, 0.0))
        where = max(own, key=lambda name: own[name], default="")
        runs.append((own.get(where, 0.0), where))
        site.done(peer)
    times = sorted(ms for ms, _ in runs)
    middle = median(times)
    where = next(where for ms, where in runs if ms == middle)
    told = "no answer" if answer is None else f"{answer.code} {(answer.remark or '')[:60]}".strip()
    return Row(
        int(case.code),
        name_of(case.code),
        case.what,
        round(middle, 1),
        [round(ms, 1) for ms, _ in runs],
        where,
        told,
        0 if answer is None else len(answer.body),
        sent,
        {name: round(ms, 1) for name, ms in sorted(others.items())},
    )


def _is_own(name: str, code: int) -> bool:
    """What reads, answers, or writes what was asked; the rest is a server's work of its own."""
    return (
        f"request.{int(code)}" in name or name.startswith("_SelectorSocketTransport") or "Connection." in name
    )
