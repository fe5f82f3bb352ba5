"""No client makes consumer offsets without end: pairs of a topic and a group have a bound, whichever request
makes them, and what is there or is copied goes on (docs/security.md)."""

from __future__ import annotations

from pathlib import Path

from broker.tables.offsets import OffsetTable
from broker.tables.pairs import QUEUES_A_PAIR, PairCount
from model.codes import Request, Response
from model.pop import ORDER_REVIVE_QUEUE, ExtraInfo, pop_retry_topic
from remoting.codec import Command
from remoting.headers import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PullHeader
from remoting.pop_headers import AckHeader
from tests.broker.helpers import (
    Client,
    client_of,
    commit,
    elected,
    eventually,
    pair,
    role_state,
    running,
    topic,
)
from tests.broker.pop.support import ack, pop, popped

FULL = (Response.SYSTEM_BUSY, "maxConsumerOffsetPairs")


def said(answer: Command) -> tuple[int, str]:
    return answer.code, "maxConsumerOffsetPairs" if "maxConsumerOffsetPairs" in (answer.remark or "") else ""


async def committed(client: Client, group: str, name: str, queue_id: int = 0) -> tuple[int, str]:
    """A commit of a group that is made before it."""
    await client.call(
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName": "%s"}' % group.encode()
    )
    ext = {**commit(group, name, 1), "queueId": str(queue_id)}
    return said(await client.call(Request.UPDATE_CONSUMER_OFFSET, ext))


async def pulled(client: Client, group: str, name: str, queue_id: int = 0) -> tuple[int, str]:
    """A pull from the end that commits."""
    header = PullHeader(
        group,
        name,
        queue_id,
        0,
        32,
        sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET,
        commit_offset=1,
        subscription="*",
    )
    return said(await client.call(Request.PULL_MESSAGE, header.to_ext()))


async def test_commits_of_made_up_pairs_have_a_bound_and_those_there_are_go_on(tmp_path: Path) -> None:
    async with running(tmp_path, maxConsumerOffsetPairs="3") as broker, client_of(broker) as client:
        for name in ("T", "U"):
            await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(name))
        for group in ("g0", "g1"):
            assert await committed(client, group, "T") == (0, "")
        assert await committed(client, "g0", "U") == (0, "")
        assert await committed(client, "g2", "T") == FULL
        assert broker.status()["offsetPairs"] == 3
        assert await pulled(client, "g1", "U") == FULL
        assert await committed(client, "g1", "T", queue_id=2) == (0, ""), "another queue of a pair there is"
        assert await committed(client, "g1", "T") == (0, "")
        assert len(broker.offsets.entries()) == 4
        await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "U"})
        assert await committed(client, "g2", "T") == (0, ""), "a topic that is gone frees what it had"
        ext = {"groupName": "g0", "cleanOffset": "true"}
        await client.call(Request.DELETE_SUBSCRIPTIONGROUP, ext)
        assert await committed(client, "g3", "T") == (0, ""), "a group, too"
        assert await committed(client, "g4", "T") == FULL
        await client.call(Request.UPDATE_BROKER_CONFIG, {}, b"maxConsumerOffsetPairs=4\n")
        assert await committed(client, "g4", "T") == (0, ""), "an operator gives more room at once"
        broker.offsets.check_invariants()


async def test_no_pair_has_offsets_of_queues_that_are_not_there(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 3))
        broker.groups.find("cg")
        for queue_id in (-1, 3, 2**31 - 1):
            assert (await committed(client, "cg", "T", queue_id))[0] == Response.INVALID_PARAMETER
            assert (await pulled(client, "cg", "T", queue_id))[0] == Response.INVALID_PARAMETER
        ext = {"topic": "T", "group": "cg", "timestamp": "0", "isForce": "true", "queueId": "3"}
        answer = await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        assert answer.code == Response.INVALID_PARAMETER
        assert broker.offsets.entries() == []


