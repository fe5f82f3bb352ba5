"""The JSON of a large table, of which one change costs one entry and not all of them.

Each entry's text is kept until the entry changes. ``prepare`` writes what is missing in slices, after a start
or a copied table. What is left is the list of the texts, 2 ms of 40,000: the table as it is in that moment,
put together in slices (``bodies.pieces``) while the table goes on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any, Final

from remoting.bodies import Entries, entry
from runtime.turns import Slice

DEPTH: Final = 2
"""Entries stand two levels down: the file's object, the table, the entry."""


class TableText:
    """``keys`` gives the table's keys, ``value`` the JSON value of one. Pure but for ``prepare``.

    Holds: no text is older than its entry, as each change is told by ``changed`` or ``clear``.
    """

    def __init__(self, keys: Callable[[], Iterable[str]], value: Callable[[str], Any]) -> None:
        self._keys = keys
        self._value = value
        self._order: list[str] | None = None
        self._texts: tuple[dict[str, str], dict[str, str]] = ({}, {})  # compact, indented

    def changed(self, key: str, present: bool) -> None:
        """The entry of ``key`` is new, another one, or gone."""
        for texts in self._texts:
            texts.pop(key, None)
        order = self._order
        if order is None:
            return
        at = bisect_left(order, key)
        known = at < len(order) and order[at] == key
        if present and not known:
            insort(order, key)
        elif known and not present:
            del order[at]

    def touched(self, key: str) -> None:
        """The entry of ``key``, which was there and is, is another one."""
        for texts in self._texts:
            texts.pop(key, None)

    def clear(self) -> None:
        """The table is another one."""
        self._order = None
        for texts in self._texts:
            texts.clear()

    def whole(self, indent: bool = False) -> Entries:
        """The table as ``bodies.dumps_dialect`` writes it; it stays as it is when the table changes."""
        return self._written(self._sorted(), indent)

    def part(self, keys: Iterable[str]) -> Entries:
        """The entries of ``keys`` alone."""
        return self._written(sorted(keys), False)

    def _written(self, keys: list[str], indent: bool) -> Entries:
        texts = self._texts[indent]
        found = list(map(texts.get, keys))
        if None in found:
            return Entries([self._entry(key, indent) for key in keys], DEPTH if indent else 0)
        return Entries(found, DEPTH if indent else 0)  # type: ignore[arg-type]  # looked at just before

    async def prepare(self, slice_: Slice, indent: bool = False) -> None:
        """Write in slices what ``whole`` would have to. Raises as ``slice_``."""
        texts = self._texts[indent]
        if len(texts) == len(self._sorted()):
            return
        for key in list(self._sorted()):
            if key not in texts and self._has(key):
                self._entry(key, indent)
            await slice_.breathe()

    def check_invariants(self) -> None:
        assert self._order is None or len(self._order) == len(list(self._keys())), (
            "each key of the table stands once"
        )

    def _has(self, key: str) -> bool:
        order = self._sorted()
        at = bisect_left(order, key)
        return at < len(order) and order[at] == key

    def _sorted(self) -> list[str]:
        if self._order is None:
            self._order = sorted(self._keys())
        return self._order

    def _entry(self, key: str, indent: bool) -> str:
        texts = self._texts[indent]
        found = texts.get(key)
        if found is None:
            found = texts[key] = self._write(key, indent)
        return found

    def _write(self, key: str, indent: bool) -> str:
        return entry(key, self._value(key), DEPTH if indent else 0)
