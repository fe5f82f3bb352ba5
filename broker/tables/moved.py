"""Which entries of a table changed since a copy of it was made?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from broker.tables.table_text import TableText

MOVED_MAX: Final = 100_000
"""Keys whose change is remembered, those that are gone too: names may come and go for as long as a broker
runs. A copy that is older than what is forgotten gets the whole table."""

REPLACED_MAX: Final = 500
"""A table replaced by one that differs in more is another one: each difference takes a search."""

Key = TypeVar("Key")


def differing(former: Mapping[Key, Any], found: Mapping[Key, Any]) -> frozenset[Key]:
    """The keys that came, went, or have another value."""
    gone = former.keys() - found.keys()
    return frozenset(gone.union(key for key, value in found.items() if former.get(key) != value))


def forget_oldest(marks: dict[Key, int]) -> int:
    """Drop the older half of ``marks``, in the order of the last change; the mark of the last one dropped.
    Half of them, as the begin of a dict that loses one at a time is found ever more slowly."""
    last = 0
    for key in list(islice(marks, len(marks) // 2)):
        last = marks.pop(key)
    return last


class Moved(Generic[Key]):
    """When each key last changed, as a count of changes; pure.

    Holds: keys stand in the order of their last change. So the newest are found without a search. At most
    MOVED_MAX are remembered.
    """

    def __init__(self) -> None:
        self.mark = 0
        """Counts the changes since this process began; ``since`` takes one of its values."""
        self._first = 0
        self._marks: dict[Key, int] = {}

    def add(self, keys: Iterable[Key]) -> None:
        self.mark += 1
        for key in keys:
            self._marks.pop(key, None)
            self._marks[key] = self.mark
        if len(self._marks) > MOVED_MAX:
            self._first = forget_oldest(self._marks)

    def forget(self) -> None:
        """The table was replaced: copies made before are of no use."""
        self.mark += 1
        self._first = self.mark
        self._marks.clear()

    def since(self, mark: int | None, most: int | None = None) -> list[Key] | None:
        """The keys that changed after ``mark``, the ``most`` newest of them; None when that is not known."""
        if mark is None or not self._first <= mark <= self.mark:
            return None
        found: list[Key] = []
        for key in reversed(self._marks):
            if self._marks[key] <= mark or len(found) == most:
                break
            found.append(key)
        return found

    def check_invariants(self) -> None:
        marks = list(self._marks.values())
        assert marks == sorted(marks), "keys stand in the order of their last change"
        assert not marks or self._first <= marks[0] <= marks[-1] <= self.mark, "each change was counted here"


def note_replaced(
    names: Collection[str], present: Container[str], moved: Moved[str], text: TableText
) -> None:
    """The table was replaced by one that differs in ``names``: a new master's is most often the one that was
    there, and then nothing is written or told anew."""
    if len(names) > REPLACED_MAX:
        text.clear()
        moved.forget()
        return
    for name in names:
        text.changed(name, name in present)
    moved.add(names)


def changed_since(
    mark: int | None,
    moved: Moved[str],
    text: TableText,
    present: Container[str],
    wrapped: Callable[[Any], dict[str, Any]],
) -> tuple[dict[str, Any], int]:
    """The table, or the part of it that changed after ``mark``; and the mark of now. A name in ``part``
    without an entry was deleted."""
    names = moved.since(mark)
    if names is None:
        return wrapped(text.whole()), moved.mark
    part = text.part(name for name in names if name in present)
    return wrapped(part) | {"part": sorted(names)}, moved.mark
