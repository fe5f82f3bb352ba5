"""The promise of ``autoReseed``: a log that is not the master's is put aside once the group knows, and never
where the master lacks what is confirmed in it."""

from __future__ import annotations

from model.ids import BrokerId, Epoch
from tests.fakes.ha.group import Group, Node
from tests.fakes.ha.store import FakeStore
from tests.waiting import until


def a_foreign_log(*, begin: int = 20) -> FakeStore:
    """Of what is confirmed in it, 20 bytes, those before ``begin`` were deleted."""
    store = FakeStore()
    store.log.data += b"something " * 3
    store.log.min_offset = begin
    store.epochs.append(7, 0)
    store.confirmed = 20
    return store


async def a_master_with_another(group: Group) -> None:
    group.epoch = 7
    group.master_id = 1
    group.nodes[1].store.grow(b"0123456789" * 9)
    group.nodes[1].store.epochs.append(1, 0)
    await group.elect(1)


async def test_with_auto_reseed_a_foreign_log_is_put_aside_and_the_masters_is_copied() -> None:
    rocketmq_peer = a_foreign_log()
    async with Group(Node(1), Node(2, rocketmq_peer, auto_reseed=True)) as group:
        await a_master_with_another(group)
        await group.full()
        group.assert_identical()
        assert rocketmq_peer.put_asides == [b"something " * 3]
        slave = group.nodes[2]
        assert slave.ha.status()["following"]["putAside"] == ["/aside-1"]
        assert slave.ha.needs_reseed is None
        assert [event.name for event in slave.env.events] == ["reseeding"]


async def test_a_log_is_put_aside_only_when_the_group_knows_of_it() -> None:
    """In majority mode an election counts logs: one that went must not count as if it were here."""
    foreign = a_foreign_log()
    told: list[int] = []
    async with Group(Node(1), Node(2, foreign, auto_reseed=True)) as group:
        slave = group.nodes[2]

        async def tell() -> None:
            told.append(len(foreign.log.data))
            if len(told) < 3:
                raise ConnectionError("no Controller answers")

        slave.ha.conditions.before_reseed = tell
        await a_master_with_another(group)
        await until(lambda: "no Controller answers" in (slave.ha.needs_reseed or ""))
        assert bytes(foreign.log.data) == b"something " * 3
        await group.full()
        assert told == [30, 30, 30]
        assert foreign.put_asides == [b"something " * 3]


async def test_a_log_is_not_put_aside_for_a_master_that_is_none_any_more() -> None:
    """While the Controllers were told another one was elected: the log may go on in that one's."""
    foreign = a_foreign_log()
    async with Group(Node(1), Node(2, foreign, auto_reseed=True)) as group:
        slave = group.nodes[2]
        told: list[int] = []

        async def tell() -> None:
            told.append(1)
            await slave.ha.become_slave(BrokerId(2), Epoch(9), "127.0.0.1:1")

        slave.ha.conditions.before_reseed = tell
        await a_master_with_another(group)
        await until(lambda: "Connect" in str(slave.ha.status()["following"]["reason"]), "it tries the next")
        assert told == [1]
        assert foreign.put_asides == []


async def test_auto_reseed_puts_nothing_aside_that_its_master_lacks() -> None:
    """An empty broker elected uncleanly must not make the others give up what they confirmed."""

    rocketmq_peer = a_foreign_log(begin=0)
    async with Group(Node(1), Node(2, rocketmq_peer, auto_reseed=True)) as group:
        group.epoch = 7
        await group.elect(1)
        slave = group.nodes[2].ha
        await until(lambda: "not put aside" in (slave.needs_reseed or ""))
        assert bytes(rocketmq_peer.log.data) == b"something " * 3


async def test_auto_reseed_puts_nothing_aside_either_once_its_master_grew_past_what_is_confirmed() -> None:
    """What the master wrote since in that place are other bytes: its length says nothing of ours."""
    kept = a_foreign_log(begin=0)
    async with Group(Node(1), Node(2, kept, auto_reseed=True)) as group:
        await a_master_with_another(group)
        slave = group.nodes[2].ha
        await until(lambda: "not put aside" in (slave.needs_reseed or ""))
        assert "leaves ours at 0, and ours is confirmed up to 20" in (slave.needs_reseed or "")
        assert kept.put_asides == []
        assert [event.name for event in group.nodes[2].env.events] == ["cut_refused"]


async def test_with_auto_reseed_a_slave_whose_range_is_gone_copies_from_the_masters_first_byte() -> None:
    async with Group(Node(1), Node(2, auto_reseed=True)) as group:
        await group.elect(1, followers=False)
        master = group.master.store
        behind = group.nodes[2].store
        behind.log.data += b"0123456789" * 10
        behind.epochs.append(1, 0)
        behind.confirmed = 100
        master.grow(b"0123456789" * 2000)
        del master.log.data[:8192]
        master.log.min_offset = 8192
        await group.follow(2)
        await group.full()
        assert behind.log.min_offset == 8192
        assert behind.put_asides == [b"0123456789" * 10]
