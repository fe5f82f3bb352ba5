"""The promise of ``OffsetTable``: a commit that nobody looked before is noted with the one before it, and
nobody can tell. Who was called sees it, and who looked is called again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.tables.offsets import OffsetTable
from remoting import bodies

NAMES = st.sampled_from(["a", "b", "ab"])
LAST = ("", "", 0)
LOOKS = ("copy", "file", "text", "version", "mark")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "commit", "commit_all", "drop", "reset", "adopt", *LOOKS]),
        NAMES,
        NAMES,
        st.integers(0, 4),
    ),
    max_size=40,
)


class Reader:
    """Takes what changed whenever it looks, and is to be called for each change since."""

    def __init__(self, table: OffsetTable) -> None:
        self._table = table
        self._copy = OffsetTable(lambda: 1)
        self._mark: int | None = None
        self._file: dict[str, Any] = {}
        self._version = table.version
        self.called = True
        table.on_change.append(self._on_change)

    def _on_change(self) -> None:
        self.called = True

    def look(self, *, written: bool) -> None:
        """As slaves are told, or as the file is written."""
        table = self._table
        before = self._copy.entries()
        known, self._mark = self._mark, table.mark
        part = table.since(known) if written and known is not None else table.changed_since(known)
        assert part is not None
        answer = bodies.believed_object(bodies.dumps_dialect(part))
        assert isinstance(answer, dict)
        self._copy.adopt(answer)
        assert sorted(self._copy.entries()) == sorted(table.entries())
        assert self.called or sorted(before) == sorted(self._copy.entries()), "it was told"
        if sorted(before) != sorted(self._copy.entries()):
            assert table.version != self._version, "each content has a version of its own"
        self._version, self.called = table.version, False


@given(STEPS)
def test_who_looks_now_and_then_misses_nothing(steps: list[Any]) -> None:
    table = OffsetTable(lambda: 1)
    slave, file = Reader(table), Reader(table)
    for count, (what, topic, group, number) in enumerate([*steps, ("copy", *LAST), ("file", *LAST)], 1):
        if what == "commit":
            table.commit(group, topic, number % 2, number)
        elif what == "commit_all":
            table.commit_all(group, topic, [(0, number), (1, number + 1)])
        elif what == "drop":
            table.drop(group, topic)
        elif what == "reset":
            table.reset(group, topic, number % 2, number)
        elif what == "adopt":
            of_master = {"counter": 1000 * count}
            changed = {f"{topic}@{group}": {0: number}}
            table.adopt({"dataVersion": of_master, "offsetTable": changed, "part": True})
        elif what == "text":
            indent = bool(number % 2)
            assert bodies.dumps_dialect(table.to_text(indent), indent=indent) == bodies.dumps_dialect(
                table.to_json(), indent=indent
            )
        elif what == "version":
            assert table.version == table.version
        elif what == "mark":
            assert table.mark == table.mark
        else:
            (slave if what == "copy" else file).look(written=what == "file")
        table.check_invariants()


def test_commits_of_a_pair_that_nobody_looked_between_are_noted_once() -> None:
    table = OffsetTable(lambda: 1)
    table.commit("g", "T", 0, 1)
    calls: list[int | None] = []
    table.on_change.append(lambda: calls.append(table.get("g", "T", 0)))
    before = table.mark
    for offset in range(2, 10):
        table.commit_all("g", "T", [(0, offset)])
        assert table.get("g", "T", 0) == offset, "the number is there at once"
    assert (calls, table.mark) == ([2], before + 1)
    table.commit("g", "T", 0, 10)
    assert (calls, table.mark) == ([2, 10], before + 2)
    table.commit("other", "T", 0, 1)
    table.commit("g", "T", 0, 11)
    assert calls == [2, 10, 10, 11], "each pair for itself"


def test_a_text_that_was_written_is_not_kept_when_its_offset_moves() -> None:
    """Also one that was written while others were still to be."""
    table = OffsetTable(lambda: 1)
    for offset in range(3):
        table.commit("g", "T", 0, offset)
        table.commit("g", "T", 0, offset + 10)
        assert list(table.text.part(["T@g"]).texts) == [f'"T@g":{{0:{offset + 10}}}']
