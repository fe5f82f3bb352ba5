"""How does a long answer become bytes without holding the event loop, and without taking much memory?

What one entry of it is made of is gone before the next is made: ``Members`` and ``Items`` in ``value`` are
asked for their entries as they are written. What Python took for a burst of small objects it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from remoting import bodies
from remoting.slices import joined
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
    return await joined(bodies.pieces(value, strict=strict, ordered=False, depth=depth), turn)
