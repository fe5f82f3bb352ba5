"""The promise of a long answer: it leaves in bounded pieces, whole, in its place among the others."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from remoting.codec import Command, decode, encode, frame_end
from remoting.guard import Guard, Limits
from remoting.slices import CHARS_A_PART, joined
from remoting.transport import calls
from remoting.transport import connection as module
from remoting.transport.connection import Connection
from remoting.transport.endpoint import Endpoint
from remoting.transport.inbox import PIECES_A_TURN
from runtime.turns import Slice

PIECE_BYTES = 4096
LONG = bytes(range(256)) * (5 * PIECE_BYTES // 256) + b"end"


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes would prove no more."""
    assert calls.PIECE_BYTES <= 1 << 20
    monkeypatch.setattr(calls, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(module, "APART_BYTES", PIECE_BYTES)


class Wire(asyncio.Transport):
    """The peer reads what ``takes`` says; beyond ``PIECE_BYTES`` left over, writing pauses."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.protocol: Connection | None = None
        self.writes: list[int] = []
        self.turns: list[int] = []  # in which turn of the loop each was
        self.turn = 0
        self.held = False
        self.data = bytearray()
        self.taken = 0
        self.reads = True
        self.ended = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended
        self.writes.append(len(data))
        self.turns.append(self.turn)
        self.data += data
        if not self.held:
            self.taken = len(self.data)
        elif self.get_write_buffer_size() > PIECE_BYTES and self.protocol is not None:
            self.protocol.pause_writing()

    def read_all(self) -> None:
        """The peer reads again."""
        self.held, self.taken = False, len(self.data)
        assert self.protocol is not None
        self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.data) - self.taken

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"


def answers(data: bytes) -> list[Command]:
    at, found = 0, []
    while stop := frame_end(data, at, len(data), 1 << 30):
        found.append(decode(data[at:stop]))
        at = stop
    assert at == len(data), "nothing is cut off"
    return found


def linked(endpoint: Endpoint[Connection] | None = None, **limits: int) -> tuple[Connection, Wire]:
    guard = Guard("test", Limits(**limits), lambda: 0.0)
    connection, wire = Connection(endpoint or Endpoint[Connection]("test", None, guard)), Wire()
    connection.connection_made(wire)
    wire.protocol = connection
    return connection, wire


async def rounds(wires: list[Wire], count: int) -> None:
    for _ in range(count):
        for wire in wires:
            wire.turn += 1
        await asyncio.sleep(0)


def long_answer(opaque: int) -> Command:
    return Command(0, {}, LONG, opaque=opaque, flag=1)


async def test_a_long_answer_leaves_in_pieces_and_what_is_sent_behind_it_follows() -> None:
    connection, wire = linked()
    connection.send(Command(0, {}, b"before", opaque=1, flag=1))
    connection.send(long_answer(2))
    await rounds([wire], 2)
    assert not wire.reads, "nothing more is read from a peer that is still sent an answer"
    assert connection.untaken > 3 * PIECE_BYTES, "what was not handed over counts as unread"
    connection.write(encode(Command(0, {}, b"behind", opaque=3, flag=1)))
    connection.write_now(encode(Command(0, {}, b"at once", opaque=4, flag=1)))
    await rounds([wire], 10)
    assert max(wire.writes) <= PIECE_BYTES
    assert len(wire.turns) == len(set(wire.turns)), "a piece a turn"
    assert [(one.opaque, one.body) for one in answers(bytes(wire.data))] == [
        (1, b"before"),
        (2, LONG),
        (3, b"behind"),
        (4, b"at once"),
    ]
    assert wire.reads
    assert connection.untaken == 0


async def test_a_peer_that_does_not_read_is_handed_no_more_until_it_does() -> None:
    connection, wire = linked()
    wire.held = True
    connection.send(long_answer(1))
    await rounds([wire], 10)
    handed = len(wire.data)
    assert handed <= 2 * PIECE_BYTES
    connection.write(b"")
    await rounds([wire], 3)
    assert len(wire.data) == handed
    wire.read_all()
    await rounds([wire], 10)
    assert [one.body for one in answers(bytes(wire.data))] == [LONG]
    assert max(wire.writes) <= PIECE_BYTES


async def test_what_waits_to_be_handed_over_counts_against_the_caps() -> None:
    connection, wire = linked(unread_bytes_per_connection=8 * PIECE_BYTES)
    wire.held = True
    connection.send(long_answer(1))
    await rounds([wire], 3)
    assert not connection.closed
    assert connection.held == wire.get_write_buffer_size() + len(LONG), "the rest keeps the whole answer"
    connection.send(long_answer(2))
    await rounds([wire], 3)
    assert wire.ended == "aborted"


async def test_a_connection_that_closes_hands_over_all_that_was_written() -> None:
    connection, wire = linked()
    connection.send(long_answer(1))
    await rounds([wire], 2)
    connection.close()
    assert [one.body for one in answers(bytes(wire.data))] == [LONG]
    assert wire.ended == "closed"


async def test_long_answers_to_many_leave_a_few_pieces_a_turn_and_connections_take_turns() -> None:
    first, wire = linked()
    others = [linked(first._endpoint) for _ in range(3 * PIECES_A_TURN - 1)]
    connections, wires = [first, *(c for c, _ in others)], [wire, *(w for _, w in others)]
    for connection in connections:
        connection.send(long_answer(1))
    await rounds(wires, 1)  # the first piece of each
    handed = [sum(w.writes) for w in wires]
    assert min(handed) > 0
    for _ in range(9):
        await rounds(wires, 1)
        now = [sum(w.writes) for w in wires]
        assert sum(a != b for a, b in zip(handed, now, strict=True)) <= PIECES_A_TURN
        assert max(now) - min(now) <= PIECE_BYTES
        handed = now
    await rounds(wires, 20)
    assert all([one.body for one in answers(bytes(w.data))] == [LONG] for w in wires)


async def test_a_piece_of_text_as_long_as_a_table_is_written_in_slices(monkeypatch: Any) -> None:
    table = "é" * (4 * CHARS_A_PART + 7)
    slices = 0

    async def breathe(self: Slice) -> None:
        nonlocal slices
        slices += 1

    monkeypatch.setattr(Slice, "breathe", breathe)
    body = await joined(["{", table, "}", table], Slice(lambda: 0.0))
    assert body == f"{{{table}}}{table}".encode()
    assert slices >= 2 * 5


async def test_many_long_pieces_are_joined_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 pieces of 9 KB, as a table of modes has them, were joined in one go: 9 MB, 20 ms."""
    written: list[int] = []

    class Noted(io.BytesIO):
        def write(self, data: Any) -> int:
            written.append(len(data))
            return super().write(data)

    monkeypatch.setattr("remoting.slices.BytesIO", Noted)
    assert len(await joined(["x" * 10_000] * 400, Slice(lambda: 0.0))) == 4_000_000
    assert max(written) <= CHARS_A_PART + 10_000
