"""Where does a group go on that pops, after an operator's word, a power failure, or another configuration?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from broker.timers.codec import decode_check
from chaos.faults import ClockJump, Step
from chaos.sim.faults import Nemesis
from model.codes import Request, Response
from model.errors import MqError
from remoting import bodies
from remoting.codec import Command
from tests.broker.pop.support import Popped, ack_of, header, popped
from tests.sim.kept import ALL, MAJORITY, Kept, Mode, ok, sent
from tests.sim.skewed import Skewed
from tests.sim.world import simulated

pytestmark = pytest.mark.sim

SENT = 24
FIRST = 10
"""Where an operator has the group go on."""
OFTEN: Mode = {"reviveInterval": "200"}


async def asked(world: Kept, code: Request, ext: dict[str, str]) -> Command:
    """What a master that may write answers; a new one may lack copies for a moment."""
    for _ in range(50):
        try:
            answer = await world.ask(code, ext)
            if answer.code in (Response.SUCCESS, Response.POLLING_TIMEOUT):
                return answer
        except (MqError, OSError):
            pass
        await asyncio.sleep(0.1)
    raise AssertionError(f"{code} is not answered")


async def some(world: Kept, count: int, *, acks: bool = True, invisible_ms: int = 60_000) -> list[Popped]:
    """Pop one by one, until there are so many or there is nothing more."""
    found: list[Popped] = []
    while len(found) < count:
        how = header("TBW102", count_max=1, poll_ms=200, invisible_ms=invisible_ms)
        answer = await asked(world, Request.POP_MESSAGE, how.to_ext())
        if answer.code == Response.POLLING_TIMEOUT:
            break
        for one in popped(answer, "TBW102", broker="broker-a"):
            found.append(one)
            if acks:
                assert (await asked(world, Request.ACK_MESSAGE, ack_of(one).to_ext())).code == 0
    return found


async def group(world: Kept, name: str) -> None:
    body = bodies.dumps({"groupName": name, "consumeEnable": True})
    await ok(world, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


async def messages(world: Kept, count: int) -> None:
    assert await world.cluster.until(world.cluster.converged, 30.0) is None
    await group(world, "pg")
    for at in range(count):
        await sent(world, b"%d" % at)


async def reset(world: Kept) -> int:
    to = {"group": "pg", "topic": "TBW102", "queueId": "0", "timestamp": "0", "offset": str(FIRST)}
    await ok(world, Request.INVOKE_BROKER_TO_RESET_OFFSET, to)
    return FIRST


async def clone(world: Kept) -> int:
    await group(world, "source")
    at = {"consumerGroup": "source", "topic": "TBW102", "queueId": "0", "commitOffset": str(FIRST)}
    await ok(world, Request.UPDATE_CONSUMER_OFFSET, at)
    copy = {"srcGroup": "source", "destGroup": "pg", "topic": "TBW102"}
    await ok(world, Request.CLONE_GROUP_OFFSET, copy)
    return FIRST


async def delete(world: Kept) -> int:
    await ok(world, Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "pg", "cleanOffset": "true"})
    await group(world, "pg")
    return 0


async def amid(world: Kept) -> int:
    """It pops on from there."""
    await reset(world)
    assert len(await some(world, 4)) == 4
    return FIRST + 4


async def succeeded(world: Kept, fault: str) -> None:
    """The master is killed, or all lose power; another leads."""
    cluster, first = world.cluster, world.cluster.master()
    assert first is not None
    names = [node.name for node in cluster.of("broker")]
    if fault == "kill":
        cluster.kill(first)
        assert (
            await cluster.until(lambda: None if cluster.master() not in (None, first) else "no", 10) is None
        )
        return
    for name in names:
        cluster.power_fail(name)
    for name in names:
        cluster.power_on(name)
        cluster.start(name)
    assert await cluster.until(cluster.converged, 30.0) is None


@pytest.mark.parametrize("mode", [ALL, MAJORITY], ids=["all", "majority"])
@pytest.mark.parametrize("fault", ["kill", "power of all"])
@pytest.mark.parametrize("said", [reset, clone, delete, amid])
@simulated(lambda said, fault, mode: Kept(12, mode | {"flushDiskType": "SYNC_FLUSH"}))
async def test_where_an_operator_has_a_group_go_on_is_where_it_goes_on_though_it_popped_just_before(
    world: Kept, said: Callable[[Kept], Awaitable[int]], fault: str, mode: Mode
) -> None:
    """A successor moves offsets that came too late over what was popped last: not this one."""
    await messages(world, SENT)
    assert len(await some(world, SENT)) == SENT
    first = await said(world)
    await succeeded(world, fault)
    found = [one.record.queue_offset for one in await some(world, SENT)]
    # What was popped behind the answer may have been copied with it or not; it is acknowledged.
    assert found == list(range(first, SENT))


@simulated(lambda: Kept(13, OFTEN))
async def test_a_pop_that_is_open_since_a_clock_was_ahead_brings_nothing_back_that_is_acknowledged(
    world: Kept,
) -> None:
    master = world.cluster.master()
    assert master is not None
    nemesis = Nemesis(world.cluster, [])
    await messages(world, 1)
    nemesis.act(Step(0, ClockJump(master, 3_600_000)))
    (opened,) = await some(world, 1, acks=False)
    nemesis.act(Step(0, ClockJump(master, -3_600_000)))
    await asyncio.sleep(0.5)
    for at in range(40):
        await sent(world, b"m%d" % at)
    done = {one.body for one in await some(world, 20)}
    await succeeded(world, "kill")
    again = {one.body for one in await some(world, 40)}
    assert not done & again
    assert len(again - {opened.body}) == 20, "the rest comes"


@pytest.mark.parametrize("number", ["1", "4", "16"])
@simulated(lambda number: Kept(14, OFTEN))
async def test_what_was_popped_comes_back_though_there_are_to_be_more_or_fewer_revive_queues(
    world: Kept, number: str
) -> None:
    cluster = world.cluster
    await messages(world, SENT)
    open_ = await some(world, SENT, acks=False, invisible_ms=2000)
    assert len({one.info.revive_queue for one in open_}) == 8
    acked = open_[: SENT // 2]
    names = sorted((node.name for node in cluster.of("broker")), key=lambda name: name == cluster.master())
    for name in names:  # the master last
        world.modes[name] = OFTEN | {"reviveQueueNum": number}
        stopping = cluster.stop(name)
        assert stopping is not None
        await stopping
        world.start(name)
        assert await cluster.until(cluster.converged, 30.0) is None
    for one in acked:
        await ok(world, Request.ACK_MESSAGE, ack_of(one).to_ext())
    await asyncio.sleep(4)
    again = {one.body for one in await some(world, SENT)}
    assert again == {one.body for one in open_[SENT // 2 :]}


def pops_noted(data: bytes) -> bool:
    return re.search(rb"TBW102@pg\W*0\W+4\b", data) is not None


def delays_noted(data: bytes) -> bool:
    return re.search(rb"\b1\W+4\b", data) is not None


def timers_noted(data: bytes) -> bool:
    found = decode_check(data)
    return found is not None and found.note.first >= 4


NOTES = {
    "pop": ("consumerOffset.json", pops_noted, ""),
    "delay": ("delayOffset.json", delays_noted, "DELAY\x011\x02"),
    "timer": ("timercheck", timers_noted, "TIMER_DELAY_MS\x011000\x02"),
}


@pytest.mark.parametrize("kind", NOTES)
@simulated(
    lambda kind: Kept(
        15, OFTEN | {"flushIntervalCommitLog": "60000", "messageDelayLevel": "1s", "timerPrecisionMs": "100"}
    )
)
async def test_no_note_of_what_was_done_is_on_a_disk_before_the_log_that_did_it(
    world: Kept, kind: str
) -> None:
    """All lose power, with ASYNC_FLUSH, as soon as the note is on the disks: what is in the log, and was not
    done by it, comes."""
    cluster, (file, says, properties) = world.cluster, NOTES[kind]
    machines = [node.machine for node in cluster.of("broker")]
    stores = [world.broker(node.name).store for node in cluster.of("broker")]
    path = f"/store/config/{file}"

    def noted() -> bool:
        return all(machine.find(path) and says(machine.content(path)) for machine in machines)

    await messages(world, 0)
    for at in range(4):
        await sent(world, b"%d" % at, properties)
    for store in stores:
        await store.synced(store.log.end)
    if kind == "pop":
        assert len(await some(world, 4, acks=False, invisible_ms=2000)) == 4

    def there() -> bool:
        return all(store.max_queue_offset("TBW102", 0) == 4 for store in stores)

    assert await cluster.until(lambda: None if there() else "not delivered", 15) is None
    done = stores[0].log.end
    assert await cluster.until(lambda: None if noted() else "no note", 15) is None
    assert [store.log.flushed >= done for store in stores] == [True] * len(stores)
    await succeeded(world, "power of all")
    await asyncio.sleep(5)
    assert {one.body for one in await some(world, 4)} == {b"%d" % at for at in range(4)}


@pytest.mark.parametrize("then", ["nothing", "kill", "back for a moment"])
@simulated(lambda then: Skewed(13, OFTEN))
async def test_what_a_clock_that_was_ahead_popped_comes_back_when_its_time_went_by(
    world: Skewed, then: str
) -> None:
    cluster, hour_ms, count = world.cluster, 3_600_000, 4
    master = cluster.master()
    assert master is not None
    await messages(world, count)
    world.set_ahead(master, hour_ms)
    assert len(await some(world, count - 1, acks=False, invisible_ms=20_000)) == count - 1
    world.set_ahead(master, -hour_ms)
    if then == "kill":
        cluster.kill(master)
        found = await cluster.until(lambda: None if cluster.master() not in (None, master) else "no", 10)
        assert found is None
    elif then == "back for a moment":
        await asyncio.sleep(5)
        world.set_ahead(master, -hour_ms)
        await asyncio.sleep(1)
        world.set_ahead(master, hour_ms)
    assert len(await some(world, count, acks=False, invisible_ms=30_000)) == 1, "the one nobody has"
    await asyncio.sleep(8)
    assert await some(world, count) == [], "before that nothing comes back"
    await asyncio.sleep(120)
    back = await some(world, 2 * count)
    assert sorted(one.body for one in back) == [b"%d" % at for at in range(count)]
