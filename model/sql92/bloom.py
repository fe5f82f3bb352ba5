"""Which bits of RocketMQ's bloom filters belong to a consumer group and a topic?

The original calculates filters of 32 groups that may err in 20 of 100 cases (``expectConsumerNumUseFilter``,
``maxErrorRateOfBloomFilter``): 112 bits, of which ``GROUP#TOPIC`` has three, by its MurmurHash3 of 128 bits.
"""

from __future__ import annotations

from typing import Final

BITS: Final = 112
HASHES: Final = 3
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_64: Final = 0xFFFFFFFFFFFFFFFF
_32: Final = 0xFFFFFFFF


def bit_positions(group: str, topic: str) -> tuple[int, ...]:
    """In the order of the hashes, as ``config/consumerFilter.json`` has them."""
    hashed = murmur3_low(f"{group}#{topic}".encode(errors="replace"))
    first, second = hashed & _32, hashed >> 32
    found = []
    for number in range(1, HASHES + 1):
        combined = (first + number * second) & _32
        if combined >> 31:  # a negative int of Java
            combined ^= _32
        found.append(combined % BITS)
    return tuple(found)


def murmur3_low(data: bytes) -> int:
    """The first 64 bits of MurmurHash3 x64 128 with the seed 0."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for at in range(0, whole, 16):
        h1 ^= _mixed_1(int.from_bytes(data[at : at + 8], "little"))
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _64
        h2 ^= _mixed_2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _64
    tail = data[whole:]
    h2 ^= _mixed_2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mixed_1(int.from_bytes(tail[:8], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & _64
    h2 = (h2 + h1) & _64
    return (_final(h1) + _final(h2)) & _64


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _64


def _mixed_1(word: int) -> int:
    return _rotated(word * _C1 & _64, 31) * _C2 & _64


def _mixed_2(word: int) -> int:
    return _rotated(word * _C2 & _64, 33) * _C1 & _64


def _final(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _64
    return value ^ value >> 33
