"""The promise of remoting.guard: what clients take has an end, and peers do not feel it."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.codes import Request, label_of
from remoting.auth import Credentials
from remoting.codec import Command, decode, encode, frame_end
from remoting.guard import CLAIMED_MAX, PROBATION_MAX, PROBATION_S, Guard, Limits, Share, Standing, Tally
from remoting.keys import Keyring
from remoting.transport.connection import Connection
from remoting.transport.endpoint import Endpoint
from remoting.transport.inbox import LONG_FRAME_BYTES, PARTS_A_TURN, Inbox, Line, scratch
from remoting.transport.sweeps import SWEPT_AT_ONCE, Sweeps
from runtime.os_env import OsEnv
from runtime.turns import Slice, Unhurried
from tests.lines import lines_of
from tests.remoting.strangers import KEY, PEER, Dialled, dialled, fill
from tests.remoting.support import busy, client_of, echo, read_command, serving
from tests.waiting import until


async def test_a_client_too_many_is_answered_busy_and_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(limits=Limits(connections_max=3)) as (server, address),
        AsyncExitStack() as stack,
    ):
        held = await fill(stack, server, address, 3)
        async with dialled(address) as (reader, writer):
            writer.write(encode(Command(1, opaque=7)))
            answer = await read_command(reader)
            assert (answer.code, answer.opaque) == (2, 7)
            assert "maxConnections" in (answer.remark or "")
            assert await reader.read() == b""
        held[0][1].write(encode(Command(1, opaque=8)))
        assert (await read_command(held[0][0])).code == 0, "those who have a place keep it"
        held[0][1].close()
        await until(lambda: server.guard.status()["clients"] == 2)
        async with client_of() as client:
            assert (await client.call(address, Command(1))).code == 0, "and a free place is given away"
        server.guard.check_invariants()
    assert server.guard.refused["maxConnections"] == 1
    assert len(lines_of(caplog)) == 1


async def test_one_address_cannot_take_all_places() -> None:
    async with (
        serving(limits=Limits(connections_per_address=3)) as (server, address),
        AsyncExitStack() as stack,
    ):
        await fill(stack, server, address, 3)
        async with dialled(address) as (reader, writer):
            writer.write(encode(Command(1)))
            assert (await read_command(reader)).code == 2
        async with dialled(address, "127.0.0.2") as (reader, writer):
            writer.write(encode(Command(1)))
            assert (await read_command(reader)).code == 0
    assert +server.guard.refused == {"maxConnectionsPerAddress": 1}


@pytest.mark.parametrize(
    "credentials", [None, Credentials("peers", "0123456789abcdef")], ids=["open", "hardened"]
)
async def test_a_peer_gets_in_however_many_clients_there_are(credentials: Credentials | None) -> None:
    limits = Limits(connections_max=2)
    async with (
        serving(limits=limits, credentials=credentials) as (server, address),
        AsyncExitStack() as stack,
        client_of(credentials=credentials) as peer,
    ):
        await fill(stack, server, address, 2)
        assert (await peer.call(address, PEER)).code == 0
        assert (await peer.call(address, Command(1))).code == 0, "whatever it asks for then"
        status = server.guard.status()
        assert (status["clients"], status["peers"]) == (2, 1)
        if credentials is not None:
            async with client_of() as stranger:
                assert (await stranger.call(address, PEER)).code == 16, "an unsigned one is not a peer"
            async with client_of() as stranger:
                assert (await stranger.call(address, Command(1))).code == 2
        server.guard.check_invariants()


async def test_a_peer_gives_its_place_as_a_client_back() -> None:
    async with serving(limits=Limits(connections_max=1)) as (server, address), client_of() as peer:
        await peer.call(address, Command(1))
        assert server.guard.status()["clients"] == 1
        await peer.call(address, PEER)
        assert server.guard.status()["clients"] == 0
        async with client_of() as client:
            assert (await client.call(address, Command(1))).code == 0


async def test_silent_connections_over_the_cap_do_not_keep_peers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remoting.guard.PROBATION_S", 0.2)
    async with (
        serving(limits=Limits(connections_max=1)) as (server, address),
        AsyncExitStack() as stack,
        client_of() as peer,
    ):
        await fill(stack, server, address, 1)
        for _ in range(PROBATION_MAX + 5):
            await stack.enter_async_context(dialled(address))
        await until(lambda: len(server.connections) <= 1 + PROBATION_MAX)
        await until(lambda: len(server.connections) == 1)
        assert (await peer.call(address, PEER)).code == 0


async def test_begun_frames_of_all_have_a_cap_and_the_longest_gives_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = (15_000_000).to_bytes(4, "big") + (100).to_bytes(4, "big")
    async with (
        serving(limits=Limits(begun_bytes_max=4_000_000)) as (server, address),
        AsyncExitStack() as stack,
        client_of() as client,
    ):
        streams = await fill(stack, server, address, 8)
        for _, writer in streams[:-1]:
            writer.write(begun + bytes(600_000))
        streams[-1][1].write(encode(Command(1, body=bytes(500_000)))[:-1])
        await until(lambda: server.guard.refused["maxBegunFrameBytes"] > 0)
        assert server.guard.tallies[Standing.CLIENT].begun.total <= 4_000_000
        streams[-1][1].write(b"\0")
        assert len((await read_command(streams[-1][0])).body) == 500_000, "one that has less goes on"
        assert (await client.call(address, Command(1, body=bytes(400_000)))).code == 0
        server.guard.check_invariants()
    assert "maxBegunFrameBytes" in caplog.text
    assert server.guard.tallies[Standing.CLIENT].begun.total == 0, "who is gone has nothing"


async def test_unread_answers_of_all_have_a_cap_and_who_left_most_gives_way() -> None:
    limits = Limits(unread_bytes_max=16_000_000, unread_bytes_per_connection=8_000_000)
    body = bytes(700_000)
    async with (
        serving(limits=limits) as (server, address),
        AsyncExitStack() as stack,
        client_of() as client,
    ):
        await fill(stack, server, address, 10)
        connections = list(server.connections)
        for _ in range(60):
            for connection in connections:
                if not connection.closed:
                    connection.oneway(Command(40, body=body))
            await asyncio.sleep(0.01)
            if server.guard.refused["maxUnreadBytes"]:
                break
        assert server.guard.refused["maxUnreadBytes"] > 0
        assert server.guard.tallies[Standing.CLIENT].unread.total <= 16_000_000
        assert (await client.call(address, Command(1, body=body))).code == 0
        server.guard.check_invariants()
    assert server.guard.tallies[Standing.CLIENT].unread.total == 0


async def test_no_answer_is_made_for_who_does_not_read_those_before() -> None:
    """A read brings hundreds of pulls: each may be answered with a quarter of a megabyte."""
    made = 0

    async def handler(connection: Connection, request: Command) -> Command:
        nonlocal made
        made += 1
        return request.reply(body=bytes(256 * 1024))

    async with serving(handler) as (server, address), dialled(address) as (reader, writer):
        writer.write(b"".join(encode(Command(11, opaque=n)) for n in range(800)))
        await until(lambda: made > 3)
        await asyncio.sleep(0.1)
        # What the kernel's buffers took is sent; the rest waits.
        assert made < 200
        (connection,) = server.connections
        assert connection.handling == 800 - made
        for n in range(800):
            assert (await read_command(reader)).opaque == n
        assert made == 800


async def test_what_holds_the_loop_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(connection: Connection, request: Command) -> Command:
        if request.code == Request.GET_CONSUME_STATS:
            await asyncio.sleep(0)
            busy(0.03)
            await asyncio.sleep(0)
        return await echo(connection, request) or request.reply()

    async with serving(handler) as (server, address), client_of() as client:
        await client.call(address, Command(1))
        quiet = server.guard.slow.by_what["GET_CONSUME_STATS"]
        with caplog.at_level(logging.WARNING):
            for _ in range(30):
                await client.call(address, Command(Request.GET_CONSUME_STATS))
        slow = server.guard.slow
        assert quiet == 0
        # The turns around it are short ones, unless the machine stands still in one of them.
        assert 30 <= slow.by_what["GET_CONSUME_STATS"] < 60
        assert slow.worst_ms >= 30
        told = slow.status()["last"][-1]
        assert told["from"].startswith("127.0.0.1:")
        assert told["ms"] >= 30
        server.guard.check_invariants()
    lines = [record.message for record in caplog.records if "held the event loop" in record.message]
    assert 1 <= len(lines) < 20, "the log has fewer lines than there were slow turns"
    assert "GET_CONSUME_STATS from 127.0.0.1:" in lines[0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=60))
def test_a_tally_names_who_has_most_when_all_have_too_much(steps: list[tuple[int, int]]) -> None:
    tally, sizes = Tally(100), dict.fromkeys(range(6), 0)
    for who, size in steps:
        worst = tally.note(who, size)  # type: ignore[arg-type]
        grew, sizes[who] = size > sizes[who], size
        tally.check_invariants()
        assert tally.total == sum(sizes.values())
        assert (worst is not None) == (grew and sum(sizes.values()) > 100)
        if worst is not None:
            assert sizes[worst] == max(sizes.values())  # type: ignore[index]


class Part:
    """A connection whose frame has so many parts."""

    def __init__(self, line: Line, parts: int) -> None:
        self.line = line
        self.left = parts
        self.read = 0

    def read_on(self) -> None:
        self.read += 1
        if self.read < self.left:
            self.line.wait(self)

    write_on = read_on


async def test_parts_of_long_frames_are_read_a_few_a_turn_and_connections_take_turns() -> None:
    line = Line(PARTS_A_TURN, lambda part: part.read_on())
    readers = [Part(line, 5) for _ in range(3 * PARTS_A_TURN)]
    for reader in [*readers, *readers]:
        line.wait(reader)
    before = 0
    for _ in range(15):
        await asyncio.sleep(0)
        read = [reader.read for reader in readers]
        assert sum(read) - before == PARTS_A_TURN
        assert max(read) - min(read) <= 1
        before = sum(read)
    await asyncio.sleep(0)
    assert {reader.read for reader in readers} == {5}


async def test_long_frames_of_many_arrive_whole_whatever_their_lengths_and_pauses() -> None:
    sizes = [(n * 37_813) % (2 << 20) + 1 for n in range(80)]
    frames = [encode(Command(105, {}, bytes([n]) * size, opaque=n)) for n, size in enumerate(sizes)]

    async def handle(connection: Connection, request: Command) -> Command:
        assert request.body == bytes([request.opaque % 80]) * len(request.body)
        return request.reply(ext={"size": str(len(request.body))})

    async def one(n: int, address: str) -> None:
        async with dialled(address) as (reader, writer):
            data = frames[n] + frames[-n - 1]  # two in a row
            at = 0
            while at < len(data):
                step = (n * 7919 + at) % 300_000 + 1
                writer.write(data[at : at + step])
                at += step
                await asyncio.sleep(0)
            found = {(a.opaque, int(a.ext["size"])) for a in [await read_command(reader) for _ in range(2)]}
            assert found == {(n, sizes[n]), (79 - n, sizes[-n - 1])}

    async with serving(handle) as (server, address):
        await asyncio.gather(*(one(n, address) for n in range(80)))
        await until(lambda: server.guard.tallies[Standing.CLIENT].begun.total == 0)
        server.guard.check_invariants()


def full_guard(clock: list[float]) -> Guard:
    guard = Guard("test", Limits(connections_max=1), lambda: clock[0])
    assert guard.admit(Dialled(1))
    return guard


def test_the_one_in_probation_that_came_first_gives_way_and_bytes_buy_no_time() -> None:
    clock = [0.0]
    guard = full_guard(clock)
    strangers = [Dialled(port) for port in range(2, 2 + PROBATION_MAX)]
    assert all(guard.admit(stranger) for stranger in strangers)
    assert not guard.admit(Dialled(1000)), "a burst in one turn drives out nobody that just came"
    clock[0] = 200.0
    peer = Dialled(1001)
    assert guard.admit(peer)
    assert [stranger.ended for stranger in strangers] == [True] + [False] * (PROBATION_MAX - 1)
    guard.check_invariants()
    request = KEY.signed(PEER)
    guard.on_request(peer, request, KEY)
    assert peer.share.standing is Standing.PEER
    clock[0] = 1000.0 * PROBATION_S + 1
    assert all(guard.overstayed(stranger) for stranger in strangers[1:]), "counted from the accept"
    assert not guard.overstayed(peer)
    guard.check_invariants()


async def test_a_peer_gets_in_while_64_strangers_drip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins a frame of 16 MB, and sends a byte of it now and then."""
    begun = (15_000_000).to_bytes(4, "big") + (100).to_bytes(4, "big")
    async with (
        serving(limits=Limits(connections_max=1), credentials=KEY) as (server, address),
        AsyncExitStack() as stack,
        client_of(credentials=KEY) as peer,
    ):
        await fill(stack, server, address, 1)
        streams = [await stack.enter_async_context(dialled(address)) for _ in range(PROBATION_MAX)]
        for _, writer in streams:
            writer.write(begun)
        await asyncio.sleep(0.2)
        assert (await peer.call(address, PEER)).code == 0
        server.guard.check_invariants()


