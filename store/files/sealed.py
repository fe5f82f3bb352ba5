"""How does a small file tell that a bit of it flipped, and what it was before?

Every copy carries a CRC-32, and stands twice: ``path`` and ``path.bak`` have the same content. One
flipped bit is found by its CRC and turned back; more in one copy leave the other.

JSON objects (``config/*.json``) carry it as their last member, which RocketMQ passes over when it reads and
leaves out when it writes: without it, a file is believed as it stands.

    {...,
    "keelmqCrc32":"1f2e3d4c"     CRC-32 of all bytes before the comma, 8 hex digits
    }
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar
from zlib import crc32

from model.errors import DiskError
from runtime.env import Disk, read_file, write_file

log = logging.getLogger(__name__)

T = TypeVar("T")

CRC_KEY: Final = "keelmqCrc32"
_BEFORE: Final = b',\n\t"%b":"' % CRC_KEY.encode()
_AFTER: Final = b'"\n}'
_DIGITS: Final = 8
_TRAILER_BYTES: Final = len(_BEFORE) + _DIGITS + len(_AFTER)
_FLIPS_MAX: Final = 12
"""A trailer with so many flipped bits is still known to be one."""
TURN_BACK_BYTES_MAX: Final = 16 << 20
"""In a longer file a flipped bit is not looked for: that takes a second for 4 MB."""
TRY_ALL_BYTES_MAX: Final = 2048
"""As above where every bit is tried in turn."""


def seal(data: bytes) -> bytes:
    """``data``, the text of a JSON object with members, with its CRC as the last one."""
    head = data.rstrip().removesuffix(b"}").rstrip()
    return b"%b%b%08x%b" % (head, _BEFORE, crc32(head), _AFTER)


def unseal(data: bytes) -> bytes:
    """The sealed text as it was written, or as it stands when it never was sealed. Raises DiskError when
    more than a bit of it changed."""
    at = len(data) - _TRAILER_BYTES
    trailer = data[max(at, 0) :]
    if at <= 0 or not _looks_sealed(trailer):
        return data
    head, digits = data[:at], trailer[len(_BEFORE) : len(_BEFORE) + _DIGITS]
    computed = crc32(head)
    if _distance(b"%08x" % computed, digits) > 1:  # one flipped bit of the digits says nothing of the rest
        try:
            head = turn_back(head, int.from_bytes(bytes.fromhex(digits.decode())))
        except ValueError:  # no hexadecimal digits, or no bit explains them
            raise DiskError("more than one bit of it changed") from None
    return seal(head + b"}")


def _looks_sealed(trailer: bytes) -> bool:
    cut = len(trailer) - len(_AFTER)
    return _distance(trailer[: len(_BEFORE)], _BEFORE) + _distance(trailer[cut:], _AFTER) <= _FLIPS_MAX


def _distance(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


def turn_back(data: bytes, crc: int) -> bytes:
    """``data`` with the one bit flipped that gives it this CRC-32. Raises ValueError when there is none."""
    if not 0 <= crc < 1 << 32:
        raise ValueError(f"{crc} is no CRC-32")
    difference = crc32(data) ^ crc
    if len(data) <= TURN_BACK_BYTES_MAX:
        for at in range(len(data) - 1, -1, -1):
            bit = _OF_LAST_BYTE.get(difference)
            if bit is not None:
                fixed = bytearray(data)
                fixed[at] ^= 1 << bit
                return bytes(fixed)
            # What it would be if the flipped byte stood one place further behind.
            index = _BY_TOP_BYTE[difference >> 24]
            difference = (difference ^ _TABLE[index]) << 8 & 0xFFFFFFFF | index
    raise ValueError("no single flipped bit explains the CRC")


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        table.append(value)
    return table


_TABLE: Final = _table()
_BY_TOP_BYTE: Final = {value >> 24: index for index, value in enumerate(_TABLE)}
_OF_LAST_BYTE: Final = {_TABLE[1 << bit]: bit for bit in range(8)}
"""How a CRC changes with one bit of the last byte."""


def one_bit_off(data: bytes, parse: Callable[[bytes], T]) -> T | None:
    """What ``parse`` makes of ``data`` with one bit flipped, whichever it takes; None when it takes none.

    ``parse`` raises ValueError or DiskError for what it does not take, and must be strict: it checks a CRC.
    """
    if len(data) > TRY_ALL_BYTES_MAX:
        return None
    tried = bytearray(data)
    for bit in range(len(data) * 8):
        tried[bit // 8] ^= 1 << bit % 8
        try:
            return parse(bytes(tried))
        except (ValueError, DiskError):
            tried[bit // 8] ^= 1 << bit % 8
    return None


def read_copies(disk: Disk, path: str, mend: Callable[[bytes], bytes]) -> tuple[bytes | None, bool]:
    """What the file at ``path``, or its ``.bak``, should hold, None when there is neither; and whether both
    do. ``mend`` gives the content as it was written, and raises ValueError or DiskError when it cannot.
    Raises DiskError when it can for neither, OSError.

    What is read counts from now on, so the names are made durable first: the sync of the directory may be
    what the last process ended with, and then a crash brings the former content back.
    """
    if disk.exists(path) or disk.exists(path + ".bak"):
        disk.sync_dir(path.rpartition("/")[0] or ".")
    problem: str | None = None
    found: bytes | None = None
    whole = True
    for copy in (path, path + ".bak"):
        try:
            data = read_file(disk, copy)
            content = mend(data)
        except FileNotFoundError:
            continue
        except (DiskError, ValueError) as error:
            log.error("%s is damaged: %s", copy, error)
            problem = problem or f"{copy}: {error}"
            whole = False
            continue
        if found is None:
            found = content
        whole = whole and content == data
    if found is None and problem is not None:
        raise DiskError(f"no readable copy of {path}: {problem}")
    return found, whole


def write_copies(disk: Disk, path: str, data: bytes) -> None:
    """Replace ``path``, then ``path.bak``, by ``data``; a crash leaves each as it was or as it is to be.
    Raises OSError."""
    write_file(disk, path, data)
    write_file(disk, path + ".bak", data)
