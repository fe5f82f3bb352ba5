"""Which broker wrote a store last? Its small files tell, which each broker leaves in its own way.

RocketMQ writes ``config/consumerOffset.json`` again, each 5 s and at its stop, without keelmq's CRC, and the
first 56 bytes of ``config/timercheck``, of which keelmq's part beside them keeps a copy. It leaves keelmq's
marks in ``checkpoint`` and ``timercheck``, and ``bootId.json``, as they are. keelmq writes the offsets when
they change. docs/formats/store.md has the layouts.
"""

from __future__ import annotations

import zlib
from enum import Enum
from typing import Final

from audit.reading.small.config_tables import is_sealed
from audit.reading.small.seals import CHECKPOINT_MARK, is_sealed_by
from audit.reading.storage import Storage

CONSUMER_OFFSETS: Final = "config/consumerOffset.json"
BOOT: Final = "bootId.json"
_TIMERS: Final = "config/timercheck"
_OFFSETS_BYTES_MAX: Final = 256 * 1024 * 1024


class Writer(Enum):
    KEELMQ = "keelmq"
    ROCKETMQ_SINCE = "RocketMQ, on a store that keelmq wrote"
    UNKNOWN = "nothing tells, or keelmq never wrote it"


def last_writer(storage: Storage) -> Writer:
    """Files that cannot be read tell nothing: that is said where all of them are looked at."""
    try:
        if storage.exists(CONSUMER_OFFSETS):
            sealed, timers = is_sealed(_read(storage, CONSUMER_OFFSETS)), _of_timers(storage)
            if sealed or (timers is Writer.KEELMQ and storage.exists(BOOT)):
                return Writer.KEELMQ
            return timers if timers is Writer.ROCKETMQ_SINCE else Writer.UNKNOWN
        return Writer.KEELMQ if storage.exists(BOOT) else Writer.UNKNOWN
    except OSError:
        return Writer.UNKNOWN


def is_written_over(storage: Storage, checkpoint: bytes) -> bool:
    """Did RocketMQ write its part of a checkpoint over keelmq's? Then the seal's CRC is of what stood there
    before, but the seal itself is as it was: the note behind it has its CRC."""
    note = zlib.crc32(checkpoint[64:88] + checkpoint[96:104])
    whole = checkpoint[88:92] == b"KQS1" and int.from_bytes(checkpoint[92:96]) == note
    marked = is_sealed_by(checkpoint, CHECKPOINT_MARK)
    return marked and whole and last_writer(storage) is Writer.ROCKETMQ_SINCE


def _of_timers(storage: Storage) -> Writer:
    raw = _read(storage, _TIMERS)[:112] if storage.exists(_TIMERS) else b""
    if raw[64:68] != b"KQT1" or int.from_bytes(raw[68:72]) != zlib.crc32(raw[72:112]):
        return Writer.UNKNOWN
    return Writer.KEELMQ if raw[:8] + raw[16:24] == raw[72:88] else Writer.ROCKETMQ_SINCE


def _read(storage: Storage, file: str) -> bytes:
    return storage.read(file, 0, min(storage.size(file), _OFFSETS_BYTES_MAX))