def test_without_a_key_who_claims_to_be_a_peer_is_capped() -> None:
    clock = [0.0]
    guard = Guard("test", Limits(unread_bytes_max=1000), lambda: clock[0])
    connections = [Dialled(port) for port in range(CLAIMED_MAX + 1)]
    for connection in connections:
        assert guard.admit(connection)
        guard.on_request(connection, PEER, None)
    guard.check_invariants()
    assert guard.status()["peers"] == CLAIMED_MAX
    assert connections[-1].share.standing is Standing.CLIENT
    for connection in connections[:3]:
        connection.guard = guard
        connection.held = 900
        guard.on_unread(connection, 900)
    assert [connection.ended for connection in connections[:3]].count(True) == 1, "2,000 bytes"


def test_a_connection_of_our_own_does_not_end_for_what_it_asks() -> None:
    guard = Guard("test", Limits(unread_bytes_per_connection=10), lambda: 0.0)
    own = Dialled(1)
    guard.on_unread(own, 11)
    assert not own.ended


async def test_codes_that_nobody_knows_are_one_label() -> None:
    async with serving(credentials=KEY) as (server, address), client_of() as client:
        for code in range(20_000, 20_050):
            server.guard.audit.on_denied(Command(code), "10.0.0.1:1", "why")
            await client.call(address, Command(code))
        server.guard.slow.note(30.0, label_of(20_000), "10.0.0.1:1")
        server.guard.slow.note(30.0, label_of(20_001), "10.0.0.1:1")
        assert server.guard.audit.denied == {"unknown": 50}
        assert server.guard.slow.by_what.keys() <= {"unknown", "one read"}


