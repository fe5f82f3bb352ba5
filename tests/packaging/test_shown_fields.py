"""The promise of what is compared of a command's output: a field that differs is found, what differs by run
is not."""

from __future__ import annotations

import pytest

from tests.interop.answers.mqadmin import Differs
from tests.interop.answers.shown import difference, fields

NAMES = {"broker": "127.0.0.1:1234", "cluster": "DefaultCluster"}
OURS = "topicStatus\n#Broker  #QID\nbroker-a  0   12 2026-11-23 23:00:01,123\nat 127.0.0.1:1234\n"


@pytest.mark.parametrize(
    ("theirs", "found"),
    [
        (OURS.replace("23:00:01,123", "11:59:59,001").replace("   12", " 12"), []),
        (OURS.replace("12 ", "13 "), ["keelmq: broker-a 0 12 <time>", "RocketMQ: broker-a 0 13 <time>"]),
        (OURS + "more\n", ["RocketMQ: more"]),
    ],
)
def test_a_field_that_differs_is_found(theirs: str, found: list[str]) -> None:
    assert difference(fields(OURS, NAMES), fields(theirs, NAMES)) == found


def test_what_is_said_to_differ_is_left_out_and_nothing_else() -> None:
    differs = (Differs(r"rt=(\d+)ms .*", "of this run"), Differs(r"only \w+", "of one side"))
    one = fields("x\nrt=3ms ok\nonly here\n", {}, differs)
    assert difference(one, fields("x\nrt=99ms ok\n", {}, differs)) == []
    assert difference(one, fields("x\nrt=99ms bad\n", {}, differs)) == [
        "keelmq: rt=…ms ok",
        "RocketMQ: rt=…ms bad",
    ]


def test_refusals_are_compared_by_their_code() -> None:
    said = "x\nCaused by: E: CODE: {}  DESC: {}\nFor more information, please visit\n\tat a.b(C.java:1)\n"
    one = fields(said.format(17, "no route"), {})
    assert difference(one, fields(said.format(17, "nothing\nSee https://x"), {})) == []
    assert difference(one, fields(said.format(1, "no route"), {})) != []


def test_of_settings_only_names_that_both_have_are_compared() -> None:
    ours = [f"k{n} = 1" for n in range(12)]
    assert difference([*ours, "own = 1"], [*ours, "theirs = 2"], shared=True) == []
    assert difference([*ours, "x = 1"], [*ours, "x = 2"], shared=True) == ["keelmq: x = 1", "RocketMQ: x = 2"]
