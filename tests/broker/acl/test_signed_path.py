"""The promise of the signed path: what it hashes of a read is short; longer sends take the ordinary way."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.acl.signed_path import SignedPath
from model.codes import Request
from model.config import BrokerConfig
from model.errors import PeerError
from remoting.acl.audit import Audit
from remoting.acl.gate import Gate
from remoting.codec import Command, encode, frame_end
from remoting.long_bodies import LOOKED_AT_BYTES
from tests.broker.acl.signed import ALICE
from tests.fakes.broker.store import FakeConnection


class Fast:
    """Takes all that it is given. ``joins``: for the end of the turn."""

    def __init__(self, *, joins: bool = False) -> None:
        self.taken = 0
        self._joins = joins

    def join_or(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        return self._join if self._joins else otherwise

    def _join(self, connection: Any, buffer: bytearray, start: int, end: int) -> None:
        self.process(connection, buffer, start, end)

    def process(self, connection: Any, buffer: bytearray, start: int, end: int) -> tuple[int, list[bytes]]:
        while stop := frame_end(buffer, start, end):
            self.taken += 1
            start = stop
        return start, []


def signed(size: int) -> bytes:
    """A frame with a body of so many bytes."""
    fields = {"a": "pg", "b": "abc"}
    return encode(ALICE.signed(Command(Request.SEND_MESSAGE_V2, fields, bytes(size))))


@pytest.mark.parametrize("over", [0, 1])
def test_a_signed_send_of_up_to_64_kib_is_hashed_on_the_fast_way(
    over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig.from_mapping({"authenticationEnabled": "true"})
    gate, fast, hashed = Gate.of(config, Audit("test", lambda: 0.0), None, "c"), Fast(), list[int]()
    gate.directory.create_user(ALICE.access_key, {"password": ALICE.secret_key}, True)
    size = LOOKED_AT_BYTES - len(signed(0)) + over
    sends = [signed(length) for length in (10, size, 11)]
    digest = hmac.digest

    def counted(key: bytes, content: bytes, name: str) -> bytes:
        hashed.append(len(content))
        return digest(key, content, name)

    monkeypatch.setattr(hmac, "digest", counted)
    buffer = bytearray(b"".join(sends))
    path = SignedPath(cast(Any, fast), gate, 16 << 20)
    at, slow = path.process(cast(Any, FakeConnection()), buffer, 0, len(buffer)) or (0, [])
    assert at == len(buffer)
    assert (fast.taken, slow) == ((1, sends[1:]) if over else (3, [])), "what follows keeps its order"
    assert max(hashed) < LOOKED_AT_BYTES


def test_signed_sends_join_a_turn_and_what_follows_them_is_handed_on() -> None:
    config = BrokerConfig.from_mapping({"authenticationEnabled": "true"})
    gate, fast = Gate.of(config, Audit("test", lambda: 0.0), None, "c"), Fast(joins=True)
    gate.directory.create_user(ALICE.access_key, {"password": ALICE.secret_key}, True)
    path, connection = SignedPath(cast(Any, fast), gate, 16 << 20), cast(Any, FakeConnection())
    good, unsigned = signed(10), encode(Command(Request.SEND_MESSAGE_V2, {"a": "pg", "b": "abc"}))
    assert path.process(connection, bytearray(2 * good), 0, 2 * len(good)) is None
    both = bytearray(good + unsigned)
    assert path.process(connection, both, 0, len(both)) == (len(both), [unsigned])
    assert fast.taken == 3


def test_sends_left_before_a_frame_that_cannot_be_are_handed_on_first() -> None:
    config = BrokerConfig.from_mapping({"authenticationEnabled": "true"})
    gate, fast = Gate.of(config, Audit("test", lambda: 0.0), None, "c"), Fast()
    gate.directory.create_user(ALICE.access_key, {"password": ALICE.secret_key}, True)
    unsigned = encode(Command(Request.SEND_MESSAGE_V2, {"a": "pg", "b": "abc"}))
    good = signed(10) + unsigned
    buffer = bytearray(good + b"\x00\x00\x00\x05\x00\x00\x00\xff")
    path, connection = SignedPath(cast(Any, fast), gate, 16 << 20), cast(Any, FakeConnection())
    assert path.process(connection, buffer, 0, len(buffer)) == (len(good), [unsigned])
    assert fast.taken == 1
    with pytest.raises(PeerError):
        path.process(connection, buffer, len(good), len(buffer))
