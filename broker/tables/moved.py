"""Which entries of a table changed since a copy of it was made?"""

from __future__ import annotations

from collections.abc import Iterable


class Moved:
    """When each key last changed, as a count of changes; pure.

    Holds: keys stand in the order of their last change, so that the newest are found without a search.
    """

    def __init__(self) -> None:
        self.mark = 0
        """Counts the changes since this process began; ``since`` takes one of its values."""
        self._first = 0
        self._marks: dict[str, int] = {}

    def add(self, keys: Iterable[str]) -> None:
        self.mark += 1
        for key in keys:
            self._marks.pop(key, None)
            self._marks[key] = self.mark

    def forget(self) -> None:
        """The table was replaced: no copy of before can be added to."""
        self.mark += 1
        self._first = self.mark
        self._marks.clear()

    def since(self, mark: int | None) -> list[str] | None:
        """The keys changed after ``mark``; None when that cannot be told."""
        if mark is None or not self._first <= mark <= self.mark:
            return None
        found = []
        for key in reversed(self._marks):
            if self._marks[key] <= mark:
                break
            found.append(key)
        return found

    def check_invariants(self) -> None:
        marks = list(self._marks.values())
        assert marks == sorted(marks), "keys stand in the order of their last change"
        assert not marks or self._first < marks[0] <= marks[-1] <= self.mark, "no change is from elsewhere"
