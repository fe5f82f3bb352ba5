"""The promise of broker.requests and broker.state: many clients make no turn of the loop long."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.requests.consumers.held import Held, HeldPulls
from broker.state.clients import Client, Clients, Subscription
from model.codes import Request
from model.topic import SubscriptionGroupConfig, TopicConfig
from remoting import bodies
from remoting.codec import Command, encode
from remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader
from remoting.service import Connection
from store.files.consume_queue import ConsumeQueue
from tests.broker.helpers import client_of, eventually, running
from tests.broker.turn_meter import LIMIT_LOOPS, metered, tried_again
from tests.fakes.broker.store import FakeConnection

PULLS = 3000


def pull_header(queue_id: int, tags: str = "*") -> PullHeader:
    return PullHeader(
        "cg",
        "T",
        queue_id,
        0,
        32,
        sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
        suspend_timeout_ms=30_000,
        subscription=tags,
    )


def held(connection: object, queue_id: int, tags: str) -> Held:
    subscription = Subscription.of("T", tags, "TAG")
    header = pull_header(queue_id, tags)
    return Held(
        cast(Connection, connection),
        Command(11),
        header,
        subscription,
        TopicConfig("T"),
        SubscriptionGroupConfig("cg"),
        0,
        1.0,
        1.0,
    )


STEP = st.tuples(
    st.sampled_from(["add", "add", "remove", "remove", "again", "resubscribe", "take all"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(["*", "A", "A || B", "C"]),
)


@given(st.lists(STEP, max_size=40))
def test_held_pulls_are_counted_whatever_comes_and_goes(steps: list[tuple[str, int, int, str]]) -> None:
    pulls, peers = HeldPulls(), [object() for _ in range(3)]
    known: list[Held] = []
    gone: list[Held] = []
    for what, peer, queue_id, tags in steps:
        if what == "add":
            known.append(held(peers[peer], queue_id, tags))
            pulls.add(known[-1])
        elif what == "remove" and known:
            gone.append(known.pop(peer % len(known)))
            assert pulls.remove(gone[-1])
            assert not pulls.remove(gone[-1])
        elif what == "again" and gone:
            known.append(gone.pop(peer % len(gone)))
            pulls.add(known[-1])
        elif what == "resubscribe" and known:
            known.append(known.pop(peer % len(known)))
            pulls.resubscribe(known[-1], Subscription.of("T", tags, "TAG"))
        elif what == "take all":
            assert sorted(map(id, pulls.take_all())) == sorted(map(id, known))
            known, gone = [], []
        pulls.check_invariants()
        assert pulls.count == len(known)
        assert all(map(pulls.has, known))
        assert not any(map(pulls.has, gone))
        for queue in range(3):
            waiting = [one for one in known if one.header.queue_id == queue]
            assert (pulls.of(("T", queue)), pulls.waits_for(("T", queue))) == (waiting, bool(waiting))
            for code in (*Subscription.of("T", "A || B || C", "TAG").codes, 5):
                assert pulls.wanted(("T", queue), code) == any(wants(one, queue, code) for one in known)


def wants(one: Held, queue_id: int, code: int) -> bool:
    codes = one.subscription.codes
    return one.header.queue_id == queue_id and (not codes or code in codes)


def consumer(group: str) -> dict[str, Any]:
    return {"groupName": group, "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["consumer", "producer", "leave", "close", "expire"]),
            st.integers(0, 3),
            st.integers(0, 3),
        ),
        max_size=50,
    )
)
def test_each_connection_is_known_to_be_in_the_groups_it_is_in(steps: list[tuple[str, int, int]]) -> None:
    clients, peers = Clients(), [cast(Connection, object()) for _ in range(4)]
    for at, (what, peer, group) in enumerate(steps):
        connection, name = peers[peer], f"g{group}"
        client = Client(f"c{peer}", connection, "JAVA", 479, at)
        if what == "consumer":
            clients.consumer(consumer(name), client)
        elif what == "producer":
            clients.producer(name, client)
        elif what == "leave":
            clients.unregister(connection, name, name)
        elif what == "close":
            inside = {g.name for g in clients.consumers.values() if connection in g.members}
            assert set(clients.closed(connection)) == inside
        else:
            entries = [(1, n, c) for n, g in clients.consumers.items() for c in g.members.values()]
            entries += [(0, n, c) for n, members in clients.producers.items() for c in members.values()]
            beats = {id(c.connection) for _, _, c in entries if c.seen_ms >= at - 3}
            found = {id(c) for c in peers if clients.is_silent(c, at - 3)}
            assert found == {id(c) for c in clients.connections()} - beats
            silent = {(k, n) for k, n, c in entries if c.connection is connection and c.seen_ms < at - 3}
            most = max(len(silent) - 1, 1)
            left = clients.leave_silent(connection, at - 3, most)
            assert len(left) == min(most, len(silent))
            assert {*left, *clients.leave_silent(connection, at - 3, 1)} == silent
        clients.check_invariants()


@pytest.mark.timeout(120)
@tried_again
async def test_a_role_change_with_thousands_of_held_pulls_holds_nobody_up(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        connection = await client.connection()
        pulls = broker.processors.pulls
        for n in range(PULLS):
            ext = pull_header(1 + n % 3, f"t{n}").to_ext()
            connection.write(encode(Command(Request.PULL_MESSAGE, ext, opaque=100_000 + n)))
        await eventually(lambda: pulls.held == PULLS, "the pulls are held")
        async with metered() as meter:
            released = pulls.release_all()
            assert pulls.held == 0
            await released
        meter.check()


@pytest.mark.timeout(120)
@tried_again
async def test_members_that_leave_together_are_told_of_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        told = 0

        class Peer:
            closed = False
            goes_first = False
            remote = "10.0.0.1:5"
            untaken = 0

            def oneway(self, command: Command) -> None:
                nonlocal told
                told += 1

        clients, processor = broker.context.clients, broker.processors.clients
        peers = [Peer() for _ in range(2000)]
        for n, peer in enumerate(peers):
            clients.consumer(consumer("cg"), Client(f"c{n}", cast(Connection, peer), "JAVA", 479, 0))
        async with metered() as meter:
            for peer in peers[:1000]:
                processor.closed(cast(Connection, peer))
            await eventually(lambda: told >= 1000, "the others are told")
        await asyncio.sleep(0.01)
        assert told == 1000
        meter.check()
        for peer in peers[1000:]:
            clients.closed(cast(Connection, peer))


async def test_a_connection_leaves_very_many_groups_a_few_at_a_time(tmp_path: Path) -> None:
    """100,000 producer groups of one connection kept the loop for 106 ms when it ended, and for 31 ms in each
    look for silent clients."""
    looks = 0

    class Seen(float):
        def __lt__(self, other: float) -> bool:
            nonlocal looks
            looks += 1
            return float.__lt__(self, other)

    async with running(tmp_path) as broker:
        clients, processor = broker.context.clients, broker.processors.clients
        many, few, stays = (cast(Connection, FakeConnection()) for _ in range(3))
        for number in range(1000):
            clients.producer(f"p{number}", Client("c0", many, "JAVA", 479, Seen(5)))
            clients.consumer(consumer(f"g{number}"), Client("c0", many, "JAVA", 479, Seen(5)))
        assert not clients.is_silent(many, 5)
        assert looks == 1, "the one it beat for last"
        assert clients.leave_silent(many, 5, 1000) == []
        clients.producer("p0", Client("c1", few, "JAVA", 479, 5))
        clients.producer("p0", Client("c2", stays, "JAVA", 479, 5))
        for gone in (many, few):
            cast(FakeConnection, gone).closed = True
            processor.closed(gone)
        assert (len(clients.producers), len(clients.consumers)) == (901, 1000)
        assert clients.connections() == [many, stays]
        clients.check_invariants()
        await eventually(lambda: not clients.knows(many), "it has left all")
        assert (list(clients.producers), clients.consumers) == (["p0"], {})
        assert (list(clients.producers["p0"]), processor.leaving.count) == ([stays], 0)
        clients.check_invariants()


@pytest.mark.timeout(120)
@tried_again
async def test_who_consumes_a_topic_is_found_without_looking_at_every_offset(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for n in range(20_000):
            broker.offsets.commit(f"g{n}", f"T{n % 5000}", 0, n)
        async with metered() as meter:
            answer = await client.call(Request.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T7"})
            broker.offsets.drop_topic("T7")
            broker.offsets.drop_group("g8")
        assert bodies.believed_object(answer.body)["groupList"] == sorted(
            f"g{n}" for n in range(7, 20_000, 5000)
        )
        assert broker.offsets.groups_of("T7") == []
        broker.offsets.check_invariants()
        meter.check()


@tried_again
async def test_the_first_messages_of_hundreds_of_queues_hold_nobody_up(tmp_path: Path) -> None:
    """Each queue's directories and file are made by whom writes its entries back: half a ms and more each."""
    async with running(tmp_path, mappedFileSizeCommitLog=str(1 << 23)) as broker, client_of(broker) as client:
        broker.topics.put(*(TopicConfig(f"T{n}") for n in range(600)))
        rounds = 0
        flush = ConsumeQueue.flush

        def slow(queue: ConsumeQueue) -> None:
            nonlocal rounds
            flush(queue)
            end = time.thread_time() + 0.002
            while time.thread_time() < end:
                rounds += 1

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ConsumeQueue, "flush", slow)
            async with metered() as meter:
                answers = await asyncio.gather(*(client.send(f"T{n}") for n in range(600)))
                await eventually(lambda: not broker.store.files.queues.dirty, "all are written back")
        assert {answer.code for answer in answers} == {0}
        assert rounds
        meter.check(3 * LIMIT_LOOPS)  # the client's 600 sends are among it; all at once took 1.2 s