async def test_a_long_frame_is_cut_where_it_was_collected_and_what_follows_it_is_heard() -> None:
    """Each copy of 16 MiB takes as long as a slice: it is put together once, without its head."""
    body = bytes(range(256)) * (LONG_FRAME_BYTES >> 8) + b"end"
    frames = encode(Command(105, {"a": "b"}, body, opaque=7)) + encode(Command(105, {}, b"short", opaque=8))
    heard: list[tuple[int, bytes]] = []

    async def handle(connection: Connection, request: Command) -> Command:
        heard.append((request.opaque, request.body))
        assert request.ext.get("a") == ("b" if request.opaque == 7 else None)
        return request.reply()

    async with serving(handle) as (server, address), dialled(address) as (reader, writer):
        writer.write(frames)
        assert [(await read_command(reader)).opaque for _ in range(2)] == [7, 8]
        assert heard == [(7, body), (8, b"short")]
        await until(lambda: server.guard.tallies[Standing.CLIENT].begun.total == 0)


@pytest.mark.parametrize("cut", [1, 5, 9, 100, 70_000])
def test_a_long_frame_is_the_same_however_its_begin_came(cut: int) -> None:
    frame = encode(Command(105, {"a": "b" * 50}, bytes(LONG_FRAME_BYTES)))
    inbox = Inbox(scratch())
    data, at = frame + b"\0\0\1", 0
    while at < len(data):
        room = inbox.room()
        part = data[at : at + min(len(room), cut if at < 3 * cut else len(room))]
        room[: len(part)] = part
        room.release()
        inbox.end += len(part)
        at += len(part)
        found = inbox.long_frame(1 << 30)
        if found is not None:
            break
        if inbox.is_ready():
            assert not frame_end(inbox.buffer, inbox.start, inbox.end)
            inbox.took(inbox.start, 0.0)
    assert found is not None
    assert found == decode(frame)
    assert (bytes(inbox.buffer[: inbox.end]), at) == (b"\0\0\1"[: inbox.end], len(frame) + inbox.end)
    assert inbox.owned == 0


