"""Under which number does the index keep a key?

|String.hashCode| of ``topic#key``, 0 when that is -2^31. The sum over a string splits: with the last four
characters apart, ``hash(topic#key) = start + hash(last four)``, where ``start`` belongs to the topic and all
characters before. Ids of producers share these starts for a millisecond, and their last four are a counter:
both parts are remembered, and most keys cost two look-ups.
"""

from __future__ import annotations

from typing import Final

from model.message import java_hash

MASK: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000
_TAIL: Final = 4
_POWER_4: Final = 31**4
_KEY_CHARS_MIN: Final = 9
_KEY_CHARS_MAX: Final = 512
_REMEMBERED_BYTES_MAX: Final = 16 << 20
_EACH_BYTES: Final = 160
"""Of what is remembered of a key, besides its characters: the string, a number, its place in a table."""


class KeyHash:
    """The hash, with what it learnt of the keys it met. ``tails``: hashes of last four characters."""

    def __init__(self) -> None:
        self.tails: dict[str, int] = {}
        self._starts: dict[str, dict[str, int]] = {}  # topic -> key without its last four -> start
        self._topics: dict[str, int] = {}
        self._heads: dict[str, int] = {}
        self._learnt = 0  # bytes, about

    def __call__(self, topic: str, key: str) -> int:
        try:
            value = (self._starts[topic][key[:-_TAIL]] + self.tails[key[-_TAIL:]]) & MASK
        except KeyError:
            return self.learn(topic, key)
        return value if value < _HALF else absolute(value)

    def starts(self, topic: str) -> dict[str, int]:
        """For loops that cannot afford a call a key: what is known of ``topic``. Where it or ``tails`` lacks
        a part of a key, ``learn`` gives the hash."""
        found = self._starts.get(topic)
        if found is None:
            found = self._starts[topic] = {}
            self._learnt += _EACH_BYTES + len(topic)
        return found

    def learn(self, topic: str, key: str) -> int:
        """The hash of a key whose parts are not known; they are from now on, unless it is an odd one."""
        if not _KEY_CHARS_MIN <= len(key) <= _KEY_CHARS_MAX or not key.isascii():
            return absolute(java_hash(f"{topic}#{key}") & MASK)
        if self._learnt > _REMEMBERED_BYTES_MAX:
            self._forget()
        starts = self.starts(topic)
        start = starts.get(key[:-_TAIL])
        if start is None:
            start = starts[key[:-_TAIL]] = self._start(topic, key)
        return absolute((start + self._tail(key[-_TAIL:])) & MASK)

    def _start(self, topic: str, key: str) -> int:
        head, middle = key[: -2 * _TAIL], key[-2 * _TAIL : -_TAIL]
        of_topic = self._topics.get(topic)
        if of_topic is None:
            of_topic = self._topics[topic] = java_hash(f"{topic}#") & MASK
            self._learnt += _EACH_BYTES
        of_head = self._heads.get(head)
        if of_head is None:
            of_head = self._heads[head] = java_hash(head) & MASK
            self._learnt += _EACH_BYTES + len(head)
        value = of_topic * pow(31, len(key), 1 << 32)
        value += (of_head * _POWER_4 + self._tail(middle)) * _POWER_4
        self._learnt += _EACH_BYTES + len(key)
        return value & MASK

    def _tail(self, part: str) -> int:
        found = self.tails.get(part)
        if found is None:
            a, b, c, d = part.encode()
            found = self.tails[part] = ((a * 31 + b) * 31 + c) * 31 + d
            self._learnt += _EACH_BYTES
        return found

    def _forget(self) -> None:
        """Cleared in place: who goes over a batch holds them."""
        for of_topic in self._starts.values():
            of_topic.clear()
        for known in (self._starts, self._topics, self._heads, self.tails):
            known.clear()
        self._learnt = 0


def absolute(value: int) -> int:
    """|``value``| of 32 bits with a sign; 0 for the smallest, which has no positive counterpart."""
    if value < _HALF:
        return value
    return (1 << 32) - value if value != _HALF else 0
