"""The promise of the comparison of logs: it goes on, whatever happens to the log meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from broker.log_compare import DIGEST_BYTES, STEP_BYTES, LogCompare
from broker.log_repair import LogRepair
from broker.parts import Parts
from model.errors import PeerError
from remoting.codec import Command
from remoting.service import RemotingClient
from store.message_store import MessageStore
from tests.store.faulty import FaultyEnv
from tests.store.support import fill, opened

SEGMENT: Final = 4 * STEP_BYTES


def _put_aside(store: MessageStore) -> None:
    store.reset(0)


def _cut(store: MessageStore) -> None:
    store.log.cut(200)


def _retain(store: MessageStore) -> None:
    while len(store.log.segments) > 1:
        store.log.forget_first()


class Peer:
    """A replica whose log differs everywhere; ``happens`` to ours while it is asked, the ``nth`` time."""

    def __init__(self, store: MessageStore, happens: Callable[[MessageStore], None], nth: int) -> None:
        self.asked = 0
        self._store = store
        self._happens = happens
        self._nth = nth

    async def call(self, address: str, command: Command, timeout_s: float) -> Command:
        begin, size = int(command.ext["offset"]), int(command.ext["size"])
        ext = {"offset": str(begin), "confirmOffset": str(begin + size)}
        count = -(-size // STEP_BYTES)
        await self._turn()
        return command.reply(ext=ext, body=b"\1" * DIGEST_BYTES * count)

    async def peers(self) -> list[str]:
        return ["peer"]

    async def fetch(self, address: str, begin: int, until: int) -> bytes:
        data = b"".join(self._store.log.read(at, 1) for at in range(begin, until))
        await self._turn()
        return bytes(byte ^ 1 for byte in data)

    async def _turn(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.asked == self._nth:
            self._happens(self._store)


def _compare(env: FaultyEnv, store: MessageStore, peer: Peer) -> LogCompare:
    config = SimpleNamespace(
        broker_name="g",
        enable_controller_mode=True,
        scrub_megabytes_per_s=0,
        check_on_start_megabytes_per_s=0,
    )
    parts = cast(Parts, SimpleNamespace(env=env, config=config, store=store))
    return LogCompare(parts, cast(RemotingClient, peer), cast(LogRepair, peer))


@pytest.mark.parametrize("happens", [_put_aside, _cut, _retain])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_log_cut_or_deleted_while_a_replica_is_asked_only_ends_the_pass(
    happens: Callable[[MessageStore], None], nth: int
) -> None:
    """1: digests are asked for; 2: the step that differs; 3: a record of it; 4: the next one."""

    async def run() -> None:
        env = FaultyEnv()
        async with opened(env, segment_bytes=SEGMENT) as store:
            await fill(store, 600)
            assert len(store.log.segments) > 1
            peer = Peer(store, happens, nth)
            compare = _compare(env, store, peer)
            await compare.once()
            assert peer.asked >= nth

    asyncio.run(run())


def test_the_comparison_outlives_what_it_does_not_expect_of_the_log() -> None:
    async def run() -> None:
        env = FaultyEnv()
        async with opened(env) as store:
            compare = _compare(env, store, Peer(store, lambda _: None, 0))
            errors: list[Any] = [ValueError("outside of the log"), OSError("no")]

            async def once() -> bool:
                raise errors.pop()

            compare.once = once  # type: ignore[method-assign]
            assert await compare._turn() is not None
            assert await compare._turn() is not None
            assert not errors

    asyncio.run(run())


def test_a_difference_no_replica_gave_the_bytes_of_is_looked_at_again() -> None:
    """By default there is one pass a start: it is not over because a replica was busy for a moment."""

    async def run() -> None:
        env = FaultyEnv()
        async with opened(env) as store:
            await fill(store, 20)
            peer = Peer(store, lambda _: None, 0)
            compare = _compare(env, store, peer)
            fetch = peer.fetch

            async def busy(address: str, begin: int, until: int) -> bytes:
                raise PeerError("busy")

            peer.fetch = busy  # type: ignore[method-assign]
            assert not await compare.once()
            assert compare.passes == 0
            peer.fetch = fetch  # type: ignore[method-assign]
            await compare.once()
            assert compare.passes == 1

    asyncio.run(run())
