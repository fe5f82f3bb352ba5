"""What clients make a broker remember has a bound in bytes, and goes when they go."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.requests.consumers.held import Held, HeldPulls
from broker.requests.consumers.pop.held import DEADLINES_LEFT, HeldPop, HeldPops
from broker.requests.fast_headers import KNOWN_BYTES_MAX, BinaryHeads
from broker.state.clients import Client as Entry
from broker.state.clients import Clients, Subscription
from broker.state.counters import Counters
from broker.state.locks import LOCK_LIVES_MS, ROOM_BYTES, QueueLocks
from broker.state.underway import size_of
from broker.tables.moved import Moved
from broker.tables.offsets import OffsetTable
from broker.tables.topics import DELETED_MAX, Topics
from model.codes import Request
from model.errors import Refused
from model.sql92 import compile_filter
from model.sql92.compile import CHARS_MAX, Compiled
from model.topic import TopicConfig
from remoting import bodies
from remoting.bodies import believed_object, dumps_dialect
from remoting.codec import Command, encode
from remoting.guard import Standing
from remoting.headers import PULL_SUSPEND, PullHeader
from remoting.pop_headers import LookHeader, PopHeader
from store.files.key_hash import KeyHash
from tests.broker.helpers import Client, client_of, config_for, eventually, heartbeat, running
from tests.broker.send_frames import binary_header
from tests.fakes.broker.store import FakeConnection

MIB = 1 << 20
LONG = "x" * 200_000


def deep_bytes(value: Any, seen: set[int] | None = None) -> int:
    """Of containers, texts and numbers, each once."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inner = list(value)
    return sys.getsizeof(value) + sum(deep_bytes(part, seen) for part in inner)


async def test_a_connection_that_has_ended_takes_nothing_of_the_caps(tmp_path: Path) -> None:
    """A broken frame ends it while the begin of the next frame is there already."""
    begun = (1000).to_bytes(4, "big") + bytes(500)
    async with running(tmp_path) as broker, client_of(broker) as client:
        guard, (host, port) = broker.server.guard, client.address.split(":")
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, int(port))
            good = encode(Command(Request.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}))
            writer.write(good[:20] + b"\xff" * (len(good) - 20) + begun)
            await reader.read()
            writer.close()
        await eventually(lambda: not broker.server.connections, "all are gone")
        assert (guard.tallies[Standing.CLIENT].begun.by, guard.tallies[Standing.CLIENT].begun.total) == (
            {},
            0,
        )


