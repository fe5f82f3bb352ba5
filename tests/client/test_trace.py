"""The promises of the message trace: one line an event, found by ids and keys, and nothing waits for it."""

from __future__ import annotations

from pathlib import Path

from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pull import PullConsumer
from client.message import Attempt, Message, Queue, Received, SendResult, SendStatus
from client.sending.options import SendOptions
from client.sending.producer import Producer
from client.trace import EVENT_BYTES_MAX, TRACE_TOPIC, WAITING_MAX, Tracer, pub, sub_after, sub_before
from model.errors import Unknown
from model.message import encode_properties
from runtime.env import Env
from tests.client.servers import Pair, received, run
from tests.fakes.client import run as run_fake
from tests.waiting import until


def sent(topic: str = "T", msg_id: str = "ID", trace_on: bool = True) -> SendResult:
    attempts = (Attempt("127.0.0.1:1", "failed", "", 9.0), Attempt("127.0.0.1:2", "ok", "", 3.7))
    queue = Queue(topic, "broker-a", 0)
    return SendResult(SendStatus.SEND_OK, queue, 7, msg_id, "OFF", attempts, "R", trace_on)


def line(fields: str) -> str:
    return fields.replace(" ", "\x01") + "\x02"


def test_a_line_has_the_fields_of_the_original_in_their_order() -> None:
    properties = encode_properties({"KEYS": "a b", "TAGS": "t", "DELAY": "3"})
    event = pub("g", sent(), properties, 5, 1003, "ID")
    assert event.text == line("Pub 1000 R g T ID t a+b 127.0.0.1:2 5 3 3 OFF true").replace("+", " ")
    assert event.keys == ("ID", "a", "b")
    bare = pub("g", sent(), "", 5, 1003, "ID").text
    assert bare == line("Pub 1000 R g T ID null null 127.0.0.1:2 5 3 0 OFF true")
    message = received({"MSG_REGION": "R", "KEYS": "k"})
    assert sub_before("g", message, "REQ", 9).text == line("SubBefore 9 R g REQ ID 0 k")
    assert sub_after("g", message, "REQ", 12, 3, 4).text == line("SubAfter REQ ID 3 false k 4 12 g")


def test_what_waits_is_bounded_and_what_cannot_leave_is_dropped() -> None:
    tried: list[Message] = []

    async def refuse(message: Message) -> SendResult:
        tried.append(message)
        message.wire_properties("U")  # it fits
        raise Unknown("no answer")

    async def work(env: Env) -> None:
        tracer = Tracer(env, "g", refuse)
        long = encode_properties({"KEYS": "k" * (EVENT_BYTES_MAX + 1)})
        for number in range(WAITING_MAX + 100):
            tracer.on_sent(sent(msg_id=f"ID{number}"), long if number % 2 else "KEYS\x01" + "y" * 3000, 5)
        tracer.on_sent(sent(TRACE_TOPIC), "", 5)
        tracer.on_sent(sent(trace_on=False), "", 5)
        await tracer.flush()
        told = "".join(message.body.decode() for message in tried)
        assert told.count("\x02") == WAITING_MAX
        assert "ID99\x01" not in told
        assert f"ID{WAITING_MAX + 99}\x01" in told
        assert max(message.body.count(b"\x02") for message in tried) <= 20
        await tracer.flush()
        assert told == "".join(message.body.decode() for message in tried)

    run_fake(work)


def test_sends_and_calls_of_a_listener_are_told_and_found_by_the_id(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        got: list[str] = []

        async def listener(messages: list[Received]) -> bool:
            got.extend(message.msg_id for message in messages)
            if len(got) == 1:
                raise ValueError("the first one fails")
            return True

        consuming = ConsumeOptions(from_first=True, trace=True)
        consumer = PushConsumer(
            servers.env, "cg", servers.namesrv, listener, subscriptions={"TBW102": "*"}, options=consuming
        )
        async with Producer(servers.env, "pg", servers.namesrv, SendOptions(trace=True)) as producer:
            one = await producer.send(Message(topic="TBW102", body=b"one", keys=["k1"]))
            two = await producer.send_batch([Message(topic="TBW102", body=b"b%d" % n) for n in range(2)])
            async with consumer:
                await until(lambda: len(set(got)) == 3)
        ids = [one.msg_id, *two.msg_id.split(",")]
        lines = await traces(servers)
        found = {(told[0], msg_id) for told in lines for msg_id in ids if msg_id in told}
        assert found == {(kind, msg_id) for kind in ("Pub", "SubBefore", "SubAfter") for msg_id in ids}
        outcomes = {(told[4], told[6]) for told in lines if told[0] == "SubAfter"}
        assert outcomes >= {("false", "2"), ("true", "0")}

    run(tmp_path, work)


async def traces(servers: Pair) -> list[list[str]]:
    """The fields of all that the trace topic holds; each message has the ids it tells of as its keys."""
    found = []
    async with PullConsumer(servers.env, "looks", servers.namesrv) as consumer:
        await servers.broker.store.caught_up()
        for queue in (await consumer.session.routes.get(TRACE_TOPIC)).readable:
            offset = 0
            while messages := (await consumer.pull(queue, offset)).messages:
                offset += len(messages)
                for message in messages:
                    for told in message.body.decode().split("\x02")[:-1]:
                        found.append(told.split("\x01"))
                        place = {"Pub": 5, "SubBefore": 5, "SubAfter": 2}[found[-1][0]]
                        assert found[-1][place] in message.keys
    return found
