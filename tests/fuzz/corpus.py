"""Where do a target's inputs come from, and how are they changed without a coverage-guided fuzzer?

    tests/fuzz/corpus/TARGET/NAME    inputs that once found something, and some that reach far

Seeds made by encoders and from golden vectors are not kept there: they are made anew.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from tests.fuzz.targets.target import Target

ROOT: Final = Path(__file__).parent / "corpus"
NUMBERS: Final = (
    *(b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\1", b"\0" * 8, b"\xff" * 8),
    *(b"\x7f" + b"\xff" * 7, b"\x80" + b"\0" * 7, b"\0", b"\xff", b"\0\1", b"\xff\xff", b"9" * 20, b"-1"),
)
WORDS: Final = (
    *(b"null", b"true", b"{}", b"[]", b"{", b"}", b"[", b"]", b'"', b":", b",", b"1e999", b"\\ud800"),
    *(b"\x01", b"\x02", b"\0", b"\n", b";", b"||", b"%LMQ%", b"\xc3\x28", b"\xf0\x9f\x98\x80", b"[" * 300),
)


def inputs(target: Target) -> list[bytes]:
    """Its seeds and its kept inputs."""
    kept = sorted(path for path in (ROOT / target.name).glob("*") if path.is_file())
    return [*map(bytes, target.seeds()), *(path.read_bytes() for path in kept)]


def mutated(chance: random.Random, corpus: list[bytes], bytes_max: int) -> bytes:
    """One input, changed in one to eight places."""
    data = bytearray(chance.choice(corpus))
    for _ in range(1 << chance.randrange(4)):
        _change(chance, data, corpus)
    return bytes(data[:bytes_max])


def _change(chance: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    kind = chance.randrange(8)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 1 and at < len(data):
        data[at] = chance.randrange(256)
    elif kind == 2:
        number = chance.choice(NUMBERS)
        data[at : at + len(number)] = number
    elif kind == 3:
        data[at:at] = chance.choice(WORDS)
    elif kind == 4:
        del data[at : at + chance.choice((1, 1, 2, 4, 16, 200))]
    elif kind == 5:
        other = chance.choice(corpus)
        begin = chance.randrange(len(other) + 1)
        data[at : at + chance.randrange(64)] = other[begin : begin + chance.randrange(64)]
    elif kind == 6:
        data[at:at] = data[at : at + chance.choice((1, 4, 20, 100))]
    elif at < len(data):
        data[at] = (data[at] + chance.choice((1, -1))) % 256
