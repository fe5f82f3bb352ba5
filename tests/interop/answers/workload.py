"""The same work at either system, and the words of every mqadmin command after it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from client.admin import AdminClient
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pull import PullConsumer
from client.message import Message, Queue, Received
from client.sending.producer import Producer
from runtime.os_env import OsEnv
from tests.interop.answers.mqadmin import Case
from tests.interop.conftest import begin_mqadmin, end_mqadmin
from tests.waiting import until

TOPIC, OTHER = "CmpOrders", "CmpOther"
QUEUES = 4
COUNT = 12
RUN_S = 400.0


async def work_and_ask(
    namesrv: str, controller: str, cases: Sequence[Case], scratch: Path
) -> tuple[list[str], dict[str, str]]:
    """(what each command printed, name -> what it stands for on this side)."""
    async with worked(namesrv, scratch) as found:
        names = {**found, "controller": controller}
        commands = [case.command.format(**names) for case in cases]
        await asyncio.sleep(7)  # what is committed and counted is written down, and registered
        begun = await asyncio.to_thread(begin_mqadmin, namesrv, scratch, *commands)
        said = await asyncio.to_thread(end_mqadmin, begun, len(commands), RUN_S)
    return said, names


@asynccontextmanager
async def worked(namesrv: str, scratch: Path) -> AsyncIterator[dict[str, str]]:
    """The work is done, and a producer and a consumer are online; what names stand for on this side."""
    env = OsEnv()
    got: list[str] = []

    async def listener(messages: list[Received]) -> bool:
        got.extend(message.msg_id for message in messages)
        return True

    async with AdminClient(env, namesrv) as admin:
        for topic in (TOPIC, OTHER):
            await admin.create_topic(topic, QUEUES, timeout_s=60)
        info = await admin.cluster_info()
    (cluster,) = info.clusters
    broker = info.brokers["broker-a"][0]
    options = ConsumeOptions(from_first=True)
    consumer = PushConsumer(env, "cmp_online", namesrv, listener, subscriptions={TOPIC: "*"}, options=options)
    async with Producer(env, "cmp_senders", namesrv) as producer, consumer:
        sent = []
        for number in range(COUNT):
            queue = Queue(TOPIC, "broker-a", number % QUEUES)
            tag = "A" if number % 3 else "B"
            message = Message(topic=TOPIC, body=b"body %d" % number, keys=[f"key-{number}"], tags=tag)
            sent.append(await producer.send(message, queue=queue))
        await until(lambda: len(got) == COUNT, timeout_s=60)
        async with PullConsumer(env, "cmp_readers", namesrv) as reader:
            for number in range(QUEUES):
                queue = Queue(TOPIC, "broker-a", number)
                await reader.pull(queue, 0)
                await reader.commit(queue, min(number, 2))
        yield {
            "broker": broker,
            "client": consumer.session.client_id,
            "cluster": cluster,
            "namesrv": namesrv,
            "files": str(_files(scratch)),
            "offset_id": sent[0].offset_msg_id,
            "no_id": sent[0].offset_msg_id[:16] + "00000000000FFFFF",
            "unique_id": sent[0].msg_id,
        }


def _files(scratch: Path) -> Path:
    files = scratch / "files"
    files.mkdir(exist_ok=True)
    topic = {"topicName": "CmpListed", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    (files / "topics.json").write_text(json.dumps([topic]))
    (files / "groups.json").write_text(json.dumps([{"groupName": "cmp_listed", "retryMaxTimes": 5}]))
    return files
