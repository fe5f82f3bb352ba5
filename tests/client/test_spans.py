"""The promise of client.spans: a send and what consumers do with it are one trace, whoever consumes."""

from __future__ import annotations

import asyncio
import builtins
from pathlib import Path
from typing import Any

import pytest

from client.blocking import BlockingProducer, BlockingPushConsumer
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pop.consumer import PopConsumer
from client.consuming.pop.options import PopOptions
from client.message import Message, Received, SendFailed
from client.sending.options import Gather, SendOptions
from client.sending.producer import Producer
from client.spans import OpenTelemetry
from tests.client.servers import Pair, run
from tests.waiting import until

trace = pytest.importorskip("opentelemetry.trace", reason="needs keelmq[spans]")
sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs OpenTelemetry's SDK")

TOPIC = "TBW102"


class Told:
    """A program's spans, as its exporter gets them."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._exporter: Any = InMemorySpanExporter()
        self.provider: Any = sdk.TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = OpenTelemetry(self.provider)

    def named(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def test_a_listener_with_one_message_is_a_child_of_its_send(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        told, own = Told(), []
        got: list[Received] = []

        async def listener(messages: list[Received]) -> bool:
            got.extend(messages)
            own.append(trace.get_current_span().get_span_context().span_id)
            return len(got) > 1  # the first call is a failure

        sends = SendOptions(spans=told.spans)
        reads = ConsumeOptions(from_first=True, spans=told.spans)
        async with Producer(servers.env, "pg", servers.namesrv, sends) as producer:
            with told.provider.get_tracer("shop").start_as_current_span("order") as order:
                sent = await producer.send(Message(topic=TOPIC, body=b"one", tags="new", keys=["4711"]))
            async with PushConsumer(
                servers.env, "cg", servers.namesrv, listener, subscriptions={TOPIC: "*"}, options=reads
            ):
                await until(lambda: bool(told.named(f"process {TOPIC}")))
        [send] = told.named(f"send {TOPIC}")
        process = told.named(f"process {TOPIC}")[0]
        assert send.parent.span_id == order.get_span_context().span_id
        assert send.kind is trace.SpanKind.PRODUCER
        assert process.kind is trace.SpanKind.CONSUMER
        assert process.parent.span_id == send.context.span_id
        assert process.context.trace_id == order.get_span_context().trace_id
        assert own[0] == process.context.span_id, "what the listener does is within it"
        assert process.status.status_code is trace.StatusCode.ERROR
        for span in (send, process):
            assert span.attributes["messaging.system"] == "rocketmq"
            assert span.attributes["messaging.destination.name"] == TOPIC
            assert span.attributes["messaging.message.id"] == sent.msg_id
            assert span.attributes["messaging.rocketmq.message.tag"] == "new"
            assert span.attributes["messaging.rocketmq.message.keys"] == ("4711",)
            assert span.attributes["messaging.message.body.size"] == 3
        assert send.attributes["server.port"] == int(sent.attempts[-1].address.rpartition(":")[2])
        assert send.status.status_code is trace.StatusCode.UNSET

    run(tmp_path, work)


def test_a_listener_with_several_messages_has_a_link_to_each_send(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        told = Told()
        calls: list[int] = []

        async def listener(messages: list[Received]) -> bool:
            calls.append(len(messages))
            return True

        async with Producer(servers.env, "pg", servers.namesrv, SendOptions(spans=told.spans)) as producer:
            [queue, *_] = await producer.queues(TOPIC)
            batch = await producer.send_batch(
                [Message(topic=TOPIC, body=b"%d" % n) for n in range(3)], queue=queue
            )
            assert batch.queue == queue
            async with PushConsumer(
                servers.env,
                "cg",
                servers.namesrv,
                listener,
                subscriptions={TOPIC: "*"},
                options=ConsumeOptions(from_first=True, batch_max=8, spans=told.spans),
            ):
                await until(lambda: bool(told.named(f"process {TOPIC}")))
        [send] = told.named(f"send {TOPIC}")
        [process] = told.named(f"process {TOPIC}")
        assert calls == [3]
        assert send.attributes["messaging.batch.message_count"] == 3
        assert process.parent is None
        assert [link.context.span_id for link in process.links] == [send.context.span_id] * 3

    run(tmp_path, work)


def test_each_way_to_send_ends_its_span_and_says_why_nothing_was_stored(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        told = Told()
        options = SendOptions(spans=told.spans, timeout_s=0.3, gather=Gather(wait_ms=1))
        async with Producer(servers.env, "pg", servers.namesrv, options) as producer:
            await producer.send_async(Message(topic=TOPIC, body=b"a"))
            await producer.send_oneway(Message(topic=TOPIC, body=b"b"))
            await asyncio.gather(*(producer.send(Message(topic=TOPIC, body=b"c")) for _ in range(2)))
            assert len(told.named(f"send {TOPIC}")) == 4
            assert all(span.status.is_unset for span in told.named(f"send {TOPIC}"))
            for begin in (producer.send, producer.send_async):
                with pytest.raises(ValueError, match="at least one byte"):
                    await begin(Message(topic="Empty", body=b""))
            with pytest.raises(SendFailed):
                await producer.send(Message(topic="SCHEDULE_TOPIC_XXXX", body=b"d"))
        kinds = [span.attributes["error.type"] for span in told.named("send Empty")]
        assert kinds == ["ValueError", "ValueError"]
        [refused] = told.named("send SCHEDULE_TOPIC_XXXX")
        assert refused.attributes["error.type"] == "SendFailed"
        assert refused.events[0].name == "exception"

    run(tmp_path, work)


def test_programs_without_asyncio_and_consumers_that_pop_have_them_too(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        told = Told()
        popped, pushed = [], []

        async def pop(messages: list[Received]) -> bool:
            popped.append(trace.get_current_span().get_span_context().trace_id)
            return True

        def push(messages: list[Received]) -> bool:
            pushed.append(trace.get_current_span().get_span_context().trace_id)
            return True

        def blocking() -> int:
            begins = told.provider.get_tracer("shop").start_as_current_span("order")
            options = SendOptions(spans=told.spans)
            with BlockingProducer("pg", servers.namesrv, options) as producer, begins as order:
                producer.send(Message(topic=TOPIC, body=b"one"))
            return int(order.get_span_context().trace_id)

        began = await asyncio.to_thread(blocking)
        wanted = {TOPIC: "*"}
        options = ConsumeOptions(from_first=True, spans=told.spans)
        consumer = BlockingPushConsumer("cg", servers.namesrv, push, subscriptions=wanted, options=options)
        await asyncio.to_thread(consumer.start)
        try:
            async with PopConsumer(
                servers.env,
                "pops",
                servers.namesrv,
                pop,
                subscriptions=wanted,
                options=PopOptions(from_first=True, spans=told.spans),
            ):
                await until(lambda: bool(popped and pushed))
        finally:
            await asyncio.to_thread(consumer.stop)
        assert {*popped, *pushed} == {began}

    run(tmp_path, work)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError("No module named 'opentelemetry'", name="opentelemetry")
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"keelmq\[spans\]"):
        OpenTelemetry()
