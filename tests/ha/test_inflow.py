"""The promise of ha.wire.inflow: what is read is not copied, and no length field reserves memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ha.wire.codec import MasterReader, Transfer
from ha.wire.inflow import ROOM_BYTES, Inflow
from tests.fakes.ha.fed import Fed
from tests.fakes.ha.frames import encode_master_handshake, encode_transfer_header


def greeted() -> MasterReader:
    reader = MasterReader()
    Fed(reader).feed(encode_master_handshake(0, [(1, 0)]))
    return reader


def test_a_body_is_a_view_of_what_was_read_until_the_next_read() -> None:
    reader = greeted()
    data = (
        encode_transfer_header(0, 5, 1, 0, 0) + b"first" + encode_transfer_header(5, 6, 1, 0, 0) + b"second"
    )
    room = reader.room()
    room[: len(data)] = data
    first, second = reader.came(len(data))
    assert isinstance(first, Transfer)
    assert isinstance(second, Transfer)
    assert (first.body, second.body) == (b"first", b"second")
    room[len(data) - 6 : len(data)] = b"SECOND"
    assert second.body == b"SECOND", "not a copy"


def test_a_frame_longer_than_a_read_gets_room_as_it_comes_and_gives_it_back() -> None:
    inflow = Inflow()
    sizes = []
    while inflow.end - inflow.start < 4 * ROOM_BYTES:
        inflow.end += min(len(inflow.room()), 60_000)
        sizes.append(len(inflow.view))
    assert sizes == sorted(sizes)
    assert sizes[0] == ROOM_BYTES
    assert all(size <= 4 * max(number * 60_000, ROOM_BYTES) for number, size in enumerate(sizes, 1))
    inflow.start = inflow.end
    assert len(inflow.room()) == ROOM_BYTES


@given(
    bodies=st.lists(st.sampled_from([0, 1, 1000, ROOM_BYTES - 36, ROOM_BYTES, 3 * ROOM_BYTES]), max_size=5),
    cut=st.sampled_from([1000, 65_536, ROOM_BYTES]),
)
def test_frames_of_any_length_survive_reads_of_any_length(bodies: list[int], cut: int) -> None:
    reader, found, at, data = Fed(greeted()), [], 0, bytearray()
    for number, size in enumerate(bodies):
        data += encode_transfer_header(at, size, 1, 0, 0) + bytes([65 + number]) * size
        at += size
    for begin in range(0, len(data), cut):
        found += reader.feed(bytes(data[begin : begin + cut]))
    assert [frame.body for frame in found if isinstance(frame, Transfer)] == [
        bytes([65 + number]) * size for number, size in enumerate(bodies)
    ]
