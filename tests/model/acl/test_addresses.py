"""The promise of white lists and sources: they match what the original's match, and nothing else."""

import pytest

from model.acl.addresses import canonical, from_source, host_of, is_source, white
from model.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("", [], ["1.2.3.4", "::1"]),
        ("*", ["1.2.3.4", "::1"], []),
        ("*.*.*.*", ["1.2.3.4"], []),
        ("192.168.1.5", ["192.168.1.5"], ["192.168.1.50", "192.168.1.4"]),
        ("192.168.1.*", ["192.168.1.0", "192.168.1.255"], ["192.168.2.1", "192.168.10.1"]),
        ("192.168.1.1-100", ["192.168.1.1", "192.168.1.100"], ["192.168.1.101", "192.168.1.0"]),
        ("192.168.*.*", ["192.168.0.9", "192.168.255.1"], ["192.169.0.1"]),
        ("192.168.1-20.*", ["192.168.1.7", "192.168.20.7"], ["192.168.21.7"]),
        ("10.*.*.*", ["10.0.0.1", "10.255.1.2"], ["11.0.0.1"]),
        ("192.168.1.{5,7}", ["192.168.1.5", "192.168.1.7"], ["192.168.1.6", "192.168.1.57"]),
        ("192.168.1.5,10.0.0.1", ["192.168.1.5", "10.0.0.1"], ["10.0.0.2"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "1.0.0.1"]),
        ("1050::0005:0600:300c:3261", ["1050:0:0:0:5:600:300C:3261"], ["1050::5:600:300c:3262"]),
        ("1050::5:600:300c:*", ["1050::5:600:300c:0", "1050::5:600:300c:ffff"], ["1050::5:600:300d:1"]),
        ("1050::5:600:300c:1-200", ["1050::5:600:300c:1", "1050::5:600:300c:200"], ["1050::5:600:300c:201"]),
        ("1050::5:600:1-20:*", ["1050::5:600:20:7"], ["1050::5:600:21:7"]),
        ("1050::5:600:300c:{1,200}", ["1050::5:600:300c:200"], ["1050::5:600:300c:2"]),
        ("*:*:*:*:*:*:*:*", ["::1"], []),
    ],
)
def test_who_is_on_a_white_list(text: str, inside: list[str], outside: list[str]) -> None:
    entry = white(text)
    assert [address for address in inside if not entry.matches(address)] == []
    assert [address for address in outside if entry.matches(address)] == []


@pytest.mark.parametrize(
    "text",
    [
        "192.168.1",
        "192.168.1.256",
        "192.168.1.-5",
        "192.168.1.9-5",
        "192.168.1.1-256",
        "300.1.2.*",
        "9" * 5000 + ".1.2.*",
        "*.1.2.3",
        "192.168.{1,2}",
        "192.{1,2}.3.4",
        "192.168.1.{a}",
        "1.2.3.4,x",
        "1050::*:5",
        "1050::5-1:*",
        "1050:::zz:1-2",
        "host",
    ],
)
def test_what_is_no_white_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="white list"):
        white(text)


@pytest.mark.parametrize(
    ("text", "bounds"), [("10.0.0.300-400", "0 and 255"), ("1050::5:600:300c:9-5", "0 and ffff")]
)
def test_a_range_that_is_none_is_told_the_bounds_as_they_are_written(text: str, bounds: str) -> None:
    with pytest.raises(ConfigError, match=f"no range within {bounds}$"):
        white(text)


def test_an_ipv4_client_of_a_socket_for_both_is_one_of_ipv4() -> None:
    assert white("10.1.2.3").matches("::ffff:10.1.2.3")
    assert from_source("::ffff:10.1.2.3", "10.0.0.0/8")


def test_the_host_of_a_remote_address() -> None:
    assert host_of("1.2.3.4:5") == "1.2.3.4"
    assert host_of("[::1]:5") == "::1"


@pytest.mark.parametrize(
    ("source", "inside", "outside"),
    [
        ("127.0.0.1", ["127.0.0.1"], ["127.0.0.2", "::1"]),
        ("10.0.0.0/8", ["10.9.9.9"], ["11.0.0.1", "::1"]),
        ("10.1.2.3/24", ["10.1.2.200"], ["10.1.3.1"]),
        ("fe80::/10", ["fe80::1"], ["::1", "10.0.0.1"]),
    ],
)
def test_where_a_policy_says_requests_come_from(source: str, inside: list[str], outside: list[str]) -> None:
    assert is_source(source)
    assert all(from_source(address, source) for address in inside)
    assert not any(from_source(address, source) for address in outside)


@pytest.mark.parametrize("text", ["", "*", "host", "10.0.0.0/33", "1.2.3", "10.0.0.1-5", "::1/129"])
def test_what_no_policy_may_name(text: str) -> None:
    assert not is_source(text)


def test_the_zone_of_an_address_is_no_part_of_what_is_compared() -> None:
    assert canonical("fe80::1%eth0") == canonical("FE80::1")
    assert white("fe80::{1%L1,2}").matches("fe80::1%eth0")
    assert from_source("fe80::1%eth0", "fe80::/10")
