"""Runs work that is made in slices where there is no event loop: its slice never ends."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from runtime.turns import Slice

T = TypeVar("T")

ENDLESS: Final = Slice(lambda: 0.0)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as ended:
        found: T = ended.value
        return found
    work.close()
    raise AssertionError("it waited for something")
