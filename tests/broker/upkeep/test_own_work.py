"""The promise of what a broker does by itself: however full its tables are, others have their turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.requests.send import LONG_BODY_BYTES, SendProcessor
from broker.requests.transactions import Transactions
from broker.state.clients import Client as Member
from broker.upkeep.topic_repair import TopicRepair
from model.codes import Request
from model.topic import SubscriptionGroupConfig
from remoting import bodies
from runtime.turns import Slice
from store.files.commit_log import CommitLog
from store.message_store import MessageStore
from tests.broker.halves import COMMIT, HALF, HALVES, ROLLBACK, end, of_topic
from tests.broker.helpers import Client, client_of, elected, heartbeat, log_records, running
from tests.broker.turn_meter import counted_slices
from tests.fakes.broker.store import FakeConnection

ROOM = {"mappedFileSizeCommitLog": str(1 << 23)}
LONG = b"x" * (LONG_BODY_BYTES + 1)


class Turns:
    """Counts turns of the loop, and notes in which one something was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turn = 0
        self.noted: list[tuple[str, int]] = []
        self._patch = monkeypatch

    def note(self, owner: type[Any], name: str) -> None:
        original = getattr(owner, name)

        def noted(this: Any, *given: Any, **more: Any) -> Any:
            self.noted.append((name, self.turn))
            return original(this, *given, **more)

        self._patch.setattr(owner, name, noted)

    async def count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


async def each_in_a_turn_of_its_own(
    monkeypatch: pytest.MonkeyPatch, client: Client, code: Request, ext: dict[str, str]
) -> None:
    """Looked up, encoded and written."""
    turns = Turns(monkeypatch)
    turns.note(MessageStore, "lookup")
    turns.note(SendProcessor, "prepare")
    turns.note(MessageStore, "put_prepared")
    counting = asyncio.create_task(turns.count())
    assert (await client.call(code, ext)).code == 0
    counting.cancel()
    first = dict(reversed(turns.noted))
    assert first["lookup"] < first["prepare"] < first["put_prepared"], turns.noted


async def begin_long(client: Client) -> Any:
    return await client.send("T", LONG, properties=HALF + "UNIQ_KEY\x01U1\x02WAIT\x01true\x02")


async def test_a_long_half_is_looked_up_encoded_and_written_in_turns_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **ROOM) as broker, client_of(broker) as client:
        await begin_long(client)
        (half,) = of_topic(broker, HALVES)
        ext = {
            "producerGroup": "pg",
            "tranStateTableOffset": "0",
            "commitLogOffset": str(half.physical_offset),
            "commitOrRollback": str(COMMIT),
        }
        await each_in_a_turn_of_its_own(monkeypatch, client, Request.END_TRANSACTION, ext)
        (seen,) = await client.pull_until("T", 0, 1)
        assert seen.body == LONG


async def test_ends_of_a_long_half_that_come_again_or_are_wrong_read_nothing_of_its_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 bytes asked for, and each time megabytes were read, checked and decoded."""
    async with running(tmp_path, **ROOM) as broker, client_of(broker) as client:
        half = await begin_long(client)
        assert (await end(client, half, COMMIT)).code == 0
        assert len(of_topic(broker, "T")) == 1
        read, sizes = CommitLog.read, list[int]()

        def noted(this: CommitLog, offset: int, size_max: int) -> bytes:
            sizes.append(len(found := read(this, offset, size_max)))
            return found

        monkeypatch.setattr(CommitLog, "read", noted)
        assert [(await end(client, half, how)).code for how in (COMMIT, ROLLBACK, COMMIT)] == [0, 1, 0]
        assert (await end(client, half, COMMIT, group="another")).code == 1
        assert sizes
        assert sum(sizes) < 20_000 < len(LONG)


async def test_a_long_message_that_is_sent_back_takes_turns_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **ROOM) as broker, client_of(broker) as client:
        await client.send("T", LONG)
        broker.context.groups.put(SubscriptionGroupConfig("g"))
        ext = {"offset": "0", "group": "g", "delayLevel": "1", "maxReconsumeTimes": "16"}
        await each_in_a_turn_of_its_own(monkeypatch, client, Request.CONSUMER_SEND_MSG_BACK, ext)
        sent, back = log_records(broker)
        assert (back.topic, back.body, back.reconsume_times) == ("SCHEDULE_TOPIC_XXXX", sent.body, 1)


async def test_a_long_half_that_is_asked_about_while_it_is_being_ended_ends_once_as_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **ROOM) as broker, client_of(broker) as client:
        half = await begin_long(client)
        transactions: Transactions = broker.processors.transactions
        prepare, asked = SendProcessor.prepare, False

        def and_ask(this: SendProcessor, message: Any) -> Any:
            nonlocal asked
            if not asked:
                asked = True
                transactions._ask(of_topic(broker, HALVES)[0])
            return prepare(this, message)

        monkeypatch.setattr(SendProcessor, "prepare", and_ask)
        assert (await end(client, half, COMMIT)).code == 0
        assert (await end(client, half, COMMIT)).code == 0, "it has ended"
        assert len(of_topic(broker, HALVES)) == 2, "it and its copy"
        assert len(of_topic(broker, "T")) == 1
        ops = of_topic(broker, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
        assert [op.body for op in ops] == [b"0,", b"1,"]
        copy = of_topic(broker, HALVES)[1]
        assert of_topic(broker, "T")[0].prepared_transaction_offset == copy.physical_offset


async def test_a_promotion_reads_no_message_of_topics_that_it_knows_and_others_run_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20,000 topics the look at the newest message of each held the loop until the lease was over."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        for n in range(30):
            await client.send(f"T{n}")
        slices = counted_slices(monkeypatch)
        reads: list[str] = []
        newest = TopicRepair._newest_ms

        def noted(this: TopicRepair, topic: str, queue_id: int) -> int:
            reads.append(topic)
            return newest(this, topic, queue_id)

        monkeypatch.setattr(TopicRepair, "_newest_ms", noted)
        roles = broker.roles
        await roles.fence()
        await roles.lead(elected(0, 0, [0], 0))
        assert not reads
        assert slices.looks > 30
        broker.context.topics.table.pop("T7")
        await roles.fence()
        await roles.lead(elected(0, 0, [0], 0))
        assert reads
        assert broker.context.topics.get("T7") is not None


async def test_a_topic_whose_first_message_is_dispatched_during_a_promotion_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        roles = broker.roles
        await roles.fence()
        repair, topics = roles._topic_repair, broker.context.topics
        await repair.look(Slice(lambda: 0.0))
        repair.arrived([("Late", 2, 1, 0)])
        repair.widen()
        late = topics.get("Late")
        assert late is not None
        assert late.read_queues > 2
        repair.arrived([("Later", 0, 1, 0)])
        assert topics.get("Later") is None, "this broker is no master, and is not about to be one"


async def test_a_master_that_serves_begins_its_next_epoch_also_on_a_disk_that_answers_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was fenced, and nothing hung."""
    async with running(tmp_path) as broker:
        roles, probe = broker.roles, broker.upkeep.table_sources.probe

        async def hangs(within_s: float) -> None:
            raise TimeoutError("the disk hangs")

        await roles.fence()
        with monkeypatch.context() as patched:
            patched.setattr(probe, "answers", hangs)
            with pytest.raises(TimeoutError, match="hangs"):
                await roles.lead(elected(1, 1, [1], 1))
            assert not broker.role_state.is_master
        await roles.lead(elected(1, 1, [1], 1))
        monkeypatch.setattr(probe, "answers", hangs)
        await roles.lead(elected(1, 2, [1], 1))
        assert (broker.role_state.is_master, broker.role_state.epoch) == (True, 2)


