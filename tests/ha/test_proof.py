"""The promise of the proofs on the HA port: each is good for one connection, group, broker and direction, and
nothing that was said before it is decoded."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.wire.proof import (
    ANSWER_BYTES,
    HELLO_BYTES,
    MAGIC,
    Credentials,
    HandshakeInitiator,
    HandshakeResponder,
    Reason,
    UnprovenError,
    need_no_refusal,
    refusal,
)
from model.config import BrokerConfig
from model.errors import ConfigError, PeerError
from model.ids import BrokerId, Epoch
from runtime.mac import MAC_BYTES
from runtime.os_env import OsEnv
from runtime.secret import fresh_nonce

SECRET = b"a secret of the group"
ENV = OsEnv(seed=1)
HANDSHAKE = struct.pack(">ihhq", 1, 0, 0, 2)
"""The first bytes of a real slave."""


def credentials(secret: bytes | None = SECRET, *, group: str = "a", lenient: bool = False) -> Credentials:
    config = BrokerConfig(broker_name=group, trust_peers=lenient)
    scope = Credentials.of(ENV, config).scope
    return Credentials(secret, scope, lenient)


def gate(epoch: int = 3, **which: object) -> HandshakeResponder:
    return HandshakeResponder(ENV, credentials(**which), epoch)  # type: ignore[arg-type]


def knock(broker_id: int = 2, epoch: int = 3, secret: bytes = SECRET, group: str = "a") -> HandshakeInitiator:
    return HandshakeInitiator(ENV, secret, credentials(group=group).scope, BrokerId(broker_id), Epoch(epoch))


def opened(gate: HandshakeResponder, knock: HandshakeInitiator) -> bytes:
    """Have both ends prove themselves; the slave's proof."""
    answer, rest = gate.feed(knock.hello)
    assert rest is None
    proof = knock.feed(answer)
    assert proof is not None
    assert gate.proven is None
    assert gate.feed(proof) == (b"", b"")
    return proof


@pytest.mark.parametrize("broker_id", [1, 2, 2**63 - 1])
def test_brokers_with_one_secret_believe_each_other(broker_id: int) -> None:
    master = gate()
    opened(master, knock(broker_id))
    assert master.proven == broker_id


@given(st.lists(st.integers(1, 130), max_size=20), st.binary(max_size=50))
def test_proofs_survive_any_cut_of_the_stream(cuts: list[int], behind: bytes) -> None:
    master, slave = gate(), knock()
    answer, proof, heard = b"", None, b""

    def pieces(data: bytes) -> list[bytes]:
        ends = sorted({cut for cut in cuts if cut < len(data)} | {0, len(data)})
        return [data[a:b] for a, b in itertools.pairwise(ends)]

    for piece in pieces(slave.hello):
        assert master.proven is None
        answer += master.feed(piece)[0]
    for piece in pieces(answer):
        proof = slave.feed(piece)
    assert proof is not None
    for piece in pieces(proof + behind):
        # Once it is open the link does not ask the gate any more.
        heard += piece if master.proven else master.feed(piece)[1] or b""
    assert (master.proven, heard) == (2, behind)


def test_the_bytes_are_those_of_the_table() -> None:
    master, slave = gate(epoch=7), knock(broker_id=5, epoch=6)
    magic, nonce, scope, their_id, their_epoch = struct.unpack(">8s32s32sqq", slave.hello)
    assert (magic, ~their_id, ~their_epoch) == (b"\xffKMQHA01", 5, 6)
    names = b"\0\0\0\x0eDefaultClustera"
    digest = bytearray(hashlib.sha256(names).digest())
    for at in (0, 8, 16, 24):
        digest[at] |= 0x80
    assert scope == bytes(digest)
    answer, _ = master.feed(slave.hello)
    assert len(answer) == ANSWER_BYTES == 80
    magic, theirs, epoch, proof = struct.unpack(">8s32sq32s", answer)
    assert (magic, epoch) == (MAGIC, 7)
    assert nonce != theirs
    said = slave.hello + answer[:48]
    assert proof == hmac.digest(SECRET, b"keelmq ha master\0" + said, "sha256")
    assert slave.feed(answer) == hmac.digest(SECRET, b"keelmq ha slave\0" + said, "sha256")


