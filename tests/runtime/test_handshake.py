"""The promise of runtime.handshake: two ends of one secret open, at any cut of the stream, and the bytes of
both protocols that use it stay what they are."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.links.link import Link
from controller.links.roster import Roster
from controller.links.transport import Callbacks, Security, Transport
from ha.wire.proof import Credentials, HandshakeInitiator, HandshakeResponder
from model.config import BrokerConfig
from model.ids import BrokerId, Epoch
from runtime.handshake import Initiator, Keys, NotProven, Responder, State
from runtime.os_env import OsEnv
from tests import GOLDEN

SECRET = b"a secret of the group"
PIECES: dict[str, list[str]] = json.loads((GOLDEN / "handshakes.json").read_text())
"""Protocol -> what the ends say in turn, with the chances of seeds 1 and 2."""


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 9)})
        self.said: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.said.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0


def raft_link(node: str, seed: int, dialed: str | None) -> tuple[Link, Wire, list[tuple[str, bytes]]]:
    heard: list[tuple[str, bytes]] = []
    owner = Transport(
        OsEnv(seed=seed),
        Roster(node, {"n0": "127.0.0.1:1", "nü1": "127.0.0.1:2"}),
        Callbacks(lambda peer, body: heard.append((peer, body)), lambda peer: None, lambda peer: None),
        security=Security(lambda: (SECRET,)),
    )
    link, wire = Link(owner, dialed), Wire()
    link.connection_made(wire)
    return link, wire, heard


async def raft_pieces() -> list[bytes]:
    dialer, out, _ = raft_link("n0", 1, "nü1")
    acceptor, back, heard = raft_link("nü1", 2, None)
    acceptor.data_received(out.said[0])
    dialer.data_received(back.said[0])
    dialer.send(b"a message")
    for said in out.said[1:]:
        acceptor.data_received(said)
    acceptor.send(b"its answer")
    assert heard == [("n0", b"a message")]
    assert (dialer.peer, acceptor.peer) == ("nü1", "n0")
    return [out.said[0], back.said[0], out.said[1], out.said[2], back.said[1]]


def ha_pieces() -> list[bytes]:
    scope = Credentials.of(OsEnv(), BrokerConfig(broker_name="a")).scope
    initiator = HandshakeInitiator(OsEnv(seed=1), SECRET, scope, BrokerId(2), Epoch(3))
    responder = HandshakeResponder(OsEnv(seed=2), Credentials(SECRET, scope, lenient=False), Epoch(4))
    answer, _ = responder.feed(initiator.hello)
    proof = initiator.feed(answer)
    assert proof is not None
    assert responder.feed(proof + b"rest") == (b"", b"rest")
    return [initiator.hello, answer, proof]


async def test_both_protocols_say_byte_for_byte_what_they_said() -> None:
    said = {"raft": await raft_pieces(), "ha": ha_pieces()}
    assert {name: [piece.hex() for piece in pieces] for name, pieces in said.items()} == PIECES


KEYS = Keys(SECRET, b"one\0", b"other\0", context=b"both know it")
HELLO, HEAD = b"hello, I am one", b"I am the other"


@given(st.lists(st.integers(1, 50), max_size=8), st.binary(max_size=20))
def test_two_ends_of_one_secret_open_at_any_cut(cuts: list[int], behind: bytes) -> None:
    one, other = Initiator(KEYS, HELLO, len(HEAD)), Responder(KEYS)
    assert (one.state, other.state) == (State.ANSWER, State.HELLO)
    answer = other.answer(HELLO, HEAD)
    assert other.state is State.PROOF
    heads = [one.feed(piece) for piece in cut(answer, cuts)]
    assert [head for head in heads if head is not None] == [HEAD]
    assert (one.state, heads[-1]) == (State.OPEN, HEAD)
    rests: list[bytes] = []
    for piece in cut(one.own_proof() + behind, cuts):
        if other.state is State.PROOF:
            rest = other.feed(piece)
            rests.append(rest or b"")
        else:
            rests.append(piece)
    assert (other.state, b"".join(rests)) == (State.OPEN, behind)
    assert one.proof(b"session") == other.proof(b"session") != one.proof(b"another")


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in [*pieces, data] if piece]


@pytest.mark.parametrize(
    "keys",
    [
        Keys(b"another secret of theirs", b"one\0", b"other\0", b"both know it"),
        Keys(SECRET, b"one\0", b"other\0", b"only one knows it"),
        Keys(SECRET, b"other\0", b"one\0", b"both know it"),
    ],
    ids=["secret", "context", "roles"],
)
def test_who_has_something_else_is_not_believed(keys: Keys) -> None:
    one, other = Initiator(KEYS, HELLO, len(HEAD)), Responder(keys)
    answer = other.answer(HELLO, HEAD)
    with pytest.raises(NotProven):
        one.feed(answer)
    with pytest.raises(NotProven):
        other.feed(Initiator(KEYS, HELLO, len(HEAD)).proof(b"one\0"))
    assert (one.state, other.state) == (State.ANSWER, State.PROOF)


def test_an_initiator_answers_with_the_secret_that_the_responder_used() -> None:
    one = Initiator(replace(KEYS, secret=b"the next secret!", also=(SECRET,)), HELLO, len(HEAD))
    other = Responder(replace(KEYS, also=(b"the next secret!",)))
    assert one.feed(other.answer(HELLO, HEAD)) == HEAD
    assert other.feed(one.own_proof()) == b""
    assert one.secret == other.secret == SECRET
    assert one.proof(b"session") == other.proof(b"session")


def test_nobody_speaks_out_of_turn() -> None:
    one, other = Initiator(KEYS, HELLO, len(HEAD)), Responder(KEYS)
    with pytest.raises(AssertionError, match="said hello"):
        one.own_proof()
    with pytest.raises(AssertionError, match="waits for a hello"):
        other.feed(b"x")
    answer = other.answer(HELLO, HEAD)
    with pytest.raises(AssertionError, match="proved itself"):
        other.answer(HELLO, HEAD)
    with pytest.raises(NotProven, match="more than"):
        one.feed(answer + b"x")
