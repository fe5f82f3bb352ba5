"""The promise to a group when a slave comes back with its log, but without its epochs: it is no voice in an
election before it has copied them."""

import asyncio

import pytest

from chaos.sim.disk import Machine
from ha.slave.own_log import LogActions
from model.ids import PhysicalOffset
from store.files.damage import DamagedRange
from store.files.record import BadRecord
from tests.sim.kept import ALL, MAJORITY, TWO, Kept
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim


def rot_epochs(machine: Machine) -> None:
    for path in machine.paths("/store/epochFileCheckpoint"):
        for bit in (0, 9, 18, 27, 36):
            machine.flip(path, bit)


async def come_back_without_epochs(world: Kept) -> tuple[str, str, str]:
    """The master dies; of the others one lacks something, and one has all and comes back without epochs.
    Returns the three."""
    cluster = world.cluster
    first = cluster.master()
    assert first is not None
    cluster.kill(first)  # there are two epochs
    other = lambda: None if cluster.master() not in (None, first) else "no other leads"  # noqa: E731
    assert await cluster.until(other, 10.0) is None
    world.start(first)
    assert await cluster.until(cluster.converged, 20.0) is None
    master = cluster.master()
    assert master is not None
    behind, has_all = sorted(node.name for node in cluster.of("broker") if node.name != master)
    world.send_on()
    await asyncio.sleep(0.5)
    for near in (master, has_all):
        cluster.fabric.slow(cluster.nodes[near].host, cluster.nodes[behind].host, 0.6)
    await asyncio.sleep(0.9)
    assert world.stored_by_log(has_all) - world.stored_by_log(behind)
    cluster.kill(has_all)
    cluster.kill(master)
    cluster.fabric.heal_all()
    rot_epochs(cluster.nodes[has_all].machine)
    world.start(has_all)
    return master, behind, has_all


