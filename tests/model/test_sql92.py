"""The promise of model.sql92: an expression chooses the messages that the original's chooses.

The rows were made by ``SelectorParser`` of RocketMQ 5.5.0 (tests/interop/test_sql_filter.py, which compares
thousands of others where Java is).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.sql92 import SqlError, compile_filter
from model.sql92.compile import CALLS_MAX, DEPTH_MAX

CASES = json.loads((Path(__file__).parent.parent / "golden" / "sql92.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["expression"][:60])
def test_an_expression_chooses_what_the_original_chooses(case: dict[str, object]) -> None:
    expression = str(case["expression"])
    properties = case["properties"]
    assert isinstance(properties, dict)
    if case["chosen"] is None:
        with pytest.raises(SqlError, match=r"^Invalid MessageSelector\. "):
            compile_filter(expression)
    else:
        assert compile_filter(expression)(properties) is case["chosen"]


@given(st.text(alphabet="abAND ORNOT()'=<>12.5,-+INBETWEENCONTAINSTRUELISNULL", max_size=60))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        chosen = compile_filter(text)
    except SqlError:
        return
    assert chosen({"a": "1", "b": "x"}) in (True, False)
    assert chosen({}) in (True, False)


@pytest.mark.parametrize(
    "text",
    [
        "a = 1 OR (" * (DEPTH_MAX + 1) + "a = 1" + ")" * (DEPTH_MAX + 1),
        "(" * 20_000 + "a = 1" + ")" * 20_000,
        "NOT " * 100_000 + "TRUE",
        "a" + " = a" * (CALLS_MAX + 1),
        "a > " + "9" * 5000,
        "a > 1" + "0" * 400 + ".0",
        "/*" * 10_000,
        "(a=1)OR" * 1000 + "b=1",
    ],
    ids=["conditions in each other", "brackets", "signs", "chain", "whole", "real", "comment", "tokens"],
)
def test_no_expression_is_too_much_work(text: str) -> None:
    with pytest.raises(SqlError):
        compile_filter(text)


@pytest.mark.parametrize(
    "text", ["a NOT = 1", "a NOT > 1", "a NOT IS NULL", "a = b NOT", "a = 1 NOT AND b = 2"]
)
def test_not_behind_a_value_is_refused_without_its_word(text: str) -> None:
    with pytest.raises(SqlError, match="NOT is there"):
        compile_filter(text)


def test_brackets_around_the_same_and_signs_in_a_row_are_as_many_as_they_like() -> None:
    wide = compile_filter("(" * 1000 + "a = '1'" + ")" * 1000)
    assert (wide({"a": "1"}), wide({"a": "2"})) == (True, False)
    odd, even = compile_filter("NOT " * 501 + "(a = '1')"), compile_filter("NOT " * 500 + "(a = '1')")
    assert (odd({"a": "1"}), odd({"a": "2"}), odd({})) == (False, True, False)
    assert (even({"a": "1"}), even({"a": "2"}), even({})) == (True, False, False)
    assert compile_filter("-" * 501 + "1 = a")({"a": "-1"})
    assert compile_filter("-" * 500 + "1 = a")({"a": "1"})
    for text in ("((a) = 1)", "(((a = 1) OR b = 2) AND c = 3)", "((((a) = (1)) = TRUE) AND (TRUE))"):
        assert compile_filter(text)({"a": "1", "c": "3"})
        assert not compile_filter(text)({"a": "2", "c": "3"})
    assert compile_filter("(((a BETWEEN 1 AND 3)) AND b IN ('x') OR c IS NULL)")(
        {"a": "2", "b": "x", "c": ""}
    )


def test_a_long_list_of_alternatives_is_no_deeper_than_a_short_one() -> None:
    chosen = compile_filter(" OR ".join(f"a CONTAINS 'x{n}' AND b IS NULL" for n in range(150)))
    assert chosen({"a": "x149"})
    assert not chosen({"a": "y"})
