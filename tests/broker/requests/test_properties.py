"""A number in a property is what Java reads there: the property is a client's."""

import pytest

from broker.requests.properties import int_property


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("+7", 7),
        ("-7", -7),
        ("0000000007", 7),
        ("2147483647", 2**31 - 1),
        ("-2147483648", -(2**31)),
        ("2147483648", None),
        ("9" * 4300, None),
        ("1_0", None),
        (" 1", None),
        ("\u0663", None),
        ("1.0", None),
        ("", None),
    ],
)
def test_a_whole_number_is_read_as_by_java(text: str, number: int | None) -> None:
    assert int_property(f"DELAY\x01{text}\x02", "DELAY") == number
    assert int_property(f"OTHER\x01{text}\x02", "DELAY") is None