async def test_no_send_is_taken_before_the_queue_offsets_of_a_promotion_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for _ in range(3):
            assert (await client.send("T")).code == 0
        roles, whole = broker.roles, asyncio.Event()
        rebuild = MessageStore.rebuild_queue_offsets_in_slices

        async def held(this: MessageStore, slice_: Slice) -> None:
            await rebuild(this, slice_)
            await whole.wait()

        monkeypatch.setattr(MessageStore, "rebuild_queue_offsets_in_slices", held)
        await roles.fence()
        leading = asyncio.create_task(roles.lead(elected(0, 0, [0], 0)))
        await asyncio.sleep(0.01)
        assert (await client.send("T")).code != 0
        whole.set()
        await leading
        assert (await client.send("T")).ext["queueOffset"] == "3"
        assert [record.queue_offset for record in log_records(broker)] == [0, 1, 2, 3]


async def test_counters_and_silent_clients_are_looked_at_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        context = broker.context
        for n in range(300):
            context.stats.counters.add("GROUP_GET_NUMS", f"T{n}@g", 1, 0.0)
            connection: Any = FakeConnection(f"10.0.0.{n % 200}:{1000 + n}")
            context.clients.producer("p", Member(f"c{n}", connection, "JAVA", 401, -1e12 if n < 3 else 1e12))
        slices = counted_slices(monkeypatch)
        await broker.processors.clients.expire()
        assert slices.looks >= 300
        assert len(context.clients.producers["p"]) == 297
        before = slices.looks
        await broker.upkeep.sampling.sample()
        assert slices.looks - before >= 3 * 300, "they are sampled, looked through, and summed up"
        assert len(context.stats.counters._counters["GROUP_GET_NUMS", "T299@g"].rings[0]) == 4


async def test_who_beats_keeps_its_connection_whatever_became_of_one_of_its_groups(tmp_path: Path) -> None:
    """As in RocketMQ, a client whose group was deleted lost its connection every two minutes, and one that
    had stopped beating for a single group of several, too."""

    async with running(tmp_path, autoCreateSubscriptionGroup="false") as broker, client_of(broker) as client:
        clients, processor = broker.context.clients, broker.processors.clients
        made = bodies.dumps({"groupName": "cg"})
        assert (await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, made)).code == 0

        async def beat(group: str, producer: str = "") -> None:
            body = heartbeat("one", group, "T", producer=producer)
            assert (await client.call(Request.HEART_BEAT, {}, body)).code == 0

        def grow_old() -> None:
            for members in [*clients.producers.values(), *(g.members for g in clients.consumers.values())]:
                for member in members.values():
                    member.seen_ms = -1e12

        await beat("cg", "p")
        (connection,) = clients.connections()
        assert (await client.call(Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "cg"})).code == 0
        grow_old()
        await beat("cg", "p")
        await processor.expire()
        assert (list(clients.producers), list(clients.consumers)) == (["p"], ["cg"])
        grow_old()
        await beat("cg")
        await processor.expire()
        assert (clients.producers, list(clients.consumers)) == ({}, ["cg"])
        await beat("none", "p")
        clients.consumers["cg"].members[connection].seen_ms = -1e12
        await processor.expire()
        assert (list(clients.producers), clients.consumers, connection.closed) == (["p"], {}, False)
        clients.check_invariants()
        grow_old()
        await processor.expire()
        assert (clients.connections(), connection.closed) == ([], True)
