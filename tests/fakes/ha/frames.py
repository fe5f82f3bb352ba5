"""The frames of the HA port, written in plain numbers: a test says 100, not which kind of number it is."""

from collections.abc import Iterable, Sequence

from ha.wire import classic_codec, codec
from ha.wire.codec import Ack, Body, MasterHandshake, SlaveHandshake, Transfer
from model.ids import BrokerId, Epoch, PhysicalOffset
from tests.plain import epoch_starts


def slave_handshake(
    broker_id: int, from_last_file: bool, learner: bool, answers_heartbeats: bool = False
) -> SlaveHandshake:
    return SlaveHandshake(BrokerId(broker_id), from_last_file, learner, answers_heartbeats)


def ack(end: int) -> Ack:
    return Ack(PhysicalOffset(end))


def master_handshake(end: int, last_epoch: int, epochs: Iterable[tuple[int, int]]) -> MasterHandshake:
    return MasterHandshake(PhysicalOffset(end), Epoch(last_epoch), epoch_starts(epochs))


def transfer(offset: int, epoch: int, epoch_start: int, confirmed: int, body: Body) -> Transfer:
    return Transfer(
        PhysicalOffset(offset), Epoch(epoch), PhysicalOffset(epoch_start), PhysicalOffset(confirmed), body
    )


def encode_ack(end: int) -> bytes:
    return codec.encode_ack(PhysicalOffset(end))


def encode_master_handshake(end: int, epochs: Sequence[tuple[int, int]]) -> bytes:
    return codec.encode_master_handshake(PhysicalOffset(end), epoch_starts(epochs))


def encode_transfer_header(offset: int, size: int, epoch: int, epoch_start: int, confirmed: int) -> bytes:
    return codec.encode_transfer_header(
        PhysicalOffset(offset), size, Epoch(epoch), PhysicalOffset(epoch_start), PhysicalOffset(confirmed)
    )


def encode_report(end: int) -> bytes:
    return classic_codec.encode_report(PhysicalOffset(end))


def encode_header(offset: int, size: int) -> bytes:
    return classic_codec.encode_header(PhysicalOffset(offset), size)
