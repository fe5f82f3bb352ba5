"""The promise about bit rot: whatever bits of one replica flip, in any of its files, the group loses nothing.

Three brokers of one group; the same one of them rots, batch after batch: while it serves, while it is
stopped, or after it was killed. Then the others, and what it knows itself, must make it whole: its log is
the master's to the byte again, its queues and its index find every acknowledged message, its tables are the
group's.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Any, Final, cast

import pytest

from broker.service import Broker
from broker.upkeep.log_compare import LogCompare
from chaos.clients import Acked, ClientSender
from chaos.history import History
from chaos.sim.cluster import GROUP, SimCluster, WorldConfig
from client.admin import AdminClient
from client.message import Queue
from model.codes import Request
from model.errors import MqError
from remoting.codec import Command
from remoting.service import RemotingClient
from store.files.damage import DamagedRange
from store.files.record import decode, walk
from store.message_store import MessageStore

FLIPS: Final = int(os.environ.get("KEELMQ_CLUSTER_FLIPS", "40"))
"""How many bits flip in the whole run."""
BATCH_FLIPS: Final = 40
VICTIM: Final = "b2"
TOPICS: Final = ("orders", "payments", "audit")
QUEUES: Final = 2
SEGMENT: Final = 16 * 1024
IN_BODY: Final = 90
"""A byte of the body, counted from the begin of a record with IPv4 hosts."""
SETTLE_S: Final = 120.0
"""Virtual seconds a batch may take to be found and repaired."""
KINDS: Final = {"commitlog": 8, "consumequeue": 3, "index": 2, "config": 3, "other": 2}
"""Files that rot, and how often of each kind relative to the others."""
SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(SEGMENT),
    "mappedFileSizeConsumeQueue": str(20 * 5000),
    "scrubMegabytesPerSecond": "1",
    "checkOnStartMegabytesPerSecond": "1",
    "flushConsumerOffsetInterval": "200",
    "diskReserveMegabytes": "1",
    "traceOn": "false",
}


class Rotting:
    """One cluster, one rotting replica."""

    def __init__(self, flips: int, seed: int = 7) -> None:
        self.cluster = SimCluster(seed, WorldConfig(namesrvs=1, broker=SETTINGS), History())
        self.chance = random.Random(f"rot:{seed}")
        self.flips = flips
        self.acked: dict[str, tuple[Acked, bytes]] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.hit: Counter[str] = Counter()
        self.in_records = 0
        self._sent = 0

    def run(self) -> None:
        try:
            self.cluster.loop.run_until_complete(self._main())
        finally:
            self.cluster.close()

    # The story

    async def _main(self) -> None:
        await self._begin()
        done = number = 0
        while done < self.flips:
            count = min(BATCH_FLIPS, self.flips - done)
            await self._batch(number, count)
            done += count
            number += 1

    async def _begin(self) -> None:
        cluster = self.cluster
        cluster.start("n0")
        cluster.start(VICTIM)
        # It is master until it stops for the first time.
        assert await cluster.until(lambda: None if cluster.master() == VICTIM else "no master", 20) is None
        for node in cluster.of("broker"):
            cluster.start(node.name)
        assert await cluster.until(cluster.converged, 20) is None
        self._admin_node, env = cluster.client("admin")
        self._client = RemotingClient(env, "rot")
        self._admin = AdminClient(env, cluster.namesrv_addresses)
        self._sender = ClientSender(env, "rot", cluster.namesrv_addresses)
        await self._inside(self._create_topics())
        await self._inside(self._send(240))

    async def _batch(self, number: int, count: int) -> None:
        cluster = self.cluster
        await self._inside(self._send(12))
        assert await cluster.until(cluster.converged, SETTLE_S) is None
        how = ("running", "stopped", "killed")[number % 3]
        if how == "stopped":
            await self._stop()
        elif how == "killed":
            cluster.kill(VICTIM)
        flipped = [self._flip() for _ in range(count)]
        if how != "running":
            # The others go on meanwhile, under another master if it was this one.
            await self._inside(self._send(12))
            cluster.start(VICTIM)
        reason = await cluster.until(self._is_whole, SETTLE_S)
        what = f"batch {number} ({how}): {[f'{path}:{bit}' for path, bit in flipped]}"
        assert reason is None, f"{reason}\n{what}\n{cluster.errors}"
        assert cluster.errors == [], what
        self._check(what)

    async def _stop(self) -> None:
        node = self.cluster.nodes[VICTIM]
        assert self.cluster.stop(VICTIM) is not None
        await self.cluster.until(lambda: None if node.state == "down" else "stopping", 30)

    def _flip(self) -> tuple[str, int]:
        machine = self.cluster.nodes[VICTIM].machine
        kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for path in machine.paths("/store/"):
            kind = path.split("/")[2]
            if machine.content(path):
                kinds[kind if kind in kinds else "other"].append(path)
        kind = self.chance.choices(list(KINDS), list(KINDS.values()))[0]
        path = self.chance.choice(kinds[kind] or kinds["commitlog"])
        bit = self.chance.randrange(len(machine.content(path)) * 8)
        if kind == "commitlog" and self._in_record(int(path[-20:]) + bit // 8):
            self.in_records += 1
        machine.flip(path, bit)
        self.hit[kind] += 1
        return path, bit

    def _in_record(self, offset: int) -> bool:
        store = self._store("b1")
        base = offset - offset % SEGMENT
        if base >= store.log.end:
            return False  # a segment made ahead
        data = store.log.read(base, min(SEGMENT, store.log.end - base))
        return any(r.physical_offset <= offset < r.physical_offset + r.size for r in walk(data, base))

    # What must be true again

    def _is_whole(self) -> str | None:
        """None, or what of the rotting replica is not yet what it should be."""
        cluster = self.cluster
        reason = cluster.converged()
        if reason is not None:
            return reason
        master = cluster.master()
        assert master is not None
        for name in cluster.brokers():
            damaged = (cluster.status(name) or {})["damaged"]
            if damaged:
                return f"{name} knows damage: {damaged}"
        whole = _log(self._store("b1" if master == VICTIM else master))
        mine = _log(self._store(VICTIM))
        if mine != whole:
            at = next((i for i, (a, b) in enumerate(zip(mine, whole, strict=False)) if a != b), None)
            return f"the log differs at {at}"
        for step in (self._missing_message, self._wrong_table):
            reason = step()
            if reason is not None:
                return reason
        return None

    def _missing_message(self) -> str | None:
        store = self._store(VICTIM)
        for key, (acked, body) in self.acked.items():
            queue = acked.queue
            got = store.get(queue.topic, queue.queue_id, acked.queue_offset, 1, 1 << 20)
            if not got.chunks or decode(got.chunks[0]).body != body:
                return f"{key} is not at {queue.topic}/{queue.queue_id} {acked.queue_offset}"
            found = store.query(queue.topic, key, 8, 0, 1 << 60)
            if not any(decode(data).body == body for data in found):
                return f"{key} is not found by its key"
        return None

    def _wrong_table(self) -> str | None:
        tables = [_tables(self._broker(name)) for name in ("b1", VICTIM, "b3")]
        for name, one, two, three in zip(tables[0], *(t.values() for t in tables), strict=True):
            if not one == two == three:
                return f"the brokers have different {name}"
        for (topic, queue_id), offset in self.offsets.items():
            found = self._broker(VICTIM).offsets.get("readers", topic, queue_id)
            if found != offset:
                return f"the group's offset in {topic}/{queue_id} is {found}, not {offset}"
        return None

    def _check(self, what: str) -> None:
        store, peer = self._store(VICTIM), self._store("b1")
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                mine, theirs = (one.max_queue_offset(topic, queue_id) for one in (store, peer))
                assert mine >= theirs, f"{topic}/{queue_id} ends at {mine}, not {theirs}: {what}"
        ids = {self._broker(name).role.broker_id for name in ("b1", "b2", "b3")}
        assert len(ids) == 3, what
        assert None not in ids, what
        assert store.epochs.entries == peer.epochs.entries, what
        assert set(store.queues()) == set(peer.queues()), what

    # Clients

    async def _inside(self, work: Any) -> None:
        await self.cluster.inside(self._admin_node, work)

    async def _create_topics(self) -> None:
        await self._admin.start()
        for topic in TOPICS:
            for _ in range(100):
                try:
                    await self._admin.create_topic(topic, QUEUES, brokers=[GROUP])
                    await self._admin.route(topic)
                    break
                except (MqError, OSError):
                    await asyncio.sleep(0.1)
        await self._sender.start()

    async def _send(self, count: int) -> None:
        for _ in range(count):
            number = self._sent
            self._sent += 1
            queue = Queue(TOPICS[number % 3], GROUP, number // 3 % QUEUES)
            body = f"message {number} ".encode() * self.chance.randint(1, 24)
            for attempt in range(200):
                key = f"k{number}-{attempt}"
                try:
                    self.acked[key] = await self._sender.send(key, queue, body), body
                    break
                except (MqError, OSError):
                    await asyncio.sleep(0.1)
            else:
                pytest.fail(f"message {number} could not be sent")
        await self._commit()

    async def _commit(self) -> None:
        """Consumers say how far they are."""
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                offset = self.chance.randrange(self._sent // 6)
                ext = {
                    "consumerGroup": "readers",
                    "topic": topic,
                    "queueId": str(queue_id),
                    "commitOffset": str(offset),
                }
                master = self.cluster.master()
                assert master is not None
                self._broker(master).groups.find("readers")  # a commit makes none
                address = self._broker(master).config.address
                answer = await self._client.call(
                    address, Command(int(Request.UPDATE_CONSUMER_OFFSET), ext), 3
                )
                assert answer.code == 0, answer.remark
                self.offsets[topic, queue_id] = offset

    def _broker(self, name: str) -> Broker:
        return cast(Broker, self.cluster.nodes[name].server)

    def _store(self, name: str) -> MessageStore:
        return self._broker(name).store


def _log(store: MessageStore) -> bytes:
    begin, end = store.log.min_offset, store.log.end
    return b"".join(store.log.read(at, min(SEGMENT, end - at)) for at in range(begin, end, SEGMENT))


def _tables(broker: Broker) -> dict[str, Any]:
    return {
        "topics": broker.topics.to_json()["topicConfigTable"],
        "groups": broker.groups.to_json()["subscriptionGroupTable"],
        "offsets": broker.offsets.to_json()["offsetTable"],
    }


@pytest.mark.sim
def test_flipped_bits_in_all_files_of_one_replica_of_three_cost_nothing() -> None:
    story = Rotting(FLIPS)
    story.run()
    assert sum(story.hit.values()) == FLIPS
    assert story.in_records >= FLIPS // 5
    assert set(story.hit) == set(KINDS)


@pytest.mark.sim
def test_without_repair_the_same_flips_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: LogCompare) -> None:
        return None

    monkeypatch.setattr(LogCompare, "once", nothing)
    monkeypatch.setattr("tests.sim.test_rot.SETTLE_S", 20.0)
    with pytest.raises(AssertionError, match=r"the log differs|knows damage"):
        Rotting(40).run()


class Losing(Rotting):
    """No copy of any table of one replica can be read any more."""

    async def _main(self) -> None:
        await self._begin()
        cluster = self.cluster
        assert await cluster.until(cluster.converged, SETTLE_S) is None
        await self._stop()
        machine = cluster.nodes[VICTIM].machine
        for path in [*machine.paths("/store/config/"), *machine.paths("/store/epochFile")]:
            for byte in range(0, len(machine.content(path)), 7):
                machine.flip(path, byte * 8)
        await self._inside(self._send(12))
        await asyncio.sleep(1.0)  # consumer offsets are written from time to time
        for name in ("b1", "b3"):
            cluster.kill(name)
        await asyncio.sleep(1.0)  # until the Controllers gave up a master that might come back
        cluster.start(VICTIM)
        assert await cluster.until(lambda: None if cluster.master() else "none", 15) == "none"
        lost = self._broker(VICTIM).lacks()
        assert lost is not None
        for name in ("topics.json", "consumerOffset.json", "epochFileCheckpoint"):
            assert name in lost
        assert self._broker(VICTIM).status()["life"]["role"] == "fenced"
        for name in ("b1", "b3"):
            cluster.start(name)
        reason = await cluster.until(self._is_whole, SETTLE_S)
        assert reason is None, reason
        assert self._broker(VICTIM).lacks() is None
        self._check("all tables lost")


@pytest.mark.sim
def test_a_replica_that_lost_its_tables_copies_them_before_it_leads() -> None:
    Losing(0).run()


class Touching(Rotting):
    """A bit flips that no CRC tells, and one of the next record's body: the second is found first."""

    async def _main(self) -> None:
        await self._begin()
        cluster = self.cluster
        assert await cluster.until(cluster.converged, SETTLE_S) is None
        store = self._store(VICTIM)
        one, two = list(walk(store.log.read(0, SEGMENT), 0))[3:5]
        await asyncio.sleep(1.0)  # consumer offsets follow within a bound
        await self._stop()
        machine = cluster.nodes[VICTIM].machine
        path = f"/store/commitlog/{0:020d}"
        machine.flip(path, (one.physical_offset + one.size - 1) * 8)  # in its properties
        machine.flip(path, (two.physical_offset + IN_BODY) * 8)
        cluster.start(VICTIM)
        await cluster.until(lambda: "starting" if cluster.nodes[VICTIM].server is None else None, 30)
        store = self._store(VICTIM)
        begin = two.physical_offset
        store.damage.note([DamagedRange(begin, begin + two.size, "crc_mismatch")])
        reason = await cluster.until(self._is_whole, SETTLE_S)
        assert reason is None, f"{reason}: {cluster.errors}"


@pytest.mark.sim
def test_a_record_is_mended_whose_neighbour_rotted_where_no_crc_looks() -> None:
    Touching(0).run()
