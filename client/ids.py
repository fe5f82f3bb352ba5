"""How does a producer name a message so that no other message bears the same name? (UNIQ_KEY)

    at  size  field
     0     4  client's IPv4 address
     4     2  process id (low 16 bits)
     6     4  a number per class loader; here: a random number per producer
    10     4  milliseconds since the first of the month (UTC)
    14     2  counter

Upper-case hex, 32 digits. Source of the format: Apache RocketMQ 5.x, ``MessageClientIDSetter``.
"""

from __future__ import annotations

import ipaddress
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

_TAIL: Final = struct.Struct(">IH")
_COUNTER_MASK: Final = 0xFFFF


class UniqueIds:
    """Makes ids that differ from each other for as long as the object lives, even when the clock steps back.

    Two producers differ by 48 random bits (the real client uses its process id and a hash there).
    """

    def __init__(self, chance: random.Random, client_ip: str = "127.0.0.1") -> None:
        host = ipaddress.ip_address(client_ip)
        self._head = (host.packed + chance.getrandbits(48).to_bytes(6, "big")).hex().upper()
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._last_ms = 0
        self._counter = 0

    def next(self, now_ms: int) -> str:
        """The id of one more message; ``now_ms`` is the wall clock's time since the epoch."""
        # A clock that steps back, or 65,536 ids in one millisecond, must not bring an old id back.
        now_ms = max(now_ms, self._last_ms)
        self._counter = (self._counter + 1) & _COUNTER_MASK
        if self._counter == 0 and now_ms == self._last_ms:
            now_ms += 1
        self._last_ms = now_ms
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._set_month(now_ms)
        return self._head + _TAIL.pack(now_ms - self._month_start_ms, self._counter).hex().upper()

    def _set_month(self, now_ms: int) -> None:
        first = datetime.fromtimestamp(now_ms / 1000, UTC).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        after = (first + timedelta(days=32)).replace(day=1)
        self._month_start_ms = int(first.timestamp()) * 1000
        self._month_end_ms = int(after.timestamp()) * 1000
