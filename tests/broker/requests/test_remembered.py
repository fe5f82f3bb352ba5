"""What is remembered of clients' sends has a bound in bytes, not in entries alone."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from broker.acl.signed_path import SignedPath
from broker.requests.fast_headers import SEND, BinaryHeads
from broker.requests.fast_path import _Routes
from broker.requests.send_format import ONES_MAX, BinaryAnswer
from broker.tables.topics import Topics
from model.acl.directory import Directory
from model.codes import Request
from model.message import encode_host
from remoting import codec
from remoting.acl.audit import Audit
from remoting.acl.gate import Gate
from remoting.auth import Credentials
from remoting.codec import Command
from remoting.headers import SendHeader
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


def test_headers_that_begin_alike_are_told_apart_by_what_follows() -> None:
    chance, heads = random.Random(3), BinaryHeads()
    for number in range(400):
        text = f"UNIQ_KEY\x01{chance.getrandbits(64):X}\x02" + chance.choice(["", "TAGS\x01ü\x02"])
        born_ms = 1_700_000_000_000 + number
        send = SendHeader("pg", "T", 1, born_ms, "TBW102", 4, properties=text)
        send.flag, send.reconsume_times = chance.choice([0, 7]), chance.choice([0, 12])
        command = Command(310, send.to_ext(), b"", number, serialize=codec.ROCKETMQ)
        header = codec.encode(command)[8:]
        if chance.random() < 0.2:  # its end is another message's
            header = header[:-1] + b"?"
        head, ext = heads.head(header), heads.head(header).ext
        right = SendHeader.parse(
            310, codec.decode(struct.pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header).ext
        )
        assert ext is not None
        assert (head.opaque, ext.born_timestamp_ms, ext.properties) == (number, born_ms, text)
        assert (ext.flag, ext.reconsume_times, ext.queue_id) == (right.flag, right.reconsume_times, 1)


def test_an_answer_by_a_template_of_its_lengths_is_the_codecs(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    answer = BinaryAnswer(config, encode_host(config.address))
    for queue_id in (0, 9, 10, 1234):
        for key in (b"K", b"%" * 37, b"U" * 200):
            for place in (0, 37, 10**10):
                one = answer.one(queue_id, key, 5 << 30, place, -7)
                assert one == answer.frame(queue_id, key, [5 << 30], place, -7)
    for number in range(300):
        answer.one(1, b"u" * number, 0, 0, 0)
    assert len(answer._ones) <= ONES_MAX


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
    sends = SimpleNamespace(process=None, join_or=lambda process: process)
    path = SignedPath(cast(Any, sends), gate, 1 << 24)
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
