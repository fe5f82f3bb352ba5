"""Which halves of transactions ended? What an op record says: its bytes in, places and an end out.

A half waits in a topic of its own until its transaction ends. Then an op record names its place there, or the
places of several with commas between. RocketMQ's says that it ended; keelmq's also how. One that says nothing
of it may also tell that a copy took the half's place.
"""

from __future__ import annotations

from typing import Final

from audit.reading.records.record import payload, text_property
from model.message import TRANSACTION_ENDED_AS, java_hash

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
OP_TAGS_CODE: Final = java_hash("d")

OPEN: Final = 0
UNTOLD: Final = 1
ROLLED_BACK: Final = 2
COMMITTED: Final = 3
"""How a half ended. Of what several op records say the greatest counts."""
_WORDS: Final = {"committed": COMMITTED, "rolled back": ROLLED_BACK}
_MARK: Final = f"{TRANSACTION_ENDED_AS}\x01".encode()
_DIGITS_MAX: Final = 18


def ended(data: bytes) -> tuple[list[int], int]:
    """The places in the queue of halves that the sound op record ``data`` names, and how these ended."""
    body, properties_at = payload(data)
    words = body.split(b",")
    places = [int(word) for word in words if word.isdigit() and len(word) <= _DIGITS_MAX]
    return places, _WORDS.get(text_property(data, _MARK, properties_at, len(data)), UNTOLD)
