"""The shortest that shows the official Python gRPC client at work: it sends, receives and acknowledges.

few.py ENDPOINT TOPIC GROUP
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

from rocketmq import (  # type: ignore[import-not-found]  # in a venv of its own
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)
from rocketmq.v5.exception import ClientException  # type: ignore[import-not-found]

ENDPOINT, TOPIC, GROUP = sys.argv[1:]
COUNT = 10


END_S = time.monotonic() + 60


def tried(work: Callable[[], object]) -> object:
    """Its answer. A consumer that asks before the proxy has its settings is refused; a busy proxy is late."""
    while True:
        try:
            return work()
        except ClientException:
            if time.monotonic() > END_S:
                raise
            time.sleep(0.2)


def main() -> None:
    config = ClientConfiguration(ENDPOINT, Credentials())
    producer = Producer(config, (TOPIC,))
    consumer = SimpleConsumer(config, GROUP, {TOPIC: FilterExpression("few")}, await_duration=1)
    producer.startup()
    consumer.startup()
    for number in range(COUNT):
        message = Message()
        message.topic, message.body, message.tag = TOPIC, str(number).encode(), "few"
        tried(partial(producer.send, message))
    acked: set[int] = set()
    while len(acked) < COUNT and time.monotonic() < END_S:
        for one in tried(partial(consumer.receive, 16, 30)) or []:  # type: ignore[attr-defined]
            tried(partial(consumer.ack, one))
            acked.add(int(one.body))
    print("DRIVER few", *sorted(acked), flush=True)
    producer.shutdown()
    consumer.shutdown()


main()
