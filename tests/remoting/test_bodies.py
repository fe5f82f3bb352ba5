"""The promise of remoting.bodies: both dialects are read alike, and written as the real thing writes them."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import PeerError
from remoting.bodies import (
    DEPTH_MAX,
    Bound,
    Items,
    Members,
    ObjectKey,
    dumps,
    dumps_dialect,
    loads,
    loads_object,
    pieces,
    queue_key,
)


def test_strict_json_is_sorted_without_nulls_and_quotes_integer_keys() -> None:
    assert dumps({"b": 1, "a": None, "c": {2: "x", 10: "y"}}) == b'{"b":1,"c":{"2":"x","10":"y"}}'


def test_the_dialect_leaves_integer_keys_bare() -> None:
    group = {"brokerAddrs": {2: "127.0.0.1:10921", 0: "127.0.0.1:10911"}}
    assert dumps_dialect(group) == b'{"brokerAddrs":{0:"127.0.0.1:10911",2:"127.0.0.1:10921"}}'


def test_object_keys_are_written_as_objects_and_read_back() -> None:
    body = {"offsetTable": {queue_key("T", "b", 0): {"brokerOffset": 5, "offset": 3}}}
    text = dumps_dialect(body)
    assert (
        text == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"brokerOffset":5,"offset":3}}}'
    )
    assert loads(text) == body


def test_config_files_are_indented_as_the_original_indents_them() -> None:
    table = {
        "dataVersion": {"counter": 0},
        "offsetTable": {"T@g": {1: 6, 0: 5}},
        "empty": {},
        "list": ["a", "b"],
    }
    assert dumps_dialect(table, indent=True).decode() == (
        '{\n\t"dataVersion":{\n\t\t"counter":0\n\t},\n\t"empty":{},\n\t"list":[\n\t\t"a",\n\t\t"b"\n\t],'
        '\n\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:5,\n\t\t\t1:6\n\t\t}\n\t}\n}'
    )


def test_integer_keys_read_alike_in_both_dialects() -> None:
    assert loads(b'{0:"a", -1 : [1, {2:3}],"k":{}}') == loads(b'{"0":"a","-1":[1,{"2":3}],"k":{}}')


def test_an_object_key_tells_its_members() -> None:
    key = queue_key("T", "b", 3)
    assert (key.get("queueId"), key.get("none", 7)) == (3, 7)
    assert key.to_dict() == {"brokerName": "b", "queueId": 3, "topic": "T"}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"{0}",
        b'{0:"a"',
        b'{0:"a"}x',
        b"{0:1,}",
        b"[1,2",
        b'{{"a":[1]}:1}',
        b"{01x:1}",
        b"{0:01}",
        b"{0:+1}",
        b'{0:"\\q"}',
        b'{0:"\\ud800"}',
        b"{0:nul}",
        b"\xff{0:1}",
        b"{0:" * 5000 + b"1" + b"}" * 5000,
        b"[" * 100_000,
        b"{0:" + b"9" * 5000 + b"}",
        b"abc",
    ],
)
def test_what_is_neither_dialect_is_a_peer_error(text: bytes) -> None:
    with pytest.raises(PeerError):
        loads(text)


@pytest.mark.parametrize("opened", ["[", '{"k":', "{0:"])
def test_the_depth_of_a_body_is_bounded_whatever_the_recursion_limit_is(opened: str) -> None:
    closed = "]" if opened == "[" else "}"
    recursion_limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1 << 14)
    try:
        loads((opened * DEPTH_MAX + "1" + closed * DEPTH_MAX).encode())
        flat = opened * 3 + "1" + closed * 3
        loads(("[" + ",".join([flat, '"[[[[\\\\"', '"\\"[{"'] * DEPTH_MAX) + "]").encode(), Bound(1 << 20))
        with pytest.raises(PeerError, match="too deep"):
            loads((opened * (DEPTH_MAX + 1) + "1" + closed * (DEPTH_MAX + 1)).encode())
    finally:
        sys.setrecursionlimit(recursion_limit)


def test_an_object_is_asked_for_by_name() -> None:
    assert loads_object(b"{0:1}") == {"0": 1}
    with pytest.raises(PeerError, match="list"):
        loads_object(b"[1]")


def test_a_value_json_has_no_form_for_is_our_own_mistake() -> None:
    with pytest.raises(TypeError):
        dumps({"a": object()})
    with pytest.raises(TypeError):
        dumps({1.5: 1})


PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8"), max_size=8)
KEYS = st.text('ab{}:,"\\ é', max_size=5).filter(lambda key: key != "{}") | st.builds(
    lambda pairs: ObjectKey(sorted(pairs.items())),
    st.dictionaries(st.text("xyz", min_size=1, max_size=3), PLAIN),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(VALUES, st.booleans())
def test_what_the_dialect_writes_reads_back_the_same(value: Any, indent: bool) -> None:
    assert loads(dumps_dialect(value, indent)) == value


def as_made(value: Any) -> Any:
    """Its maps and lists as ``pieces`` takes them when their entries are made one by one."""
    if isinstance(value, dict):
        return Members((key, as_made(member)) for key, member in value.items())
    if isinstance(value, list):
        return Items(as_made(item) for item in value)
    return value


@given(VALUES, st.booleans(), st.integers(0, 3))
def test_entries_made_while_they_are_written_read_as_those_that_were_there(
    value: Any, strict: bool, depth: int
) -> None:
    whole = "".join(pieces(value, strict=strict, ordered=False, depth=depth))
    made = "".join(pieces(as_made(value), strict=strict, ordered=False, depth=depth))
    assert loads(made.encode()) == loads(whole.encode())


@given(VALUES, st.integers(0, 4))
def test_pieces_with_indentation_are_what_is_written_in_one_go(value: Any, depth: int) -> None:
    whole = dumps_dialect(value, indent=True).decode()
    assert "".join(pieces(value, strict=False, depth=depth, line="\n")) == whole


def test_numbers_with_indentation_stand_one_a_line() -> None:
    written = dumps_dialect({"t": {2: 5, 0: -1}, "empty": {}}, indent=True)
    assert written == b'{\n\t"empty":{},\n\t"t":{\n\t\t0:-1,\n\t\t2:5\n\t}\n}'


@given(st.binary(max_size=60) | st.text('{}[]:,"0123a\\ ', max_size=60).map(str.encode))
def test_arbitrary_bytes_raise_nothing_but_peer_errors(data: bytes) -> None:
    try:
        value = loads(data)
    except PeerError:
        return
    assert loads(dumps_dialect(value)) == value or value != value


@pytest.mark.parametrize("broken", ['{"password":"hunter2"', '{"password":"hunter2",}', '{"a":hunter2}'])
def test_why_a_body_is_no_json_shows_none_of_it(broken: str) -> None:
    """It may be a password, and the text goes into answers and logs."""
    with pytest.raises(PeerError) as error:
        loads(broken.encode())
    assert "hunter" not in str(error.value)
