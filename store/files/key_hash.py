"""Under which number does the index keep a key?"""

from __future__ import annotations

from typing import Final

from model.message import java_hash

_POWER_4: Final = 31**4


class KeyHash:
    """|hashCode| of ``topic#key``, fast for the ids of producers: their long common heads are remembered."""

    _CACHE_MAX: Final = 1 << 16
    _HEADS_MAX: Final = 4096

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._heads: dict[str, int] = {}
        self._quads: dict[str, int] = {}
        self._powers = [1]
        for _ in range(512):
            self._powers.append(self._powers[-1] * 31 & 0xFFFFFFFF)

    def __call__(self, topic: str, key: str) -> int:
        length = len(key)
        head = self._topics.get(topic)
        if head is None:
            if len(self._topics) > self._CACHE_MAX:
                self._topics.clear()
            head = self._topics[topic] = java_hash(topic + "#")
        if not 8 < length <= 512 or not key.isascii():
            value = java_hash(f"{topic}#{key}") & 0xFFFFFFFF
        else:
            quads = self._quads
            try:
                value = (self._heads[key[:-8]] * _POWER_4 + quads[key[-8:-4]]) * _POWER_4 + quads[key[-4:]]
            except KeyError:
                value = self._slow(key)
            value = (head * self._powers[length] + value) & 0xFFFFFFFF
        if value < 0x80000000:
            return value
        return 0x100000000 - value if value != 0x80000000 else 0

    def _slow(self, key: str) -> int:
        """The same sum, learning the parts that are not known yet."""
        head = key[:-8]
        value = self._heads.get(head)
        if value is None:
            if len(self._heads) > self._HEADS_MAX:
                self._heads.clear()
            value = self._heads[head] = java_hash(head) & 0xFFFFFFFF
        for part in (key[-8:-4], key[-4:]):
            quad = self._quads.get(part)
            if quad is None:
                if len(self._quads) > self._CACHE_MAX:
                    self._quads.clear()
                a, b, c, d = part.encode()
                quad = self._quads[part] = ((a * 31 + b) * 31 + c) * 31 + d
            value = value * _POWER_4 + quad
        return value
