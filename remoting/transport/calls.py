"""Which calls of this side have no answer yet, and what has not left yet?"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterator
from typing import Final

from model.codes import Response, name_of
from model.errors import Refused, Unknown
from remoting.codec import Command
from runtime.direct import NO_DESCRIPTOR
from runtime.env import Buffer

PIECE_BYTES: Final = 1 << 20
"""So much is handed to the system in one go. It copies what it takes, and the transport what is left: of
35 MB that took 30 ms."""
AT_ONCE_BYTES: Final = 64 * 1024
"""So much is handed to the socket at once; more is left to the transport, as all that follows it."""
_OPAQUE_MAX: Final = 2**31 - 1
FAILED_A_TURN: Final = 256
"""Calls that are told of the end of their connection in one turn of the loop."""
SILENT_S: Final = 0.5
"""A call that waited less, because its caller had no more time, says nothing of its connection."""


class Calls:
    """The calls under way on one connection, by the number that their answers carry.

    ``on_silent``: called when the time of a call of at least ``SILENT_S`` is over and nothing at all came
    since it was sent. After a cut TCP doubles its pauses: for many seconds such a connection may bring
    nothing, where a new one would work. ``heard_at``: when bytes last came (the loop's clock).
    """

    __slots__ = ("_answers", "_on_silent", "_opaque", "heard_at")

    def __init__(self, on_silent: Callable[[], object] | None = None) -> None:
        self._answers: dict[int, tuple[asyncio.Future[Command], asyncio.TimerHandle]] = {}
        self._on_silent = on_silent
        self._opaque = 0
        self.heard_at = 0.0

    def __len__(self) -> int:
        return len(self._answers)

    def next_opaque(self) -> int:
        self._opaque = self._opaque + 1 if self._opaque < _OPAQUE_MAX else 1
        return self._opaque

    def begin(self, code: int, timeout_s: float, remote: str) -> tuple[int, asyncio.Future[Command]]:
        """The number of a new call, and what becomes its answer: Unknown when its time is over."""
        loop, opaque = asyncio.get_running_loop(), self.next_opaque()
        answer: asyncio.Future[Command] = loop.create_future()
        # ``asyncio.timeout`` would cost as much as the rest of the call.
        sent_at = loop.time()
        alarm = loop.call_at(sent_at + timeout_s, self._late, answer, code, sent_at, timeout_s, remote)
        self._answers[opaque] = answer, alarm
        return opaque, answer

    def end(self, opaque: int) -> None:
        """Nobody waits for the answer any more."""
        answer, alarm = self._answers.pop(opaque, (None, None))
        if alarm is not None:
            alarm.cancel()
        if answer is not None and answer.done() and not answer.cancelled():
            answer.exception()  # seen: a caller cancelled just now will not ask for it

    def on_answer(self, command: Command) -> None:
        answer, _ = self._answers.get(command.opaque, (None, None))
        # No such call: its time was over. The caller was told Unknown.
        if answer is not None and not answer.done():
            answer.set_result(command)

    def fail(self, why: str) -> None:
        """The connection ended before the answers."""
        answers, self._answers = self._answers, {}
        self._fail_some(iter(answers.values()), why)

    def _fail_some(
        self, answers: Iterator[tuple[asyncio.Future[Command], asyncio.TimerHandle]], why: str
    ) -> None:
        """Thousands may have waited: what each does next is a step of the loop."""
        for count, (answer, alarm) in enumerate(answers, 1):
            alarm.cancel()
            if not answer.done():
                answer.set_exception(Unknown(why))
            if count == FAILED_A_TURN:
                answer.get_loop().call_soon(self._fail_some, answers, why)
                return

    def _late(
        self, answer: asyncio.Future[Command], code: int, sent_at: float, timeout_s: float, remote: str
    ) -> None:
        if answer.done():
            return
        answer.set_exception(Unknown(f"{remote} did not answer {name_of(code)} within {timeout_s:.3g} s"))
        if self._on_silent is not None and timeout_s >= SILENT_S and self.heard_at <= sent_at:
            self._on_silent()


class Flush(enum.Enum):
    """When does what is written leave?"""

    NOT_DUE = enum.auto()  # nothing is written
    AT_TURN = enum.auto()  # with all else of this turn of the loop
    AFTER_READ = enum.auto()  # with all answers to what was just read


def weight(part: Buffer) -> int:
    """Bytes that stay in memory for the sake of ``part``: a rest keeps all of what it is cut from."""
    return memoryview(part.obj).nbytes if isinstance(part, memoryview) else len(part)


def alone(rest: Buffer) -> Buffer:
    """``rest``, which the peer does not read now, without what it is cut from: copied when it is half of that
    or less. So of an answer no more than the whole is copied in all, of one that the system takes nothing.
    What is long is not copied in one go, and counts with its whole (``Outbox.held``)."""
    if isinstance(rest, memoryview) and 2 * len(rest) <= weight(rest) and len(rest) <= 2 * PIECE_BYTES:
        return bytes(rest)
    return rest


class Outbox:
    """What is to be sent, in order. ``sending``: a part of it was handed over, the rest follows in later
    turns of the loop. ``descriptor``: see ``runtime/direct``. ``kept``: the transport may still have some of
    what was handed over. ``waited``: requests wait while the peer reads too little (``emptied``)."""

    __slots__ = (
        "_kept_bytes",
        "_longest",
        "descriptor",
        "flush",
        "frames",
        "kept",
        "sending",
        "size",
        "waited",
    )

    def __init__(self) -> None:
        self.descriptor = NO_DESCRIPTOR
        self.frames: list[Buffer] = []
        self.size = 0
        self.flush = Flush.NOT_DUE
        self.sending = self.kept = False
        self._kept_bytes = self._longest = 0  # of what the transport was handed since it had nothing
        self.waited: asyncio.Event | None = None

    def add(self, frame: bytes) -> None:
        """``frame`` is sent behind all that is there; it is no longer its caller's to change."""
        self.frames.append(frame)
        self.size += len(frame)

    def end(self) -> None:
        """Nothing is sent any more."""
        self.descriptor = NO_DESCRIPTOR
        self.take()
        self.on_emptied()

    def take(self) -> Buffer:
        """All of it."""
        frames, self.frames, self.size, self.sending = self.frames, [], 0, False
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def next_piece(self) -> Buffer:
        """``next_parts`` in one."""
        parts = self.next_parts()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def next_parts(self) -> list[Buffer]:
        """Its first ``PIECE_BYTES``; what is left then is ``sending``."""
        if self.size <= PIECE_BYTES:
            whole, self.frames, self.size, self.sending = self.frames, [], 0, False
            return whole
        frames, count, size = self.frames, 0, 0
        while size + len(frames[count]) <= PIECE_BYTES:
            size += len(frames[count])
            count += 1
        found = frames[:count]
        del frames[:count]
        left = PIECE_BYTES - size
        if left:
            cut = memoryview(frames[0])
            found.append(cut[:left])
            frames[0] = cut[left:]
        self.size -= PIECE_BYTES
        self.sending = True
        return found

    def handed(self, left: Buffer, before: int) -> Buffer:
        """``left``, as a transport that sends what it is given, and had ``before`` bytes yet, is to have it:
        it keeps each of these whole until all of it has gone."""
        left = alone(left)
        if not before:
            self._kept_bytes = self._longest = 0
        size = weight(left)
        self._kept_bytes += size
        self._longest = max(self._longest, size)
        return left

    def free(self) -> None:
        """The peer does not read: what is left of a long answer is no longer to keep all of it."""
        if self.frames:
            self.frames[0] = alone(self.frames[0])

    def held(self, untaken: int) -> int:
        """Bytes that stay in memory for what is here and the ``untaken`` ones of the transport."""
        size = max(untaken, min(self._kept_bytes, untaken + self._longest)) if untaken else 0
        if self.frames:
            size += self.size - len(self.frames[0]) + weight(self.frames[0])
        return size

    async def emptied(self) -> None:
        """Return when the peer has read most of what it was sent, or the connection has ended."""
        if self.waited is None:
            self.waited = asyncio.Event()
        await self.waited.wait()

    def on_emptied(self) -> None:
        if self.waited is not None:
            self.waited.set()
            self.waited = None


def unsupported(request: Command) -> Refused:
    """What a request with an unknown code is answered."""
    return Refused(f"request code {request.code} is not supported", Response.REQUEST_CODE_NOT_SUPPORTED)
