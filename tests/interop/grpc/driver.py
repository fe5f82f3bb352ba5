"""What one official gRPC client does and sees; the other languages' drivers print the same lines.

driver.py ENDPOINT PREFIX      topics PREFIXnormal, -fifo, -delay, -trans; groups PREFIXsimple, -push, -order
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from rocketmq import (  # type: ignore[import-not-found]  # in a venv of its own
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.v5.exception import ClientException  # type: ignore[import-not-found]

DELAY_S = 2
ENDPOINT, PREFIX = sys.argv[1:3]
NORMAL, FIFO, DELAY, TRANS = (PREFIX + kind for kind in ("normal", "fifo", "delay", "trans"))
CONFIG = ClientConfiguration(ENDPOINT, Credentials())
SAYING = threading.Lock()


def say(event: str, **facts: object) -> None:
    with SAYING:
        print("DRIVER", event, *(f"{name}={value}" for name, value in facts.items()), flush=True)


def message(topic: str, body: str, **more: object) -> Message:
    made = Message()
    made.topic, made.body = topic, body.encode()
    for name, value in more.items():
        setattr(made, name, value)
    return made


def wait(what: str, holds: Callable[[], bool], timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            say("late", what=what)
            return
        time.sleep(0.05)


class Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, message: Message) -> TransactionResolution:
        say("checked", body=message.body.decode(), topic=message.topic.removeprefix(PREFIX))
        return TransactionResolution.COMMIT


class Listener(MessageListener):  # type: ignore[misc]
    """Fails the first attempt of one message; notes what it took."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.taken: list[str] = []
        self.done: list[str] = []
        self.at_s: dict[str, float] = {}

    def consume(self, message: Message) -> ConsumeResult:
        body = message.body.decode()
        self.taken.append(body)
        self.at_s[body] = time.time()
        if body == self.failing and self.taken.count(body) == 1:
            return ConsumeResult.FAILURE
        show("pushed", message)
        self.done.append(body)
        return ConsumeResult.SUCCESS


def show(event: str, message: Message) -> None:
    say(
        event,
        body=message.body.decode(),
        topic=message.topic.removeprefix(PREFIX),
        tag=message.tag or "-",
        keys=",".join(message.keys) or "-",
        group=message.message_group or "-",
        attempt=message.delivery_attempt,
        properties=",".join(f"{k}:{v}" for k, v in sorted(message.properties.items())) or "-",
    )


def simple(consumer: SimpleConsumer) -> None:
    """Takes three, acknowledges two; the third one's invisible time is cut and it comes again."""
    acked: list[str] = []

    def took() -> bool:
        for one in consumer.receive(16, 3) or []:
            body = one.body.decode()
            show("received", one)
            if body == "n-2" and one.delivery_attempt == 1:
                consumer.change_invisible_duration(one, 1)
            else:
                consumer.ack(one)
                acked.append(body)
        return len(acked) == 3

    wait("simple", took)
    say("acked", bodies=",".join(sorted(acked)))


def send_all(producer: Producer) -> tuple[float, str]:
    """Returns when the delayed message is due, and the handle of one that is to be recalled."""
    for number in range(3):
        one = message(NORMAL, f"n-{number}", tag="a", keys=f"k-{number}")
        one.add_property("p", str(number))
        producer.send(one)
    for number in range(6):
        producer.send(message(FIFO, f"f-{number}", message_group=("even", "odd")[number % 2]))
    due_s = int(time.time()) + 1 + DELAY_S
    producer.send(message(DELAY, "d-0", delivery_timestamp=due_s))
    later = producer.send(message(DELAY, "d-1", delivery_timestamp=due_s + DELAY_S))
    for body in ("t-commit", "t-rollback", "t-check"):
        transaction = producer.begin_transaction()
        producer.send(message(TRANS, body), transaction)
        if body != "t-check":
            getattr(transaction, body.removeprefix("t-"))()
    for topic, more in ((FIFO, {}), (NORMAL, {"message_group": "even"})):
        try:
            producer.send(message(topic, "wrong", **more))
            say("wrong", topic=topic.removeprefix(PREFIX), refused="no")
        except ClientException:
            say("wrong", topic=topic.removeprefix(PREFIX), refused="yes")
    return due_s, later.recall_handle


def main() -> None:
    producer = Producer(CONFIG, (NORMAL, FIFO, DELAY, TRANS), checker=Checker())
    producer.startup()
    every = FilterExpression()
    free, order = Listener("n-1"), Listener("f-2")
    topics = {NORMAL: every, DELAY: every, TRANS: every}
    consumers = [
        PushConsumer(CONFIG, PREFIX + "push", free, topics),
        PushConsumer(CONFIG, PREFIX + "order", order, {FIFO: every}),
        SimpleConsumer(CONFIG, PREFIX + "simple", {NORMAL: every}, await_duration=1),
    ]
    for consumer in consumers:
        consumer.startup()
    due_s, handle = send_all(producer)
    producer.recall_message(DELAY, handle)
    simple(consumers[2])
    wait("push", lambda: len(free.done) >= 6)
    wait("order", lambda: len(order.done) >= 6)
    time.sleep(
        max(0.0, due_s + DELAY_S + 2 - time.time())
    )  # what was recalled, or acknowledged, does not come
    for group, rest in (("even", "024"), ("odd", "135")):
        say("order", group=group, bodies=",".join(body for body in order.taken if body[-1] in rest))
    say("done", push=",".join(sorted(free.taken)), early="d-0" in free.at_s and free.at_s["d-0"] < due_s)
    say("rest", simple=len(consumers[2].receive(16, 3) or []))
    for client in (*consumers, producer):
        client.shutdown()


main()
