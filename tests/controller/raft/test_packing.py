"""The promise of controller.packing: the bytes Controllers keep and send stay what they are."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.sim.disk import Machine
from controller.groups.commands import (
    AlterSyncStateSet,
    Answer,
    ApplyBrokerId,
    CleanBrokers,
    Command,
    ElectMaster,
    RegisterBroker,
    encode_command,
)
from controller.groups.elect import End
from controller.groups.table import ReplicaTable
from controller.packing import Limits, Malformed, pack, unpack
from controller.raft.codec import (
    Ack,
    Admit,
    AppendEntries,
    Message,
    PreVote,
    PreVoteAnswer,
    RequestVote,
    Snapshot,
    TimeoutNow,
    Vote,
    decode_message,
    decode_snapshot,
    encode_message,
    encode_snapshot,
)
from controller.raft.disk.journal import Journal
from model.errors import DiskError, PeerError
from tests import GOLDEN
from tests.fakes.disk.crashing import CrashingDisk, machine

BYTES: dict[str, Any] = json.loads((GOLDEN / "controller" / "msgpack.json").read_text())

MESSAGES: dict[str, Message] = {
    "append": AppendEntries(
        7, 300, 65536, 6, ((b"\x00" + b"x" * 300, 65537, 7), (b"", 65538, 7)), None, 2**40, 3
    ),
    "append a piece": AppendEntries(7, 1, serialized=(b"piece", True, False)),
    "append nothing": AppendEntries(2**63 - 1, 2**32),
    "ack": Ack(7, 128, True, False, 2**33, 255, False),
    "request vote": RequestVote(8, 256, 7, True),
    "vote": Vote(8, True, False),
    "pre-vote": PreVote(8, 65535, 7),
    "pre-vote answer": PreVoteAnswer(8, 7, True),
    "admit": Admit(9),
    "timeout now": TimeoutNow(9),
}
LIBRARY: dict[str, dict[str, Any]] = {
    "request vote": {"type": "request_vote", "term": 3, "last_log_index": 2, "last_log_term": 1},
    "append": {
        "type": "append_entries",
        "term": 3,
        "commit_index": 2,
        "entries": [(b"\x01", 3, 3)],
        "prevLogIdx": 2,
        "prevLogTerm": 1,
        "sent_us": 5,
        "round": 1,
    },
}
SNAPSHOT = Snapshot((b"eight", 8, 2), (b"nine", 9, 2), bytes(range(256)) * 2)
COMMANDS: dict[str, Command] = {
    "register": RegisterBroker(group="g", cluster="c", broker_id=1, address="ä:1", ha_address="a:2"),
    "apply": ApplyBrokerId(group="g", cluster="c", broker_id=1, check_code="a:1;5", request_id="r1"),
    "elect": ElectMaster(
        group="g", broker_id=1, alive=(1, 2), ends={1: End(3, 70000), 2: End(3, 5)}, all_ack=True
    ),
    "alter": AlterSyncStateSet(
        group="g", master_id=1, master_epoch=1, members=(1,), members_epoch=1, alive=(1,)
    ),
    "clean": CleanBrokers(group="g", broker_ids=(2,), request_id="r2"),
}
JOURNAL = "/raft/raft.journal"


def journal_bytes() -> bytes:
    on = machine()
    journal = Journal(CrashingDisk(on), JOURNAL, "n0")
    journal.admit()
    for index in range(1, 5):
        journal.add(b"\x00" + b"c" * 40 * index, index, 1)
    journal.deleteEntriesFrom(3)
    journal.setCurrentTerm(70000, "n1")
    journal.setCurrentTerm(70001, None)
    journal.close()
    return on.content(JOURNAL)


def said_and_kept() -> dict[str, Any]:
    return {
        "messages": {name: encode_message(message).hex() for name, message in MESSAGES.items()},
        "library": {name: encode_message(message).hex() for name, message in LIBRARY.items()},
        "snapshot": encode_snapshot(SNAPSHOT).hex(),
        "journal": journal_bytes().hex(),
    }


def test_what_is_said_and_kept_is_byte_for_byte_what_it_was() -> None:
    now = said_and_kept()
    for kind, golden in BYTES.items():
        assert now[kind] == golden, kind
    assert now.keys() == BYTES.keys()
    for name, message in MESSAGES.items():
        assert decode_message(bytes.fromhex(BYTES["messages"][name])) == message
    assert decode_snapshot(bytes.fromhex(BYTES["snapshot"])) == SNAPSHOT


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(PLAIN)
def test_two_encoders_agree_on_the_bytes(value: Any) -> None:
    """Members of an earlier version wrote theirs with msgspec."""
    assert pack(value) == msgspec.msgpack.encode(value)


def test_commands_answers_and_tables_have_the_bytes_of_an_earlier_version() -> None:
    made = ReplicaTable()
    for command in COMMANDS.values():
        encoded = encode_command(command)
        assert encoded == msgspec.msgpack.encode(command)
        answer = made.apply_bytes(encoded)
        assert answer == msgspec.msgpack.encode(msgspec.msgpack.decode(answer, type=Answer))
    image = made.snapshot()
    assert image == msgspec.msgpack.encode(msgspec.msgpack.decode(image))
    again = ReplicaTable()
    again.restore(image)
    assert again == made


@given(st.binary() | PLAIN.map(msgpack.packb))
def test_bytes_that_are_no_message_are_the_peers_mistake(data: bytes) -> None:
    with pytest.raises(PeerError, match="not a Raft message"):
        decode_message(data)


NOT_UTF_8 = b"\xa2\xff\xfe"


def test_text_that_is_not_utf_8_is_a_declared_error_everywhere() -> None:
    with pytest.raises(PeerError, match="not a Raft message"):
        decode_message(NOT_UTF_8)
    with pytest.raises(PeerError, match="not a Raft message"):
        decode_message(encode_message(Admit(9)).replace(b"type", b"t\xffpe"))
    snapshot = encode_snapshot(SNAPSHOT)
    assert ReplicaTable().apply_bytes(NOT_UTF_8) != b""
    with pytest.raises(ValueError, match="not a replica table"):
        ReplicaTable().restore(NOT_UTF_8)
    assert decode_snapshot(snapshot) == SNAPSHOT


def sealed(records: bytes) -> Machine:
    """A journal whose one batch has this body, and the checksum of it."""
    rest = struct.pack(">QI", 1, len(records)) + records
    on = machine()
    disk = CrashingDisk(on)
    file = disk.open(JOURNAL, create=True)
    file.pwrite(b"KMQRJNL1KRB1" + struct.pack(">I", zlib.crc32(rest)) + rest, 0)
    file.close()
    return on


@pytest.mark.parametrize(
    "body",
    [
        b"\x91\x92\xa1o" + NOT_UTF_8,
        b"\x91\x93\xa1m\x05" + NOT_UTF_8,
        b"\x91" * 2000,
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91\x91\xa1z",
        b"\x91\x92\xa1o\xd6\xff1234",
    ],
)
def test_a_batch_that_is_not_ours_is_a_disk_error(body: bytes) -> None:
    with pytest.raises(DiskError, match="is not ours"):
        Journal(CrashingDisk(sealed(body)), JOURNAL, "n0")


@pytest.mark.parametrize(
    "data",
    [
        b"\xc6\x00\x00\x00\x09" + bytes(9),
        b"\xd9\x09" + b"x" * 9,
        b"\x99" + b"\x01" * 9,
        b"\x89" + b"".join(b"\xa1" + bytes((97 + i,)) + b"\x01" for i in range(9)),
        b"\xd6\xff1234",
        b"\xc7\x01\x05x",
        b"\x81\x90\x01",
        b"\x81\x80\x01",
    ],
    ids=["bytes", "text", "list", "map", "time", "extension", "list as key", "map as key"],
)
def test_nothing_longer_or_stranger_than_allowed_is_unpacked(data: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(data, object, Limits(bytes_max=8, text_max=8, items_max=8))


def test_values_are_not_bent_into_the_type_that_is_wanted() -> None:
    limits = Limits(bytes_max=64, text_max=64, items_max=64)
    assert unpack(pack([1, b"x"]), tuple[int, bytes], limits) == (1, b"x")
    for value in ([1, "eA=="], [True, b"x"], [1.0, b"x"], ["1", b"x"], [1, b"x", 2]):
        with pytest.raises(Malformed):
            unpack(pack(value), tuple[int, bytes], limits)


def test_an_answer_of_the_table_comes_back() -> None:
    answer = Answer(2005, "no", {"a": "b"}, {"syncStateSet": [1]}, True)
    assert unpack(pack(answer), Answer, Limits(bytes_max=64, text_max=64, items_max=64)) == answer