@simulated(lambda: Kept(0, MAJORITY))
async def test_a_slave_that_cuts_its_log_for_want_of_epochs_is_not_counted_as_one_that_has_it(
    world: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has what was acknowledged, the third one lacks it. The master dies before it is copied again."""
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    behind, has_all = sorted(node.name for node in cluster.of("broker") if node.name != master)
    cuts: list[int] = []
    carried_out = LogActions._truncate

    def truncate(holder: LogActions, *arguments: object) -> None:
        before = holder._store.log.end
        carried_out(holder, *arguments)  # type: ignore[arg-type]
        cuts.append(before - holder._store.log.end)

    monkeypatch.setattr(LogActions, "_truncate", truncate)
    world.send_on(every_s=0.004)
    await asyncio.sleep(1)
    cluster.cut(master, behind)  # it stays a member for a while, and nothing is confirmed meanwhile
    await asyncio.sleep(1)
    assert set(world.acked) - world.stored_by_log(behind)
    assert not set(world.acked) - world.stored_by_log(has_all)
    cluster.kill(has_all)
    rot_epochs(cluster.nodes[has_all].machine)
    cluster.start(has_all)
    for _ in range(30000):
        if cuts:
            break
        await asyncio.sleep(0.0001)
    assert cuts[0] > 0, "it was cut"
    cluster.kill(master)
    world.quiet = True
    await asyncio.sleep(4)
    assert cluster.master() is None, "nobody who is there has all"
    world.start(master)
    cluster.fabric.heal_all()
    await world.settled()


@simulated(lambda: Kept(3, MAJORITY))
async def test_in_majority_mode_no_shorter_log_leads_by_the_voice_of_one_without_epochs(
    world: Kept,
) -> None:
    """It was heard as one whose log is of no epoch, and so shorter than any other."""
    master, _, has_all = await come_back_without_epochs(world)
    await asyncio.sleep(4)
    assert world.cluster.master() is None
    reason = world.broker(has_all).role.status()["reason"]
    assert "no readable copy" in reason
    world.start(master)
    await world.settled()


@simulated(lambda: Kept(3, ALL))
async def test_where_all_acknowledge_one_without_epochs_copies_them_from_who_leads(
    world: Kept,
) -> None:
    """Without a file it took all of its log for written without Controllers, and stayed out for ever."""
    master, behind, _ = await come_back_without_epochs(world)
    other = lambda: None if world.cluster.master() == behind else "it does not lead"  # noqa: E731
    assert await world.cluster.until(other, 10.0) is None
    world.start(master)
    await world.settled()


@simulated(lambda: Kept(1, TWO))
async def test_in_counted_mode_one_without_epochs_counts_as_dead_and_comes_back(
    world: Kept,
) -> None:
    """With the master that is two of two copies, as if both had died: what only they have is given up."""
    master, behind, has_all = await come_back_without_epochs(world)
    cluster = world.cluster
    other = lambda: None if cluster.master() == behind else "it does not lead"  # noqa: E731
    assert await cluster.until(other, 10.0) is None
    world.start(master)
    assert await cluster.until(cluster.converged, 30.0) is None
    assert {master, behind, has_all} == set(cluster.members())
    world.quiet = True
    await asyncio.sleep(3)
    assert world.stored(has_all) == world.stored(behind) == world.stored(master)


class Pair(Kept):
    """A group of two brokers that is loaded when a test says so."""

    def __init__(self, mode: dict[str, str], controller: dict[str, str] | None = None) -> None:
        self.modes = {}
        self._keys = dict(mode)
        World.__init__(self, 4, self._keys, None, controller or {}, 2)
        self.modes = {node.name: mode for node in self.cluster.of("broker")}
        self.acked = []
        self.quiet = False
        self._operator = None


class Unclean(Pair):
    """A group that elects whoever is there."""

    def __init__(self, mode: dict[str, str]) -> None:
        super().__init__(mode, {"enableElectUncleanMaster": "true"})


async def two_histories(world: Unclean) -> tuple[str, str, bytes]:
    """A master that answered alone comes back without epochs, to one that led meanwhile and wrote over 64 KiB
    of its own. Returns the two, and the log of the first."""
    cluster = world.cluster
    first = cluster.master()
    assert first is not None
    second = next(node.name for node in cluster.of("broker") if node.name != first)
    world.send_on()
    await asyncio.sleep(1)
    cluster.kill(second)
    await asyncio.sleep(4)
    world.quiet = True
    await asyncio.sleep(6)  # what is confirmed is noted
    log = world.broker(first).store.log
    held = b"".join(log.read(at, 1 << 16) for at in range(0, log.end, 1 << 16))
    assert log.end > 80_000
    cluster.kill(first)
    await asyncio.sleep(1)
    world.start(second)
    leads = lambda: None if cluster.master() == second else "it does not lead"  # noqa: E731
    assert await cluster.until(leads, 20.0) is None
    world.quiet = False
    world.send_on()
    longer = lambda: None if world.broker(second).store.log.end > len(held) + 3000 else "it is short"  # noqa: E731
    assert await cluster.until(longer, 60.0) is None
    world.quiet = True
    rot_epochs(cluster.nodes[first].machine)
    world.start(first)
    await world.serves(first)
    return first, second, held


def holds(world: Kept, name: str, held: bytes) -> bool:
    log = world.broker(name).store.log
    return held == b"".join(log.read(at, 1 << 16) for at in range(0, log.end, 1 << 16))


@simulated(lambda: Unclean({"autoReseed": "true"}))
async def test_what_an_unclean_election_left_without_epochs_is_neither_cut_nor_put_aside(
    world: Unclean,
) -> None:
    first, _, held = await two_histories(world)
    await asyncio.sleep(20)
    assert "differs from the master's" in (world.broker(first).ha.needs_reseed or "")
    assert holds(world, first, held)


@simulated(lambda: Unclean(ALL))
async def test_a_damaged_record_does_not_let_a_log_of_another_history_go_on(world: Unclean) -> None:
    first, second, held = await two_histories(world)
    at = PhysicalOffset(len(held) - 3000)
    world.broker(first).store.damage.note([DamagedRange(at, at + 208, "crc_mismatch")])
    await asyncio.sleep(20)
    assert world.broker(first).ha.needs_reseed is not None
    assert holds(world, first, held)
    assert world.cluster.members() == [second]


async def the_newest_rots_at_the_master(world: Pair) -> str:
    """A slave that has all stops, and comes back without epochs. Meanwhile a bit in the body of its newest
    record flips at the master, who does not know. Returns the slave."""
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    slave = next(node.name for node in cluster.of("broker") if node.name != master)
    world.send_on()
    await asyncio.sleep(1)
    world.quiet = True
    await asyncio.sleep(3)
    log = world.broker(master).store.log
    end, data = log.end, log.read(PhysicalOffset(0), log.end)
    assert world.broker(slave).store.log.end == end == len(data)
    begin = data.rindex(data[4:8]) - 4
    cluster.kill(slave)
    rot_epochs(cluster.nodes[slave].machine)
    (path,) = cluster.nodes[master].machine.paths("/store/commitlog/")
    cluster.nodes[master].machine.flip(path, 8 * (begin + 92))
    with pytest.raises(BadRecord):
        log.whole(log.read(PhysicalOffset(begin), end - begin), 0, begin)
    await asyncio.sleep(4)
    world.start(slave)
    await world.serves(slave)
    world.quiet = False
    world.send_on()
    return slave


@simulated(lambda: Pair({**TWO, "autoReseed": "true"}))
async def test_where_the_master_is_not_mended_the_slave_says_so_and_keeps_its_log(world: Pair) -> None:
    slave = await the_newest_rots_at_the_master(world)
    end = world.broker(slave).store.log.end
    await asyncio.sleep(50)
    assert world.broker(slave).ha.needs_reseed is None, "it may be mended yet"
    await asyncio.sleep(20)
    assert "was not mended for 60 s" in (world.broker(slave).ha.needs_reseed or "")
    assert world.broker(slave).store.log.end == end, "it has what nobody else has"
