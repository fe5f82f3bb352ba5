"""The promise of the handshake about seats: an empty machine gets a seat that was replaced only at the
address the log says; what an admitted member says, and what older versions say, is understood as before."""

from __future__ import annotations

import pytest

from controller.links.handshake import MAGIC, MAGIC_NEW, Accepting, Dialing, Identity
from controller.links.roster import Replaced, Roster
from model.errors import ConfigError, PeerError
from tests.lines import lines_of

SECRET = b"0123456789abcdef"
ADDRESSES = {"n0": "old:9000", "n1": "n1:9000"}


def end(node_id: str, own: int | None = 0, address: str = "old:9000") -> Identity:
    return Identity.of(Roster(node_id, {**ADDRESSES, "n0": address}, lambda: own), (SECRET,), tls=False)


def meet(dialer: Identity, acceptor: Identity) -> tuple[Dialing, Accepting]:
    """They say all they have to say."""
    one = Dialing(dialer, "n1", bytes(32))
    other = Accepting(acceptor, frozenset(), bytes(31) + b"1")
    other.feed(one.feed(other.feed(one.hello)))
    return one, other


def replaced(identity: Identity, address: str = "new:9000") -> Identity:
    """``identity``, which knows that n0's seat was replaced."""
    identity.roster.update({"n0": (1, address)})
    return identity


def opened(dialer: Identity, acceptor: Identity) -> bool:
    one, other = meet(dialer, acceptor)
    assert (one.opened is None) == (other.opened is None)
    return other.opened is not None


def test_an_empty_machine_gets_a_replaced_seat_only_at_its_address() -> None:
    with pytest.raises(Replaced, match="n0 was replaced and is at new:9000"):
        meet(end("n0", None), replaced(end("n1")))
    assert opened(end("n0", None, "new:9000"), replaced(end("n1")))


def test_a_seat_that_was_never_replaced_is_taken_at_any_address() -> None:
    """The members' files may name one machine in several ways: only what the log says is one for all."""
    assert opened(end("n0", None, "0.0.0.0:9000"), end("n1"))


def test_an_admitted_member_says_what_it_said_before_and_is_known_by_its_incarnation() -> None:
    assert Dialing(end("n0", 1, "elsewhere:9000"), "n1", bytes(32)).hello.startswith(MAGIC)
    assert opened(end("n0", 1, "elsewhere:9000"), replaced(end("n1")))
    with pytest.raises(Replaced, match="incarnation 0 came, 1 counts"):
        meet(end("n0", 0, "new:9000"), replaced(end("n1")))


def test_an_older_version_that_says_no_address_gets_no_replaced_seat_with_an_empty_directory() -> None:
    def says(label: bytes) -> bytes:
        return MAGIC + bytes(32) + bytes((len(label),)) + label + b"\x02n1"

    assert Accepting(end("n1"), frozenset(), bytes(32)).feed(says(b"n0\n"))
    assert Accepting(replaced(end("n1")), frozenset(), bytes(32)).feed(says(b"n0\n1"))
    with pytest.raises(Replaced, match="says None is not it"):
        Accepting(replaced(end("n1")), frozenset(), bytes(32)).feed(says(b"n0\n"))


def test_the_address_is_part_of_what_is_proven() -> None:
    one, other = Dialing(end("n0", None), "n1", bytes(32)), Accepting(end("n1"), frozenset(), bytes(32))
    with pytest.raises(PeerError, match="raftSecretFile"):
        one.feed(other.feed(one.hello.replace(b"old:9000", b"new:9000")))


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_hello_may_come_in_two_pieces(cut: int) -> None:
    one, other = Dialing(end("n0", None), "n1", bytes(32)), Accepting(end("n1"), frozenset(), bytes(32))
    assert one.hello.startswith(MAGIC_NEW)
    assert len(one.hello) == 60 - 4
    said = other.feed(one.hello[:cut]) + (other.feed(one.hello[cut:]) if cut < len(one.hello) else b"")
    other.feed(one.feed(said))
    assert other.opened is not None


def test_a_seat_that_changes_hands_during_the_handshake_opens_no_link() -> None:
    """Links that are open end then. One that is about to open would be the former machine's, and count."""
    one, other = Dialing(end("n0"), "n1", bytes(32)), Accepting(end("n1"), frozenset(), bytes(32))
    proof = one.feed(other.feed(one.hello))
    replaced(other._identity)
    with pytest.raises(Replaced):
        other.feed(proof)
    dialer = Identity.of(Roster("n0", ADDRESSES), (SECRET,), tls=False)
    one, other = Dialing(dialer, "n1", bytes(32)), Accepting(end("n1"), frozenset(), bytes(32))
    answer = other.feed(one.hello)
    dialer.roster.update({"n1": (1, "new:9000")})
    with pytest.raises(Replaced, match="n1 was replaced meanwhile"):
        one.feed(answer)
    assert one.opened is None


def test_an_address_too_long_for_the_handshake_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="more than 255"):
        end("n0", None, "a" * 256)


def test_a_refusal_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    acceptor = replaced(end("n1"))
    for _ in range(3):
        with pytest.raises(Replaced):
            meet(end("n0", None), acceptor)
    assert len(lines_of(caplog)) == 1
