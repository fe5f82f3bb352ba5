"""The promise of the comparison of logs: it goes on, whatever happens to the log meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from broker.context import BrokerContext
from broker.upkeep.log_compare import DIGEST_BYTES, STEP_BYTES, LogCompare
from broker.upkeep.log_repair import LogRepair
from model.codes import Request
from model.errors import PeerError, Refused
from model.ids import BrokerId, Epoch
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.loops import UNTIL_WOKEN
from store.files import damage
from store.files.record import HEAD, records_in
from store.message_store import MessageStore
from tests.broker.helpers import elected, eventually, pair
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import fill, message, opened

SEGMENT: Final = 4 * STEP_BYTES


def _quarantine(store: MessageStore) -> None:
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
        ext = {"offset": str(begin), "confirmOffset": str(begin + size), "epoch": "1"}
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


class Damaged(Peer):
    """A replica that knows it cannot tell: there is nothing to fetch of it. ``asked_until``: the end of what
    it was asked for."""

    asked_until = 0

    async def call(self, address: str, command: Command, timeout_s: float) -> Command:
        self.asked_until = int(command.ext["offset"]) + int(command.ext["size"])
        answer = await super().call(address, command, timeout_s)
        answer.body = bytes(len(answer.body))
        return answer


def _compare(env: FaultyEnv, store: MessageStore, peer: Peer) -> LogCompare:
    config = SimpleNamespace(
        broker_name="g",
        enable_controller_mode=True,
        scrub_megabytes_per_s=0,
        check_on_start_megabytes_per_s=0,
    )
    ha = SimpleNamespace(verified_epoch=1)
    context = cast(BrokerContext, SimpleNamespace(env=env, config=config, store=store, ha=ha))
    return LogCompare(context, cast(RemotingClient, peer), cast(LogRepair, peer))


@pytest.mark.parametrize("happens", [_quarantine, _cut, _retain])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_a_log_cut_or_deleted_while_a_replica_is_asked_only_ends_the_pass(
    happens: Callable[[MessageStore], None], nth: int
) -> None:
    """1: digests are asked for; 2: the step that differs; 3: a record of it; 4: the next one."""

    env = FaultyEnv()
    async with opened(env, segment_bytes=SEGMENT) as store:
        await fill(store, 600)
        assert len(store.log.segments) > 1
        peer = Peer(store, happens, nth)
        compare = _compare(env, store, peer)
        await compare.once()
        assert peer.asked >= nth


async def test_of_a_record_that_says_it_is_longer_than_any_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one go, it would be up to a segment."""
    monkeypatch.setattr(damage, "RECORD_BYTES_MAX", 4096)
    env = FaultyEnv()
    async with opened(env, segment_bytes=SEGMENT) as store:
        puts = await fill(store, 100)
        compare = _compare(env, store, Peer(store, lambda _: None, 0))
        at, limit = puts[1].physical_offset, store.log.end
        assert compare._size(at, limit) == puts[1].size
        env.disk.nodes["/store/commitlog/" + "0" * 20].cache[at + 2] ^= 0x20
        asked: list[int] = []
        read = store.log.read

        def reading(offset: int, size: int) -> bytes:
            asked.append(size)
            return read(offset, size)

        monkeypatch.setattr(store.log, "read", reading)
        assert compare._size(at, limit) == 0
        assert store.reader.record_bytes(at) == 0
        assert max(asked) <= HEAD.size


async def test_with_both_rates_zero_nothing_is_compared() -> None:
    env = FaultyEnv()
    async with opened(env, scrub_megabytes_per_s=0, check_on_start_megabytes_per_s=0) as store:
        await fill(store, 20)
        peer = Peer(store, lambda _: None, 0)
        compare = _compare(env, store, peer)
        assert await compare._turn() == UNTIL_WOKEN
        assert (peer.asked, compare.passes) == (0, 0)


