"""What is read from a peer, and when: where do bytes wait until they are whole frames, and for how long?

All connections of one port read into one buffer (``scratch``): what a read brought is handled before the
next read of anybody. A connection keeps memory of its own only for a frame that has begun.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

from remoting.codec import Command, body_start, command_of, frame_end
from remoting.transport.starts import COPIED_PART
from remoting.transport.steps import Steps
from remoting.transport.wholes import Wholes
from runtime.report.slow_turns import SlowTurns

READ_BYTES_MIN: Final = 16 * 1024
FIRST_BYTES: Final = 4 * 1024  # at least, of a new connection and of one that waited for this turn
KEPT_BYTES_LITTLE: Final = 4 * 1024  # of a begun frame: they cost no more than the read that follows
READ_BYTES_USUAL: Final = 256 * 1024  # so much one read may bring
LONG_FRAME_BYTES: Final = 8 << 20
"""A longer frame is no message of the default ``maxMessageSize``: it is cut into head and body where it was
collected, and copied once. Of 16 MiB each copy takes as long as a slice."""
PARTS_A_TURN: Final = 24
PIECES_A_TURN: Final = 6
MUCH_BYTES: Final = 64 * 1024  # so much in one read: its sender waits behind those with less
PART_COST: Final = READ_BYTES_USUAL // COPIED_PART
PARTIAL_FRAME_S: Final = 10.0  # a frame that has begun must be whole after this ...
PARTIAL_BYTES_PER_S: Final = 128 * 1024  # ... plus its size over this rate
REQUESTS_MAX: Final = 4096  # requests of one connection being handled at the same time
ASKED_BYTES_MAX: Final = 8 << 20
"""Of these, the bytes of their frames: beyond, the connection is read no further until some are answered."""
REQUEST_BYTES: Final = 4 << 10
"""What a request that has begun takes beside its frame: its task, the frames of its code, its fields."""
LATER_BYTES: Final = 256
"""What a frame takes beside its bytes that waits for its turn."""
ASKED_BYTES_LEAST: Final = 256 << 10
"""So many while all clients together have half of what they may: who keeps few is read as ever."""


def scratch() -> bytearray:
    """The buffer that all connections of one server read into."""
    return bytearray(READ_BYTES_USUAL)


class Inbox:
    """``buffer[start:end]`` is what came and was not taken. ``begun_at``: since when a begun frame is there
    (the loop's clock), None = there is none.

    A begun frame is kept in ``_kept``. It goes in front of the next read into the scratch buffer; when that
    read did not complete it, it is collected in parts, and put together once, when all of it is there. A
    length field alone reserves nothing, and a slow peer's bytes are not copied again and again.
    """

    __slots__ = (
        "_kept",
        "_parts",
        "_parts_bytes",
        "_scratch",
        "begun_at",
        "buffer",
        "counted",
        "end",
        "start",
        "whole",
    )

    def __init__(self, scratch: bytearray) -> None:
        self.buffer = self._scratch = scratch
        self.whole = memoryview(scratch)
        """Where the next read goes while nothing is begun: it needs no ``room`` then."""
        self.start = 0
        self.end = 0
        self.begun_at: float | None = None
        self.counted = 0  # of ``owned`` and of requests without an answer, what the server's guard knows of
        self._kept: bytearray | None = None
        self._parts: list[bytearray] = []
        """While a frame is collected: all of it before ``buffer``."""
        self._parts_bytes = 0

    @property
    def owned(self) -> int:
        """Bytes of memory that a begun frame takes."""
        if self._parts:
            return self._parts_bytes + len(self.buffer)
        return 0 if self._kept is None else len(self._kept)

    @property
    def is_long(self) -> bool:
        """What has begun is longer than a read: its parts are read a few a turn. A short frame may be
        collected in parts, too, when it comes byte by byte."""
        return bool(self._parts) and _length(self._parts[0]) > READ_BYTES_USUAL

    @property
    def part_is_full(self) -> bool:
        """A frame is collected, and there may be more of it to read at once."""
        return bool(self._parts) and self.end == len(self.buffer)

    @property
    def whole_bytes(self) -> int:
        """The length of a frame that was collected and is whole; 0: there is none."""
        if not self._parts:
            return 0
        frame = 4 + _length(self._parts[0])
        return frame if self._parts_bytes + self.end >= frame else 0

    def looked_at(self, nbytes: int) -> int:
        """What a read of so many bytes costs: what was kept lies in front of it, and is looked at, too."""
        return nbytes if self._parts or self.end - nbytes <= KEPT_BYTES_LITTLE else self.end

    def put_aside(self) -> None:
        """Little is read now: what has begun is not copied for it."""
        kept = self._kept
        if kept is not None and len(kept) > READ_BYTES_MIN:
            self._kept = None
            self._next_part(kept, READ_BYTES_MIN)

    def room(self) -> memoryview:
        """Where the next read goes."""
        if self._parts:
            if self.end == len(self.buffer):
                self._next_part(self.buffer)
        elif self._kept is None:
            self.buffer = self._scratch
            self.start = self.end = 0
            return self.whole
        else:
            # Again at each read: others may have used the scratch buffer since.
            size = len(self._kept)
            self._scratch[:size] = self._kept
            self.buffer = self._scratch
            self.start, self.end = 0, size
        return memoryview(self.buffer)[self.end :]

    def is_ready(self) -> bool:
        """Whether there is anything to look at: a frame that is collected is looked at when it is whole, and
        taken by ``long_frame`` if it is long."""
        if not self._parts:
            return True
        size, frame = self._parts_bytes + self.end, self.whole_bytes
        if not frame or frame > LONG_FRAME_BYTES:
            return False
        whole, at = bytearray(size), 0
        for part in (*self._parts, memoryview(self.buffer)[: self.end]):
            whole[at : at + len(part)] = part
            at += len(part)
        self._forget_parts()
        self.buffer = whole
        self.start, self.end = 0, size
        return True

    def long_frame(self, frame_bytes_max: int) -> Command | None:
        """The command of a long frame that is whole; what follows it is in ``buffer`` then. Raises
        PeerError."""
        size, frame = self._parts_bytes + self.end, self.whole_bytes
        if frame <= LONG_FRAME_BYTES:
            return None
        parts = [*(memoryview(part) for part in self._parts), memoryview(self.buffer)[: self.end]]
        first = _cut(parts, 0, 8)
        frame_end(first, 0, 8, frame_bytes_max)
        body_at = body_start(first)
        head, body, rest = _cut(parts, 0, body_at), _cut(parts, body_at, frame), _cut(parts, frame, size)
        self.drop()
        self.buffer[: len(rest)] = rest  # shorter than a read
        self.end = len(rest)
        return command_of(head, body)

    def took(self, start: int, now: float) -> None:
        """Frames up to ``start`` are handled; what follows is the begin of one."""
        if start >= self.end:  # ``drop``, for each read
            self.begun_at = self._kept = None
            if self._parts:
                self._forget_parts()
            self.buffer = self._scratch
            self.start = self.end = 0
            return
        progress = start != self.start or self.begun_at is None
        if progress:
            self.begun_at = now
        size = self.end - start
        begun = self.buffer[start : self.end]
        self.buffer = self._scratch
        if size < 4 or (progress and size <= len(self._scratch) // 2):
            self._kept = begun
        else:
            self._kept = None
            self._next_part(begun)

    def overdue(self, now: float) -> bool:
        """Whether the begun frame should be whole by now."""
        begun = self._parts[0] if self._parts else self._kept
        if self.begun_at is None or begun is None:
            return False
        size = _length(begun) if len(begun) >= 4 else 0
        return now - self.begun_at > PARTIAL_FRAME_S + size / PARTIAL_BYTES_PER_S

    def stood_still(self, for_s: float, now: float) -> None:
        """Nothing was read for so long until now: that is not counted to a begun frame."""
        if self.begun_at is not None:
            self.begun_at = min(self.begun_at + for_s, now)

    def drop(self) -> None:
        """Nothing is begun; no memory is kept."""
        self._kept = None
        self._forget_parts()
        self.begun_at = None
        self.buffer = self._scratch
        self.start = self.end = 0

    def _next_part(self, part: bytearray, most: int = READ_BYTES_USUAL) -> None:
        """``part`` is full: the next bytes go into a new one."""
        self._parts.append(part)
        self._parts_bytes += len(part)
        self.buffer = bytearray(min(max(READ_BYTES_MIN, self._parts_bytes), most))
        self.start = self.end = 0

    def _forget_parts(self) -> None:
        self._parts, self._parts_bytes = [], 0


def _cut(parts: list[memoryview], start: int, stop: int) -> bytes:
    """``start`` to ``stop`` of what the parts hold together."""
    found, at = [], 0
    for part in parts:
        found.append(part[max(0, start - at) : max(0, stop - at)])
        at += len(part)
    return b"".join(found)


def _length(frame: bytearray) -> int:
    """What the begin of a frame says of its length, without the four bytes that say it."""
    return int.from_bytes(frame[:4], "big")


class ReadGate:
    """Whether anything is read from the peer. ``unread``: it leaves what it is sent. ``held``: for so many
    reasons what it asked for waits. ``handling``: requests without an answer; ``blocked`` of these wait until
    it has read. ``later``: frames whose requests begin in a later turn, with their sizes; ``later_bytes``:
    what these take. ``asked``: what both take. ``queued``: it is read on in a later turn. ``woken_at``: that
    turn, by the line's count, from its begin until something is read; else 0. ``joining``: a frame that is
    whole is taken in a later turn. ``sending``: not all that is written for it was handed over. ``paused``:
    nothing is read.
    """

    __slots__ = (
        "_ours",
        "_paused_at",
        "asked",
        "blocked",
        "handling",
        "held",
        "joining",
        "later",
        "later_bytes",
        "paused",
        "queued",
        "sending",
        "unread",
        "woken_at",
    )

    def __init__(self) -> None:
        self.unread = self.paused = self.queued = self.sending = self.joining = False
        self._ours = False  # the pause has another reason than ``queued``
        self._paused_at = 0.0  # the loop's clock
        self.woken_at = 0
        self.handling = self.blocked = self.asked = self.later_bytes = self.held = 0
        self.later: deque[tuple[bytes | Command, int]] = deque()

    def on_spent(self) -> None:
        """Others were read in this turn: it is read on in a later one, and could do nothing about that."""
        self.queued = self._ours = True

    def read_late(self, line: Line, heard_at: float) -> int:
        """How much is read though others took this turn: of a new one (``heard_at`` = 0), which may show
        itself a peer's, and of one that waited for this turn, a little, whoever the loop read before."""
        if self.paused:
            return 1  # no frame; uvloop reads once before ``pause_again``
        return FIRST_BYTES if not heard_at or line.lets_late(self.woken_at) else 1

    def put_off(self, frame: bytes | Command, size: int) -> None:
        """A request of ``size`` bytes begins in a later turn."""
        self.later.append((frame, size))
        self.asked += size + LATER_BYTES
        self.later_bytes += size + LATER_BYTES

    def take_later(self) -> tuple[bytes | Command, int]:
        """The first one of these, which begins."""
        frame, size = self.later.popleft()
        self.asked -= size + LATER_BYTES
        self.later_bytes -= size + LATER_BYTES
        return frame, size

    def drop_later(self) -> None:
        """What has not begun does not begin any more."""
        self.asked -= self.later_bytes
        self.later_bytes = 0
        self.later.clear()

    def is_full(self, asked_max: int) -> bool:
        """Whether nothing more is to begin before something ends."""
        return self.handling > 0 and self.asked - self.later_bytes > asked_max

    def move(self, transport: asyncio.Transport, now: float, *, all_held: bool, asked_max: int) -> float:
        """Pause or resume reading, ``all_held`` of all connections, beyond ``asked_max`` of this one. For how
        long nothing was read, if it is resumed, and the peer could do nothing about the pause; else 0."""
        ours = self.unread or self.sending or self.held > 0 or self.joining or all_held
        ours = ours or self.handling >= REQUESTS_MAX or bool(self.later) or self.asked > asked_max
        self._ours |= ours
        pause = ours or self.queued
        before, self.paused = self.paused, pause
        if pause and not before:
            self._paused_at = now
            transport.pause_reading()
        elif before and not pause:
            transport.resume_reading()
            ours, self._ours = self._ours, False
            return now - self._paused_at if ours else 0.0
        return 0.0

    def pause_again(self, transport: asyncio.Transport) -> None:
        """A loop may begin to read behind ``connection_made`` whatever was said in it: uvloop does, and
        asyncio's own until CPython 3.11.4."""
        if self.paused and not transport.is_closing():
            transport.resume_reading()
            transport.pause_reading()


class Lined(Protocol):
    """A connection in the middle of a long frame, or one that found the share of a turn read."""

    def read_on(self) -> None:
        """Read on: the next part, or whatever there is."""

    def write_on(self) -> None:
        """Hand over the next piece."""


class Line:
    """Which connections go on in this turn of the loop? ``most`` of them, in order of arrival.

    A socket may hold megabytes, and take as many; many of them read or written in one turn would hold the
    loop for as long as the system takes to copy that. Of those that read little all go on before those that
    read much, of whom ``MUCH_BYTES`` are read for each turn in which any of the others wait. Which read finds
    the share of a turn taken, or takes the rest of it, is chance, and says nothing of who reads much.
    """

    def __init__(self, most: int, go_on: Callable[[Lined], None]) -> None:
        self._most = most
        self._go_on = go_on
        # Those that wait: nobody else changes them.
        self.line: dict[Lined, int] = {}  # in order of arrival, with what they cost
        self.first: dict[Lined, None] = {}
        self._armed = False
        self._credit = 0  # what those in the line may take while any are before them
        self._little_left = most
        self.much = MUCH_BYTES
        self.turn = 2  # counts them; none before it had 0

    def wait(self, connection: Lined, cost: int = PART_COST) -> None:
        """It goes on in a later turn; one that waits already keeps its place. ``cost``: of its next read, as
        far as the one before tells."""
        if connection not in self.first:
            self.line.setdefault(connection, cost)
        self._arm()

    def wait_its_turn(self, connection: Lined, nbytes: int) -> None:
        """``wait`` for one that just read so many bytes."""
        if nbytes >= MUCH_BYTES or connection in self.line:
            self.wait(connection, nbytes)
            return
        self.first.setdefault(connection)
        self._arm()

    def lets_late(self, woken_at: int) -> bool:
        """Whether one that went on in that turn reads a little though others took this one: ``most`` may in a
        turn. asyncio's own loop reads those that went on behind the begin of the turn that follows."""
        if self.turn - woken_at > 1 or not self._little_left:
            return False
        self._little_left -= 1
        return True

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        line, first, self._armed = self.line, self.first, False
        self.turn += 1
        self._little_left = self._most
        chosen = self._affordable() if first else list(islice(line, self._most))
        chosen += islice(first, self._most - len(chosen))
        for connection in chosen:
            first.pop(connection, None)
            line.pop(connection, None)
            self._go_on(connection)
        if line or first:
            self._arm()

    def _affordable(self) -> list[Lined]:
        """Those in the line that go on beside the others. One read may be saved up for: more would let many
        that come at once take all of many turns."""
        saved = min(self._credit, READ_BYTES_USUAL - MUCH_BYTES)
        self._credit = saved + MUCH_BYTES if self.line else 0
        found: list[Lined] = []
        for connection, cost in self.line.items():
            if self._credit < cost or len(found) == self._most:
                break
            self._credit -= cost
            found.append(connection)
        return found


class Lines:
    """Those of one server: who is read on, mostly parts of long frames, whose long frame is taken, pieces
    that are written, and requests that go on."""

    def __init__(self, slow: SlowTurns) -> None:
        self.wholes = Wholes()
        self.steps = Steps(slow)
        self.reads = Line(PARTS_A_TURN, lambda connection: connection.read_on())
        self.writes = Line(PIECES_A_TURN, lambda connection: connection.write_on())
