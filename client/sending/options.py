"""What an application may choose of a producer."""

from __future__ import annotations

from dataclasses import dataclass

from client.session import POLL_MS
from remoting.keys import Signer


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """``timeout_s``: a send with all its retries; ``attempt_timeout_s``: one answer. ``unknown_retries``: how
    often an attempt whose outcome is unknown is repeated, which may store the message twice (0 = never).
    ``in_flight_max`` sends of ``send_async``, ``requests_max`` requests without a reply yet.
    ``compress_over_bytes``: zlib for longer bodies, None = never. ``poll_ms``: routes are asked for so often.
    ``trace``: tell of each message sent in ``RMQ_SYS_TRACE_TOPIC``. ``credentials``: every request is signed,
    as a cluster with ACL wants it.
    """

    timeout_s: float = 10.0
    attempt_timeout_s: float = 3.0
    unknown_retries: int = 2
    default_topic_queues: int = 4
    compress_over_bytes: int | None = None
    message_bytes_max: int = 4_194_304
    in_flight_max: int = 10_000
    requests_max: int = 10_000
    poll_ms: int = POLL_MS
    client_ip: str = "127.0.0.1"
    trace: bool = False
    credentials: Signer | None = None
