"""The native Python client (PyPI: rocketmq, the C++ client under it).

send NAMESRV TOPIC COUNT
read NAMESRV TOPIC COUNT GROUP EXPRESSION ...

Facts as the other drivers print them; exits 0 when all came.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer  # type: ignore[import-not-found]

READ_S = 120
ONE = threading.Lock()


def told(event: str, **facts: object) -> None:
    line = " ".join(["DRIVER", event, *(f"{name}={value}" for name, value in facts.items())])
    with ONE:  # listeners run in several threads
        print(line, flush=True)


def send(namesrv: str, topic: str, count: str) -> None:
    producer = Producer("native_senders")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    for number in range(int(count)):
        message = Message(topic)
        message.set_keys(f"key-{number}")
        message.set_tags("a" if number % 2 == 0 else "b")
        message.set_property("number", str(number))
        message.set_body(f"body-{number}-é")
        done = producer.send_sync(message)
        told("sent", key=f"key-{number}", status=done.status.name, offset=done.offset)
    producer.shutdown()


def read(namesrv: str, topic: str, count: str, group: str, expression: str, *_: str) -> None:
    taken: set[str] = set()
    enough = threading.Event()

    def on_message(message: Any) -> None:
        key = message.keys.decode()
        number, body = message["number"].decode(), message.body.decode()
        told(
            "read",
            key=key,
            tags=message.tags.decode(),
            number=number,
            body=body,
            again=message.reconsume_times > 0,
        )
        taken.add(key)
        if len(taken) == int(count):
            enough.set()

    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(topic, on_message, expression)
    consumer.start()
    enough.wait(READ_S)
    time.sleep(1)  # what is behind the last one would show itself
    consumer.shutdown()
    sys.stdout.flush()
    os._exit(0 if enough.is_set() else 2)  # its threads of C++ end at their own time


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(*sys.argv[2:])
    else:
        read(*sys.argv[2:])
