"""The promise to everybody else: however much lies in the sockets of however many, little is read a turn."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remoting.codec import Command, decode, encode, frame_end
from remoting.guard import Guard, Limits, Standing
from remoting.transport import starts
from remoting.transport.connection import Connection
from remoting.transport.endpoint import Endpoint
from remoting.transport.inbox import FIRST_BYTES, LONG_FRAME_BYTES, PARTS_A_TURN, READ_BYTES_USUAL
from remoting.transport.starts import (
    APART_MS,
    COPIED_PART,
    READ_BYTES_A_TURN,
    READ_BYTES_LEAST,
    TURN_MS,
    Reads,
)
from remoting.transport.wholes import A_TURN_BYTES
from tests.remoting.strangers import KEY, PEER
from tests.remoting.support import HOST, serving
from tests.remoting.wires import Wire
from tests.tls.site import LOOPS, run_on
from tests.waiting import until

CONNECTIONS = 30
FRAMES = 1500


class Taking:
    """Takes every frame. ``turn`` is told from outside."""

    def __init__(self) -> None:
        self.turn = 0
        self.taken: Counter[int] = Counter()
        self.seen: dict[str, list[int]] = defaultdict(list)

    def process(
        self, connection: Connection, buffer: bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]]:
        begin = start
        while stop := frame_end(buffer, start, end):
            self.seen[connection.remote].append(decode(bytes(buffer[start:stop])).opaque)
            start = stop
        self.taken[self.turn] += start - begin
        return start, []


@pytest.mark.parametrize("loop", LOOPS)
def test_what_many_connections_sent_is_taken_a_share_a_turn_whole_and_in_order(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "APART_MS", float("inf"))  # a turn may last so long on a busy machine

    async def work() -> None:
        fast, load = Taking(), b"".join(encode(Command(10, {}, bytes(60), opaque=n)) for n in range(FRAMES))

        def count() -> None:
            fast.turn += 1
            ticking[0] = asyncio.get_running_loop().call_soon(count)

        ticking = [asyncio.get_running_loop().call_soon(count)]
        async with serving(fast=fast) as (server, address):
            sockets = [
                socket.create_connection((HOST, int(address.rpartition(":")[2]))) for _ in range(CONNECTIONS)
            ]
            await until(lambda: len(server.connections) == CONNECTIONS)
            for one in sockets:
                one.setblocking(False)
                assert one.send(load) == len(load), "before the loop looks"
            await until(lambda: sum(map(len, fast.seen.values())) == CONNECTIONS * FRAMES)
            for one in sockets:
                one.close()
        ticking[0].cancel()
        assert sum(fast.taken.values()) == CONNECTIONS * len(load) > 4 * READ_BYTES_A_TURN
        assert max(fast.taken.values()) <= READ_BYTES_A_TURN + READ_BYTES_USUAL
        assert list(fast.seen.values()) == [list(range(FRAMES))] * CONNECTIONS

    run_on(loop, work)


def linked(guard: Guard, port: int, fast: Taking | None = None) -> Connection:
    connection = Connection(Endpoint[Connection]("test", None, guard, fast=fast))
    connection.connection_made(Wire(port))
    return connection


async def test_peers_are_read_whatever_clients_sent_and_who_claims_to_be_one_beside_them() -> None:
    guard = Guard("test", Limits(), lambda: 0.0)
    client, peer, claimed = (linked(guard, port) for port in (1, 2, 3))
    for one in (client, claimed):
        one.get_buffer(-1)
        one.buffer_updated(0)
    guard.on_request(peer, KEY.signed(PEER), KEY)
    guard.on_request(claimed, PEER, None)
    assert client.share.reads is not None
    client.share.reads.left = 0
    assert [len(one.get_buffer(-1)) for one in (client, peer, claimed)] == [
        1,
        READ_BYTES_USUAL,
        READ_BYTES_USUAL,
    ]
    assert claimed.share.reads is not None
    claimed.share.reads.left = 0
    assert [len(one.get_buffer(-1)) for one in (peer, claimed)] == [READ_BYTES_USUAL, 1]


async def test_reads_that_leave_half_of_a_share_cost_a_subtraction(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(starts.Reads, "is_spent", lambda reads, size: asked.append(size))
    guard = Guard("test", Limits(), lambda: 0.0)
    connection = Connection(Endpoint[Connection]("test", None, guard, fast=Taking()))
    connection.connection_made(Wire(1))
    frame = encode(Command(10, {}, bytes(900)))
    for _ in range(READ_BYTES_A_TURN // 2 // len(frame)):
        connection.get_buffer(-1)[: len(frame)] = frame
        connection.buffer_updated(len(frame))
    assert not asked
    connection.get_buffer(-1)[: len(frame)] = frame
    connection.buffer_updated(len(frame))
    assert len(asked) == 1


async def test_a_share_is_whole_in_the_next_turn_and_smaller_after_a_long_one() -> None:
    now = [0.0]
    reads, shares = Reads(lambda: now[0]), []
    for took_ms in [TURN_MS * 2] * 5 + [1.0] * 9:
        reads.left = 0
        assert reads.is_spent(1)
        assert reads.is_spent(1)
        now[0] += took_ms
        await asyncio.sleep(0)
        shares.append(reads.left)
    assert shares[:4] == [READ_BYTES_A_TURN // 2, READ_BYTES_A_TURN // 4, READ_BYTES_LEAST, READ_BYTES_LEAST]
    assert shares[5] == 2 * READ_BYTES_LEAST
    assert shares[-1] == READ_BYTES_A_TURN
    reads.left = 1
    assert not reads.is_spent(1)


async def test_what_is_read_over_long_arms_nothing_so_that_simulated_schedules_stay_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, size = [0.0], READ_BYTES_A_TURN // 8
    reads = Reads(lambda: now[0])
    loop = asyncio.get_running_loop()
    armed = []
    monkeypatch.setattr(loop, "call_soon", lambda *given: armed.append(given))
    for _ in range(40):
        now[0] += APART_MS / 4
        reads.left -= size
        assert not (reads.left < reads.low and reads.is_spent(size))
    assert not armed
    for _ in range(10):
        reads.left -= size
        if reads.left < reads.low and reads.is_spent(size):
            break
    assert len(armed) == 1, "in one turn"
    monkeypatch.undo()


async def test_who_waits_for_its_share_gets_it_in_its_turn_and_its_begun_frame_is_not_late() -> None:
    """Of those that are woken in one turn the last come too late: they go before those that did not."""
    guard, count = Guard("test", Limits(), lambda: 0.0), 3 * PARTS_A_TURN
    clients = [linked(guard, port, fast=Taking()) for port in range(1, 1 + count)]
    frame, served = encode(Command(10, {}, bytes(900))), list[Connection]()
    data, at, turns = memoryview(frame * (12 * READ_BYTES_USUAL // len(frame))), Counter[Connection](), 0

    def read(client: Connection, size: int = READ_BYTES_USUAL) -> None:
        room = client.get_buffer(-1)
        size = min(size, len(room))
        room[:size] = data[at[client] : at[client] + size]
        at[client] += size
        if size > FIRST_BYTES:
            served.append(client)
        client.buffer_updated(size)

    for client in clients:  # all have sent before, and begun a frame
        read(client, 1)
    begun = clients[-1]
    reads = guard.tallies[Standing.CLIENT].reads
    reads.left = 0
    for client in clients:
        read(client)
    served.clear()
    begun._inbox.begun_at = begun._gate._paused_at = asyncio.get_running_loop().time() - 60
    while len(set(served)) < count:
        turns += 1
        await asyncio.sleep(0)
        begun.enforce_limits(asyncio.get_running_loop().time())
        assert not begun.closed, "what waits for others is not late"
        for client in [one for one in clients if cast(Wire, one._transport).reading]:
            read(client)
    assert len(served) == 2 * turns
    assert len(served) - count <= 2 * (turns // 8 + 1), "few twice before all had it once"


async def test_a_begun_frame_has_no_more_time_however_often_it_was_held() -> None:
    """The time in which nothing was read is not counted to it, and all else is."""
    connection = Connection(Endpoint[Connection]("test", None, Guard("test", Limits(), lambda: 0.0)))
    connection.connection_made(Wire(1))
    now = [100.0]
    loop: Any = SimpleNamespace(time=lambda: now[0], call_soon=asyncio.get_running_loop().call_soon)
    connection._loop = loop
    begun = encode(Command(1, {}, bytes(100)))[:50]
    connection.get_buffer(-1)[: len(begun)] = begun
    connection.buffer_updated(len(begun))
    for _ in range(5):  # 60 s held, and 10 s not
        connection.hold(True)
        now[0] += 12
        connection.enforce_limits(now[0])
        connection.hold(False)
        connection.enforce_limits(now[0])
        assert not connection.closed
        now[0] += 2
    connection.enforce_limits(now[0] + 0.1)
    assert connection.closed


async def test_a_new_connection_shows_itself_a_peers_at_once_whatever_clients_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard, asked = Guard("test", Limits(), lambda: 0.0), list[int]()

    async def handle(connection: Connection, request: Command) -> None:
        asked.append(request.code)

    endpoint = Endpoint[Connection]("test", handle, guard, credentials=KEY)
    client, peer = Connection(endpoint), Connection(endpoint)
    client.connection_made(Wire(1))
    peer.connection_made(wire := Wire(2))
    reads = client.share.reads
    assert reads is not None
    reads.left = 0
    monkeypatch.setattr(
        guard.lines.reads, "wait_its_turn", lambda connection, nbytes: None
    )  # its place is far back
    frame = encode(KEY.signed(PEER))
    room = peer.get_buffer(-1)
    room[: len(frame)] = frame
    peer.buffer_updated(len(frame))
    assert not wire.reading
    await asyncio.sleep(0)
    assert (asked, wire.reading) == ([PEER.code], True)


async def test_parts_of_long_frames_leave_others_less_of_a_turn_and_are_read_all_the_same() -> None:
    guard = Guard("test", Limits(), lambda: 0.0)
    long, short = linked(guard, 1, fast=Taking()), linked(guard, 2, fast=Taking())
    reads = guard.tallies[Standing.CLIENT].reads
    frame, at = encode(Command(10, {}, bytes(8 << 20))), 0

    def read() -> None:
        nonlocal at
        long.read_on()
        room = long.get_buffer(-1)
        room[:] = frame[at : at + len(room)]
        at += len(room)
        long.buffer_updated(len(room))

    read()
    before, begun = reads.left, at
    for _ in range(PARTS_A_TURN):
        read()
    parts = before - reads.left
    assert parts == pytest.approx((at - begun) / COPIED_PART, rel=0.01)
    assert READ_BYTES_A_TURN > parts > READ_BYTES_A_TURN // 2
    reads.left = 0
    assert len(short.get_buffer(-1)) == FIRST_BYTES
    long.read_on()
    assert len(long.get_buffer(-1)) > FIRST_BYTES
    await asyncio.sleep(0)
    assert reads.left == READ_BYTES_A_TURN, "the next turn has a whole share"


def read(connection: Connection, data: bytes) -> None:
    """All of ``data`` is read, by the shares of many turns."""
    at, reads = 0, connection.share.reads
    while at < len(data):
        if reads is not None:
            reads.left = READ_BYTES_A_TURN
        connection.read_on()
        room = connection.get_buffer(-1)
        size = min(len(room), len(data) - at)
        room[:size] = data[at : at + size]
        connection.buffer_updated(size)
        at += size


@pytest.mark.parametrize("size", [200 << 10, 4 << 20, 9 << 20])
async def test_of_frames_that_become_whole_with_their_last_bytes_a_share_is_taken_a_turn(size: int) -> None:
    guard, asked = Guard("test", Limits(), lambda: 0.0), Counter[str]()

    async def handle(connection: Connection, request: Command) -> None:
        assert len(request.body) == size
        asked[connection.remote] += 1

    fast = Taking()
    endpoint = Endpoint[Connection]("test", None if size < LONG_FRAME_BYTES else handle, guard, fast=fast)
    clients = [Connection(endpoint) for _ in range(20)]
    frame = encode(Command(10, {}, bytes(size), opaque=7))
    for port, client in enumerate(clients):
        client.connection_made(Wire(port))
        for part in (frame[:20], frame[20:1000], frame[1000:-1]):
            read(client, part)
    await until(lambda: not any(client._gate.queued for client in clients))
    for client in clients:
        read(client, frame[-1:])
    taken = []
    for _ in range(20 * len(frame) // A_TURN_BYTES + 40):
        taken.append(sum(map(len, fast.seen.values())) + sum(asked.values()))
        fast.turn += 1
        await asyncio.sleep(0)
    assert taken[-1] == 20
    a_turn = 1 + A_TURN_BYTES // len(frame)
    assert max(b - a for a, b in itertools.pairwise([0, *taken])) <= a_turn, "a share, and one more"
    assert taken[-1] * len(frame) <= (len(taken) + 1) * A_TURN_BYTES + len(frame), "what is over is paid"
    assert not any(client._gate.paused or client._gate.joining for client in clients)


async def test_a_frame_that_waits_to_be_taken_is_taken_at_once_of_who_is_a_peer_and_never_of_who_left() -> (
    None
):
    guard, fast = Guard("test", Limits(), lambda: 0.0), Taking()
    left, peer = (linked(guard, port, fast=fast) for port in (1, 2))
    frame = encode(Command(10, {}, bytes(1 << 20), opaque=7))
    guard.lines.wholes.take(left, 4 << 20)
    for one in (left, peer):
        read(one, frame)
        assert cast(Wire, one._transport).reading is False
        assert one.handling == 1
    left._shut()
    left.join_on()
    left.connection_lost(None)
    guard.on_request(peer, KEY.signed(PEER), KEY)
    peer.join_on()
    assert [len(fast.seen[one.remote]) for one in (left, peer)] == [0, 1]
    for _ in range(30):
        await asyncio.sleep(0)
    assert [len(fast.seen[one.remote]) for one in (left, peer)] == [0, 1]
    assert cast(Wire, peer._transport).reading


async def test_what_was_kept_of_a_frame_is_not_copied_for_each_byte_of_it() -> None:
    guard, fast = Guard("test", Limits(), lambda: 0.0), Taking()
    client = linked(guard, 1, fast=fast)
    frame, reads = encode(Command(10, {}, bytes(100 << 10), opaque=7)), client.share.reads
    assert reads is not None
    read(client, frame[:-2])
    before = reads.left
    reads.left = 0
    kept = client._inbox._kept
    client.get_buffer(-1)
    assert client._inbox._parts[0] is kept
    assert before == READ_BYTES_A_TURN - len(frame) + 2
    read(client, frame[-2:])
    assert fast.seen[client.remote] == [7]
