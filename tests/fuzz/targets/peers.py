"""What brokers and Controllers say to each other: HA, classic HA, Raft, and what they agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from controller.groups.commands import (
    ApplyBrokerId,
    RegisterBroker,
    decode_answer,
    decode_command,
    encode_command,
)
from controller.groups.table import ReplicaTable
from controller.links.frames import Frames
from controller.links.handshake import Accepting, Dialing, Identity
from controller.links.roster import Roster
from controller.packing import Malformed
from controller.raft import codec as raft
from controller.raft.seats import pack_seat, read_seat
from ha.wire import classic_codec, codec
from ha.wire.proof import Credentials, HandshakeInitiator, HandshakeResponder
from model.errors import DiskError, PeerError
from model.ids import BrokerId, Epoch, PhysicalOffset
from runtime.os_env import OsEnv
from tests.fakes.ha.fed import Fed
from tests.fuzz.targets.target import Target, pieces, stable

ENV: Final = OsEnv(seed=1)
SECRET: Final = b"s" * 32
SCOPE: Final = b"\xff" * 32


def _reader(make: Callable[[], Any]) -> Callable[[bytes], None]:
    """A stream fed at once and in pieces gives the same frames, or the same refusal."""

    def run(data: bytes) -> None:
        cut = data[0] % 13 + 1 if data else 1
        stream = data[1:]
        found, error = _fed(make(), [stream])
        again, other = _fed(make(), pieces(stream, cut))
        assert type(error) is type(other), f"{error!r} at once, {other!r} in pieces"
        if error is not None:
            try:
                raise error
            finally:
                del error, other  # or each holds its reader, and 256 KiB of room, until garbage is looked for
        assert found == again, "in pieces it is another stream"

    return run


def _fed(reader: Any, parts: Iterable[bytes]) -> tuple[list[Any], PeerError | None]:
    found: list[Any] = []
    try:
        for part in parts:
            found += reader.feed(part)
    except PeerError as error:
        return found, error
    return found, None


def _reports(data: bytes) -> None:
    reader = classic_codec.ReportReader()
    for part in pieces(data, 7):
        for ack in reader.feed(part):
            assert ack.end >= 0


EPOCHS: Final = ((Epoch(1), PhysicalOffset(0)), (Epoch(3), PhysicalOffset(1000)))


def _master_seeds() -> Iterable[bytes]:
    hello = codec.encode_master_handshake(PhysicalOffset(5000), EPOCHS)
    frame = codec.encode_transfer_header(PhysicalOffset(0), 5, Epoch(1), PhysicalOffset(0), PhysicalOffset(0))
    yield b"\4" + hello
    yield b"\4" + hello + frame + b"hello"
    yield b"\4" + codec.encode_master_handshake(PhysicalOffset(0), ()) + frame + b"hello" + frame


def _slave_seeds() -> Iterable[bytes]:
    hello = codec.encode_slave_handshake(codec.SlaveHandshake(BrokerId(2), False, False, True))
    yield b"\4" + hello + hello + codec.encode_ack(PhysicalOffset(7)) * 3
    yield b"\4" + hello


def _ha_proof(data: bytes) -> None:
    """The master's end of the proof, then the slave's: neither opens without one."""
    responder = HandshakeResponder(ENV, Credentials(SECRET, SCOPE, False), Epoch(3))
    for part in filter(None, pieces(data, 50)):
        _, opened = responder.feed(part)
        assert opened is None, "it opened without a proof"
        assert responder.proven is None, "it is believed without a proof"


def _ha_proven(data: bytes) -> None:
    initiator = HandshakeInitiator(ENV, SECRET, SCOPE, BrokerId(2), Epoch(1))
    for part in filter(None, pieces(data, 50)):
        assert initiator.feed(part) is None, "it was proven without the secret"


def _hellos() -> Iterable[bytes]:
    initiator = HandshakeInitiator(ENV, SECRET, SCOPE, BrokerId(2), Epoch(1))
    yield initiator.hello
    yield initiator.hello + bytes(32)
    responder = HandshakeResponder(ENV, Credentials(SECRET, SCOPE, False), Epoch(3))
    answer, _ = responder.feed(initiator.hello)
    yield answer
    yield answer[:40]


ADDRESSES: Final = {"n0": "127.0.0.1:1", "n1": "127.0.0.1:2", "n2": "127.0.0.1:3"}


def _accepting() -> Accepting:
    identity = Identity.of(Roster("n1", ADDRESSES), (SECRET,), tls=False)
    return Accepting(identity, frozenset(), b"n" * 32)


def _dialing(secret: bytes = SECRET) -> Dialing:
    return Dialing(Identity.of(Roster("n0", ADDRESSES), (secret, b"z" * 32), tls=False), "n1", b"d" * 32)


def _raft_accept(data: bytes) -> None:
    end = _accepting()
    for part in filter(None, pieces(data, 60)):
        end.feed(part)
        assert end.opened is None, "it opened without a proof"


def _raft_dial(data: bytes) -> None:
    end = _dialing(b"x" * 32)
    for part in filter(None, pieces(data, 60)):
        end.feed(part)
        assert end.opened is None, "it opened without a proof"


def _raft_hellos() -> Iterable[bytes]:
    dialing, accepting = _dialing(), _accepting()
    yield dialing.hello
    answer = accepting.feed(dialing.hello)
    yield answer
    yield answer[:40]
    yield dialing.hello + bytes(32)


KEY: Final = b"k" * 32


def _raft_frames(data: bytes) -> None:
    """Whatever comes, no body is taken that was not sent; and what is sent is taken."""
    frames = Frames(KEY, KEY)
    body = data[: len(data) // 2]
    frames.feed(Frames(KEY, KEY).pack(body) + data[len(data) // 2 :])
    assert frames.take() == body
    while (taken := frames.take()) is not None:
        raise AssertionError(f"took {taken!r}, which nobody proved")


def _raft_message(data: bytes) -> None:
    message = raft.decode_message(data)
    stable(message, raft.encode_message, raft.decode_message)
    if isinstance(message, raft.AppendEntries):
        raft.check_entries(message)


def _message_seeds() -> Iterable[bytes]:
    entries = ((b"command", 5, 2), (b"", 6, 3))
    for message in (
        raft.AppendEntries(3, 4, 4, 2, entries, None, 10, 1),
        raft.AppendEntries(3, 4, None, None, (), (b"piece", True, False)),
        raft.Ack(3, 7, False, True, 10, 1),
        raft.RequestVote(3, 6, 2, True),
        raft.Vote(3, True),
        raft.PreVote(4, 6, 2),
        raft.PreVoteAnswer(4, 3, True),
        raft.Admit(3, 1),
        raft.TimeoutNow(3),
    ):
        yield raft.encode_message(message)


def _snapshot(data: bytes) -> None:
    """As it came, and with its head made right: else no mutation passes the checksum."""
    for whole in (data, _snapshot_head(data)):
        try:
            snapshot = raft.decode_snapshot(whole)
        except DiskError:
            continue
        stable(snapshot, raft.encode_snapshot, raft.decode_snapshot)


def _snapshot_head(body: bytes) -> bytes:
    import struct
    import zlib

    length = struct.pack(">Q", len(body))
    return struct.pack(">8sIQ", b"KMQRSNP1", zlib.crc32(body, zlib.crc32(length)), len(body)) + body


def _snapshot_seeds() -> Iterable[bytes]:
    plain = raft.Snapshot((b"a", 4, 1), (b"b", 5, 2), b"state")
    seats = raft.Snapshot((b"a", 4, 1), (b"b", 5, 2), b"", (raft.Seat("n1", 2, "h:1", "h:2"),))
    for snapshot in (plain, seats):
        whole = raft.encode_snapshot(snapshot)
        yield whole
        yield whole[20:]


def _command(data: bytes) -> None:
    stable(decode_command(data), encode_command, decode_command)
    answer = decode_answer(ReplicaTable().apply_bytes(data))
    assert isinstance(answer.code, int)


def _known(**more: Any) -> dict[str, Any]:
    return {"group": "broker-a", "request_id": "n0-1", "now_ms": 5, **more}


def _command_seeds() -> Iterable[bytes]:
    applied = ApplyBrokerId(**_known(cluster="c", broker_id=1, check_code="h:1;5"))
    yield encode_command(applied)
    yield encode_command(RegisterBroker(**_known(cluster="c", broker_id=1, address="h:1", ha_address="h:2")))


def _table(data: bytes) -> None:
    table = ReplicaTable()
    table.restore(data)
    image = table.snapshot()
    again = ReplicaTable()
    again.restore(image)
    assert again.snapshot() == image


def _table_seeds() -> Iterable[bytes]:
    table = ReplicaTable()
    yield table.snapshot()
    for seed in _command_seeds():
        table.apply_bytes(seed)
    yield table.snapshot()


def _seat(data: bytes) -> None:
    seat = read_seat(b"\x10" + data)
    assert seat is not None
    assert read_seat(pack_seat(seat)) == seat


TARGETS: Final = (
    Target(
        name="ha_slave", run=_reader(codec.SlaveReader), declared=(PeerError,), seeds=_slave_seeds, weight=8
    ),
    Target(
        name="ha_master",
        run=_reader(lambda: Fed(codec.MasterReader())),
        declared=(PeerError,),
        seeds=_master_seeds,
        weight=8,
    ),
    Target(
        name="classic_reports",
        run=_reports,
        declared=(PeerError,),
        seeds=lambda: [classic_codec.encode_report(PhysicalOffset(5)) * 3],
        weight=10,
    ),
    Target(
        name="classic_log",
        run=_reader(lambda: Fed(classic_codec.TransferReader())),
        declared=(PeerError,),
        seeds=lambda: [b"\4" + classic_codec.encode_header(PhysicalOffset(0), 5) + b"hello"],
        weight=8,
    ),
    Target(name="ha_proof", run=_ha_proof, declared=(PeerError,), seeds=_hellos, weight=4),
    Target(name="ha_proven", run=_ha_proven, declared=(PeerError,), seeds=_hellos, weight=4),
    Target(name="raft_accept", run=_raft_accept, declared=(PeerError,), seeds=_raft_hellos, weight=3),
    Target(name="raft_dial", run=_raft_dial, declared=(PeerError,), seeds=_raft_hellos, weight=3),
    Target(
        name="raft_frames",
        run=_raft_frames,
        declared=(PeerError,),
        seeds=lambda: [Frames(KEY, KEY).pack(b"body") * 2, b""],
        weight=6,
    ),
    Target(name="raft_messages", run=_raft_message, declared=(PeerError,), seeds=_message_seeds, weight=6),
    Target(name="raft_snapshot", run=_snapshot, declared=(), seeds=_snapshot_seeds, weight=5),
    Target(
        name="raft_seat",
        run=_seat,
        declared=(Malformed,),
        seeds=lambda: [pack_seat(raft.Seat("n1", 1, "h:1", "h:2"))[1:]],
    ),
    Target(name="controller_command", run=_command, declared=(Malformed,), seeds=_command_seeds, weight=4),
    Target(name="replica_table", run=_table, declared=(ValueError,), seeds=_table_seeds, weight=4),
)
