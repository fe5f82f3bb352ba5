"""The promise of order: whatever two sends of a connection wait for, the first comes to its handler first."""

from __future__ import annotations

import asyncio
from typing import Any

from model.codes import Request, Response
from model.errors import Refused
from remoting.codec import Command, encode
from remoting.guard import MADE_BYTES_MAX
from remoting.long_bodies import LongBodies
from remoting.transport.connection import Connection
from remoting.transport.order import WAITS
from runtime.turns import PeerLeft
from tests.remoting.wires import Transport, endpoint_of

LONG = bytes(70 << 10)
"""It is weighed."""


class World:
    """One connection, and the bodies of its requests in the order in which they came to the handler."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.endpoint = endpoint_of(self._handle, frame_bytes_max=1 << 20)
        self.connection = Connection(self.endpoint)
        self.connection.connection_made(Transport())

    async def _handle(self, connection: Connection, request: Command) -> None:
        self.seen.append(request.body[-2:])

    def asks(self, body: bytes, code: int = Request.SEND_MESSAGE_V2) -> None:
        data = encode(Command(int(code), {}, body))
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    async def go_round(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_send_that_waits_behind_long_answers_is_not_passed_by_the_next_one() -> None:
    world = World()
    made = world.endpoint.guard.made
    made.size = MADE_BYTES_MAX + 1
    world.asks(b"s1")
    world.asks(b"h1", Request.HEART_BEAT)
    await world.go_round()
    assert world.seen == [], "it waits"
    world.asks(b"s2")  # begins in the turn in which there is room again
    made._new_turn()
    await world.go_round()
    assert world.seen == [b"h1", b"s1", b"s2"] or world.seen == [b"s1", b"h1", b"s2"]
    assert WAITS not in world.connection.attributes
    world.connection.abort()


async def test_a_send_whose_long_body_is_weighed_is_not_passed_unless_it_is_refused(monkeypatch: Any) -> None:
    weighed, wrong = asyncio.Event(), asyncio.Event()

    async def weigh(self: LongBodies, peer: Any, request: Command, *given: Any, **more: Any) -> None:
        if request.body.endswith(b"no"):
            await wrong.wait()
            raise Refused("too long", Response.MESSAGE_ILLEGAL)
        await weighed.wait()

    monkeypatch.setattr(LongBodies, "weigh", weigh)
    world = World()
    world.asks(LONG + b"s1")
    world.asks(LONG + b"no")
    for body in (b"s2", b"s3"):
        world.asks(body)
    world.asks(b"h1", Request.HEART_BEAT)
    await world.go_round()
    assert world.seen == [b"h1"], "no send, and all else"
    weighed.set()
    await world.go_round()
    assert world.seen == [b"h1", b"s1"], "the refused one is before the others"
    wrong.set()
    await world.go_round()
    assert world.seen == [b"h1", b"s1", b"s2", b"s3"]
    assert WAITS not in world.connection.attributes
    world.connection.abort()


async def test_what_waits_for_a_send_before_it_is_not_stored_when_the_peer_left(monkeypatch: Any) -> None:
    """The one before it is not stored either: both come again on another connection, in order."""
    goes_on = asyncio.Event()

    async def weigh(self: LongBodies, peer: Any, request: Command, *given: Any, **more: Any) -> None:
        await goes_on.wait()
        raise PeerLeft

    monkeypatch.setattr(LongBodies, "weigh", weigh)
    world = World()
    world.asks(LONG + b"s1")
    world.asks(b"s2")
    await world.go_round()
    world.connection.connection_lost(None)
    goes_on.set()
    await world.go_round()
    assert world.seen == []
    assert WAITS not in world.connection.attributes
