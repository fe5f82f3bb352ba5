"""Which sends and calls of listeners are one story? Spans of OpenTelemetry, by its API.

A send is a span; its context travels in the properties of the message (``traceparent``, or what the program's
propagator writes), so that the span of a consumer in any language belongs to the same trace. A call of a
listener with one message is a child of that message's send; with several it has a link to each.

Source of names: opentelemetry.io/docs/specs/semconv/messaging/rocketmq.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from client.message import Message, Received, SendResult, SendStatus

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

Listener = Callable[[list[Received]], Awaitable[bool | None]]

SCOPE: Final = "keelmq"
_SYSTEM: Final = {"messaging.system": "rocketmq"}


class Told:
    """One send without a span; ``messages`` are what is to be sent."""

    __slots__ = ("messages",)

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)

    def stored(self, result: SendResult) -> SendResult:
        """Note how it was answered."""
        return result

    def end(self, error: BaseException | None) -> None:
        """It is over; ``error``: what the caller got instead of a result."""

    def ended(self, future: asyncio.Future[SendResult]) -> None:
        """``end`` as a future did."""
        error: BaseException | None = asyncio.CancelledError()
        if not future.cancelled():
            error = future.exception()
            if error is None:
                self.stored(future.result())
        self.end(error)


class Spans(Protocol):
    """What clients tell; ``OpenTelemetry`` is one."""

    def sending(self, group: str, messages: Sequence[Message]) -> Told:
        """A send begins, of one message or of a batch."""
        ...

    def listening(self, group: str, listener: Listener) -> Listener:
        """``listener``, with a span around each of its calls."""
        ...


class NoSpans:
    """Tells nothing, and costs nothing."""

    def __repr__(self) -> str:
        return "NoSpans()"

    def sending(self, group: str, messages: Sequence[Message]) -> Told:
        return Told(list(messages))

    def listening(self, group: str, listener: Listener) -> Listener:
        return listener


NO_SPANS: Final = NoSpans()


class OpenTelemetry:
    """Spans of sends (``SendOptions.spans``) and of calls of listeners (``ConsumeOptions.spans``,
    ``PopOptions.spans``); one may serve all clients of a program. ``tracer_provider``: None = the program's.

    Raises ModuleNotFoundError without the extra ``spans``.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "spans of OpenTelemetry need an extra: pip install 'keelmq[spans]'", name=error.name
            ) from error
        self._trace: Any = trace
        self._propagate: Any = propagate
        self._tracer: Any = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)

    def sending(self, group: str, messages: Sequence[Message]) -> Told:
        topic = messages[0].topic if messages else ""
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                **_about("send", topic, len(messages)),
                "messaging.rocketmq.client_group": group,
                **(_of_one(messages[0]) if len(messages) == 1 else {}),
            },
        )
        carried: dict[str, str] = {}
        self._propagate.inject(carried, context=self._trace.set_span_in_context(span))
        told = [replace(message, properties={**message.properties, **carried}) for message in messages]
        return _Told(told, span, self._failed)

    def listening(self, group: str, listener: Listener) -> Listener:
        async def listen(messages: list[Received]) -> bool | None:
            topic = messages[0].topic
            contexts = [self._propagate.extract(message.properties) for message in messages]
            sent = [self._trace.get_current_span(context).get_span_context() for context in contexts]
            alone = len(messages) == 1
            with self._tracer.start_as_current_span(
                f"process {topic}",
                context=contexts[0] if alone else None,
                kind=self._trace.SpanKind.CONSUMER,
                links=[] if alone else [self._trace.Link(one) for one in sent if one.is_valid],
                attributes={
                    **_about("process", topic, len(messages)),
                    "messaging.consumer.group.name": group,
                    **(_received(messages[0]) if alone else {}),
                },
                record_exception=True,
                set_status_on_exception=True,
            ) as span:
                taken = await listener(messages)
                if taken is False:
                    self._failed(span, "the listener returned False", "NotHandled")
                return taken

        return listen

    def _failed(self, span: Any, text: str, kind: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))


class _Told(Told):
    __slots__ = ("_failed", "_span")

    def __init__(self, messages: list[Message], span: Any, failed: Callable[[Any, str, str], None]) -> None:
        super().__init__(messages)
        self._span = span
        self._failed = failed

    def stored(self, result: SendResult) -> SendResult:
        span = self._span
        if len(self.messages) == 1:
            span.set_attribute("messaging.message.id", result.msg_id)
        span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
        span.set_attribute("keelmq.attempts", len(result.attempts))
        if result.attempts:
            host, _, port = result.attempts[-1].address.rpartition(":")
            span.set_attribute("server.address", host)
            span.set_attribute("server.port", int(port))
        if result.status is not SendStatus.SEND_OK:
            # The master has it, but not as safe as its configuration wants.
            span.set_attribute("keelmq.send_status", result.status.name)
        return result

    def end(self, error: BaseException | None) -> None:
        if error is not None:
            self._span.record_exception(error)
            self._failed(self._span, str(error), type(error).__name__)
        self._span.end()


def _about(operation: str, topic: str, count: int) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        **_SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    if count > 1:
        found["messaging.batch.message_count"] = count
    return found


def _of_one(message: Message) -> dict[str, Any]:
    return _message(message.body, message.tags, message.keys)


def _received(message: Received) -> dict[str, Any]:
    found = _message(message.body, message.tags, message.keys)
    found["messaging.message.id"] = message.msg_id
    found["messaging.destination.partition.id"] = str(message.queue.queue_id)
    return found


def _message(body: bytes, tags: str | None, keys: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"messaging.message.body.size": len(body)}
    if tags:
        found["messaging.rocketmq.message.tag"] = tags
    if keys:
        found["messaging.rocketmq.message.keys"] = list(keys)
    return found
