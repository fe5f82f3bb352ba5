"""The promise of remoting.long_objects: what comes of a long object is what the parser would make of it in
one go, and nothing of it is long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import PeerError
from remoting import long_objects
from remoting.bodies import BELIEVED, dumps, dumps_dialect, loads
from remoting.long_objects import ENTRY_BYTES_MAX, WINDOW_BYTES, read
from runtime.turns import Slice
from tests.fakes.at_once import ENDLESS, at_once

TEXTS = st.text(st.sampled_from('ab{}[]",:\\ \u00e9\n'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=6)


def together(data: bytes, slice_: Slice = ENDLESS) -> dict[str, Any]:
    """All that is read of ``{"w": {"table": .., "list": .., ..}, ..}``."""
    table: dict[str, Any] = {}
    items: list[Any] = []
    tables: dict[tuple[str, ...], Callable[[Any], None]] = {
        ("w", "table"): table.update,
        ("w", "list"): items.extend,
    }
    found = at_once(read(data, slice_, {("w",)}, tables))
    wrapper = {path[1]: value for path, value in found.items() if len(path) == 2}
    others = {path[0]: value for path, value in found.items() if len(path) == 1}
    return {**others, "w": {**wrapper, "table": table, "list": items}}


@given(OBJECTS, OBJECTS, st.lists(VALUES, max_size=6), OBJECTS, st.booleans())
def test_what_is_read_in_runs_is_what_is_read_at_once(
    table: dict[str, Any], wrapper: dict[str, Any], items: list[Any], others: dict[str, Any], strict: bool
) -> None:
    value = {**others, "w": {**wrapper, "table": table, "list": items}}
    data = (dumps if strict else dumps_dialect)(value)
    assert together(data) == loads(data, BELIEVED)
    blank = dumps_dialect(value, indent=True)
    assert together(b" " + blank + b"\n") == loads(blank, BELIEVED)


@given(st.binary(max_size=40), st.integers(0, 60))
def test_what_is_no_object_is_refused(noise: bytes, cut: int) -> None:
    good = b'{"w":{"table":{"a":{"b":[1,2]}},"list":["x"]},"z":null}'
    for data in (noise, good[:cut] + noise, good[:cut] + noise + good[cut:]):
        try:
            found = together(data)
        except PeerError:
            continue
        assert found == {"w": {"table": {}, "list": []}} | loads(data, BELIEVED) or b'"w"' in data


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"",
        b'{"w":{"table":{"a":1,}}}',
        b'{"w":{"table":{"a":1 "b":2}}}',
        b'{"w":{"list":[1,]}}',
        b'{"w":{"table":{"a":' + b"[" * 20 + b"]" * 20 + b"}}}",
        b'{"w":{"table":{"a":"' + b"x" * ENTRY_BYTES_MAX + b'"}}}',
        b'{"x":"' + b"x" * ENTRY_BYTES_MAX + b'"}',
        b'{"w":{}} {}',
    ],
)
def test_broken_deep_and_long_entries_are_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        together(data)


def test_a_long_table_is_parsed_a_window_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []

    def counted(data: bytes, bound: Any) -> Any:
        parsed.append(len(data))
        return loads(data, bound)

    monkeypatch.setattr(long_objects, "loads", counted)
    table = {f"topic-{n}": {"currIdMap": {0: n, 1: 7}, "topic": 'a\\"{'} for n in range(20_000)}
    table["long"] = {"currIdMap": dict.fromkeys(range(20_000), 1)}
    data = dumps_dialect({"w": {"table": table, "list": [f"t{n}" for n in range(9000)]}})
    assert together(data) == loads(data, BELIEVED)
    assert sum(length > WINDOW_BYTES + 2 for length in parsed) == 1, "the long entry alone"
    assert max(parsed) < ENTRY_BYTES_MAX
