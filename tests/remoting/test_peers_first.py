"""The promise to peers: however many requests strangers have waiting, a peer's begin in the next turns."""

from __future__ import annotations

import asyncio

import pytest

from remoting.auth import Credentials
from remoting.codec import Command, encode
from remoting.guard import Guard, Limits, Standing
from remoting.transport.connection import Connection
from remoting.transport.endpoint import Endpoint
from remoting.transport.starts import A_TURN, OF_PEERS
from tests.remoting.strangers import KEY, PEER
from tests.remoting.wires import Wire
from tests.waiting import until

STRANGERS = 200
FRAMES = 10


class World:
    """A server that notes what began; as many strangers as wanted."""

    def __init__(self, credentials: Credentials | None) -> None:
        self.begun: list[int] = []
        guard = Guard("test", Limits(), lambda: 0.0)
        self.endpoint = Endpoint[Connection]("test", self._handle, guard, credentials=credentials)
        self._ports = 40_000

    async def _handle(self, connection: Connection, request: Command) -> Command:
        self.begun.append(request.code)
        return request.reply()

    def dialled(self) -> Connection:
        self._ports += 1
        connection = Connection(self.endpoint)
        connection.connection_made(Wire(self._ports))
        return connection

    def flood(self) -> None:
        for _ in range(STRANGERS):
            give(self.dialled(), Command(105), FRAMES)


def give(connection: Connection, request: Command, count: int = 1) -> None:
    data = encode(request) * count
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


@pytest.mark.parametrize(
    ("credentials", "request_", "standing"),
    [(KEY, KEY.signed(PEER), Standing.PEER), (None, PEER, Standing.CLAIMED)],
)
async def test_a_flood_of_strangers_requests_keeps_no_request_of_a_peer_from_the_next_turns(
    credentials: Credentials | None, request_: Command, standing: Standing
) -> None:
    world = World(credentials)
    peer = world.dialled()
    give(peer, request_)
    await until(lambda: len(world.begun) == 1)
    assert peer.share.standing is standing
    world.flood()
    give(peer, request_, 2 * OF_PEERS)
    world.begun.clear()
    for turn in range(1, 4):
        await asyncio.sleep(0)
        assert world.begun.count(PEER.code) >= min(2, turn) * OF_PEERS, f"turn {turn}"
        assert world.begun.count(105) <= turn * A_TURN
    assert world.begun.count(105) >= 2 * A_TURN, "nor do peers keep strangers from theirs"
    await until(lambda: len(world.begun) == STRANGERS * FRAMES + 2 * OF_PEERS)


async def test_a_strangers_request_waits_behind_the_others() -> None:
    """So the test above can fail."""
    world = World(KEY)
    world.flood()
    give(world.dialled(), Command(34))
    for _ in range(3):
        await asyncio.sleep(0)
    assert 34 not in world.begun
    await until(lambda: len(world.begun) == STRANGERS * FRAMES + 1)
