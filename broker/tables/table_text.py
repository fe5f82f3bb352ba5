"""The JSON of a large table, of which one change costs one entry and not all of them.

Each entry's text is kept until the entry changes. ``prepare`` writes what is missing in slices, after a start
or a copied table. What is left is a copy of the map of texts, 1 ms of 40,000: the table as it is in that
moment, put together in slices (``bodies.pieces``) while the table goes on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, overload

from remoting.bodies import Entries, entry
from remoting.slices import in_order
from runtime.turns import Slice

DEPTH: Final = 2
"""Entries stand two levels down: the file's object, the table, the entry."""


class _InOrder(Sequence[str]):
    """Texts by key, put in order as they are read: copying the map takes a third of the time of a list."""

    def __init__(self, keys: list[str], texts: dict[str, str]) -> None:
        self._keys = keys
        self._texts = texts

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return map(self._texts.__getitem__, self._keys)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> list[str]: ...

    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, int):
            return self._texts[self._keys[at]]
        return list(map(self._texts.__getitem__, self._keys[at]))


class TableText:
    """``keys`` gives the table's keys as of this moment, ``value`` the JSON value of one. Pure but for what
    is done in slices.

    Holds: no text is older than its entry, as each change is told by ``changed`` or ``clear``.
    """

    def __init__(self, keys: Callable[[], Iterable[str]], value: Callable[[str], Any]) -> None:
        self._keys = keys
        self._value = value
        self._order: list[str] | None = None
        self._meanwhile: list[dict[str, bool]] = []  # what changes while keys are put in order
        self._texts: tuple[dict[str, str], dict[str, str]] = ({}, {})  # compact, indented

    def changed(self, key: str, present: bool) -> None:
        """The entry of ``key`` is new, another one, or gone."""
        for texts in self._texts:
            texts.pop(key, None)
        for changes in self._meanwhile:
            changes[key] = present
        if self._order is not None:
            self._place(self._order, key, present)

    @staticmethod
    def _place(order: list[str], key: str, present: bool) -> None:
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
        self._meanwhile = []  # those that put keys in order begin anew
        for texts in self._texts:
            texts.clear()

    def whole(self, indent: bool = False) -> Entries:
        """The table as ``bodies.dumps_dialect`` writes it; it stays as it is when the table changes."""
        keys, texts = self._sorted(), self._texts[indent]
        if len(texts) < len(keys):
            return Entries(self._written(keys, indent), DEPTH if indent else 0)
        return Entries(_InOrder(keys.copy(), texts.copy()), DEPTH if indent else 0)

    def part(self, keys: Iterable[str], empty: Iterable[str] = ()) -> Entries:
        """The entries of ``keys`` alone, and an empty one for each of ``empty``."""
        return Entries([*self._written(sorted(keys), False), *(entry(key, {}, 0) for key in empty)])

    def _written(self, keys: list[str], indent: bool) -> list[str]:
        try:
            return list(map(self._texts[indent].__getitem__, keys))
        except KeyError:  # some are not written yet
            return [self._entry(key, indent) for key in keys]

    async def prepare(self, slice_: Slice, indent: bool = False) -> None:
        """Write in slices what ``whole`` would have to. Raises as ``slice_``."""
        await self._put_in_order(slice_)
        if len(self._texts[indent]) < len(self._sorted()):
            await self.prepare_part(list(self._sorted()), slice_, indent)

    async def prepare_part(self, keys: Iterable[str], slice_: Slice, indent: bool = False) -> None:
        """Write in slices what ``part`` of these would have to. Raises as ``slice_``."""
        await self._put_in_order(slice_)
        for key in keys:
            if key not in self._texts[indent] and self._has(key):
                self._entry(key, indent)
            await slice_.breathe()

    async def _put_in_order(self, slice_: Slice) -> None:
        """In slices; what comes and goes meanwhile is put in its place at the end."""
        while self._order is None:
            changes: dict[str, bool] = {}
            watching = self._meanwhile
            watching.append(changes)
            try:
                order = []
                for key in await in_order(self._keys(), slice_):
                    order.append(key)
                    await slice_.breathe()
            finally:
                watching[:] = [one for one in watching if one is not changes]
            if watching is self._meanwhile and self._order is None:
                for key, present in changes.items():
                    self._place(order, key, present)
                self._order = order

    def check_invariants(self) -> None:
        assert self._order is None or len(self._order) == len(list(self._keys())), (
            "each key of the table stands once"
        )
        keys = set(self._keys())
        assert all(keys.issuperset(texts) for texts in self._texts), "no text is of an entry that is gone"

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
