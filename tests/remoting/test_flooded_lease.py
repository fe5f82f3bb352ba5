"""The promise to the lease, under virtual time: a flood of clients' requests keeps no timer from its time.

Heartbeats, lease renewals and replication are timers and reads on the loop that clients' requests run on.
Here each request takes a millisecond of virtual time, and forty connections have four hundred each: sixteen
seconds of work. Or each takes ten, and all go on together, as what they waited for has come. A lease is 1.5 s
long and renewed each half a second.
"""

from __future__ import annotations

import asyncio

import pytest

from chaos.sim.loop import SimLoop
from remoting.codec import Command, encode
from remoting.guard import Guard, Limits
from remoting.transport import starts, steps
from remoting.transport.connection import Connection
from remoting.transport.endpoint import Endpoint
from tests.remoting.wires import Wire, feed

COST_S = 0.001
CONNECTIONS = 40
REQUESTS = 400
LONG_S = 0.01
LONG_REQUESTS = 50
RENEWAL_S = 0.5
LATE_S_MAX = 0.1


def flooded(
    loop: SimLoop, requests: int = REQUESTS, cost_s: float = COST_S, *, together: bool = False
) -> tuple[list[float], int]:
    """How late each renewal was, in virtual seconds, while the flood was worked off; requests answered.
    ``together``: they wait until all have begun."""
    begun = answered = 0
    all_begun = asyncio.Event()

    async def handle(connection: Connection, request: Command) -> Command:
        nonlocal begun, answered
        begun += 1
        if begun == CONNECTIONS * requests:
            all_begun.set()
        if together:
            await all_begun.wait()
        answered += 1
        loop.now_s += cost_s
        return request.reply()

    async def work() -> list[float]:
        guard = Guard("test", Limits(), lambda: loop.time() * 1000)
        endpoint = Endpoint[Connection]("test", handle, guard)
        frames = b"".join(encode(Command(105, {}, opaque=n)) for n in range(requests))
        late, feeding = [], []
        for n in range(CONNECTIONS):
            connection, wire = Connection(endpoint), Wire(40_000 + n)
            connection.connection_made(wire)
            feeding.append(asyncio.create_task(feed(connection, wire, frames)))
        while answered < CONNECTIONS * requests:
            due = loop.time() + RENEWAL_S
            await asyncio.sleep(RENEWAL_S)
            late.append(loop.time() - due)
        await asyncio.gather(*feeding)
        return late

    try:
        return loop.run_until_complete(work()), answered
    finally:
        loop.close()


def test_a_flood_of_clients_work_keeps_no_lease_from_its_renewal() -> None:
    late, answered = flooded(SimLoop(1))
    assert answered == CONNECTIONS * REQUESTS
    assert len(late) >= CONNECTIONS * REQUESTS * COST_S / (RENEWAL_S + LATE_S_MAX)
    assert max(late) <= LATE_S_MAX


def test_without_a_share_a_turn_the_lease_would_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above can fail."""
    monkeypatch.setattr(starts, "A_TURN", 10**9)
    monkeypatch.setattr(starts, "LEAST", 10**9)
    monkeypatch.setattr(steps, "TURN_MS", 1e9)
    late, _ = flooded(SimLoop(1))
    assert max(late) > 1.5


def test_requests_that_go_on_together_keep_no_lease_from_its_renewal() -> None:
    late, answered = flooded(SimLoop(1), LONG_REQUESTS, LONG_S, together=True)
    assert answered == CONNECTIONS * LONG_REQUESTS
    assert max(late) <= LATE_S_MAX


def test_without_a_share_a_turn_requests_that_go_on_together_would_end_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "TURN_MS", 1e9)
    late, _ = flooded(SimLoop(1), LONG_REQUESTS, LONG_S, together=True)
    assert max(late) > 1.5
