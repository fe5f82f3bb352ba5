"""What names a timer message to whoever takes it back: Base64, as RocketMQ's ``RecallMessageHandle``."""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

from model.errors import Refused
from model.topic import topic_name_error

HANDLE_CHARS_MAX: Final = 64 << 10
"""The longest that a broker gives is shorter: its key is a property, of 32 KiB at most."""


class RecallHandle(NamedTuple):
    """What names a timer message to whoever takes it back."""

    topic: str
    broker_name: str
    deliver_ms: str
    uniq_key: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(" ".join(("v1", *self)).encode()).decode()

    @classmethod
    def decode(cls, text: str, code: int) -> RecallHandle:
        """Raises Refused with ``code``."""
        if len(text) > HANDLE_CHARS_MAX:
            raise Refused("recall handle is invalid", code)
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            items = raw.decode().split(" ", 5)
        except ValueError:  # binascii.Error is one
            items = []
        if len(items) < 5 or items[0] != "v1":
            raise Refused("recall handle is invalid", code)
        handle = cls(*items[1:5])
        # A client wrote it, and its texts become properties.
        if topic_name_error(handle.topic) is not None or not handle.uniq_key.isprintable():
            raise Refused("recall handle is invalid", code)
        return handle
