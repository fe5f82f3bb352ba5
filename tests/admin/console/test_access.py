"""The promise of the console's log-in: who may is said by a file, and everything remembered has a bound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from admin.console import access
from admin.console.access import SESSION_MS, SESSIONS_MAX, Proxies, Sessions, Waits, of_file, of_key, proves
from model.errors import ConfigError
from remoting.auth import Credentials
from remoting.keys import OPERATORS, read_keys
from runtime.os_env import OsEnv

LONG = "a rather long password"


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_password_file_names_who_may(tmp_path: Path) -> None:
    pairs = of_file(written(tmp_path / "p", f"# ours\nann:{LONG}\n\nbob:{LONG}:2\n"))
    assert proves(pairs, "ann", LONG)
    assert proves(pairs, "bob", f"{LONG}:2")
    for name, password in (("ann", LONG + "x"), ("eve", LONG), ("", ""), ("annbob", LONG), ("\ud800", "x")):
        assert not proves(pairs, name, password)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (f"ann:{LONG}", 0o640, "chmod 600"),
        ("ann", 0o600, "line 1: expected name:password"),
        (f"# x\n:{LONG}", 0o600, "line 2: expected name:password"),
        ("ann:short", 0o600, "line 1: a password has at least 12"),
        ("# nobody\n", 0o600, "it names nobody"),
    ],
)
def test_a_password_file_that_would_let_anybody_in_is_refused(
    text: str, mode: int, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=why):
        of_file(written(tmp_path / "p", text, mode))
    with pytest.raises(ConfigError, match="nowhere"):
        of_file(str(tmp_path / "nowhere"))


def test_the_keys_of_operators_log_in_and_those_of_peers_do_not(tmp_path: Path) -> None:
    keys = [
        {"accessKey": "peer", "secretKey": LONG, "for": "peers"},
        {"accessKey": "op", "secretKey": LONG, "for": "operators"},
    ]
    path = written(tmp_path / "keys.json", json.dumps({"keys": keys}))
    ring = read_keys(OsEnv(), path, OPERATORS)
    assert ring is not None
    assert proves(of_key(ring), "op", LONG)
    assert not proves(of_key(ring), "peer", LONG)
    one = of_key(Credentials("ann", LONG))
    assert proves(one, "ann", LONG)
    assert not proves(one, "op", LONG)


def test_a_session_ends_by_itself_and_the_oldest_of_too_many_gives_way() -> None:
    sessions, pairs = Sessions(), {"ann": LONG}.items
    first = sessions.begin("ann", LONG, 0)
    assert sessions.name(first, pairs, SESSION_MS - 1) == "ann"
    assert sessions.name(first, pairs, SESSION_MS) is None
    assert sessions.name("made up", pairs, 0) is None
    tokens = [sessions.begin("ann", LONG, 0) for _ in range(SESSIONS_MAX + 1)]
    assert len(set(tokens)) == len(tokens)
    assert sessions.name(tokens[0], pairs, 1) is None
    assert sessions.name(tokens[1], pairs, 1) == sessions.name(tokens[-1], pairs, 1) == "ann"


def test_a_session_ends_with_the_key_that_began_it() -> None:
    sessions = Sessions()
    known = {"ann": LONG, "bob": LONG}
    ann, bob = (sessions.begin(name, LONG, 0) for name in ("ann", "bob"))
    del known["ann"]
    known["bob"] = LONG + " changed"
    assert sessions.name(ann, known.items, 1) is None
    assert sessions.name(bob, known.items, 1) is None
    known["ann"] = LONG
    assert sessions.name(ann, known.items, 1) is None, "one that ended begins by a log-in alone"


def test_who_gave_a_wrong_password_waits_and_the_table_of_them_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "WAITING_MAX", 2)
    waits = Waits()
    for address in ("a", "b", "c"):
        waits.wrong(address, 0)
    assert [waits.must(address, 1) for address in "abcd"] == [False, True, True, False]
    assert not waits.must("c", access.WAIT_MS)


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:51234", "192.0.2.1"),
        ("[2001:db8::1]:51234", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("10.9.9.9, 192.0.2.1", "192.0.2.1"),  # what stands before it, anybody can have written
        ("198.51.100.7, 192.0.2.1, 10.1.0.3", "192.0.2.1"),  # two proxies, one behind the other
        ("10.1.0.4, 10.1.0.3", "10.1.0.4"),
    ],
)
def test_a_request_by_proxies_comes_from_the_last_address_that_is_none(forwarded: str, client: str) -> None:
    assert Proxies("10.1.0.0/16").client(forwarded) == client


def test_a_header_without_an_address_is_said_to_have_none() -> None:
    for forwarded in ("", "unknown", "192.0.2.1, _hidden", "192.0.2.1:x:y"):
        with pytest.raises(ValueError, match="address"):
            Proxies("10.1.0.0/16").client(forwarded)