async def test_light_topics_that_nobody_made_have_a_bound_too(tmp_path: Path) -> None:
    """A pull takes any name of one: what it reads is made by the messages that name it."""
    keys = {"enableLmq": "true", "maxConsumerOffsetPairs": "2"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        found = [await pulled(client, "cg", f"%LMQ%{n}") for n in range(4)]
        assert [one == FULL for one in found] == [False, False, True, True]
        assert len(broker.offsets.entries()) == 2


async def test_pops_make_no_pair_beyond_the_bound_and_those_there_are_go_on(tmp_path: Path) -> None:
    async with running(tmp_path, maxConsumerOffsetPairs="2") as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for n in range(4):
            await client.send("T", b"%d" % n)
        await broker.store.caught_up()
        assert await committed(client, "other", "T") == (0, "")
        (one,) = popped(await pop(client, "T", count_max=1), "T")
        assert said(await pop(client, "T", group="pg2", count_max=1)) == FULL
        await ack(client, one)
        await eventually(lambda: broker.offsets.get("pg", "T", 0) == 1, "its offset is safe")
        assert [p.body for p in popped(await pop(client, "T", count_max=1), "T")] == [b"1"]
        assert said(await pop(client, "T", group="pg2", count_max=1)) == FULL
        assert {group for _, group, _, _ in broker.offsets.entries()} == {"other", "pg"}
        broker.offsets.check_invariants()


async def test_a_pop_on_its_way_counts_until_its_offset_is_safe_or_lost(tmp_path: Path) -> None:
    async with running(tmp_path, maxConsumerOffsetPairs="1") as broker, client_of(broker):
        log = broker.processors.pops.log
        log.moved("T", "g", 0, 5, end=1 << 40)
        assert not broker.offsets.has_room("g2", "T")
        assert broker.offsets.has_room("g", "T"), "the same group goes on"
        log.clear()
        assert broker.offsets.has_room("g2", "T")
        log.moved("T", "g", 0, 5, end=1 << 40)
        broker.offsets.commit("g", "T", 0, 1)  # a reset
        assert log.known("T", "g", 0) == 1
        broker.offsets.drop("g", "T")
        assert broker.offsets.has_room("g2", "T"), "counted once"
        broker.offsets.check_invariants()


async def test_acks_and_changes_of_what_nobody_popped_make_no_pairs_and_no_retry_topics(
    tmp_path: Path,
) -> None:
    """The broker's own pair of a retry topic comes with what comes back: of those that popped alone."""
    keys = {"maxConsumerOffsetPairs": "2", "reviveInterval": "20"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"0")
        await broker.store.caught_up()

        async def forged(code: int, group: str, revive_queue: int = 0, name: str = "T") -> Command:
            info = ExtraInfo(0, 1, 1, revive_queue, "0", "broker-t", 0, 0).to_text()
            change = 0 if code == Request.CHANGE_MESSAGE_INVISIBLETIME else None
            return await client.call(code, AckHeader(group, name, 0, info, 0, change).to_ext())

        for n in range(3):
            answer = await forged(Request.CHANGE_MESSAGE_INVISIBLETIME, f"made{n}")
            assert (answer.code, answer.remark) == (Response.NO_MESSAGE, f"made{n} popped nothing of T")
        in_order = [await forged(Request.ACK_MESSAGE, f"g{n}", ORDER_REVIVE_QUEUE) for n in range(4)]
        assert [said(one) for one in in_order] == [(0, ""), (0, ""), FULL, FULL]
        assert {group for _, group, _, _ in broker.offsets.entries()} == {"g0", "g1"}
        assert (await forged(Request.CHANGE_MESSAGE_INVISIBLETIME, "g0")).code == 0
        retry = pop_retry_topic("T", "g0", v2=broker.config.retry_topic_v2)
        await eventually(
            lambda: broker.offsets.get("g0", retry, 0) is not None, "for one that is there it comes"
        )
        made = [name for name in broker.topics.table if name.startswith("%RETRY%") and name.endswith("T")]
        assert made == [retry]
        broker.offsets.check_invariants()


async def test_clones_and_resets_make_no_pair_beyond_the_bound(tmp_path: Path) -> None:
    async with running(tmp_path, maxConsumerOffsetPairs="1") as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        assert await committed(client, "cg", "T") == (0, "")
        broker.groups.find("new")
        clone = {"srcGroup": "cg", "destGroup": "copy", "topic": "T"}
        assert said(await client.call(Request.CLONE_GROUP_OFFSET, clone)) == FULL
        nothing = {"srcGroup": "empty", "destGroup": "copy", "topic": "T"}
        assert (await client.call(Request.CLONE_GROUP_OFFSET, nothing)).code == 0
        reset = {"topic": "T", "group": "new", "timestamp": "0", "isForce": "true"}
        assert said(await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset)) == FULL
        answer = await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, {**reset, "group": "cg"})
        assert answer.code == 0
        assert broker.offsets.groups_of("T") == ["cg"]