async def test_the_comparison_outlives_what_it_does_not_expect_of_the_log() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        compare = _compare(env, store, Peer(store, lambda _: None, 0))
        compare._context.config.check_on_start_megabytes_per_s = 64
        errors: list[Any] = [ValueError("outside of the log"), OSError("no")]

        async def once(until: int | None = None) -> bool:
            raise errors.pop()

        compare.once = once  # type: ignore[method-assign]
        assert await compare._turn() is not None
        assert await compare._turn() is not None
        assert not errors


@pytest.mark.parametrize("there", [0, 60])
async def test_the_pass_after_a_start_compares_what_was_there_and_nothing_this_process_wrote(
    there: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load it would compete with the load, for bytes that were written a moment ago."""
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, there)
        at_start = store.log.end
        peer = Damaged(store, lambda _: None, 0)
        compare = _compare(env, store, peer)
        monkeypatch.setattr(store.scrub, "rate", lambda: 1 << 20)
        running = asyncio.create_task(compare.run())
        await asyncio.sleep(0)
        await fill(store, 2000)
        assert store.log.end > at_start + 16 * STEP_BYTES
        for _ in range(1000):
            if not compare.passes:
                await asyncio.sleep(0)
        assert compare.passes == 1
        assert peer.asked_until == at_start
        running.cancel()


async def test_a_difference_no_replica_gave_the_bytes_of_is_looked_at_again() -> None:
    """By default there is one pass a start: it is not over because a replica was busy for a moment."""

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


class Others:
    """Two replicas with one log, which answer as of ``epoch``, from the ``nth`` answer on as of ``later``:
    then our own epoch is that, too, if ``ha`` is given."""

    def __init__(
        self, store: MessageStore, epoch: str | None, later: str | None, nth: int, ha: Any = None
    ) -> None:
        self._store = store
        self._ha = ha
        self._epochs = [epoch] * nth + [later]

    async def call(self, address: str, command: Command, timeout_s: float) -> Command:
        epoch = self._epochs.pop(0) if len(self._epochs) > 1 else self._epochs[0]
        ext = {} if epoch is None else {"epoch": epoch}
        if self._ha is not None and len(self._epochs) == 1:
            self._ha.verified_epoch = int(ext["epoch"])
        offset, size = int(command.ext["offset"]), int(command.ext["size"])
        if command.code == Request.READ_LOG_RANGE:
            return command.reply(ext=ext, body=self._store.log.read(offset, size))
        ext |= {"offset": str(offset), "confirmOffset": str(self._store.confirmed)}
        return command.reply(ext=ext, body=b"\1" * DIGEST_BYTES)


def comparing(env: FaultyEnv, store: MessageStore, others: Others, ha: Any) -> LogCompare:
    """Of ``store``, with two ``others``."""
    client = cast(RemotingClient, others)
    config = SimpleNamespace(
        broker_name="g",
        address="one",
        group_address=None,
        enable_controller_mode=True,
        scrub_megabytes_per_s=0,
        check_on_start_megabytes_per_s=0,
    )
    role_state = SimpleNamespace(master_address=None)
    fake = SimpleNamespace(env=env, config=config, store=store, role_state=role_state, ha=ha)
    context = cast(BrokerContext, fake)

    async def members() -> list[str]:
        return ["one", "two", "three"]

    return LogCompare(context, client, LogRepair(context, client, members))


async def test_two_copies_of_one_rotten_disk_do_not_overwrite_the_last_good_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third was copied anew from the second: of bytes that no CRC covers, rot included."""
    env, theirs = FaultyEnv(), FaultyEnv()
    async with opened(env) as store, opened(theirs) as other:
        for each, tag in ((store, "A"), (other, "C")):
            each.put(message(b"m", properties=f"TAGS\x01{tag}\x02"))
            each.confirm(each.log.end)
            await each.caught_up()
        before = store.log.read(0, store.log.end)
        compare = comparing(env, store, Others(other, "2", "2", 0), SimpleNamespace(verified_epoch=2))
        compare._end_at_start = store.log.end
        compare._context.config.check_on_start_megabytes_per_s = 64
        monkeypatch.setattr(store.scrub, "rate", lambda: 1 << 20)
        assert await compare._turn() == UNTIL_WOKEN, "it would read the whole log for the same answer"
        assert (store.log.read(0, store.log.end), compare.undecided) == (before, 1)
        monkeypatch.setattr(store.scrub, "rate", lambda: 0)
        await compare._turn()
        assert (compare.passes, compare.undecided) == (2, 1), "woken, it asks again: there are others perhaps"

        async def half(peer: str, at: int, until: int, peers: list[str]) -> int:
            return at + 1 if at == store.log.min_offset else at  # it is restarted in the middle

        monkeypatch.setattr(compare, "_piece", half)
        monkeypatch.setattr("broker.upkeep.log_compare.STEP_BYTES", 1)
        await compare._turn()
        assert (compare.passes, compare.undecided) == (2, 1), "what it did not come to is not decided by that"
        assert store.damage.ranges == [], "it is served as ever"


@pytest.mark.parametrize(
    ("mine", "epoch", "later", "nth", "together", "outvoted"),
    [
        (2, "2", "2", 0, False, True),
        (2, "1", "1", 0, False, False),  # not cut yet
        (2, None, None, 0, False, False),  # says nothing: of an older version
        (2, "3", "3", 0, False, False),  # we have not heard yet who is master
        (None, "2", "2", 0, False, False),  # ours may have to be cut, too
        (2, "2", "1", 1, False, False),  # digests, then the step, then a record from both
        (2, "2", "1", 2, False, False),
        (2, "2", "1", 3, False, False),
        (2, "2", "3", 3, True, False),  # an election between the two
    ],
)
async def test_only_replicas_settled_in_our_epoch_outvote_our_record(
    mine: int | None, epoch: str | None, later: str | None, nth: int, together: bool, outvoted: bool
) -> None:
    env, theirs = FaultyEnv(), FaultyEnv()
    async with opened(env) as store, opened(theirs) as other:
        for number in range(9):
            one = message(b"%d" % number)
            store.put(one)
            other.put(replace(one, body=b"x") if number == 4 else one)
        for each in (store, other):
            each.confirm(each.log.end)
            await each.caught_up()
        assert store.log.end == other.log.end
        ha = SimpleNamespace(verified_epoch=mine)
        client = Others(other, epoch, later, nth, ha if together else None)
        compare = comparing(env, store, client, ha)
        await compare.once()
        bodies = [r.body for r in records_in(store.log.read(0, store.log.end))]
        assert bodies[4] == (b"x" if outvoted else b"4")


async def test_a_slave_answers_for_its_log_in_the_epoch_its_master_is_in(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two):
        ext = {"brokerName": "broker-t", "offset": "0", "size": "1"}
        asked = Command(int(Request.KEELMQ_LOG_DIGESTS), ext)
        await eventually(lambda: two.ha.verified_epoch == 1, "it follows")
        for broker in (one, two):
            answer = await broker.upkeep.compare.digests(cast(Any, None), asked)
            assert answer is not None
            assert answer.ext["epoch"] == "1"
        await two.follow(BrokerId(2), Epoch(2), one.config.address, one.config.ha_address)
        assert two.ha.verified_epoch is None  # its master may be cut by another before it leads again
        for handler in (two.upkeep.compare.digests, two.upkeep.repair.read):
            with pytest.raises(Refused, match="may still be cut"):
                await handler(cast(Any, None), asked)
        await one.lead(elected(1, 2, {1}, 2))
        assert one.ha.verified_epoch == 2
        await eventually(lambda: two.ha.verified_epoch == 2, "it heard of the election from its master")
        await one.fence()
        assert one.ha.verified_epoch is None
        await eventually(lambda: two.ha.verified_epoch is None, "the link is gone")
