"""What happens in one simulated run, from an empty cluster to the evidence the checks look at?

Start the cluster and wait until its SyncStateSet is full; load it while faults strike; stop the load, heal
everything, give the cluster time; read all back: by a consumer, and from every replica's files.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, cast

from broker.service import Broker
from chaos.checks import Evidence, Violation, replicas
from chaos.checks.replicas import ReplicaLog
from chaos.clients import ClientReader, ClientSender, body_crc
from chaos.faults import Fault, PowerFail
from chaos.history import ControllerAnswer, History, Observed, Ok, Read, Send
from chaos.partitions import NEIGHBOUR
from chaos.scenarios import Plan
from chaos.sim.cluster import GROUP, NEIGHBOUR_GROUP, Node, SimCluster, WorldConfig
from chaos.sim.extras import SimExtras
from chaos.sim.faults import Nemesis
from chaos.sim.losses import Losses
from chaos.sim.more import SimMore
from chaos.sim.neighbour import LOAD as NEIGHBOUR_LOAD
from chaos.sim.neighbour import Neighbour
from chaos.sim.net import NetProfile
from chaos.sim.settled import Watch
from chaos.workload import Load, ProducerLoad, ReaderLoad, queues_of
from client.admin import AdminClient
from client.message import Queue
from model.codes import Request, Response
from model.errors import DiskError, MqError
from model.message import property_of
from remoting import bodies
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.tasks import Tasks
from store.files.record import Record, records_in, walk
from store.message_store import MessageStore

READY_S: Final = 20.0
OBSERVE_S: Final = 0.1
PROBE_S: Final = 0.15
ENDS_S: Final = 15.0
"""Longest that a send begun before the end of the load may still take."""
MENDED_S: Final = 90.0
"""Replicas are asked for what cannot be read here at least every 30 s."""
TRIES_MAX: Final = 100
LAST_TRIES: Final = 3
INDEX_SAMPLES: Final = 20
READER: Final = "consumer"
READING: Final = "c0"
"""Its machine, and the task in which it follows the queues."""


class Story:
    """One run of a plan: ``main`` is what happens, then ``evidence`` and ``found`` hold what was seen."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self.plan = plan
        self.history = History()
        low_ms, high_ms = plan.offload_ms
        config = WorldConfig(
            network=NetProfile(**plan.network),
            offload_s=(low_ms / 1000, high_ms / 1000),
            shuffle="all" if plan.shuffle_tasks else "nodes",
            brokers=plan.brokers,
            learners=plan.learners,
            neighbour=plan.neighbour,
            neighbour_broker=plan.neighbour_broker,
            broker=plan.broker,
            controller=plan.controller,
        )
        self.cluster = SimCluster(seed, config, self.history)
        self.nemesis = Nemesis(self.cluster, plan.steps)
        unclean = plan.controller.get("enableElectUncleanMaster") == "true"
        self.losses = Losses(
            self.cluster,
            tolerates=plan.tolerates,
            synced=plan.always("flushDiskType", "SYNC_FLUSH", default="ASYNC_FLUSH"),
            unclean=lambda: unclean or self.nemesis.operator.gave_up,
        )
        self.nemesis.after.append(self._struck)
        if plan.swarm:
            self.nemesis.after.append(self.losses.struck)
            self.history.watch(self.losses.happened)
        self.extras: SimExtras | None = None
        self.more: SimMore | None = None
        self.neighbour: Neighbour | None = None
        self._watch = Watch(self.cluster, self.history, plan.serves_ms)
        self._nodes: dict[str, Node] = {}  # where each producer's client runs
        self._loading = False
        self.found: list[Violation] = []
        self.evidence = Evidence(self.history, power_failures=plan.unsynced_excused, set_kept=plan.set_kept)

    @property
    def queues(self) -> list[Queue]:
        return queues_of(self.plan.load, GROUP)

    async def main(self) -> None:
        cluster, plan = self.cluster, self.plan
        reason = await self._start_servers()
        if reason is not None:
            self._not_live("the cluster did not become ready", reason)
            return
        own = Tasks("story")
        observer = own.spawn(self._observe(), name="observe")
        await self._create_topic()
        self._begin_probe()
        producers, reader, tasks = await self._begin_load()
        if plan.extras:
            self.extras = SimExtras(cluster)
            tasks.append(self.extras.begin())
        if plan.pops or plan.waits:
            self.more = SimMore(cluster, plan)
            tasks += self.more.begin()
        if plan.neighbour:
            self.neighbour = Neighbour(cluster, plan.quiet_ms)
            tasks.append(self.neighbour.begin())
        begun_ms = cluster.clock()
        self._loading = True
        await self.nemesis.run(self._quiet)
        await self.nemesis.wait(plan.load_ms, self._quiet)
        self._loading = False
        self._look_for_stalls(begun_ms)
        await self._heal(own, producers, reader, tasks)
        await self._last_sends(producers)
        await cluster.until(cluster.converged, 5.0)
        if self.extras is not None and not self.losses.of_tables_allowed:
            await self.extras.settle(tables_only=self.losses.any_allowed)
            self.found += self.extras.broken()
        if self.more is not None:
            self.found += await self.more.settled(self.losses)
        if self.neighbour is not None:
            await self.neighbour.settle()
        await cluster.until(cluster.converged, 5.0)
        observer.cancel()
        cluster.observe()
        await self._read_back(reader)

    async def _heal(
        self, own: Tasks, producers: list[ProducerLoad], reader: ReaderLoad, tasks: list[asyncio.Task[None]]
    ) -> None:
        """Faults end, clients as well, and the cluster converges."""
        cluster, plan = self.cluster, self.plan
        cluster.revive()
        if self.nemesis.done.get("wipe") or self.losses.lied:
            own.spawn(self.nemesis.operator.forget_the_dead(), name="forget")
        if plan.swarm:
            losses, operator = self.losses, self.nemesis.operator
            own.spawn(
                operator.look_after_stores(lambda: losses.gave_up, lambda: losses.any_allowed), name="stores"
            )
        for producer in producers:
            producer.stop()
        reader.stop()
        for task in tasks:
            if task.get_name() == READING:
                task.cancel()  # nobody waits for pulls that wait for news: all is read back
        if self.extras is not None:
            self.extras.stop()
        if self.more is not None:
            self.more.stop()
        if self.neighbour is not None:
            self.neighbour.stop()
        _, late = await asyncio.wait(tasks, timeout=ENDS_S)
        if late:
            names = ", ".join(sorted(task.get_name() for task in late))
            self._not_live("clients did not come to an end", names)
        reason = await cluster.until(cluster.converged, plan.quiet_ms / 1000)
        if reason is not None:
            self._not_live("the healed cluster did not converge", reason)
            self.evidence.complete = False
            return
        if self.nemesis.done.get("read_error"):
            await self._mend()
        if self.losses.of_tables_allowed:
            # As its owner would: who sends to it may know where it was, and not more.
            await self._create_topic()

    async def _mend(self) -> None:
        """What a broker could not read it copies from another one. Where each has the same damage, a start
        reads it again."""
        cluster = self.cluster
        left = await cluster.until(cluster.damaged, MENDED_S)
        if left is not None:
            for name in left.split():
                await self.nemesis.operator.restart(cluster.nodes[name])
            left = await cluster.until(lambda: cluster.damaged() or cluster.converged(), MENDED_S)
        if left is not None:
            self._not_live("damage is not mended", left)

    async def _start_servers(self) -> str | None:
        """None once all are members; else what is missing."""
        cluster = self.cluster
        for node in cluster.of("namesrv"):
            cluster.start(node.name)
        if self.plan.controllers_first:
            await cluster.until(lambda: None if cluster.leader() else "no leader", READY_S)
        for node in [*cluster.of("broker"), *cluster.of("learner"), *cluster.of(NEIGHBOUR)]:
            cluster.start(node.name)
        reason = await cluster.until(cluster.converged, READY_S)
        if reason is None and self.plan.neighbour:
            reason = await cluster.until(lambda: cluster.complete(NEIGHBOUR), READY_S)
        return reason

    def _not_live(self, what: str, why: str) -> None:
        self.found.append(Violation("liveness", f"{what}: {why}"))

    def _look_for_stalls(self, begun_ms: float) -> None:
        allowed = self.plan.stall_max_ms
        if allowed is None:
            return
        acked = [event.at_ms for event in self.history.events if isinstance(event, Ok)]
        for before, after in pairwise([begun_ms, *acked, self.cluster.clock()]):
            if after - before > allowed:
                self._not_live("writes stood still", f"no answer from {before:.0f} to {after:.0f} ms")

    async def _observe(self) -> None:
        while True:
            statuses = self.cluster.observe()
            overdue = self._watch.look(statuses, busy=self.nemesis.operator.busy, loading=self._loading)
            self.found += [Violation("liveness", text) for text in overdue]
            await asyncio.sleep(OBSERVE_S)

    def _struck(self, fault: Fault, name: str) -> None:
        if isinstance(fault, PowerFail):
            self._watch.on_power_failure()

    def _quiet(self) -> bool:
        """Whether nothing has happened for so long that the plan goes on to its next step."""
        return self.plan.calm_ms is not None and self._watch.over(self.plan.calm_ms)

    async def _create_topic(self) -> None:
        node, env = self.cluster.client("admin")
        admin = AdminClient(env, self.cluster.namesrv_addresses)

        async def create() -> None:
            await admin.start()
            await make(self.plan.load, GROUP)
            if self.plan.neighbour:
                await make(NEIGHBOUR_LOAD, NEIGHBOUR_GROUP)
            await admin.stop()

        async def make(load: Load, group: str) -> None:
            for attempt in range(TRIES_MAX):
                try:
                    await admin.create_topic(load.topic, load.queues, brokers=[group])
                    await admin.route(load.topic)
                    break
                except (MqError, OSError):
                    # The NameServers hear of the master, and then of the topic, a moment later.
                    if attempt == TRIES_MAX - 1:
                        raise
                    await asyncio.sleep(0.1)

        await self.cluster.inside(node, create(), name="create-topic")

    async def _begin_load(self) -> tuple[list[ProducerLoad], ReaderLoad, list[asyncio.Task[None]]]:
        cluster, load = self.cluster, self.plan.load
        namesrvs = cluster.namesrv_addresses
        producers: list[ProducerLoad] = []
        tasks: list[asyncio.Task[None]] = []
        for number in range(load.producers):
            name = f"p{number}"
            if number == 0 or not self.plan.one_client:
                node, env = cluster.client(name)
                sender = ClientSender(env, name, namesrvs)
                begun = cluster.inside(node, sender.start(), name=f"start-{name}")
            self._nodes[name] = node
            chance = cluster.chance(f"load:{name}")
            producer = ProducerLoad(name, sender, self.queues, load, self.history, cluster.clock, chance)
            producers.append(producer)

            async def produce(begun: asyncio.Task[None] = begun, producer: ProducerLoad = producer) -> None:
                await begun
                await producer.run()

            tasks.append(cluster.inside(node, produce(), name=name))
        node, env = cluster.client(READING)
        consumer = ClientReader(env, READING, namesrvs)
        reader = ReaderLoad(READER, consumer, self.queues, load, self.history, cluster.clock)

        async def consume() -> None:
            await consumer.start()
            await reader.run()

        tasks.append(cluster.inside(node, consume(), name=READING))
        return producers, reader, tasks

    def _begin_probe(self) -> None:
        """A client that asks one Controller after another about all groups, as long as the world lasts."""
        node, env = self.cluster.client("probe")
        client = RemotingClient(env, "probe")
        chance = self.cluster.chance("probe")
        addresses = self.cluster.controller_addresses
        histories = {GROUP: self.history}
        if self.plan.neighbour:
            histories[NEIGHBOUR_GROUP] = self.cluster.beside

        async def ask() -> None:
            while True:
                await asyncio.sleep(PROBE_S)
                begun_ms = self.cluster.clock()
                body = bodies.dumps([*histories])
                command = Command(Request.CONTROLLER_GET_SYNC_STATE_DATA, {}, body)
                try:
                    answer = await client.call(chance.choice(addresses), command, 1.0)
                except (MqError, OSError):
                    continue
                if answer.code == Response.SUCCESS:
                    for group, history in histories.items():
                        self._note_answer(begun_ms, bodies.believed_object(answer.body), group, history)

        self.cluster.inside(node, ask(), name="probe")

    def _note_answer(self, begun_ms: float, answer: Mapping[str, Any], group: str, history: History) -> None:
        found = (answer.get("replicasInfoTable") or {}).get(group)
        if found is None:
            return
        master = found.get("masterBrokerId")
        members = tuple(sorted(int(replica["brokerId"]) for replica in found.get("inSyncReplicas") or []))
        history.add(
            ControllerAnswer(
                self.cluster.clock(),
                begun_ms,
                "probe",
                group,
                int(master) if master is not None and int(master) >= 0 else None,
                int(found.get("masterEpoch", 0)),
                int(found.get("syncStateSetEpoch", 0)),
                members,
            )
        )

    async def _last_sends(self, producers: list[ProducerLoad]) -> None:
        """In a healed cluster every producer's next send is acknowledged."""
        for producer in producers:
            node = self._nodes[producer.name]
            for _ in range(LAST_TRIES):
                # The first may meet a connection whose other end lost power: its answer is unknown.
                if await self.cluster.inside(node, producer.send_one(), name="last"):
                    break
            else:
                last = self.history.sends()[-1]
                self._not_live("a send failed after everything was healed", f"{last.key}: {last.error}")
                return

    async def _read_back(self, reader: ReaderLoad) -> None:
        node = self.cluster.nodes[READING]
        until_s = self.cluster.loop.time() + ENDS_S
        if not await self.cluster.inside(node, reader.read_back(until_s=until_s), name="read-back"):
            self._not_live("reading back failed", f"{reader.errors} errors")
            self.evidence.complete = False
        # What was read back moved consumers' offsets, a delayed message may have come due, and a set that was
        # whole may have shrunk for a moment: a slave that had lost power registers, and its old link ends.
        await self.cluster.until(self.cluster.converged, 5.0)
        self.evidence.sources = [READER]
        reason = await self.cluster.until(self._learners_behind, ENDS_S)
        if reason is not None:
            self._not_live("a learner does not catch up", reason)
        reason = await self.cluster.until(self._index_behind, ENDS_S)
        if reason is not None:
            self._not_live("an index does not catch up", reason)
        # Once more, after those waits. From here on nothing is waited for: the logs are of one moment.
        await self.cluster.until(self.cluster.converged, 5.0)
        self.evidence.logs = list(self._logs("broker"))
        for log in self._logs("learner"):
            for other in () if self.losses.lied else self.evidence.logs:
                self.found += replicas.replicas_identical([other, log])
        self.evidence.members = self.cluster.members()

    def _learners_behind(self) -> str | None:
        """None when each learner runs and has all of the master's log in its queues, too; it is a member of
        nothing."""
        name = self.cluster.master()
        if name is None:
            return "no master"
        end = cast(Broker, self.cluster.nodes[name].server).store.log.end
        learners = self.cluster.of("learner")
        ends = {
            node.name: (store.log.end, store.dispatched)
            for node in learners
            if node.running and (store := cast(Broker, node.server).store)
        }
        if len(ends) == len(learners) and all(both == (end, end) for both in ends.values()):
            return None
        return f"the master has {end} bytes, learners (end, dispatched) {ends} of {len(learners)}"

    def _index_behind(self) -> str | None:
        """None when all that run find by key what is in their queues: after a start it is made up later."""
        behind = [
            node.name
            for kind in ("broker", "learner")
            for node in self.cluster.of(kind)
            if node.running and not cast(Broker, node.server).store.flow.indexer.caught_up
        ]
        return ", ".join(behind) or None

    def _logs(self, kind: str) -> Iterator[ReplicaLog]:
        """Each serving broker's CommitLog, through its own store, and noted in the history: all of it. No
        file of a run is old enough to be deleted, so each queue begins at 0."""
        sends = self.history.sends()
        for node in (node for node in self.cluster.of(kind) if node.running):
            store: MessageStore = cast(Broker, node.server).store
            begin, end = store.log.min_offset, store.log.end
            parts: list[bytes] = []
            at: int = begin
            while at < end:
                try:
                    # A segment: a piece of one could end inside of a record.
                    data = store.log.read(at, end - at)
                except DiskError as error:
                    self.found.append(Violation("unreadable", f"log of {node.name}: {error}"))
                    break
                for first, until in self._promised_whole(store, at, at + len(data)):
                    self._note_records(f"log of {node.name}", walk(data[first - at : until - at], first))
                parts.append(data)
                at += len(data)
            self._note_queues(node.name, store, sends)
            self.evidence.sources = [*self.evidence.sources, f"log of {node.name}", f"queues of {node.name}"]
            epochs = tuple((int(epoch), int(start)) for epoch, start in store.epochs.entries)
            yield ReplicaLog(node.name, begin, b"".join(parts), store.confirmed, epochs)

    def _promised_whole(self, store: MessageStore, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [``begin``, ``end``) of a log that must be records: all, unless a disk lied. What that
        lost at every replica stays damaged, and is noted as such."""
        for item in sorted(store.damage.ranges, key=lambda item: item.begin) if self.losses.lied else ():
            if begin < item.until and item.begin < end:
                yield begin, max(begin, item.begin)
                begin = min(item.until, end)
        yield begin, end

    def _note_records(self, source: str, records: Iterator[Record]) -> set[str]:
        """What is found in a replica's files counts as a final reading, like a consumer's. Its keys."""
        now_ms, topic = self.cluster.clock(), self.plan.load.topic
        queues = {queue.queue_id: queue for queue in self.queues}
        keys = set()
        try:
            for record in records:
                if record.topic == topic:
                    number = record.queue_id
                    queue = queues.get(number) or Queue(topic, GROUP, number)
                    key = property_of(record.properties, "UNIQ_KEY") or "?"
                    crc = body_crc(bytes(record.body))
                    self.history.add(Read(now_ms, source, key, queue, record.queue_offset, crc, final=True))
                    keys.add(key)
        except DiskError as error:
            self.found.append(Violation("unreadable", f"{source}: {error}"))
        return keys

    def _note_queues(self, name: str, store: MessageStore, sends: Sequence[Send]) -> None:
        """The same messages, found through the ConsumeQueues, and some of them through the index."""
        source, there = f"queues of {name}", set()
        for queue in self.queues:
            at: int = store.min_queue_offset(queue.topic, queue.queue_id)
            while at < store.max_queue_offset(queue.topic, queue.queue_id):
                got = store.get(queue.topic, queue.queue_id, at, 1 << 20, 1 << 30)
                for chunk in got.chunks:
                    there |= self._note_records(source, records_in(chunk))
                if got.next_offset <= at:
                    break
                at = got.next_offset
        if self.cluster.nodes[name].machine.counts.lied:
            return  # what its disk lost of the index was synced, by its word: a start does not look there
        acked = [send for send in sends if send.outcome == "ok" and send.key in there]
        for send in self.cluster.chance(f"index:{name}").sample(acked, min(INDEX_SAMPLES, len(acked))):
            found = store.query(send.queue.topic, send.key, 32, 0, 1 << 60)
            if not any(send.key.encode() in record for record in found):
                self.found.append(Violation("index", f"{name} does not find {send.key} by its key"))

    def account(self) -> None:
        """Find out which losses nobody promised to prevent."""
        self.evidence.forgiven = self.losses.promised_away(self.history, self.evidence.sources)
        self.evidence.power_failures = self.losses.bytes_may_be_missing

    def coverage(self) -> dict[str, int]:
        """What this run met: faults, events of the nodes, outcomes of sends."""
        found: Counter[str] = Counter()
        for kind, count in self.nemesis.done.items():
            found[f"fault.{kind}"] = count
        for event in self.history.happened():
            if event.name not in self.nemesis.done:
                found[f"event.{event.name}"] += 1
        for change, count in role_changes(self.history.observed()).items():
            found[f"role.{change}"] = count
        if self.extras is not None:
            found.update(self.extras.done)
        if self.more is not None:
            found.update(self.more.done())
        for send in self.cluster.beside.sends():
            found[f"neighbour.{send.outcome}"] += 1
        for change, count in role_changes(self.cluster.beside.observed()).items():
            found[f"neighbour.{change}"] = count
        for send in self.history.sends():
            found[f"send.{send.outcome}"] += 1
        found["read"] = len(self.history.reads(final=False))
        forgiven = self.evidence.forgiven
        found["promised_away"] = len(forgiven.gone | forgiven.left)
        found["epochs"] = max((len(log.epochs) for log in self.evidence.logs), default=0)
        return dict(found)


def role_changes(observed: Iterable[Observed]) -> Counter[str]:
    """How often a broker went from one role to another, as it was seen; one that was not seen for a while, or
    was started anew, was down."""
    found: Counter[str] = Counter()
    last: dict[str, Observed] = {}
    for now in observed:
        before = last.get(now.node)
        last[now.node] = now
        if before is None:
            continue
        if before.life != now.life or now.at_ms - before.at_ms > 2500 * OBSERVE_S:
            found[f"{before.role}>down"] += 1
            found[f"down>{now.role}"] += 1
        elif before.role != now.role:
            found[f"{before.role}>{now.role}"] += 1
    return found