@given(st.integers(0, 2**32))
def test_a_hello_acknowledges_nothing_at_a_real_master(seed: int) -> None:
    """It reads a state as its first 4 bytes, or in a group without Controller an offset in each 8 of them."""
    env = OsEnv(seed=seed)
    hello = HandshakeInitiator(env, SECRET, credentials().scope, BrokerId(seed + 1), Epoch(seed)).hello
    assert all(offset < 0 for (offset,) in struct.iter_unpack(">q", hello))
    assert int.from_bytes(hello[:4], "big", signed=True) < 0


def test_nonces_are_new_on_every_connection_and_depend_on_the_secret() -> None:
    said = [knock().hello[8:40] for _ in range(20)] + [gate().feed(knock().hello)[0][8:40] for _ in range(20)]
    assert len(set(said)) == 40
    # The random source alone does not tell them.
    assert fresh_nonce(random.Random(1), b"one") != fresh_nonce(random.Random(1), b"two")


def test_with_another_secret_nobody_is_believed() -> None:
    master, slave = gate(), knock(secret=b"another secret of 16")
    answer, _ = master.feed(slave.hello)
    with pytest.raises(UnprovenError, match="haSecretFile differs"):
        slave.feed(answer)
    with pytest.raises(UnprovenError, match="does not prove that it is broker 2"):
        master.feed(bytes(MAC_BYTES))
    assert master.proven is None


def test_a_recorded_connection_opens_no_other_one() -> None:
    recorded = knock()
    proof = opened(gate(), recorded)
    master = gate()
    answer, rest = master.feed(recorded.hello)
    assert answer
    assert rest is None
    with pytest.raises(UnprovenError):
        master.feed(proof + HANDSHAKE)
    # Nor does a recorded master convince a slave.
    answer, _ = gate().feed(recorded.hello)
    with pytest.raises(UnprovenError):
        knock().feed(answer)


def test_a_masters_proof_sent_back_is_no_slaves_proof() -> None:
    master = gate()
    answer, _ = master.feed(knock().hello)
    with pytest.raises(UnprovenError):
        master.feed(answer[-MAC_BYTES:])
    # Nor can one master be had to prove what another one asks for: roles differ, and who asks says who it is.
    other, one = gate(), gate()
    asked = knock().hello
    challenge, _ = other.feed(asked)
    proof = one.feed(asked)[0][-MAC_BYTES:]
    assert challenge[-MAC_BYTES:] != proof
    with pytest.raises(UnprovenError):
        other.feed(proof)


@pytest.mark.parametrize("at", range(HELLO_BYTES))
def test_a_proof_of_other_words_is_none(at: int) -> None:
    """Whoever changes one bit of what was said, the id, the group or the epoch too, ends the connection."""
    slave = knock(broker_id=2, epoch=1)
    hello = bytearray(slave.hello)
    hello[at] ^= 1
    master = gate()
    try:
        answer, _ = master.feed(bytes(hello))
    except UnprovenError:
        return
    head, said = answer[:48], slave.hello + answer[:48]
    proof = hmac.digest(
        SECRET, b"keelmq ha slave\0" + said, "sha256"
    )  # what the true one would say to ``head``
    assert len(head) == 48
    with pytest.raises(PeerError):
        master.feed(proof)
    assert master.proven is None


def test_brokers_of_another_group_or_cluster_are_told_apart_whatever_their_names() -> None:
    with pytest.raises(UnprovenError, match="another brokerClusterName") as caught:
        gate(group="b").feed(knock(group="a").hello)
    assert caught.value.reason is Reason.OTHER_GROUP
    one = BrokerConfig(cluster_name="ab", broker_name="c")
    other = BrokerConfig(cluster_name="a", broker_name="bc")
    assert Credentials.of(ENV, one).scope != Credentials.of(ENV, other).scope


