"""What is remembered of clients' sends has a bound in bytes, not in entries alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from broker.acl.signed_path import SignedPath
from broker.requests.fast_headers import SEND, BinaryHeads
from broker.requests.fast_path import _Routes
from broker.tables.topics import Topics
from model.acl.directory import Directory
from model.codes import Request
from remoting.acl.audit import Audit
from remoting.acl.gate import Gate
from remoting.auth import Credentials
from remoting.codec import Command
from store.files.record import DispatchParser
from tests.broker.helpers import config_for
from tests.broker.send_frames import binary_header

HELD_MAX = 1 << 20


def held_bytes(table: dict[Any, Any]) -> int:
    return sum(
        len(part) for key in table for part in (key if isinstance(key, tuple) else (key,)) if part != SEND
    )


def test_headers_with_huge_names_are_not_remembered() -> None:
    heads = BinaryHeads()
    assert heads.head(binary_header("group")).ext is not None
    for number in range(200):
        assert heads.head(binary_header(f"{number:03}" + "g" * 100_000)).ext is None, (
            "it takes the ordinary way"
        )
    assert 0 < held_bytes(heads._known) < HELD_MAX
    assert heads.head(binary_header("group")).ext is not None


def test_hashes_of_huge_tags_are_not_remembered(tmp_path: Any) -> None:
    config = config_for(tmp_path)
    routes, parser = _Routes(config, Topics(config, lambda: 0)), DispatchParser([0])
    for number in range(200):
        tag = f"{number:03}" + "t" * 30_000
        assert routes.tag_code(tag) == parser.tags_code("T", f"TAGS\x01{tag}\x02", 0)
    assert routes.tag_code("short") == parser.tags_code("T", "TAGS\x01short\x02", 0)
    assert "short" in routes.tags
    assert held_bytes(routes.tags) + held_bytes(parser._tags) < HELD_MAX


def test_the_names_of_a_header_nobody_proved_are_not_remembered() -> None:
    path = cast(Any, SimpleNamespace(_orders={}))
    for number in range(200):
        SignedPath._content(path, 479, {"a": "1", f"{number:03}" + "k" * 100_000: "2"})
    assert SignedPath._content(path, 479, {"b": "2", "a": "1"}) == b"12"
    assert list(path._orders) == [("b", "a")]


def test_a_right_to_send_goes_with_the_rules_that_gave_it_whatever_their_revision() -> None:
    """A copy from another master may differ under the same revision; and a user may be disabled."""
    mine, other = (_allowed(topic) for topic in ("T", "Other"))
    assert mine.revision == other.revision
    gate = Gate(Audit("test", lambda: 0.0), directory=mine, authenticates=True, authorizes=True)
    path = SignedPath(cast(Any, None), gate, 1 << 24)
    send = Credentials("alice", "alice-secret").signed(Command(Request.SEND_MESSAGE_V2, {"b": "T"}))
    assert path._may("alice", "T", "10.0.0.1", send)
    assert path._secret("alice") == b"alice-secret"
    assert mine.load(other.to_json())
    assert not path._may("alice", "T", "10.0.0.1", send)
    assert mine.load(_allowed("T").to_json())
    assert path._may("alice", "T", "10.0.0.1", send)
    mine.update_user("alice", {"userStatus": "disable"}, True)
    assert not path._may("alice", "T", "10.0.0.1", send)
    assert path._secret("alice") is None


def _allowed(topic: str) -> Directory:
    directory = Directory()
    directory.create_user("alice", {"password": "alice-secret"}, True)
    entry = {"resource": f"Topic:{topic}", "actions": ["Pub"], "decision": "Allow"}
    directory.put_acl("alice", {"policies": [{"entries": [entry]}]})
    return directory
