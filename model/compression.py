"""What is a body before its client compressed it, and how much of that is read at most?

A few kilobytes can unpack to gigabytes: pieces of PIECE_BYTES come one after the other, and what is longer
than the limit is refused. No client sends such a body: ``maxMessageSize`` bounds it before it is compressed.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from typing import Any, Final

from model import message as m

PIECE_BYTES: Final = 1 << 18
PLAIN_BYTES_MAX: Final = 64 << 20
"""A longer body is not unpacked."""


def plain_pieces(body: bytes, sys_flag: int, limit: int = PLAIN_BYTES_MAX) -> Iterator[bytes]:
    """The body as its client had it, in pieces. Raises ValueError when it cannot be unpacked, or is longer
    than ``limit`` bytes; pieces may have come before that."""
    if not sys_flag & m.COMPRESSED:
        yield body
        return
    kind = sys_flag & m.COMPRESSION_MASK
    if kind in (0, m.COMPRESSION_ZLIB):
        pieces = _inflated(body)
    elif kind == m.COMPRESSION_LZ4:
        pieces = _unpacked(body, "lz4", "lz4.frame")
    elif kind == m.COMPRESSION_ZSTD:
        pieces = _unpacked(body, "zstd", "zstandard")
    else:
        raise ValueError(f"unknown compression {kind:#x}")
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise ValueError(f"it unpacks to more than {limit} bytes")
        yield piece


def plain_body(body: bytes, sys_flag: int, limit: int = PLAIN_BYTES_MAX) -> bytes:
    """All of ``plain_pieces``."""
    if not sys_flag & m.COMPRESSED:
        return body
    return b"".join(plain_pieces(body, sys_flag, limit))


def _inflated(body: bytes) -> Iterator[bytes]:
    stream = zlib.decompressobj()
    try:
        for at in range(0, len(body), PIECE_BYTES):
            rest = body[at : at + PIECE_BYTES]
            while rest and not stream.eof:
                if piece := stream.decompress(rest, PIECE_BYTES):
                    yield piece
                rest = stream.unconsumed_tail
        while not stream.eof:  # what the last input gave more than one piece of
            piece = stream.decompress(b"", PIECE_BYTES)
            if not piece:
                raise ValueError("zlib: incomplete or truncated stream")
            yield piece
    except zlib.error as error:
        raise ValueError(f"zlib: {error}") from None


def _unpacked(body: bytes, name: str, module: str) -> Iterator[bytes]:
    """By the module made for it, or by pyarrow, which the audit brings along."""
    for candidate in (module, "pyarrow"):
        try:
            library: Any = importlib.import_module(candidate)
        except ImportError:
            continue
        refusal: type[Exception] = getattr(library, "ZstdError", OSError)
        try:
            yield from _read(library, candidate, name, body)
        except (OSError, RuntimeError, EOFError, refusal) as error:
            raise ValueError(f"{name}: {error}") from None
        return
    raise ValueError(f"{name}: neither {module} nor pyarrow is installed")


def _read(library: Any, candidate: str, name: str, body: bytes) -> Iterator[bytes]:
    if candidate == "pyarrow":
        stream = library.CompressedInputStream(library.BufferReader(body), name)
    elif name == "zstd":
        stream = library.ZstdDecompressor().stream_reader(body)
    else:
        unpacker = library.LZ4FrameDecompressor()
        rest: bytes | None = body
        while not unpacker.eof:
            piece = bytes(unpacker.decompress(rest or b"", max_length=PIECE_BYTES))
            rest = None
            if piece:
                yield piece
            elif unpacker.needs_input:
                raise EOFError("the stream is cut off")
        return
    # Into memory of our own: pyarrow's read() leaks what it allocated when the stream turns out to be broken.
    room = bytearray(PIECE_BYTES)
    while size := stream.readinto(room):
        yield bytes(room[:size])
