"""How does a long answer become bytes in slices, where there is no request's turn?"""

from __future__ import annotations

import asyncio
from typing import Any

from remoting.bodies import pieces
from runtime.turns import Slice


def loop_slice() -> Slice:
    """A slice by the loop's clock, for those without an ``Env``."""
    loop = asyncio.get_running_loop()
    return Slice(lambda: loop.time() * 1000)


async def written(value: Any, slice_: Slice, depth: int = 3) -> bytes:
    """``bodies.dumps`` in slices; what lies ``depth`` levels down is written in one go."""
    found = []
    for piece in pieces(value, depth=depth):
        found.append(piece)
        await slice_.breathe()
    return "".join(found).encode()