async def test_held_pulls_keep_nothing_a_client_made_long(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        pulls = broker.processors.pulls
        asked = asyncio.create_task(_pull(client, "a || b", remark=LONG, language=LONG))
        await eventually(lambda: pulls.held, "it is held")
        (held,) = pulls._held.of(pulls._held.queues()[0])
        assert max(map(len, (held.request.remark or "", held.request.language))) < 20
        assert (held.subscription.tags, set(held.subscription.codes)) == ([], {97, 98})
        await client.send("T", properties="TAGS\x01a\x02")
        assert (await asked).code == 0


async def test_held_pulls_keep_no_text_of_a_subscription_that_they_do_not_tell(tmp_path: Path) -> None:
    """Without the flag the original reads neither of the two fields, whatever is in them."""
    async with running(tmp_path, enableLmq="true") as broker, client_of(broker) as client:
        await client.send("T")
        await client.call(Request.HEART_BEAT, {}, heartbeat("one", "cg", "T", "%LMQ%a"))
        pulls, connection = broker.processors.pulls, await client.connection()
        for number, topic in enumerate(("T", "%LMQ%a"), 1):
            header = PullHeader("cg", topic, 0, 2 - number, 32, PULL_SUSPEND, suspend_timeout_ms=20_000)
            header.subscription = header.expression_type = LONG
            asked = asyncio.create_task(connection.call(Command(Request.PULL_MESSAGE, header.to_ext()), 30))
            await eventually(lambda: pulls.held == number or asked.done(), "it is held")  # noqa: B023
            assert pulls.held == number
            asked.cancel()
        header.topic = "%LMQ%" + LONG
        assert (await connection.call(Command(Request.PULL_MESSAGE, header.to_ext()))).code == 17
        for held in _all(pulls._held):
            texts = [getattr(held.header, name) for name in held.header.__slots__]
            assert sum(len(text) for text in texts if isinstance(text, str)) < 20


async def _pull(client: Client, tags: str, **more: Any) -> Command:
    ext = PullHeader("cg", "T", 0, 1, 32, sys_flag=6, suspend_timeout_ms=20_000, subscription=tags).to_ext()
    return await (await client.connection()).call(Command(Request.PULL_MESSAGE, ext, **more), 30)


async def test_held_pulls_have_a_bound_in_bytes(tmp_path: Path) -> None:
    tags = "||".join(f"t{n}" for n in range(1000))
    async with running(tmp_path, maxHeldPullBytes=str(MIB)) as broker, client_of(broker) as client:
        await client.send("T")
        pulls = broker.processors.pulls
        asked = [asyncio.create_task(_pull(client, tags)) for _ in range(20)]
        await eventually(lambda: sum(task.done() for task in asked) > 10, "those beyond are answered at once")
        assert {task.result().code for task in asked if task.done()} == {19}
        assert 1 < pulls.held < 10
        assert pulls._held.bytes <= MIB
        pulls._held.check_invariants()
        for task in asked:
            task.cancel()


def held_pull(queue_id: int, subscription: Subscription) -> Held:
    one = PullHeader("cg", "T", queue_id, 0, 32)
    anyone = cast(Any, SimpleNamespace())
    return Held(anyone, Command(11), one, subscription, anyone, anyone, 0, 0.0, 0.0)


def test_what_is_counted_of_held_pulls_is_what_they_take() -> None:
    pulls = HeldPulls()
    connection = cast(Any, object())
    for number in range(40):
        own = Subscription.of("T", "||".join(f"tag-{number}-{n}" for n in range(500)), "TAG")
        pulls.add(Held(connection, *_rest(held_pull(number, own))))
    taken = deep_bytes(
        [[h.subscription.expression, h.subscription.tags, h.subscription.codes] for h in _all(pulls)]
    )
    taken += deep_bytes([pulls._queues[queue].codes for queue in pulls.queues()])
    assert taken / 2 < pulls.bytes < taken * 3
    shared = Subscription.of("T", "a || b", "TAG")
    before = pulls.bytes
    for _ in range(1000):
        pulls.add(Held(connection, *_rest(held_pull(99, shared))))
    pulls.check_invariants()
    assert pulls.bytes - before < 1000 * 300
    for held in _all(pulls):
        assert pulls.remove(held)
    assert (pulls.bytes, pulls._shared) == (0, {})


def _rest(held: Held) -> tuple[Any, ...]:
    return (held.request, held.header, held.subscription, held.topic, held.group, 0, 0.0, 0.0)


def _all(pulls: HeldPulls) -> list[Held]:
    return [held for queue in pulls.queues() for held in pulls.of(queue)]


def test_pops_answered_before_their_time_are_not_kept() -> None:
    pops = HeldPops()
    for number in range(1000):
        one = PopHeader("cg", "T", 0, 1, 1000, 1000, 0, 0, attempt_id=f"{number}" * 100)
        held = HeldPop(cast(Any, "connection"), Command(1), one, Subscription("T"), 60_000.0)
        pops.add(held)
        assert pops.bytes >= len(one.attempt_id)
        assert pops.take(held.key) is held
        pops.check_invariants()
    assert len(pops._deadlines) <= DEADLINES_LEFT
    assert (pops.count, pops.bytes) == (0, 0)


def test_counters_take_little_however_long_they_run() -> None:
    counters = Counters()
    for at in range(400):
        for number in range(20):
            counters.add("GROUP_GET_NUMS", f"T{number}@cg", 1, at * 600_000.0)
        counters.sample(at * 600_000.0)
    rings = [list(held.rings) for held in counters._counters.values()]
    assert deep_bytes(rings) / 20 < 1300
    assert [span.sum for span in counters.spans("GROUP_GET_NUMS", "T1@cg") or ()] == [6, 6, 144]


def test_queues_that_are_gone_are_not_counted_on() -> None:
    counters = Counters()
    for number in range(100):
        counters.queue_end("T", 0, 10 + number, number * 1.0)
        counters.queue_end(f"made-up-{number}", 0, 1, number * 1.0)
        counters.sample(number * 1.0)
    assert len(counters._ends) + len(counters._ends_now) <= 4


def test_hashes_of_keys_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.files.key_hash._REMEMBERED_BYTES_MAX", MIB)
    hashes = KeyHash()
    for number in range(5000):
        hashes("T", f"{number:06}" + "k" * 400 + f"{number:06}")
        if number % 500 == 0:
            assert deep_bytes([hashes.tails, hashes._starts, hashes._heads, hashes._topics]) < 2 * MIB


def test_binary_headers_have_a_bound_in_bytes() -> None:
    heads = BinaryHeads()
    for number in range(20_000):
        heads.head(binary_header(f"{number:05}" + "g" * 600))
    assert len(heads._known) * 1800 < KNOWN_BYTES_MAX * 1.1


def test_compiled_expressions_have_a_bound_in_bytes() -> None:
    known = Compiled()
    for number in range(100):
        text = f"a = {number}" + " OR a = 1" * 1500
        known.keep(text, cast(Any, object()))
        assert known.chars <= CHARS_MAX
    assert 1 < len(known) < 12
    assert compile_filter("a = 1") is compile_filter("a = 1")


def test_topics_deleted_are_remembered_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.tables.topics.DELETED_MAX", 5)
    assert DELETED_MAX > 5
    topics = Topics(config_for(tmp_path), lambda: 0)
    for number in range(20):
        topics.put(TopicConfig(f"T{number}", 1, 1))
        topics.delete(f"T{number}", {0: 1}, {0: 2})
    assert list(topics._unconfirmed) == list(topics._deleted.table) == [f"T{n}" for n in range(15, 20)]


def test_where_a_deleted_topic_ended_outlives_the_note_of_its_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that began empty since has nothing of it, and would give its offsets again."""
    monkeypatch.setattr("broker.tables.topics.DELETED_MAX", 2)
    topics, slave = (Topics(config_for(tmp_path), lambda: 0) for _ in range(2))
    topics.put(TopicConfig("T", 1, 1))
    mark = topics.mark
    topics.delete("T", {0: 5000}, {0: 5000})
    for number in range(3):
        topics.put(TopicConfig(f"x{number}", 1, 1))
        topics.delete(f"x{number}", {0: 7}, {0: 7})
    assert "T" not in topics._deleted.table
    again = Topics(config_for(tmp_path), lambda: 0)
    again.boot(topics.to_json())
    change = topics.since(mark)
    assert change is not None
    slave.apply(believed_object(dumps_dialect(change)))
    for table in (topics, again, slave):
        table.check_invariants()
        assert table.starts["T"] == {0: 5000}
        assert table.starts["x0"] == {0: 7}


def test_what_clients_say_of_themselves_is_counted() -> None:
    clients = Clients()
    connections = [cast(Any, object()) for _ in range(3)]
    for number, connection in enumerate(connections):
        entry = Entry(f"client-{number}", connection, "JAVA", 1, 0.0)
        clients.producer(LONG, entry)
        tags = [f"tag{n}" for n in range(500 * (number + 1))]
        wanted = {
            "topic": "T",
            "subString": "a",
            "tagsSet": tags,
            "codeSet": list(range(500)),
            "subVersion": number,
        }
        clients.consumer({"groupName": "cg", "consumeType": LONG, "subscriptionDataSet": [wanted]}, entry)
        clients.check_invariants()
    assert clients.bytes > 4 * len(LONG)
    for connection in connections:
        clients.closed(connection)
        clients.check_invariants()
    assert clients.bytes == 0


async def test_no_heartbeat_is_taken_while_clients_take_too_much(tmp_path: Path) -> None:
    async with running(tmp_path, maxClientBytes="300000") as broker, client_of(broker) as client:
        codes: list[int] = []
        first: dict[str, Any] = {}
        for number in range(5):
            body = {"clientID": "one", "producerDataSet": [{"groupName": f"{number}" + LONG}]}
            first = body if number == 0 else first
            codes.append((await client.call(Request.HEART_BEAT, {}, bodies.dumps(body))).code)
        assert codes == [0, 2, 2, 2, 2]
        assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(first))).code == 0, "it adds nothing"
        wide = heartbeat("one", "cg", *(f"T{number}" for number in range(1000)))
        assert (await client.call(Request.HEART_BEAT, {}, wide)).code == 2, "none of it is taken"
        await (await client.connection()).call(
            Command(Request.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        )
        assert broker.context.clients.bytes <= 300_000
        broker.context.clients.check_invariants()


@pytest.mark.parametrize("bound", ["maxClientBytes", "maxSubscriptionBytes"])
async def test_who_is_refused_is_heard_and_a_bound_of_all_takes_nothing_new(
    tmp_path: Path, bound: str
) -> None:
    """A heartbeat ended at its first refused group: those behind it and all producers grew silent, and the
    connection was closed after two minutes. Beyond maxClientBytes it kept what it had entered so far."""
    wide = bodies.loads(heartbeat("one", "wide", *(f"T{number}" for number in range(300))))
    told = bodies.loads(heartbeat("one", "a", "T", producer="p"))
    entry = told["consumerDataSet"][0]
    told["consumerDataSet"].append({**entry, "groupName": "z"})
    async with running(tmp_path, maxClientBytes="100000") as broker, client_of(broker) as client:
        clients = broker.context.clients
        assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(told))).code == 0
        (connection,) = clients.connections()
        for member in [*clients.producers["p"].values(), *clients.consumers["a"].members.values()]:
            member.seen_ms = -1
        before = clients.bytes
        noted: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.processors.clients, "notify", noted.extend)
            grown = {**wide["consumerDataSet"][0], "groupName": "a"}
            if bound == "maxSubscriptionBytes":
                long = {"topic": "T", "subString": "x" * (broker.config.subscription_bytes_max + 1)}
                grown["subscriptionDataSet"] = [long]
            others = [{**entry, "groupName": name} for name in ("new", "z")]
            told["consumerDataSet"] = [others[0], grown, others[1]]
            code = (await client.call(Request.HEART_BEAT, {}, bodies.dumps(told))).code
        assert code == (2 if bound == "maxClientBytes" else 23)
        assert noted == ([] if bound == "maxClientBytes" else ["new"])
        assert list(clients.consumers) == ["a", "z", *noted]
        assert (clients.bytes == before) is (not noted)
        assert list(clients.consumers["a"].subscriptions) == ["T"], "what it said before"
        assert not clients.leave_silent(connection, 0, 9)
        assert clients.promised == 0
        clients.check_invariants()


async def test_a_heartbeat_in_which_one_group_shrinks_as_another_grows_is_taken(tmp_path: Path) -> None:
    topics = [f"T{number}" for number in range(300)]
    async with running(tmp_path, maxClientBytes="200000") as broker, client_of(broker) as client:
        clients = broker.context.clients
        for wide, narrow in ("ab", "ba", "ab"):
            told = bodies.loads(heartbeat("one", wide, *topics))
            told["consumerDataSet"] += bodies.loads(heartbeat("one", narrow, "T"))["consumerDataSet"]
            assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(told))).code == 0
            clients.check_invariants()
        assert clients.bytes > 100_000, "both wide ones have no room"


def test_what_is_promised_to_one_heartbeat_is_no_other_ones() -> None:
    clients = Clients()
    clients.promise(60, 100)
    clients.promise(-1000, 100)
    with pytest.raises(Refused):
        clients.promise(41, 100)
    clients.promise(0, 0)
    clients.keep(60, 30)
    clients.keep(-1000, 0)
    clients.promise(41, 100)
    assert clients.promised == 71


def test_a_member_whose_subscription_is_the_older_one_adds_nothing_with_it() -> None:
    clients = Clients()
    members = [Entry(f"client-{number}", cast(Any, object()), "JAVA", 1, 0.0) for number in range(2)]
    entries = [
        {"groupName": "cg", "subscriptionDataSet": [{"topic": "T", "subString": text, "subVersion": version}]}
        for text, version in ((LONG, 1), ("a", 2))
    ]
    for entry, member in zip(entries, members, strict=True):
        clients.consumer(entry, member)
    before = clients.bytes
    clients.consumer(entries[0], members[0], bytes_max=before)
    assert clients.bytes == before < len(LONG)
    clients.check_invariants()


async def test_long_heartbeats_are_taken_apart_one_after_the_other(tmp_path: Path) -> None:
    wide = heartbeat("one", "cg", *(f"T{number}" for number in range(1000)))
    async with running(tmp_path) as broker, client_of(broker) as client:
        turns = broker.processors.clients.turns
        turns._clock_ms = lambda: 0.0  # a short one is short on a busy machine, too
        async with turns.take(cast(Any, FakeConnection())):
            waits = asyncio.create_task(client.call(Request.HEART_BEAT, {}, wide))
            await eventually(lambda: turns.waiting == 1, "the long one waits")
            assert (await client.call(Request.HEART_BEAT, {}, heartbeat("one", "short", "T"))).code == 0
            assert "cg" not in broker.context.clients.consumers
        assert (await waits).code == 0
        assert len(broker.context.clients.consumers["cg"].subscriptions) == 1000


async def test_of_a_heartbeat_nothing_long_stays_with_its_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        client_id = "127.0.0.1@" + "i" * 492 + "#123456789"
        assert (await client.call(Request.HEART_BEAT, {}, heartbeat(client_id, "cg", "T"))).code == 0
        assert (await client.call(Request.HEART_BEAT, {}, heartbeat(client_id + "0", "cg", "T"))).code == 1
        (connection,) = broker.server.connections
        odd = {"clientID": "one", "heartbeatFingerprint": "9" * 4000}
        assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(odd))).code == 1
        assert deep_bytes(connection.attributes) < 1000


async def test_each_text_of_a_subscription_is_short_or_counted(tmp_path: Path) -> None:
    """``expressionType`` was neither."""
    wanted = {"topic": "T", "subString": "a", "expressionType": "XPATH", "classFilterMode": True}
    told = bodies.loads(heartbeat("one", "cg", "T"))
    async with running(tmp_path) as broker, client_of(broker) as client:
        for more in ({"expressionType": LONG}, {"codeSet": [10**4000]}):
            told["consumerDataSet"][0]["subscriptionDataSet"] = [wanted | more]
            assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(told))).code == 1
        assert broker.context.clients.bytes == 0
        told["consumerDataSet"][0]["subscriptionDataSet"] = [wanted]
        assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(told))).code == 0
        shown = await client.call(Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "cg"})
        assert bodies.loads(shown.body)["subscriptionTable"]["T"].items() >= wanted.items()
    longer = Subscription.from_json({**wanted, "expressionType": "X" * 64})
    assert longer.weight - Subscription.from_json(wanted).weight == 64 - len("XPATH")


@pytest.mark.parametrize("letter", ["a", "\u00fc", "\u4e2d", "\U0001f600"])
def test_bounds_in_bytes_count_what_a_text_takes_whatever_is_in_it(letter: str) -> None:
    """A character takes up to four; a text says no more once it was encoded."""
    text = letter * 30_000
    clients, pops, locks = Clients(), HeldPops(), QueueLocks()
    connection = cast(Any, FakeConnection())
    said = {"topic": text, "subString": text, "tagsSet": [text + "1"], "codeSet": [1]}
    entry = Entry(text, connection, text, 1, 0.0)
    clients.consumer({"groupName": text, "messageModel": text, "subscriptionDataSet": [said]}, entry)
    clients.producer(text, entry)
    assert clients.bytes > 8 * sys.getsizeof(text)
    header = PopHeader("cg", "T", 0, 1, 1000, 1000, 0, 0, expression=text, attempt_id=text)
    pops.add(HeldPop(connection, Command(1), header, None, 60_000.0))
    assert pops.bytes > 2 * sys.getsizeof(text) - 200
    look = LookHeader("cg", "T", 0, attempt_id=text)
    assert HeldPop(connection, Command(1), look, None, 0.0).bytes > sys.getsizeof(text) - 100
    locks.lock(text, text, [(text, text, 0)], 0)
    assert locks.bytes > 4 * sys.getsizeof(text)
    assert size_of(Command(310, {text: text})) > 2 * sys.getsizeof(text)
    assert text.encode(), "what it is counted with does not change"
    for counted in (clients, pops, locks):
        counted.check_invariants()


async def test_an_answer_is_made_without_keeping_what_it_is_made_of(tmp_path: Path) -> None:
    """Objects of ten times its bytes stayed in the process: Python keeps the memory of small ones."""
    big = {"topic": "BenchmarkTest", "group": "cg", "consumerGroup": "cg", "isOrder": "false"}
    async with running(tmp_path) as broker, client_of(broker) as client:
        broker.groups.find("cg")
        broker.offsets.commit("cg", "BenchmarkTest", 0, 0)
        await client.send("BenchmarkTest")
        for code in (
            Request.GET_BROKER_CONSUME_STATS,
            Request.GET_CONSUME_STATS,
            Request.GET_TOPIC_STATS_INFO,
            Request.QUERY_CONSUME_TIME_SPAN,
        ):
            answers = broker.processors.handlers[int(code)]
            tracemalloc.start()
            try:
                answer = await answers(cast(Any, FakeConnection()), Command(int(code), big))
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert answer is not None
            assert len(answer.body) > 100_000
            assert peak < 4 * len(answer.body), code


def test_locks_have_a_bound_in_bytes() -> None:
    locks = QueueLocks(100)
    for number in range(50):
        queues = [("b", f"{number}" + "t" * 30_000, queue_id) for queue_id in range(5)]
        locks.lock(f"{number}" + "g" * 30_000, f"{number}" + "c" * 30_000, queues, 0)
    locks.check_invariants()
    assert deep_bytes([*locks._groups, *(key for held in locks._groups.values() for key in held)]) < 2 * (
        100 * ROOM_BYTES
    )
    usual = [("broker-a", "T" * 127, queue_id) for queue_id in range(100)]
    roomy = QueueLocks(100)
    assert roomy.lock("g" * 255, "127.0.0.1@1234#5678" * 5, usual, 0) == usual
    assert deep_bytes([list(held) for held in roomy._groups.values()]) < roomy.bytes


def test_locks_that_are_over_go_though_there_is_room() -> None:
    locks = QueueLocks()
    for number in range(100):
        locks.lock(f"g{number}", "c", [("b", "T", 0)], 0)
    locks.lock("h", "c", [("b", "T", 0)], LOCK_LIVES_MS + 1)
    locks.check_invariants()
    assert set(locks._groups) == {"h"}


def test_changes_of_names_that_come_and_go_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.tables.moved.MOVED_MAX", 10)
    moved, offsets = Moved[str](), OffsetTable(lambda: 0)
    offsets.commit("stays", "T", 0, 1)
    for number in range(100):
        moved.add([f"T{number}"])
        offsets.commit(f"g{number}", "T", 0, 1)
        offsets.drop_group(f"g{number}")
        moved.check_invariants()
        offsets.check_invariants()
    assert len(moved._marks) <= 10
    assert len(offsets._moved._marks) <= 10
    assert (moved.since(98), moved.since(80)) == (["T99", "T98"], None)
    late, early = offsets.changed_since(offsets.mark - 1), offsets.changed_since(3)
    assert (late["part"], late["offsetTable"]) == (True, {"T@g99": {}})
    assert "part" not in early, "such a copy gets the whole table"


async def test_a_heartbeat_tells_no_more_tags_than_the_longest_subscription_has(tmp_path: Path) -> None:
    told, tags = bodies.loads(heartbeat("one", "cg", "T")), [f"t{number}" for number in range(4000)]
    (wanted,) = told["consumerDataSet"][0]["subscriptionDataSet"]
    codes = list(range(len(tags)))
    async with running(tmp_path) as broker, client_of(broker) as client:
        for more, code in (
            ({"subString": "||".join(tags), "tagsSet": tags, "codeSet": codes}, 0),
            ({"subString": "||".join(tags * 2)}, 23),
            ({"tagsSet": tags * 2}, 23),
            ({"codeSet": list(range(149_600))}, 23),
            ({"subString": ["a"]}, 1),
            ({"tagsSet": [1]}, 1),
        ):
            told["consumerDataSet"][0]["subscriptionDataSet"] = [wanted | more]
            assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(told))).code == code
        kept = broker.context.clients.subscription("cg", "T")
        assert kept is not None
        assert kept.codes == set(codes)
