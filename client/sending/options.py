"""What an application may choose of a producer."""

from __future__ import annotations

from dataclasses import dataclass

from client.checking import need_least, need_positive
from client.session import POLL_MS
from client.spans import NO_SPANS, Spans
from remoting.keys import Signer


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Sends for one topic, queue and sharding key wait for each other: a request of several messages goes out
    ``wait_ms`` after its first one came, or when it is ``bytes_max`` large, ``message_bytes_max`` at most. A
    longer message goes alone, and so does one that is delayed, compressed, of a transaction, or sent with a
    ``timeout_s`` of its own.
    """

    wait_ms: float = 10.0
    bytes_max: int = 32_768

    def __post_init__(self) -> None:
        if self.wait_ms < 0 or self.bytes_max < 1:
            raise ValueError("wait_ms is at least 0, bytes_max at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """``timeout_s``: a send with all its retries; ``attempt_timeout_s``: one answer. ``unknown_retries``: how
    often an attempt whose outcome is unknown is repeated, which may store the message twice (0 = never).
    ``in_flight_max`` sends of ``send_async`` with ``in_flight_bytes_max`` bytes of bodies, ``requests_max``
    requests without a reply yet. ``gather``: sends of many callers travel as few requests, None = each by
    itself. ``avoid_slow``: a send that may go to several brokers goes to one that did not answer slowly of
    late (0.55 s, avoided for 2 s; 15 s, for 30 s).
    ``compress_over_bytes``: zlib for longer bodies, None = never. ``poll_ms``: routes are asked for so often.
    ``trace``: tell of each message sent in ``RMQ_SYS_TRACE_TOPIC``. ``spans``: of sends, as
    ``OpenTelemetry()`` tells them. ``credentials``: every request is signed, as a cluster with ACL wants it.
    """

    timeout_s: float = 10.0
    attempt_timeout_s: float = 3.0
    unknown_retries: int = 2
    default_topic_queues: int = 4
    compress_over_bytes: int | None = None
    message_bytes_max: int = 4_194_304
    in_flight_max: int = 10_000
    in_flight_bytes_max: int = 100 << 20
    requests_max: int = 10_000
    poll_ms: int = POLL_MS
    client_ip: str = "127.0.0.1"
    gather: Gather | None = None
    avoid_slow: bool = False
    trace: bool = False
    spans: Spans = NO_SPANS
    credentials: Signer | None = None

    def __post_init__(self) -> None:
        need_positive(timeout_s=self.timeout_s, attempt_timeout_s=self.attempt_timeout_s)
        need_least(0, unknown_retries=self.unknown_retries)
        need_least(
            1,
            default_topic_queues=self.default_topic_queues,
            message_bytes_max=self.message_bytes_max,
            in_flight_max=self.in_flight_max,
            in_flight_bytes_max=self.in_flight_bytes_max,
            requests_max=self.requests_max,
            poll_ms=self.poll_ms,
        )
        if self.compress_over_bytes is not None:
            need_least(0, compress_over_bytes=self.compress_over_bytes)
