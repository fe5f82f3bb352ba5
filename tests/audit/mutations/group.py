"""A group of three replicas, stopped in order after a varied load with failovers.

The real servers make it, in one simulated world: several segments of a log, queues, index files, epochs,
checkpoints, tables with offsets, delayed messages, transactions, batches, tags and keys. ``LEDGER`` beside
the stores lists what was acknowledged.

    python -m tests.audit.mutations.group DIRECTORY [--seed S]     make one
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any, Final

from chaos.clients import body_crc
from chaos.drills.simulated.run import quietly
from chaos.history import History
from chaos.sim.cluster import GROUP, SimCluster, WorldConfig
from chaos.sim.disk import Machine
from chaos.sim.extras import SimExtras
from client.admin import AdminClient
from client.consuming.pull import PullConsumer
from client.message import Message, Queue, SendResult, SendStatus
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.errors import MqError
from model.message import parse_message_id

LEDGER: Final = "acked.jsonl"
TOPIC: Final = "orders"
QUEUES: Final = 3
SHAPE: Final = {
    "mappedFileSizeCommitLog": str(48 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 64),
    "maxHashSlotNum": "128",
    "maxIndexNum": "256",
    "diskReserveMegabytes": "0",
}
READY_S: Final = 30.0


class Writer:
    """Sends messages and batches, with tags and keys, and commits offsets; notes what was answered OK."""

    def __init__(self, cluster: SimCluster) -> None:
        self._node, env = cluster.client("writer")
        self._chance = cluster.chance("writer")
        self._cluster = cluster
        options = SendOptions(timeout_s=3.0, unknown_retries=0, poll_ms=1000)
        self._producer = Producer(env, "GID_writer", cluster.namesrv_addresses, options=options)
        self._consumer = PullConsumer(env, "GID_reader", cluster.namesrv_addresses, poll_ms=1000)
        self._admin = AdminClient(env, cluster.namesrv_addresses)
        self._number = 0
        self.stopping = False
        self.rows: list[dict[str, Any]] = []

    def begin(self) -> asyncio.Task[None]:
        return self._cluster.inside(self._node, self._run(), name="writer")

    async def _run(self) -> None:
        for part in (self._producer, self._consumer, self._admin):
            await part.start()
        await self._admin.create_topic(TOPIC, QUEUES, brokers=[GROUP])
        while not self.stopping:
            queue = Queue(TOPIC, GROUP, self._chance.randrange(QUEUES))
            try:
                kind = self._chance.random()
                if kind < 0.15:
                    await self._batch(queue)
                elif kind < 0.2:
                    await self._later(queue)
                else:
                    await self._single(queue)
                if self._number % 10 == 0 and self.rows:
                    await self._consumer.commit(queue, self._chance.randrange(self._number // 10 + 1))
            except (MqError, OSError):
                pass  # not answered, or no: nothing was promised
            await asyncio.sleep(self._chance.random() * 0.03)

    def _message(self) -> Message:
        self._number += 1
        n = self._number
        body = f"order {n} ".encode() * self._chance.choice((1, 3, 12, 60))
        keys = [f"k{n % 17}", f"order-{n}"][: self._chance.randrange(3)]
        return Message(topic=TOPIC, body=body, tags=self._chance.choice((None, "A", "B")), keys=keys)

    async def _single(self, queue: Queue) -> None:
        message = self._message()
        self._note([message], await self._producer.send(message, queue=queue))

    async def _later(self, queue: Queue) -> None:
        """Of a time of its own: where it comes in the end is not told."""
        message = self._message()
        message.deliver_after_ms = 1000 + self._chance.randrange(2000)
        await self._producer.send(message, queue=queue)

    async def _batch(self, queue: Queue) -> None:
        messages = [self._message() for _ in range(3)]
        self._note(messages, await self._producer.send_batch(messages, queue=queue))

    def _note(self, messages: list[Message], sent: SendResult) -> None:
        if sent.status is not SendStatus.SEND_OK:
            return
        ids, places = sent.msg_id.split(","), sent.offset_msg_id.split(",")
        for at, (message, key, place) in enumerate(zip(messages, ids, places, strict=True)):
            self.rows.append(
                {
                    "uniq_key": key,
                    "topic": sent.queue.topic,
                    "queue_id": sent.queue.queue_id,
                    "queue_offset": sent.queue_offset + at,
                    "phys_offset": parse_message_id(place)[1],
                    "body_crc": body_crc(message.body),
                }
            )


async def _life(cluster: SimCluster, writer: Writer, short: bool) -> None:
    """Load, a killed master, an orderly stop of the next, another kill, then the stop of all. ``short``: the
    first of these only."""
    for node in [*cluster.of("namesrv"), *cluster.of("broker")]:
        cluster.start(node.name)
    _well(await cluster.until(cluster.converged, READY_S))
    extras = SimExtras(cluster)
    tasks = [writer.begin(), extras.begin()]
    await asyncio.sleep(1.0 if short else 3.0)
    for end in (cluster.kill, cluster.stop, cluster.kill)[: 1 if short else 3]:
        master = cluster.master()
        assert master is not None, "the cluster is well"
        end(master)
        await asyncio.sleep(1.5 if short else 2.5)
        cluster.start(master)
        _well(await cluster.until(cluster.complete, READY_S))
        await asyncio.sleep(1.0)
    writer.stopping = True
    extras.stop()
    await asyncio.wait(tasks, timeout=15)
    await asyncio.sleep(6.0)  # delayed messages come, tables are written
    _well(await cluster.until(cluster.converged, READY_S))
    for node in cluster.of("namesrv"):
        cluster.kill(node.name)
    for node in cluster.of("broker"):
        cluster.stop(node.name)
    _well(await cluster.until(lambda: _still_up(cluster), READY_S))


def _well(reason: str | None) -> None:
    if reason is not None:
        raise RuntimeError(f"the group cannot be made: {reason}")


def _still_up(cluster: SimCluster) -> str | None:
    up = [node.name for node in cluster.of("broker") if node.state != "down"]
    return f"{up} still run" if up else None


def make(into: Path, seed: int = 1, *, short: bool = False) -> list[Path]:
    """The stores of a group, below ``into``, and its ledger; equal for equal arguments."""
    cluster = SimCluster(seed, WorldConfig(broker=SHAPE), History())
    writer = Writer(cluster)
    collecting = gc.isenabled()
    gc.disable()
    try:
        with quietly():
            cluster.loop.run_until_complete(_life(cluster, writer, short))
        stores = [into / node.name for node in cluster.of("broker")]
        for node, store in zip(cluster.of("broker"), stores, strict=True):
            _copy(node.machine, store)
    finally:
        cluster.close()
        if collecting:
            gc.enable()
    (into / LEDGER).write_text("".join(json.dumps(row) + "\n" for row in writer.rows))
    return stores


def _copy(machine: Machine, store: Path) -> None:
    for path in machine.paths("/store/"):
        target = store / path.removeprefix("/store/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(machine.content(path))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit.mutations.group")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    make(given.directory, given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
