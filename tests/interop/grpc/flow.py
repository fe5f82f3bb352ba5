"""The official Python gRPC client sends and consumes while the test kills a master.

flow.py ENDPOINT PREFIX SECONDS      topic PREFIXnormal; group PREFIXpush
"""

from __future__ import annotations

import collections
import sys
import time

from rocketmq import (  # type: ignore[import-not-found]  # in a venv of its own
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)

REST_S = 90
"""What a pop took and nobody acknowledged comes back after its invisible time, a minute."""
PAUSE_S = 0.02
ENDPOINT, PREFIX, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])


class Listener(MessageListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.taken: collections.Counter[str] = collections.Counter()

    def consume(self, message: Message) -> ConsumeResult:
        self.taken[message.body.decode()] += 1
        return ConsumeResult.SUCCESS


def send(producer: Producer) -> tuple[list[str], int, float]:
    """The bodies that were acknowledged, how many sends failed, the longest time without one, s."""
    acked: list[str] = []
    failed, silent_s, last = 0, 0.0, time.monotonic()
    end = last + SECONDS
    while time.monotonic() < end:
        body = str(len(acked) + failed)
        message = Message()
        message.topic, message.body = PREFIX + "normal", body.encode()
        try:
            producer.send(message)
        except Exception:  # noqa: BLE001 - of many kinds: the message may or may not be there
            failed += 1
        else:
            acked.append(body)
            now = time.monotonic()
            silent_s, last = max(silent_s, now - last), now
        if len(acked) == 1:
            print("DRIVER flows", flush=True)
        time.sleep(PAUSE_S)
    return acked, failed, max(silent_s, time.monotonic() - last)


def main() -> None:
    config = ClientConfiguration(ENDPOINT, Credentials())
    listener = Listener()
    consumer = PushConsumer(config, PREFIX + "push", listener, {PREFIX + "normal": FilterExpression()})
    consumer.startup()
    producer = Producer(config, (PREFIX + "normal",))
    producer.startup()
    acked, failed, silent_s = send(producer)
    end = time.monotonic() + REST_S
    while time.monotonic() < end and any(body not in listener.taken for body in acked):
        time.sleep(0.1)
    lost = sum(body not in listener.taken for body in acked)
    again = sum(count - 1 for count in listener.taken.values())
    told = {
        "acked": len(acked),
        "failed": failed,
        "silent": int(silent_s * 1000),
        "lost": lost,
        "again": again,
    }
    print("DRIVER flowed", *(f"{name}={value}" for name, value in told.items()), flush=True)
    producer.shutdown()
    consumer.shutdown()


main()
