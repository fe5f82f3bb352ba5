"""The promise of one append a turn: several connections get what each would have got alone (decision 13).

Also when the write fails, when others append in between, and when the broker stops being master.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.requests.batch import PULLS
from broker.requests.turn import READ_BYTES_MAX
from remoting import codec
from remoting.codec import Command
from remoting.headers import SendHeader
from remoting.service import Connection
from remoting.transport.order import WAITS
from tests.broker.send_frames import Way, answers, any_frame, plain_frame
from tests.fakes.broker.send_path import HAS_COMPILED, Side
from tests.fakes.broker.store import FakeConnection

pytestmark = pytest.mark.skipif(not HAS_COMPILED, reason="reads of Python's path are stored one by one")


class Client(FakeConnection):
    """A connection that tells its frames to ``again``, in the order of all connections."""

    def __init__(self, number: int, again: list[tuple[Client, bytes]]) -> None:
        super().__init__(f"127.0.0.1:{40000 + number}")
        self._all_again = again

    def handle_again(self, frames: Iterable[bytes]) -> None:
        self._all_again += [(self, frame) for frame in frames]


class Turns:
    """A broker whose turns of the loop end when the test says so, and one without any beside it."""

    def __init__(self, clients: int, segment_bytes: int = 1 << 20) -> None:
        self.fast, self.ordinary = Way(segment_bytes, compiled=True), Way(segment_bytes)
        self.again: list[tuple[Client, bytes]] = []
        self.clients = [Client(number, self.again) for number in range(clients)]
        self.twins = [Client(number, []) for number in range(clients)]
        self.due: list[Callable[[], None]] = []
        assert self.fast.hot.compiled is not None
        self.compiled = self.fast.hot.compiled
        self.compiled.soon = self.due.append
        self.join = self.fast.hot.join_or(self.fast.hot.process, lambda connection, buffer, end, found: found)
        self._unsaid: list[tuple[int, list[bytes]]] = []  # what only the fast one has heard of

    def read(self, number: int, frames: list[bytes]) -> None:
        client = self.clients[number]
        data = b"".join(frames)
        self._unsaid.append((number, frames))
        found = self.join(cast(Connection, client), bytearray(data), 0, len(data))
        at, left = found or (len(data), [])
        assert at == len(data)
        self._settle()
        self.fast.each(left, client)
        self._compare()

    def end(self) -> None:
        """Of a turn."""
        due, self.due[:] = list(self.due), []
        for callback in due:
            callback()
        self._settle()
        self._compare()

    def _settle(self) -> None:
        """What the turn could not keep takes the ordinary way."""
        again, self.again[:] = list(self.again), []
        for client, frame in again:
            self.fast.each([frame], client)

    def _compare(self) -> None:
        self.compiled.check_invariants()
        if self.compiled.waiting:
            return
        for number, frames in self._unsaid:
            self.ordinary.each(frames, self.twins[number])
        self._unsaid.clear()
        assert self.fast.seen == self.ordinary.seen
        for client, twin in zip(self.clients, self.twins, strict=True):
            assert [codec.encode(one) for one in answers(client.data)] == [
                codec.encode(one) for one in answers(twin.data)
            ]

    def disk(self, *, full: bool) -> None:
        for way in (self.fast, self.ordinary):
            way.store.fail_appends = 10**6 if full else 0


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**48),
    clients=st.integers(1, 5),
    segment_bytes=st.sampled_from([4096, 16384, 1 << 20]),
)
def test_each_connection_gets_what_it_would_have_got_alone(
    seed: int, clients: int, segment_bytes: int
) -> None:
    """Reads, ends of turns, full disks, refusals and other writers, at any moment."""
    chance = random.Random(seed)
    turns = Turns(clients, segment_bytes)
    odd = chance.choice([0.0, 0.02, 0.2])
    opaque = 0
    for _ in range(40):
        what = chance.random()
        if what < 0.7:
            frames = []
            for _ in range(chance.choice([1, 1, 1, 2, 8, 40])):
                opaque += 1
                make = any_frame if chance.random() < odd else plain_frame
                frames.append(make(chance, opaque))
            turns.read(chance.randrange(clients), frames)
        elif what < 0.85:
            turns.end()
        elif what < 0.9:
            turns.disk(full=chance.random() < 0.5)
        elif what < 0.95:
            turns.fast.refusing = chance.random() < 0.5
        else:
            turns.compiled.end_turn()  # as before somebody else's append
            turns._settle()
            turns._compare()
    turns.end()
    assert not turns.compiled.waiting


def frame(number: int) -> bytes:
    """A plain send that wants an answer."""
    chance = random.Random(number)
    while codec.decode(made := plain_frame(chance, number)).is_oneway:
        pass
    return made


def test_small_reads_of_several_connections_are_one_append_and_one_write_each() -> None:
    turns = Turns(8)
    for number in range(8):
        turns.read(number, [frame(number * 10), frame(number * 10 + 1)])
    stored_alone = turns.fast.store.appends
    assert stored_alone == 1, "only the first read, when nobody else sent"
    turns.end()
    assert turns.fast.store.appends == 2
    assert [len(client.written) for client in turns.clients] == [1] * 8


def test_one_connection_alone_never_waits() -> None:
    turns = Turns(1)
    for number in range(5):
        turns.read(0, [frame(number)])
        assert not turns.compiled.waiting
    assert not turns.due


def test_a_long_read_ends_the_turn_and_is_stored_at_once() -> None:
    turns = Turns(2)
    turns.read(0, [frame(1)])
    turns.read(1, [frame(2)])
    assert turns.compiled.waiting
    frames = [frame(number) for number in range(3, 100)]
    assert sum(map(len, frames)) > READ_BYTES_MAX
    turns.read(0, frames)
    assert not turns.compiled.waiting


def test_who_appends_ends_the_turn_first() -> None:
    turns = Turns(2)
    turns.read(0, [frame(1)])
    turns.read(1, [frame(2)])
    before = turns.fast.store.appends
    turns.fast.store.append((), 0, ())
    assert not turns.compiled.waiting
    assert turns.fast.store.appends == before + 2
    assert turns.again == []


def test_a_log_that_moved_unseen_sends_the_turn_the_ordinary_way() -> None:
    turns = Turns(2)
    turns.read(0, [frame(1)])
    turns.read(1, [frame(2)])
    turns.fast.store.log.roll()
    turns.compiled.end_turn()
    assert [client for client, _ in turns.again] == [turns.clients[1]]
    assert turns.clients[1].written == []


def test_a_mistake_in_the_write_ends_the_connections_of_the_turn() -> None:
    turns = Turns(3)
    for number in range(3):
        turns.read(number, [frame(number)])

    def breaks(*arguments: object) -> None:
        raise AssertionError("an invariant")

    turns.fast.store.append_next = breaks  # type: ignore[assignment,method-assign]
    with pytest.raises(AssertionError):
        turns.compiled.end_turn()
    assert [client.closed for client in turns.clients] == [False, True, True]
    turns.compiled.check_invariants()


def test_a_mistake_while_a_read_joins_ends_the_connections_of_the_turn() -> None:
    turns = Turns(3)
    for number in range(3):
        turns.read(number, [frame(number)])
    with pytest.raises(IndexError):
        turns.join(cast(Any, turns.clients[2]), bytearray(8), 0, 9)
    assert [client.closed for client in turns.clients] == [False, True, True]
    turns.compiled.check_invariants()
    assert not turns.compiled.waiting


def test_a_read_that_waits_joins_without_a_step_of_python() -> None:
    turns = Turns(3)
    data, nothing, client = frame(9), (0, list[bytes]()), cast(Any, turns.clients[2])
    for number in range(3):
        turns.read(number, [frame(number)])
    join = turns.compiled.join_or(lambda connection, buffer, start, end: nothing)
    assert join(client, data, 0, len(data)) is None
    assert join(client, data + data[:-1], 0, 2 * len(data) - 1) == (len(data), []), "one is not whole"
    for mark in (WAITS, PULLS):
        client.attributes[mark] = True
        assert join(client, data, 0, len(data)) is nothing, "its frames wait for each other"
        del client.attributes[mark]
    turns.compiled.end_turn()
    assert [len(answers(client.data)) for client in turns.clients] == [1, 1, 3]
    assert join(client, data, 0, len(data)) is nothing, "no turn is open"


def test_what_joins_a_turn_of_a_log_that_was_cut_is_stored_where_the_log_ends_now() -> None:
    turns, odd = Turns(3), codec.encode(Command(34, {}))
    for number in range(3):
        turns.read(number, [frame(number)])
    assert turns.compiled.waiting
    del turns.fast.store.log.data[:]
    data, stored = frame(9) + odd, len(turns.fast.store.dispatches)
    assert turns.join(cast(Any, turns.clients[2]), bytearray(data), 0, len(data)) == (len(data), [odd])
    assert turns.again == [(turns.clients[number], frame(number)) for number in (1, 2)], "they waited"
    assert turns.fast.store.dispatches[stored].offset == 0
    turns.compiled.check_invariants()
    assert not turns.compiled.waiting


def test_what_a_read_leaves_that_was_to_join_is_looked_at_further() -> None:
    turns, further = Turns(3), list[tuple[int, list[bytes]]]()
    client, left = cast(Any, turns.clients[2]), codec.encode(Command(34, {}))
    data = frame(9) + left

    def rest(
        connection: object, buffer: bytes | bytearray, end: int, found: tuple[int, list[bytes]]
    ) -> tuple[int, list[bytes]]:
        assert (connection, end) == (client, len(data))
        further.append(found)
        return end, []

    for number in range(3):
        turns.read(number, [frame(number)])
    join = turns.fast.hot.join_or(turns.fast.hot.process, rest)
    assert join(client, data, 0, len(data)) == (len(data), [])
    assert further == [(len(data), [left])]
    assert [len(answers(client.data)) for client in turns.clients] == [1, 1, 2], "it took the others along"


def test_what_a_burst_took_is_given_back_when_it_is_stored_or_dropped() -> None:
    """Of each of its three buffers the compiled path keeps what an ordinary turn takes."""
    side = Side(compiled=True)
    assert side.hot.compiled is not None
    core = side.hot.compiled._core

    def takes(data: bytes) -> int:
        """Bytes of the buffers when all of ``data`` is encoded."""
        maxima = (4 << 20, 8, 16 << 20)
        left: list[bytes] = []
        ended = core.process(data, 0, len(data), bytes(8), 1, 0, 1 << 40, maxima, False, False, left)
        assert (ended[0], left) == (len(data), [])
        return core.buffer_bytes

    header = SendHeader("pg", "T", 0, 1, properties=f"UNIQ_KEY\x01{0:032X}\x02").to_ext()
    long = codec.encode(Command(310, header, bytes(1 << 20))) * 8
    many = codec.encode(Command(310, header, b"")) * 30_000
    usual = takes(bytes(long[: len(long) // 8]))
    core.take()
    assert core.answers()
    assert core.buffer_bytes == usual, "an ordinary turn finds its room again"
    kept = 3 * (2 << 20)
    for burst in (long, many):
        assert takes(burst) > kept
        records, _ = core.take()
        assert core.answers()
        assert core.buffer_bytes <= kept
        assert takes(burst) > kept
        core.drop()
        assert core.buffer_bytes <= kept
        assert takes(burst) > kept
        assert core.take()[0] == records, "the next burst is encoded as the first"
        core.answers()
