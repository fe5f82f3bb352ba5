"""How does a long answer become bytes without holding the event loop?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from remoting import bodies
from runtime.turns import Slice

T = TypeVar("T")


async def gathered(turn: Slice, items: Iterable[T], make: Callable[[T], Any]) -> list[Any]:
    """What ``make`` gives of each item. Raises PeerLeft."""
    found = []
    for item in list(items):
        found.append(make(item))
        await turn.breathe()
    return found


async def strict(turn: Slice, value: Any, depth: int = 2) -> bytes:
    """``bodies.dumps`` of ``value``, its maps in their own order; what lies ``depth`` levels down is written
    in one go. Raises PeerLeft."""
    return await _joined(turn, value, strict=True, depth=depth)


async def dialect(turn: Slice, value: Any, depth: int = 2) -> bytes:
    """``bodies.dumps_dialect`` of ``value``, its maps in their own order; what lies ``depth`` levels down is
    written in one go. Raises PeerLeft."""
    return await _joined(turn, value, strict=False, depth=depth)


async def _joined(turn: Slice, value: Any, *, strict: bool, depth: int = 2) -> bytes:
    found = []
    for piece in bodies.pieces(value, strict=strict, ordered=False, depth=depth):
        found.append(piece)
        await turn.breathe()
    return "".join(found).encode()
