"""How does a long answer become bytes in slices, where there is no request's turn?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from heapq import merge
from io import BytesIO
from itertools import islice
from typing import Any, Final

from remoting.bodies import pieces
from runtime.turns import Slice


def loop_slice() -> Slice:
    """A slice by the loop's clock, for those without an ``Env``."""
    loop = asyncio.get_running_loop()
    return Slice(lambda: loop.time() * 1000)


PIECES_A_PART: Final = 1024
CHARS_A_PART: Final = 256 << 10
TEXTS_A_RUN: Final = 512
"""Looked for and sorted in one go, 2 us each where a topic's flags are looked at."""


async def in_order(found: Iterable[str | None], slice_: Slice) -> Iterator[str]:
    """Texts sorted, without those that are None: runs of them in slices, which are merged as they are read.
    Raises as ``slice_``."""
    runs: list[list[str]] = []
    left = iter(found)
    while run := list(islice(left, TEXTS_A_RUN)):
        runs.append(sorted(text for text in run if text is not None))
        await slice_.breathe()
    return merge(*runs)


async def joined(found: Iterable[str], slice_: Slice) -> bytes:
    """The pieces of a text as bytes, each made in a slice. Raises as ``slice_``."""
    body = BytesIO()  # its bytes are handed out without a copy; a list of pieces takes ten times their text
    pending: list[str] = []
    chars = 0
    for piece in found:
        if len(piece) > CHARS_A_PART:  # a table that is kept as text
            body.write("".join(pending).encode())
            pending.clear()
            chars = 0
            for at in range(0, len(piece), CHARS_A_PART):
                body.write(piece[at : at + CHARS_A_PART].encode())
                await slice_.breathe()
            continue
        pending.append(piece)
        chars += len(piece)
        if len(pending) >= PIECES_A_PART or chars >= CHARS_A_PART:
            body.write("".join(pending).encode())
            pending.clear()
            chars = 0
        if slice_.is_over():  # ``breathe``, without a coroutine for each piece
            await slice_.pause()
    if not body.tell():
        return "".join(pending).encode()
    body.write("".join(pending).encode())
    await slice_.pause()
    return body.getvalue()


async def written(value: Any, slice_: Slice, depth: int = 3) -> bytes:
    """``bodies.dumps`` in slices; what lies ``depth`` levels down is written in one go."""
    return await joined(pieces(value, depth=depth), slice_)
