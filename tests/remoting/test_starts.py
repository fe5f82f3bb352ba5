"""The promise to everybody else: however many requests one read brings, few of them begin in one turn."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict

import pytest

from remoting.codec import Command, encode
from remoting.guard import MADE_BYTES_MAX, Made
from remoting.transport.connection import Connection
from remoting.transport.starts import (
    A_TURN,
    APART_MS,
    KNOWN,
    LEAST,
    OF_PEERS,
    TURN_MS,
    UNTOLD_MS,
    Starts,
    share_after,
)
from tests.remoting.support import read_command, serving

FLOOD = 1200


async def test_a_flood_begins_a_part_a_turn_in_order_and_others_are_answered_meanwhile() -> None:
    turn = 0
    begun: Counter[int] = Counter()
    order: dict[str, list[int]] = defaultdict(list)

    async def handle(connection: Connection, request: Command) -> Command:
        begun[turn] += 1
        order[connection.remote].append(int(request.ext["n"]))
        return request.reply()

    def count() -> None:
        nonlocal turn
        turn += 1
        ticking[0] = asyncio.get_running_loop().call_soon(count)

    ticking = [asyncio.get_running_loop().call_soon(count)]
    async with serving(handle) as (_, address):
        host, _, port = address.rpartition(":")
        peers = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
        for _, writer in peers[:3]:
            writer.write(b"".join(encode(Command(105, {"n": str(n)}, opaque=n)) for n in range(FLOOD)))
        await asyncio.sleep(0.01)
        reader, writer = peers[3]
        writer.write(encode(Command(105, {"n": "0"}, opaque=0)))
        await read_command(reader)
        answered_at = sum(begun.values())
        for reader, _ in peers[:3]:
            assert [(await read_command(reader)).opaque for _ in range(FLOOD)] == list(range(FLOOD))
        for _, writer in peers:
            writer.close()
    ticking[0].cancel()
    assert sum(begun.values()) == 3 * FLOOD + 1
    # A turn's requests run as tasks in a later step of the loop, where those of three turns may meet.
    assert max(begun.values()) <= 3 * A_TURN
    assert sorted(order.values(), key=len) == [[0], *[list(range(FLOOD))] * 3]
    assert answered_at < 3 * FLOOD, "it did not wait for the whole flood"


async def test_frames_that_wait_when_their_connection_ends_begin_no_more() -> None:
    begun = 0

    async def handle(connection: Connection, request: Command) -> None:
        nonlocal begun
        begun += 1
        connection.close()

    async with serving(handle) as (_, address):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"".join(encode(Command(105, {}, opaque=n)) for n in range(FLOOD)))
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
    assert begun <= 3 * A_TURN


class Line:
    """A connection with so many frames that wait."""

    def __init__(self, frames: int, *, goes_first: bool = False) -> None:
        self.frames = frames
        self.goes_first = goes_first
        self.asked = 0

    def go_on(self) -> bool:
        self.asked += 1
        return self.asked < self.frames


def is_told(starts: Starts) -> bool:
    """Whether this turn is told from the next, which takes a step of the loop."""
    return starts._armed_ms is not None


async def test_who_waits_already_is_in_the_line_once() -> None:
    """A peer that has read comes back into the line, perhaps before its place was reached."""
    starts, lines = Starts(lambda: 0.0), [Line(3) for _ in range(2 * A_TURN)]
    for line in [*lines, *lines]:
        starts.wait(line)
    for _ in range(20):
        await asyncio.sleep(0)
    assert {line.asked for line in lines} == {3}, "a connection is asked for each of its frames, and no more"


async def test_fewer_begin_after_a_long_turn_and_more_again_after_short_ones() -> None:
    now = [0.0]
    starts, line = Starts(lambda: now[0]), Line(10_000)
    starts.wait(line)
    begun = []
    for took_ms in [TURN_MS * 2] * 8 + [1.0] * 20:
        now[0] += took_ms
        before = line.asked
        await asyncio.sleep(0)
        begun.append(line.asked - before)
    assert begun[:4] == [25, 12, 6, LEAST]
    assert begun[8:10] == [2 * LEAST, 3 * LEAST]
    assert begun[-1] == A_TURN


async def test_a_turn_that_has_been_long_begins_no_more_than_the_least() -> None:
    now = [0.0]
    starts, line = Starts(lambda: now[0]), Line(10_000)
    begun = 0
    while starts.take():
        begun += 1
        now[0] += TURN_MS * 0.6
    assert begun == LEAST, "what is done within them is seen at once"
    await asyncio.sleep(0)
    assert starts.take()

    def go_on() -> bool:
        now[0] += TURN_MS
        return Line.go_on(line)

    line.go_on = go_on  # type: ignore[method-assign]
    starts.wait(line)
    await asyncio.sleep(0)
    before = line.asked
    await asyncio.sleep(0)
    assert line.asked - before == LEAST


async def test_of_known_requests_a_few_count_as_one_and_a_turn_is_as_long_as_with_others() -> None:
    now = [0.0]
    starts = Starts(lambda: now[0])
    begun = 0
    while starts.take_known():
        begun += 1
    assert begun == KNOWN * A_TURN
    assert not starts.take()
    await asyncio.sleep(0)
    assert starts.take_known()
    others = 0
    while starts.take():
        others += 1
    assert others == A_TURN - 1
    assert [starts.take_known() for _ in range(KNOWN)] == [True] * (KNOWN - 1) + [False]
    await asyncio.sleep(0)
    begun = 0
    while starts.take_known():
        begun += 1
        now[0] += TURN_MS * 0.6
    assert begun == LEAST, "each may take long: a read may wait for the disk"


@pytest.mark.parametrize("turn_ms", [0.0, 2 * TURN_MS])
async def test_known_requests_that_begin_together_count_as_one_by_one(turn_ms: float) -> None:
    now = [0.0]
    together, each = Starts(lambda: now[0]), Starts(lambda: now[0])
    chance = random.Random(1)
    begun = 0
    for _ in range(3 * A_TURN):
        if chance.random() < 0.3:
            assert together.take() == each.take()
            continue
        room = together.known_room()
        assert room <= LEAST, "each may take long"
        count = chance.randrange(room + 1)
        together.begun_known(count, turn_ms, now[0] + turn_ms)
        assert [each.take_known() for _ in range(count)] == [True] * count
        begun += count
        now[0] += turn_ms
    assert not together.known_room()
    assert not each.take_known(), "both had their share"
    assert begun <= LEAST if turn_ms else begun > A_TURN


async def test_a_few_quick_known_requests_need_no_step_of_the_loop_and_a_turn_begins_no_more_for_it() -> None:
    starts = Starts(lambda: 0.0)
    begun = 0
    while not is_told(starts):
        begun += LEAST
        starts.begun_known(starts.known_room(), 0.1, 0.0)
    assert KNOWN * A_TURN // 2 <= begun <= KNOWN * A_TURN // 2 + LEAST + KNOWN
    while room := starts.known_room():
        starts.begun_known(room, 0.1, 0.0)
        begun += room
    assert begun == KNOWN * A_TURN, "all of them may have begun in one turn"
    await asyncio.sleep(0)
    assert starts.known_room() == LEAST
    assert not is_told(starts)


async def test_known_requests_that_took_long_before_a_turn_is_told_count_in_it() -> None:
    now = [0.0]
    starts = Starts(lambda: now[0])
    for took_ms in (UNTOLD_MS / 2, UNTOLD_MS / 2, TURN_MS):
        assert not is_told(starts)
        assert starts.known_room() == LEAST
        now[0] += took_ms
        starts.begun_known(2, took_ms, now[0])
    assert is_told(starts)
    assert (starts.known_room(), starts.take()) == (0, False), "the turn was long"
    await asyncio.sleep(0)
    assert starts.known_room() > 0
    assert is_told(starts), "its share is a smaller one"


@pytest.mark.parametrize(("every_ms", "pulls"), [(1000.0, 74), (12_000.0, 49), (APART_MS, 30)])
async def test_pulls_of_long_ago_count_in_no_turn_of_now(every_ms: float, pulls: int) -> None:
    """Few pulls that no turn was told for: a burst behind them begins as many, and halves no share."""
    now = [0.0]
    starts = Starts(lambda: now[0])
    for _ in range(pulls):
        assert starts.known_room() == LEAST
        now[0] += 0.1
        starts.begun_known(1, 0.1, now[0])
        now[0] += every_ms
        assert not is_told(starts)
    now[0] += every_ms
    for _ in range(A_TURN):
        assert starts.take()
        now[0] += TURN_MS * 0.9 / A_TURN
    assert not starts.take(), "a whole share began"
    await asyncio.sleep(0)
    assert sum(starts.take() for _ in range(2 * A_TURN)) == A_TURN, "the turn was not long"


async def test_of_long_answers_half_of_what_a_turn_may_make_needs_no_step_of_the_loop() -> None:
    starts = Starts(lambda: 0.0)
    made = Made(starts.at_next_turn)
    made.add(MADE_BYTES_MAX // 2)
    assert not is_told(starts)
    made.add(MADE_BYTES_MAX)
    made.add(1)
    assert is_told(starts)
    await asyncio.wait_for(made.next_turn(), 1)
    assert made.size == 0


async def test_what_is_due_at_the_next_turn_is_called_once_with_what_waits() -> None:
    starts, called = Starts(lambda: 0.0), []
    starts.at_next_turn(lambda: called.append("due"))
    assert not called
    await asyncio.sleep(0)
    assert called == ["due"]
    starts.take()
    await asyncio.sleep(0)
    assert called == ["due"]


@pytest.mark.parametrize("order", ["kkkkkk", "okkkkk", "kokoko", "kkkooo", "oooook"])
async def test_a_turn_that_is_late_begins_the_least_whatever_it_is_asked_for(order: str) -> None:
    now = [0.0]
    starts = Starts(lambda: now[0])
    begun = 0
    for kind in order:
        begun += starts.take_known() if kind == "k" else starts.take()
        now[0] += 2 * TURN_MS
    assert begun == LEAST


def test_the_share_of_a_turn_stays_between_its_bounds() -> None:
    for share in range(LEAST, A_TURN + 1):
        for took_ms in (0.0, TURN_MS, TURN_MS + 1, 1e6):
            assert LEAST <= share_after(share, took_ms, A_TURN) <= A_TURN


async def test_those_that_go_first_wait_behind_no_client_and_keep_none_from_its_share() -> None:
    starts = Starts(lambda: 0.0)
    clients = [Line(3) for _ in range(1000)]
    first = Line(1000, goes_first=True)
    for line in clients:
        starts.wait(line)
    starts.wait(first)
    await asyncio.sleep(0)
    assert first.asked == OF_PEERS, "in the next turn"
    assert sum(line.asked for line in clients) == A_TURN
    await asyncio.sleep(0)
    assert (first.asked, sum(line.asked for line in clients)) == (2 * OF_PEERS, 2 * A_TURN)
    assert not starts.take(first=True), "its share of this turn is taken"


async def test_who_shows_itself_a_peer_leaves_the_line_of_clients() -> None:
    starts, line = Starts(lambda: 0.0), Line(2)
    for waiting in [*(Line(1) for _ in range(3 * A_TURN)), line]:
        starts.wait(waiting)
    line.goes_first = True
    starts.wait(line)
    await asyncio.sleep(0)
    assert line.asked == 2
    for _ in range(5):
        await asyncio.sleep(0)
    assert line.asked == 2, "it was in one line alone"
