"""The promise of all ways of a send (ordinary, fast in Python, fast compiled): the same bytes in log, queues
and answers, whatever comes.

Frames of both dialects and all three send codes, plain ones and odd ones, from a seed: ``FRAMES`` of them in
an ordinary run, more by ``KEELMQ_BOTH_PATHS_FRAMES``. A failure names its seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
from typing import Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import PeerError
from remoting import codec
from remoting.service import Connection
from store.files.record import records_in
from tests.broker.send_frames import Way, any_frame, broken, plain_frame
from tests.fakes.broker.send_path import HAS_COMPILED, WAYS

FRAMES: Final = int(os.environ.get("KEELMQ_BOTH_PATHS_FRAMES", "20000"))
FRAMES_PER_EXAMPLE: Final = 200
NO_FRAME: Final = b"\x00\x00\x00\x05\x00\x00\x00\xff"
"""Its header would be longer than it is."""


@settings(max_examples=max(FRAMES // FRAMES_PER_EXAMPLE, 1))
@given(
    seed=st.integers(0, 2**48),
    count=st.integers(FRAMES_PER_EXAMPLE * 9 // 10, FRAMES_PER_EXAMPLE),
    segment_bytes=st.sampled_from([4096, 16384, 1 << 20]),
)
def test_all_ways_store_queue_answer_and_refuse_the_same(seed: int, count: int, segment_bytes: int) -> None:
    chance = random.Random(seed)
    frame_bytes_max = chance.choice([codec.FRAME_BYTES_MAX] * 3 + [3000])
    ordinary = Way(segment_bytes, frame_bytes_max=frame_bytes_max)
    twice = HAS_COMPILED and chance.random() < 0.3  # Python's path forgives that: see fast_headers
    fast_ones = [] if twice else [Way(segment_bytes, frame_bytes_max=frame_bytes_max)]
    if HAS_COMPILED:
        fast_ones.append(Way(segment_bytes, compiled=True, frame_bytes_max=frame_bytes_max))
    opaque = 0
    while opaque < count and not ordinary.ended:
        burst = []
        odd = chance.choice([0.0, 0.02, 0.2, 1.0])  # a send left to the ordinary way takes those behind along
        for _ in range(chance.choice([1, 2, 8, 40])):
            opaque += 1
            if chance.random() < odd:
                burst.append(any_frame(chance, opaque, twice=twice))
            else:
                burst.append(plain_frame(chance, opaque))
        if odd and chance.random() < 0.04:
            burst.append(broken(chance, any_frame(chance, opaque)))
        if odd and chance.random() < 0.02:
            burst.append(NO_FRAME)
        disk_full = chance.random() < 0.05
        for way in (ordinary, *fast_ones):
            way.store.fail_appends = 10**6 if disk_full else 0
        ordinary.each(burst)
        for fast in fast_ones:
            left = fast.read(b"".join(burst))
            assert fast.seen == ordinary.seen
            assert odd or disk_full or not left or ordinary.ended, "a plain send took the ordinary way"


@pytest.mark.parametrize(
    "code",
    [
        b"true",
        b"null",
        b"10.5",
        b"5.0",
        b"5e0",
        b"4294967296",
        b'"ten"',
        b'true,"extFields":{"code":"5"}',
        b'{"code":5}',
        None,
    ],
)
def test_a_frame_without_a_code_ends_the_connection_before_what_is_behind_it(code: bytes | None) -> None:
    """The sends behind it were stored before. ``None``: a ROCKETMQ header that is too short."""
    chance = random.Random(1)
    header, kind = (bytes(20), codec.ROCKETMQ) if code is None else (b'{"code":%s,"opaque":2}' % code, 0)
    wrong = struct.pack(">iI", 4 + len(header), kind << 24 | len(header)) + header
    burst = [plain_frame(chance, 1), wrong, plain_frame(chance, 3)]
    ordinary = Way(1 << 20)
    ordinary.each(burst)
    assert ordinary.ended
    assert len(ordinary.store.dispatches) == 1
    for compiled in WAYS:
        fast = Way(1 << 20, compiled=compiled)
        fast.read(b"".join(burst))
        assert fast.seen == ordinary.seen


@given(seed=st.integers(0, 2**48))
def test_whatever_bytes_come_only_whole_records_are_stored(seed: int) -> None:
    """Of frames with bytes changed anywhere, lengths too: the connection ends, or goes on; nothing else."""
    chance = random.Random(seed)
    for compiled in WAYS:
        way = Way(1 << 20, compiled=compiled)
        for _ in range(10):
            make = any_frame if chance.random() < 0.5 else plain_frame
            data = bytearray(b"".join(make(chance, number) for number in range(chance.randrange(1, 6))))
            for _ in range(chance.randrange(1, 6)):
                at = (
                    chance.randrange(len(data))
                    if chance.random() < 0.5
                    else chance.randrange(min(60, len(data)))
                )
                data[at] = chance.choice([0, 1, 2, 34, 92, 127, 128, 255, chance.randrange(256)])
            del data[chance.randrange(len(data)) if chance.random() < 0.3 else len(data) :]
            with contextlib.suppress(PeerError):
                at, _ = way.hot.process(cast(Connection, way.connection), data, 0, len(data))
                assert at <= len(data)
        stored = bytes(way.store.log.data)
        assert sum(record.size for record in records_in(stored)) == len(stored)
        assert len(list(records_in(stored))) == len(way.store.dispatches)