async def test_a_request_whose_connection_has_ended_takes_no_place() -> None:
    """The bytes behind it are no frame: the connection ends before the request's turn comes."""
    async with serving(limits=Limits(connections_max=3)) as (server, address):
        for _ in range(3):
            async with dialled(address) as (reader, writer):
                writer.write(encode(PEER) + bytes(4))
                await reader.read()
        await until(lambda: not server.connections)
        server.guard.check_invariants()
        assert server.guard.status()["peers"] == 0


def test_who_proved_itself_with_a_key_that_was_taken_out_counts_as_a_client(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    former, new = Credentials("former", "0123456789abcdef"), Credentials("new", "fedcba9876543210")

    def write(*keys: Credentials) -> None:
        listed = [{"accessKey": key.access_key, "secretKey": key.secret_key} for key in keys]
        path.write_text(json.dumps({"keys": listed}))

    write(new, former)
    keys = Keyring(OsEnv(), str(path))
    guard = Guard("test", Limits(connections_max=2, begun_bytes_max=1000), lambda: 0.0)
    little, of_new, much, again, client = there = [Dialled(port) for port in range(5)]
    for one, key in zip(there, (former, new, former, former), strict=False):
        one.guard = guard
        assert guard.admit(one)
        guard.on_request(one, key.signed(PEER), keys)
        one.frame_bytes = 100
        guard.on_frames(one, 100)
    much.frame_bytes = 2000
    guard.on_frames(much, 2000)
    guard.sweep()
    assert guard.status()["peers"] == 4
    assert guard.admit(client)

    write(new)
    keys.look()
    guard.sweep()
    guard.check_invariants()
    assert [one.share.standing for one in there] == [
        Standing.CLIENT,
        Standing.PEER,
        Standing.GONE,
        Standing.PROBATION,  # as the places of clients are taken
        Standing.CLIENT,
    ]
    assert much.ended, "what it had under way counts at once"
    assert guard.status()["begunBytes"] == 200
    assert [one.share.goes_first for one in (little, of_new, again)] == [False, True, False]

    for one in (little, again):
        guard.on_request(one, new.signed(PEER), keys)
        assert one.share.standing is Standing.PEER
    guard.sweep()
    guard.check_invariants()
    assert guard.status()["begunBytes"] == 0


@pytest.mark.parametrize("name", ["new", "former"])
def test_who_signs_with_the_next_key_stays_a_peer_when_the_former_one_goes(tmp_path: Path, name: str) -> None:
    """Clients have all places: who is no peer any more would end."""
    path = tmp_path / "peers.json"
    former, new = Credentials("former", "0123456789abcdef"), Credentials(name, "fedcba9876543210")

    def write(*keys: Credentials) -> None:
        listed = [{"accessKey": key.access_key, "secretKey": key.secret_key} for key in keys]
        path.write_text(json.dumps({"keys": listed}))

    write(former)
    keys = Keyring(OsEnv(), str(path))
    guard = Guard("test", Limits(connections_max=1), lambda: 0.0)
    client, peer = Dialled(0), Dialled(1)
    assert guard.admit(client)
    assert guard.admit(peer)
    guard.on_request(peer, former.signed(PEER), keys)
    for listed, signs in (((former, new), former), ((new, former), new), ((new,), new)):
        write(*listed)
        keys.look()
        guard.on_request(peer, Command(1), keys)
        guard.sweep()
        assert peer.share.standing is Standing.PEER
        guard.on_request(peer, signs.signed(Command(1)), keys)
        guard.on_request(peer, Credentials(name, "0000000000000000").signed(Command(1)), keys)
        assert peer.share.proof is not None
        assert keys.has(peer.share.proof[1]), "nobody else's signature counts"
    guard.check_invariants()


def test_the_invariants_see_one_that_ended_and_still_counts() -> None:
    guard = Guard("test", Limits(), lambda: 0.0)
    ended = Dialled(1)
    ended.share.ended = True
    guard._enter(ended, Standing.CLAIMED)
    with pytest.raises(AssertionError, match="none that has ended"):
        guard.check_invariants()


class One:
    """A connection that is looked at."""

    closed, handling, last_io, held = False, 0, 0.0, 5

    def __init__(self, looked: list["One"]) -> None:
        self.looked = looked
        self.share = Share()
        self.share.standing = Standing.CLIENT

    def enforce_limits(self, now: float) -> None:
        self.looked.append(self)

    def excuse(self, for_s: float, now: float) -> None: ...
    def regulate(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


async def test_very_many_connections_are_looked_at_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 of them in one step take 12 to 20 ms each second, by estimate."""
    monkeypatch.setattr(Unhurried, "is_over", lambda self: True)
    monkeypatch.setattr(Unhurried, "_pause", Slice._pause)
    looked: list[One] = []
    guard: Any = Guard("test", Limits(), lambda: 0.0)
    endpoint: Endpoint[One] = Endpoint("test", None, guard)
    ones = [One(looked) for _ in range(350)]
    endpoint.connections = dict.fromkeys(ones)
    unread = guard.tallies[Standing.CLIENT].unread
    for one in ones[:20]:
        unread.note(one, 7)
    sweeping = asyncio.ensure_future(Sweeps(endpoint).look())
    seen, totals = [], []
    while not sweeping.done():
        await asyncio.sleep(0)
        seen.append(len(looked))
        totals.append(unread.total)
        if len(seen) == 3:
            del endpoint.connections[ones[-1]]
            unread.note(ones[19], 0)
    assert max(after - before for before, after in pairwise([0, *seen])) == SWEPT_AT_ONCE
    assert looked == ones[:-1], "one that left meanwhile is not looked at"
    assert max(before - after for before, after in pairwise(totals)) == 7
    assert unread.by == dict.fromkeys(ones[:19], 5)
    guard.check_invariants()
