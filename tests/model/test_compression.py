"""The promise of model.compression: bodies come back as they were sent, in bounded memory."""

from __future__ import annotations

import gzip
import hashlib
import tracemalloc
import zlib

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.compression import PIECE_BYTES, PLAIN_BYTES_MAX, plain_body, plain_pieces
from model.message import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD

ZLIB = COMPRESSED | COMPRESSION_ZLIB


def _bomb(size: int) -> bytes:
    """What unpacks to ``size`` zeros."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


@given(
    data=st.binary(max_size=4000),
    times=st.integers(1, 400),
    flag=st.sampled_from((0, COMPRESSED, ZLIB)),
)
def test_a_body_comes_back_as_it_was_sent(data: bytes, times: int, flag: int) -> None:
    body = data * times
    stored = zlib.compress(body) if flag else body
    assert plain_body(stored, flag) == body
    assert all(len(piece) <= PIECE_BYTES for piece in plain_pieces(stored, flag) if flag)


def test_incompressible_bodies_longer_than_a_piece_come_back_too() -> None:
    body = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(40_000))
    assert plain_body(zlib.compress(body, 0), ZLIB) == body
    assert plain_body(zlib.compress(body), ZLIB) == body


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_the_other_compressions_are_bounded_as_well(name: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    flag = COMPRESSED | (COMPRESSION_LZ4 if name == "lz4" else COMPRESSION_ZSTD)
    sink = arrow.BufferOutputStream()
    with arrow.CompressedOutputStream(sink, name) as stream:
        stream.write(bytes(3 * PIECE_BYTES))
    packed = sink.getvalue().to_pybytes()
    assert plain_body(packed, flag) == bytes(3 * PIECE_BYTES)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        plain_body(packed, flag, 1000)


@pytest.mark.parametrize(
    "body",
    [b"", b"no zlib", zlib.compress(b"x" * 10_000)[:-3], zlib.compress(b"x")[:-1], gzip.compress(b"x")],
    ids=["empty", "text", "cut short", "without its end", "gzip"],
)
def test_what_is_not_a_whole_stream_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="zlib"):
        plain_body(body, ZLIB)


def test_a_body_that_unpacks_to_more_than_the_limit_is_refused_and_memory_stays_flat() -> None:
    bomb = _bomb(PLAIN_BYTES_MAX + (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"more than {PLAIN_BYTES_MAX} bytes"):
            for _ in plain_pieces(bomb, ZLIB):
                pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * PIECE_BYTES
    assert sum(len(piece) for piece in plain_pieces(_bomb(8 << 20), ZLIB)) == 8 << 20


@pytest.mark.parametrize("kind", [COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_broken_streams_leave_no_memory_behind(kind: int) -> None:
    """With pyarrow each of them left up to PIECE_BYTES."""
    process = psutil.Process()

    def unpack(count: int) -> int:
        for _ in range(count):
            with pytest.raises(ValueError):
                plain_body(b"neither of them", COMPRESSED | kind)
        return process.memory_info().vms

    before = unpack(100)
    assert unpack(400) - before < 200 * PIECE_BYTES
