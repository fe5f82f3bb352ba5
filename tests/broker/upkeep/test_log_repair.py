"""The promise of repair: a replica whose disk rots asks another one, and serves every message again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.context import BrokerContext
from broker.service import Broker
from broker.upkeep.log_repair import LogRepair
from ha.master.links import LOOKED_MS, MEND_WAIT_MS, MendWaits
from ha.master.log_reader import Budget, LogReader
from ha.master.slave_link import Host, Resources, SlaveLink, WithEpochs
from ha.wire.proof import Credentials
from model.codes import Request
from model.errors import PeerError
from model.ids import PhysicalOffset
from runtime.os_env import OsEnv
from store.files.damage import DamagedRange, DamageLedger
from store.message_store import MessageStore
from tests.broker.helpers import client_of, eventually, log_records, pair
from tests.store.support import scrub_all


def _rot(broker: Broker, offset: int) -> None:
    """Flip a bit on disk, below the running broker."""
    path = Path(broker.config.store_path) / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes((byte ^ 16,)))


@pytest.mark.parametrize("who", ["slave", "master"])
async def test_a_replica_repairs_itself_from_the_other_and_serves_again(tmp_path: Path, who: str) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as client:
        for number in range(20):
            assert (await client.send("T", b"m%d" % number)).code == 0
        await eventually(lambda: two.store.dispatched == one.store.log.end, "all is dispatched")
        whole = log_records(one)
        rotten = two if who == "slave" else one

        async def members() -> list[str]:
            return [one.config.address, two.config.address]

        rotten.upkeep.repair.members = members
        _rot(rotten, whole[7].physical_offset + 88)
        scrub_all(rotten.store)
        assert [item["kind"] for item in rotten.status()["damaged"]] == ["crc_mismatch"]
        await eventually(lambda: not rotten.status()["damaged"], "it is repaired")
        assert rotten.status()["repaired"] == 1
        assert log_records(rotten) == whole


async def test_nothing_is_given_that_is_not_confirmed_whole_and_of_the_group(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as client:
        for number in range(5):
            await client.send("T", b"m%d" % number)
        end = one.store.confirmed
        last = log_records(one)[-1]

        async def ask(offset: int, size: int, name: str = "broker-t") -> tuple[int, str, bytes]:
            ext = {"brokerName": name, "offset": str(offset), "size": str(size)}
            answer = await client.call(Request.READ_LOG_RANGE, ext)
            return answer.code, answer.remark or "", answer.body

        assert (await ask(0, end))[2] == one.store.log.read(0, end)
        assert "confirmed" in (await ask(0, end + 1))[1]
        assert "confirmed" in (await ask(-1, 10))[1]
        assert "expected 1 to" in (await ask(0, 0))[1]
        assert "group broker-t" in (await ask(0, 10, "another"))[1]
        _rot(one, last.physical_offset + 88)
        scrub_all(one.store)
        assert "damaged here" in (await ask(last.physical_offset + 5, 10))[1]
        assert (await ask(0, last.physical_offset))[0] == 0
        assert two.status()["damaged"] == []


def test_a_link_waits_at_damage_another_slave_can_mend_and_passes_on_what_nobody_can(tmp_path: Path) -> None:
    class Group:
        replicas = None
        others_end = 0

        def elsewhere(self, offset: int, link: SlaveLink) -> bool:
            return self.others_end > offset

    env, group = OsEnv(), Group()
    damage = DamageLedger(env.disk, str(tmp_path))
    damage.note([DamagedRange(500, 600, "body_crc")])
    store = cast(MessageStore, SimpleNamespace(damage=damage))
    budget = Budget(0, env.monotonic_ms)
    credentials = Credentials(None, b"", lenient=False)
    shared = Resources(env, store, cast(Host, group), budget, LogReader(store), credentials, 100, 4096)
    link = SlaveLink(shared, WithEpochs())
    for self_at, others_end, until in (
        (0, 500, 900),  # nobody has it
        (0, 501, 500),
        (500, 900, 500),
        (550, 900, 550),
        (600, 900, 900),
    ):
        link.next, group.others_end = PhysicalOffset(self_at), others_end
        assert link.whole_until(PhysicalOffset(900)) == until
    damage.clear(damage.ranges[:1])
    link.next = PhysicalOffset(0)
    assert link.whole_until(PhysicalOffset(900)) == 900


class OneLink:
    address = "127.0.0.1:1"

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id


def test_a_slave_waits_for_a_repair_for_half_a_minute_and_then_takes_what_is_there() -> None:
    """The other one may have the same damage, or be a RocketMQ broker, which does not know the question."""
    waits, now_ms = MendWaits(), 0.0
    link, other = (cast(SlaveLink, OneLink(number)) for number in (2, 3))

    def waited(offset: int, most_ms: float) -> float:
        """So long, at a look each 100 ms."""
        nonlocal now_ms
        began_ms = now_ms
        while now_ms - began_ms < most_ms and waits.may(link, PhysicalOffset(offset), now_ms):
            assert waits.at(link, now_ms) == offset
            now_ms += 100
        return now_ms - began_ms

    assert waited(500, 10_000) == 10_000, "it is mended then"
    now_ms += 60_000
    assert waits.at(link, now_ms) is None, "what it copied meanwhile is no wait"
    assert waited(900, 60_000) == pytest.approx(MEND_WAIT_MS, abs=LOOKED_MS)
    assert not waits.may(link, PhysicalOffset(1500), now_ms), "nor is it kept at the next damage"
    assert waits.at(link, now_ms) is None
    assert waits.may(other, PhysicalOffset(900), now_ms)
    waits.on_end(link)
    assert waits.may(link, PhysicalOffset(900), now_ms), "another link"


async def test_the_repair_outlives_whatever_breaks_one_round_of_it(tmp_path: Path) -> None:
    env = OsEnv()
    damage = DamageLedger(env.disk, str(tmp_path))
    damage.note([DamagedRange(500, 600, "body_crc")])
    errors: list[Exception] = [ValueError("outside of the log"), OSError("no"), PeerError("nonsense")]
    context = cast(BrokerContext, SimpleNamespace(env=env, store=SimpleNamespace(damage=damage)))
    repair = LogRepair(context, cast(Any, None), cast(Any, None))
    rounds = 0

    async def once() -> int:
        nonlocal rounds
        rounds += 1
        if errors:
            repair.soon()
            raise errors.pop()
        return 0

    repair.once = once  # type: ignore[method-assign]
    task = asyncio.create_task(repair.run())
    await eventually(lambda: rounds > 3 or task.done(), "it goes on")
    assert not task.done()
    task.cancel()
