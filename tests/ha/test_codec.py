"""The promise of ha.wire.codec: frames survive any cut of the stream, and no byte of a peer is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.wire.codec import (
    MasterHandshake,
    MasterReader,
    SlaveReader,
    Transfer,
    encode_slave_handshake,
)
from model.errors import PeerError
from tests.fakes.ha.fed import Fed
from tests.fakes.ha.frames import (
    ack,
    encode_ack,
    encode_master_handshake,
    encode_transfer_header,
    master_handshake,
    slave_handshake,
    transfer,
)

OFFSETS = st.integers(0, 2**62)
CUTS = st.lists(st.integers(1, 200), max_size=60)


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    found = []
    for cut in cuts:
        found.append(data[:cut])
        data = data[cut:]
    return [*found, data]


@st.composite
def transfers(draw: st.DrawFn) -> Transfer:
    body = draw(st.binary(max_size=100))
    return transfer(draw(OFFSETS), draw(st.integers(0, 2**31 - 1)), draw(OFFSETS), draw(OFFSETS), body)


def encoded(frame: Transfer) -> bytes:
    head = encode_transfer_header(
        frame.offset, len(frame.body), frame.epoch, frame.epoch_start, frame.confirmed
    )
    return head + frame.body


def test_frames_have_the_bytes_of_the_real_thing() -> None:
    assert encode_slave_handshake(slave_handshake(2, False, True)).hex() == "0000000100000001" + f"{2:016x}"
    # What a real master, which compares with 1, takes for a no.
    prompt = slave_handshake(2, False, False, answers_heartbeats=True)
    assert encode_slave_handshake(prompt).hex() == "0000000100020000" + f"{2:016x}"
    assert SlaveReader().feed(encode_slave_handshake(prompt)) == [prompt]
    last_file = encode_slave_handshake(slave_handshake(2, True, False, answers_heartbeats=True))
    assert last_file.hex() == "0000000100010000" + f"{2:016x}"
    assert encode_ack(4514).hex() == "00000002" + f"{4514:016x}"
    assert encode_master_handshake(99, [(1, 0), (3, 90)]).hex() == (
        "0000000100000018" + f"{99:016x}00000003" + "00000001" + f"{0:016x}00000003" + f"{90:016x}"
    )
    assert encode_master_handshake(0, []).hex() == "0000000100000000" + f"{0:016x}" + "ffffffff"
    assert encode_transfer_header(32768, 28254, 3, 93790, 7).hex() == (
        f"00000002{28254:08x}{32768:016x}00000003{93790:016x}{7:016x}"
    )


@given(ends=st.lists(OFFSETS, max_size=20), broker_id=st.integers(1, 2**63 - 1), cuts=CUTS)
def test_a_slaves_frames_survive_any_cut(ends: list[int], broker_id: int, cuts: list[int]) -> None:
    handshake = slave_handshake(broker_id, True, False)
    data = encode_slave_handshake(handshake) + b"".join(encode_ack(end) for end in ends)
    reader = SlaveReader()
    frames = [frame for chunk in chunks(data, cuts) for frame in reader.feed(chunk)]
    assert frames == [handshake, *(ack(end) for end in ends)]


@given(sent=st.lists(transfers(), max_size=8), cuts=CUTS)
def test_a_masters_frames_survive_any_cut(sent: list[Transfer], cuts: list[int]) -> None:
    epochs = ((1, 0), (3, 93790))
    data = encode_master_handshake(99999, epochs) + b"".join(encoded(frame) for frame in sent)
    reader = Fed(MasterReader())
    frames = [frame for chunk in chunks(data, cuts) for frame in reader.feed(chunk)]
    assert frames == [master_handshake(99999, 3, epochs), *sent]


def test_a_handshake_of_twelve_bytes_is_waited_for() -> None:
    reader = SlaveReader()
    data = encode_slave_handshake(slave_handshake(2**40 + 7, False, False))
    assert reader.feed(data[:12]) == []
    assert reader.feed(data[12:]) == [slave_handshake(2**40 + 7, False, False)]


@pytest.mark.parametrize("broker_id", [0, -1, -(2**63)])
def test_an_id_no_controller_gives_is_refused(broker_id: int) -> None:
    with pytest.raises(PeerError, match="broker id"):
        SlaveReader().feed(encode_slave_handshake(slave_handshake(broker_id, False, False)))


def test_a_classic_slave_or_stranger_is_refused_at_its_first_bytes() -> None:
    with pytest.raises(PeerError, match="state"):
        SlaveReader().feed((4096).to_bytes(8, "big"))
    with pytest.raises(PeerError, match="state"):
        SlaveReader().feed(b"GET / HTTP/1.1\r\n")


def test_a_handshake_said_again_before_the_first_ack_is_heard_once_whatever_the_cuts() -> None:
    handshake = encode_slave_handshake(slave_handshake(2, False, False))
    data = handshake * 3 + encode_ack(7)
    for size in range(1, len(data) + 1):
        reader = SlaveReader()
        found = [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])]
        assert found == [slave_handshake(2, False, False), ack(7)]


def test_another_handshake_on_a_connection_or_one_after_an_ack_is_refused() -> None:
    first, other = (encode_slave_handshake(slave_handshake(i, False, False)) for i in (2, 3))
    with pytest.raises(PeerError, match="another handshake"):
        SlaveReader().feed(first + other)
    with pytest.raises(PeerError, match="state 1"):
        SlaveReader().feed(first + encode_ack(7) + first)


def test_a_negative_ack_is_refused() -> None:
    reader = SlaveReader()
    reader.feed(encode_slave_handshake(slave_handshake(2, False, False)))
    with pytest.raises(PeerError, match="-1"):
        reader.feed(encode_ack(-1))


@pytest.mark.parametrize(
    "header",
    [
        encode_transfer_header(0, 2**31 - 1, 1, 0, 0),
        encode_transfer_header(0, -1, 1, 0, 0),
        encode_transfer_header(-1, 1, 1, 0, 0),
        encode_transfer_header(-2, 0, 1, 0, 0),
        encode_transfer_header(2**63 - 1, 1, 1, 0, 0),
        encode_transfer_header(0, 0, -1, 0, 0),
        encode_transfer_header(0, 0, 1, -1, 0),
        encode_transfer_header(0, 0, 1, 0, -2),
    ],
)
def test_a_frame_that_cannot_be_is_refused_before_its_body_is_waited_for(header: bytes) -> None:
    reader = Fed(MasterReader())
    reader.feed(encode_master_handshake(0, [(1, 0)]))
    with pytest.raises(PeerError):
        reader.feed(header)


@pytest.mark.parametrize(
    "epochs", [[(2, 0), (1, 10)], [(1, 10), (2, 5)], [(1, 0), (1, 10)], [(1, 0), (2, 0)]]
)
def test_epochs_out_of_order_are_refused(epochs: list[tuple[int, int]]) -> None:
    with pytest.raises(PeerError, match="out of order"):
        Fed(MasterReader()).feed(encode_master_handshake(0, epochs))


@given(data=st.binary(max_size=300), greeted=st.booleans())
def test_any_bytes_end_in_frames_or_a_peer_error(data: bytes, greeted: bool) -> None:
    master, slave = Fed(MasterReader()), SlaveReader()
    if greeted:
        master.feed(encode_master_handshake(0, [(1, 0)]))
        slave.feed(encode_slave_handshake(slave_handshake(2, False, False)))
    for feed in (master.feed, slave.feed):
        try:
            frames = feed(data)
        except PeerError:
            continue
        assert len(frames) <= len(data)


def test_only_the_newest_thousand_epochs_are_sent() -> None:
    epochs = [(n, n * 10) for n in range(1, 1501)]
    (frame,) = Fed(MasterReader()).feed(encode_master_handshake(99999, epochs))
    assert isinstance(frame, MasterHandshake)
    assert frame.epochs == tuple(epochs[-1000:])
    assert frame.last_epoch == 1500