async def test_one_that_stands_in_keeps_offsets_of_no_more_pairs(tmp_path: Path) -> None:
    keys = {"maxConsumerOffsetPairs": "2", "enableSlaveActingMaster": "true"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        for group in ("g0", "g1", "there"):
            broker.groups.find(group)
        broker.offsets.commit("there", "T", 0, 1)
        broker.role_state.set(role_state("slave", 2, 1))
        broker.role_state.acting = True
        for group, expected in (("g0", (0, "")), ("g1", FULL), ("there", (0, "")), ("g0", (0, ""))):
            assert await committed(client, group, "T") == expected
        broker.offsets.check_invariants()
        broker.offsets.handed_over("T", "g0", 0, 9)
        assert await committed(client, "g1", "T") == (0, ""), "what the master has is not kept twice"
        broker.offsets.take_held(broker.store.next_offset)
        broker.offsets.check_invariants()
        assert broker.offsets.groups_of("T") == ["g1", "there"]
        broker.role_state.acting = False


async def test_what_a_slave_copies_is_kept_whatever_its_own_bound(tmp_path: Path) -> None:
    keys = {"maxConsumerOffsetPairs": "2"}
    async with pair(tmp_path, **keys) as (one, two):
        for n in range(4):
            one.offsets.commit(f"g{n}", "T", 0, 1)
        await eventually(lambda: len(two.offsets.groups_of("T")) == 4, "all are there")
        two.offsets.check_invariants()
        await one.fence()
        await two.lead(elected(2, 2, {2}, 1))
        assert not two.offsets.has_room("g4", "T")
        assert two.offsets.has_room("g3", "T")


async def test_a_full_master_holds_up_no_other_offset_a_slave_kept(tmp_path: Path) -> None:
    keys = {"enableSlaveActingMaster": "true", "maxConsumerOffsetPairs": "1"}
    async with pair(tmp_path, **keys) as (one, two), client_of(one) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        await client.send("T")
        one.offsets.commit("there", "T", 0, 0)
        for group in ("g0", "there"):
            two.offsets.hold_for_master(group, "T", 0, 1)
        two.upkeep.acting.soon()
        await eventually(lambda: one.offsets.get("there", "T", 0) == 1, "the master has what it may")
        assert one.offsets.groups_of("T") == ["there"]
        await eventually(
            lambda: two.offsets.held_for_master() == [("T", "g0", 0, 1)],
            "it hears so; the other waits for room",
        )
        one.offsets.drop_group("there")
        two.upkeep.acting.soon()
        await eventually(lambda: two.offsets.held_for_master() == [], "then it is told as well")


def test_a_pair_of_a_wide_topic_counts_for_the_queues_it_may_have() -> None:
    queues = {"Wide": 4 * QUEUES_A_PAIR, "Small": QUEUES_A_PAIR}
    offsets = OffsetTable(lambda: 0, PairCount(lambda: 9, lambda name: queues.get(name, 0)))
    offsets.commit("g0", "Wide", 0, 1)
    offsets.commit("g0", "Small", 0, 1)
    assert offsets.has_room("g1", "Wide")
    offsets.commit("g1", "Wide", 0, 1)
    assert not offsets.has_room("g2", "Small")
    assert offsets.has_room("g1", "Wide"), "all its queues may follow"
    queues["Wide"] = 1
    offsets.check_invariants()
    offsets.drop_topic("Wide")
    assert offsets.has_room("g2", "Wide"), "what counted for four is gone with it"
    offsets.check_invariants()
    offsets.adopt({"offsetTable": {f"Small@g{n}": {"0": 1} for n in range(12)}})
    offsets.check_invariants()
    assert not offsets.has_room("g12", "Small")
    offsets.adopt({"offsetTable": {f"Small@g{n}": {} for n in range(9)}, "part": True})
    offsets.check_invariants()
    assert offsets.has_room("g12", "Small")