def test_a_slave_of_a_later_epoch_and_a_master_of_a_former_one_part() -> None:
    master, slave = gate(epoch=4), knock(epoch=5)
    answer, _ = master.feed(slave.hello)
    with pytest.raises(PeerError, match="leads epoch 4, this slave follows 5"):
        slave.feed(answer)
    # A slave that does not look is turned away all the same.
    proof = hmac.digest(SECRET, b"keelmq ha slave\0" + slave.hello + answer[:48], "sha256")
    with pytest.raises(PeerError, match="follows epoch 5, we lead 4"):
        master.feed(proof)
    assert master.proven is None
    opened(gate(epoch=5), knock(epoch=4))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (HANDSHAKE, Reason.NEEDS_PROOF),
        (bytes(8), Reason.NEEDS_PROOF),
        (b"GET / HTTP/1.1\r\n\r\n", Reason.NEEDS_PROOF),
        (b"\xff" * 8, None),
        (MAGIC[:7] + b"2", None),
        (MAGIC + bytes(81), Reason.OTHER_GROUP),
        (MAGIC + bytes(100_000), Reason.OTHER_GROUP),
        (MAGIC + bytes(32) + credentials().scope + struct.pack(">qq", ~0, ~3), None),
        (MAGIC + bytes(32) + credentials().scope + struct.pack(">qq", 2, ~3), None),
        (MAGIC + bytes(32) + credentials().scope + struct.pack(">qq", ~2, 3), None),
    ],
)
def test_who_proves_nothing_is_heard_no_further(said: bytes, reason: Reason | None) -> None:
    master = gate()

    def feed_bytewise() -> None:
        for at in range(len(said)):
            assert master.feed(said[at : at + 1]) == (b"", None)

    with pytest.raises(UnprovenError) as caught:
        feed_bytewise()
    assert caught.value.reason is reason
    assert len(master._end.kept) <= HELLO_BYTES
    with pytest.raises(UnprovenError):
        gate().feed(said)


def test_trust_lets_the_unproven_pass_and_hears_proofs_too() -> None:
    assert gate(lenient=True).feed(HANDSHAKE) == (b"", HANDSHAKE)
    master = gate(lenient=True)
    opened(master, knock())
    assert master.proven == 2
    with pytest.raises(UnprovenError):
        gate(lenient=True).feed(MAGIC + b"x" * 80 + b"y")


def test_without_a_secret_bytes_pass_as_they_are_except_a_wish_for_a_proof() -> None:
    for data in (HANDSHAKE, HANDSHAKE[:1], b"\xff" * 8, MAGIC[:7], b"GET /"):
        assert gate(secret=None).feed(data) == (b"", data)
    with pytest.raises(UnprovenError) as caught:
        gate(secret=None).feed(knock().hello)
    assert caught.value.reason is Reason.NO_SECRET


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (refusal(Reason.NO_SECRET), "the master has no haSecretFile"),
        (refusal(Reason.NEEDS_PROOF), "haSecretFile is needed here"),
        (refusal(Reason.OTHER_GROUP), "another brokerClusterName or brokerName"),
        (b"\xffKMQHA!x", "turns us away"),
        (struct.pack(">iiqi", 1, 0, 0, -1), "answers without a proof"),
        (struct.pack(">qi", 0, 0), "answers without a proof"),
        (MAGIC + bytes(73), "answers without a proof"),
    ],
)
def test_a_slave_says_what_its_master_lacks(said: bytes, text: str) -> None:
    with pytest.raises(UnprovenError, match=text):
        knock().feed(said)
    if said.startswith(b"\xffKMQHA!"):
        with pytest.raises(UnprovenError, match=text):
            need_no_refusal(said)
    else:
        need_no_refusal(said)


def test_a_refusal_is_too_short_for_a_real_slave_to_read_anything_from() -> None:
    assert all(len(refusal(reason)) < 12 for reason in Reason), "a header is 12 or 20 bytes"


def test_a_secret_that_is_none_is_named_before_the_start(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(ConfigError, match=r"haSecretFile=.*No such file"):
        Credentials.of(ENV, BrokerConfig(ha_secret_file=str(path)))
    path.write_bytes(b"  123456789012345\n\n\n")
    with pytest.raises(ConfigError, match=r"haSecretFile=.*at least 16 bytes"):
        Credentials.of(ENV, BrokerConfig(ha_secret_file=str(path)))
    path.write_bytes(b"1234567890123456\n")
    assert Credentials.of(ENV, BrokerConfig(ha_secret_file=str(path))).secret == b"1234567890123456"


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "", "broker-0"])
def test_an_open_ha_port_takes_a_secret_or_the_word_of_the_operator(host: str) -> None:
    with pytest.raises(ConfigError, match=r"peerCredentialsFile .* and haSecretFile .*trustPeers=true"):
        BrokerConfig.from_mapping({"bindAddress": host})
    signed = {"bindAddress": host, "peerCredentialsFile": "/p"}
    with pytest.raises(ConfigError, match=r"believed: set haSecretFile .*trustPeers=true"):
        BrokerConfig.from_mapping(signed)
    BrokerConfig.from_mapping({**signed, "haSecretFile": "/s"})
    BrokerConfig.from_mapping({"bindAddress": host, "trustPeers": "true"})


def test_on_loopback_neither_is_needed() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.2.3"):
        BrokerConfig.from_mapping({"bindAddress": host})
