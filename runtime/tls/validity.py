"""From when until when is a certificate good? The one thing of it that the standard library does not tell.

    Certificate ::= SEQUENCE { TBSCertificate ... }                                             RFC 5280, 4.1
    TBSCertificate ::= SEQUENCE { [0] version?, serial, signature, issuer, validity SEQUENCE { two times } ...

Pure: text of a PEM file in, milliseconds since 1970 out.
"""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_BLOCK: Final = re.compile(r"-----BEGIN (?:TRUSTED )?CERTIFICATE-----(.+?)-----END", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}  # UTCTime, GeneralizedTime


@dataclass(frozen=True, slots=True)
class Validity:
    """Milliseconds since 1970."""

    not_before_ms: int
    not_after_ms: int

    @property
    def not_after(self) -> str:
        """As ISO 8601."""
        return datetime.fromtimestamp(self.not_after_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def validity(pem: str) -> Validity:
    """Of the first certificate in ``pem``. Raises ValueError when there is none that can be read."""
    block = _BLOCK.search(pem)
    if block is None:
        raise ValueError("it holds no PEM certificate")
    try:
        return _read(b64decode("".join(block[1].split()), validate=True))
    except (ValueError, IndexError):  # of base64, too, and of text beyond ASCII
        raise ValueError("its certificate is damaged") from None


def _read(der: bytes) -> Validity:
    outer, _ = _part(der, 0)
    inner, _ = _part(outer[1], 0)
    body, at = inner[1], 0
    (tag, _), after = _part(body, at)
    at = after if tag == _VERSION else at
    for _ in range(3):  # serial, signature, issuer
        _, at = _part(body, at)
    (tag, times), _ = _part(body, at)
    if tag != _SEQUENCE:
        raise ValueError("its certificate is damaged")
    first, at = _part(times, 0)
    second, _ = _part(times, at)
    return Validity(_time_ms(first), _time_ms(second))


def _part(data: bytes, at: int) -> tuple[tuple[int, bytes], int]:
    """(tag, content) of the value at ``at``, and where the next one begins."""
    tag, size = data[at], data[at + 1]
    at += 2
    if size & 0x80:
        count = size & 0x7F
        size, at = int.from_bytes(data[at : at + count]), at + count
    if at + size > len(data):
        raise ValueError("its certificate is damaged")
    return (tag, data[at : at + size]), at + size


def _time_ms(part: tuple[int, bytes]) -> int:
    tag, text = part
    if tag not in _FORMATS:
        raise ValueError("its certificate is damaged")
    moment = datetime.strptime(text.decode("ascii"), _FORMATS[tag]).replace(tzinfo=UTC)
    # Two digits mean 1950 to 2049 there, and 1969 to 2068 to strptime.
    if tag == 0x17 and moment.year >= 2050:
        moment = moment.replace(year=moment.year - 100)
    return int(moment.timestamp() * 1000)
