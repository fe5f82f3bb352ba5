"""How is a message shown: as a line, as JSON, and with all it carries?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from admin.terminal import printable
from client.message import Received

BODY_CHARS_MAX: Final = 160
"""Of a body in a list; ``tail`` shows all of it."""


def moment(at_ms: int) -> str:
    """A time as commands take it, too."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def line(message: Received) -> str:
    words = [moment(message.store_timestamp_ms), f"{message.queue}:{message.queue_offset}"]
    if message.tags:
        words.append(f"tag={message.tags}")
    if message.keys:
        words.append(f"keys={','.join(message.keys)}")
    body = message.body.decode(errors="backslashreplace")
    return printable("  ".join([*words, body]))


def received_json(message: Received) -> dict[str, Any]:
    return {
        **message.queue.to_json(),
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "body": message.body.decode(errors="backslashreplace"),
    }


def short_line(message: Received) -> str:
    """One of many: with its id, and the beginning of its body."""
    at, place, *words = line(message).split("  ", 2)
    rest = "".join(words)
    cut = rest if len(rest) <= BODY_CHARS_MAX else f"{rest[:BODY_CHARS_MAX]}..."
    return "  ".join([at, place, message.msg_id, cut])


def in_full(message: Received) -> str:
    """All of one message, a line for each member."""
    rows = [
        ("topic", message.topic),
        ("queue", f"{message.queue.broker_name}/{message.queue.queue_id}"),
        ("offset", str(message.queue_offset)),
        ("id", message.msg_id),
        ("broker's id", message.offset_msg_id),
        ("tag", message.tags or "-"),
        ("keys", " ".join(message.keys) or "-"),
        ("stored", f"{moment(message.store_timestamp_ms)} at {message.store_host}"),
        ("sent", f"{moment(message.born_timestamp_ms)} by {message.born_host}"),
        ("tried again", str(message.reconsume_times)),
        ("size", f"{message.size_bytes:,} bytes, body {len(message.body):,}"),
        *((f"  {name}", value) for name, value in sorted(message.properties.items())),
        ("body", message.body.decode(errors="backslashreplace")),
    ]
    return "\n".join(f"{name:<12} {printable(value)}" for name, value in rows)
