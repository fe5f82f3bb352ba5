"""Which send does the header of a frame ask for, in as few steps as Python allows?

Both dialects, SEND_MESSAGE (10) by full names and SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320) by
letters: ``remoting/headers.SEND_NAMES`` has the names. A JSON header goes through a struct decoder. Of a
ROCKETMQ header most bytes are those of the message before: what stands around its two fields that change
(``bornTimestamp`` and ``properties``) is parsed once, by the ordinary codec, and known again by its bytes.
What does not look like a fast send comes back without ``ext``: the ordinary way decides about it.

The JSON decoder forgives two things that no client sends and the ordinary one refuses: a field given twice
(the last one counts), and bytes that are not UTF-8 in what it passes over.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from broker.requests.send_format import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN
from model.codes import Request
from model.errors import PeerError, Refused
from remoting import codec
from remoting.headers import SEND_V1_NAMES, SEND_V2_NAMES, SendHeader

SEND_V1: Final = int(Request.SEND_MESSAGE)
SEND: Final = int(Request.SEND_MESSAGE_V2)
SEND_BATCH: Final = int(Request.SEND_BATCH_MESSAGE)
SENDS: Final = frozenset({SEND_V1, SEND, SEND_BATCH})
KNOWN_BYTES_MAX: Final = 16 << 20
"""Of headers remembered: one a producer group, topic, queue and kind of message."""
KNOWN_BYTES: Final = 1200
"""Of one, besides the bytes it is found by."""
AROUND_BYTES_MAX: Final = 1024
"""A longer one is not remembered: names of megabytes, each met once, would fill the memory."""

if TYPE_CHECKING:
    _I32 = int
    _I64 = int
else:
    # A fraction or an exponent makes it the second one, which no number is: alone, 5.0 and "5e0" would be 5.
    _WITH_FRACTION = Annotated[float, msgspec.Meta(gt=1e308, lt=-1e308)]
    _I32 = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)] | _WITH_FRACTION
    _I64 = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)] | _WITH_FRACTION


class SendExt(msgspec.Struct, gc=False, rename=SEND_V2_NAMES):
    """The fields of a send that are mandatory or looked at; a JSON header with other ones fails to decode.
    See ``SendHeader``; ``batch`` is the text as it came."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: _I32
    queue_id: _I32
    sys_flag: _I32
    born_timestamp_ms: _I64
    flag: _I32
    properties: str = ""
    reconsume_times: _I32 = 0
    batch: str = ""
    max_reconsume_times: _I32 = 0


class SendHead(msgspec.Struct, gc=False):
    """Of SEND_MESSAGE the ``code`` is that of SEND_MESSAGE_V2: they differ in their names only."""

    code: _I32
    opaque: _I32 = 0
    flag: _I32 = 0
    version: _I32 = 0
    ext: SendExt | None = msgspec.field(default=None, name="extFields")


decode_json: Final = msgspec.json.Decoder(SendHead, strict=False).decode
"""The head in a JSON header by letters. Raises ``ODD``: it is another one. With code 10 it is no send."""
ODD: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_NO_SEND: Final = SendHead(0)
_ODD_SEND: Final = SendHead(SEND)
_SEND_CODE: Final = re.compile(rb'"code"\s*:\s*"?(10|310|320)\b')


_NUMBER: Final = re.compile(rb'"?(-?[0-9]{1,10})"?')


class _Code(msgspec.Struct, gc=False):
    code: msgspec.Raw  # 5.0 is no number to the codec, and one to msgspec


_decode_code: Final = msgspec.json.Decoder(_Code).decode


def _by_full_names() -> Any:
    fields: list[Any] = [
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(SendExt)
    ]
    ext = msgspec.defstruct("SendExtV1", fields, gc=False, rename=SEND_V1_NAMES)
    head: list[Any] = [
        ("code", _I32),
        ("extFields", ext),
        ("opaque", _I32, 0),
        ("flag", _I32, 0),
        ("version", _I32, 0),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("SendHeadV1", head, gc=False), strict=False).decode


_decode_v1: Final = _by_full_names()


def odd_json(header: memoryview) -> SendHead:
    """The head in a JSON header that ``decode_json`` raised ``ODD`` for."""
    found = _SEND_CODE.search(header)
    if found is None:
        # Without a code of its own (one may be among its fields) the ordinary way ends the connection, before
        # what is behind this frame.
        try:
            number = _NUMBER.fullmatch(bytes(_decode_code(header).code))
        except ODD:
            return _ODD_SEND
        known = number is not None and -(2**31) <= int(number[1]) < 2**31 and int(number[1]) not in SENDS
        return _NO_SEND if known else _ODD_SEND
    if int(found[1]) == SEND_V1:
        try:
            head = _decode_v1(header)
        except ODD:
            return _ODD_SEND
        if head.code == SEND_V1:
            ext = SendExt(*msgspec.structs.astuple(head.extFields))
            return SendHead(SEND, head.opaque, head.flag, ext=ext)
    return _ODD_SEND


# ROCKETMQ headers

_BORN_DIGITS: Final = 13  # milliseconds, from 2001 to 2286
_HEADER: Final = struct.Struct(">hxxxiiii")
_INT_AT: Final = struct.Struct(">i").unpack_from
_EXT_AT: Final = _HEADER.size
assert _EXT_AT == 21, "code, language, version, opaque, flag, no remark, length of the ext fields"


def _marks(names: dict[str, str]) -> tuple[bytes, bytes, frozenset[str]]:
    born, properties = names["born_timestamp_ms"].encode(), names["properties"].encode()
    return (
        struct.pack(">h", len(born)) + born + struct.pack(">i", _BORN_DIGITS),
        struct.pack(">h", len(properties)) + properties,
        frozenset(names.values()),
    )


_MARKS: Final = {
    SEND_V1: _marks(SEND_V1_NAMES),
    SEND: _marks(SEND_V2_NAMES),
    SEND_BATCH: _marks(SEND_V2_NAMES),
}
"""By code: what stands right before the digits of the born time, what before the length of the properties,
and the names a header may have to be remembered."""

_Around = tuple[int, bytes, bytes, bytes]

_Known = tuple[SendHead, SendExt]  # the second one is of the first


class BinaryHeads:
    """Reads ROCKETMQ headers; ``head`` is the call of each frame.

    Holds: a header whose bytes around the two changing fields equal remembered ones, with the lengths between
    them as these say, has the same fields in the same places: no bytes of a value pass for a field.
    """

    def __init__(self) -> None:
        self._known: dict[_Around, _Known] = {}
        self._recent: dict[bytes, tuple[int, bytes, bytes, _Known]] = {}
        """The one of ``_known`` that came last with these bytes before the born time: its code, what stood
        between, and behind. Most headers are found by them with half as many bytes to cut out and hash."""
        self._bytes = 0

    def head(self, header: bytes) -> SendHead:
        """The head in one whole header: to be read before the next call, which may change it."""
        if len(header) < _EXT_AT:
            return _ODD_SEND  # it cannot be read: the ordinary way ends the connection
        code, opaque, flag, remark_bytes, ext_bytes = _HEADER.unpack_from(header)
        marks = _MARKS.get(code)
        if marks is None:
            return _NO_SEND
        born_mark = marks[0]
        born_at = header.find(born_mark, _EXT_AT) + len(born_mark)
        rest_at = born_at + _BORN_DIGITS
        before = header[_EXT_AT:born_at]
        recent = self._recent.get(before)
        if recent is not None and not remark_bytes and ext_bytes == len(header) - _EXT_AT:
            its_code, between, behind, known = recent
            size_at = rest_at + len(between)
            if (
                code == its_code
                and header.startswith(between, rest_at)
                and header.endswith(behind)
                and size_at + 4 <= len(header)
                and size_at + 4 + _INT_AT(header, size_at)[0] == len(header) - len(behind) >= size_at + 4
                and (born := header[born_at:rest_at]).isdigit()
            ):
                try:
                    properties = header[size_at + 4 : len(header) - len(behind)].decode()
                except UnicodeDecodeError:
                    return _ODD_SEND
                head, ext = known
                head.opaque, head.flag = opaque, flag
                ext.born_timestamp_ms, ext.properties = int(born), properties
                return head
        return self._met(header, code, born_at)

    def _met(self, header: bytes, code: int, born_at: int) -> SendHead:
        """``head`` of a header of a send, where its born time would be at ``born_at``."""
        _, opaque, flag, remark_bytes, ext_bytes = _HEADER.unpack_from(header)
        rest_at, properties_mark = born_at + _BORN_DIGITS, _MARKS[code][1]
        size_at = header.find(properties_mark, rest_at) + len(properties_mark)
        if (
            remark_bytes
            or ext_bytes != len(header) - _EXT_AT
            or size_at < rest_at
            or size_at + 4 > len(header)
        ):
            return _ODD_SEND
        end = size_at + 4 + _INT_AT(header, size_at)[0]
        born = header[born_at:rest_at]
        if end < size_at + 4 or end > len(header) or not born.isdigit():
            return _ODD_SEND
        around = (code, header[_EXT_AT:born_at], header[rest_at:size_at], header[end:])
        known = self._known.get(around)
        try:
            if known is None:
                known = self._learn(around, header)
            properties = header[size_at + 4 : end].decode()
        except (PeerError, Refused, UnicodeDecodeError, struct.error):
            return _ODD_SEND
        self._recent[around[1]] = (code, around[2], around[3], known)
        head, ext = known
        head.opaque, head.flag = opaque, flag
        ext.born_timestamp_ms, ext.properties = int(born), properties
        return head

    def _learn(self, around: _Around, header: bytes) -> _Known:
        """The fields of a header met for the first time. Raises PeerError, Refused: it is not to be
        remembered, or none at all."""
        code, before, between, _ = around
        names = SEND_V1_NAMES if code == SEND_V1 else SEND_V2_NAMES
        fields = codec.binary_fields(header, _EXT_AT, len(header))
        places = {key: at for key, at, _ in fields}
        born_at = _EXT_AT + len(before)
        if (
            sum(map(len, around[1:])) > AROUND_BYTES_MAX
            or len(places) != len(fields)
            or not places.keys() <= _MARKS[code][2]
            or places.get(names["born_timestamp_ms"]) != born_at
            or places.get(names["properties"]) != born_at + _BORN_DIGITS + len(between) + 4
        ):
            raise PeerError("a header that is not to be remembered")
        texts = codec.binary_ext(header, fields)
        found = SendHeader.parse(code, texts)
        ext = SendExt(
            found.producer_group,
            found.topic,
            found.default_topic,
            found.default_topic_queues,
            found.queue_id,
            found.sys_flag,
            0,
            found.flag,
            "",
            found.reconsume_times,
            texts.get(names["batch"], ""),
        )
        self._bytes += KNOWN_BYTES + sum(map(len, around[1:]))
        if self._bytes > KNOWN_BYTES_MAX:
            self._known.clear()
            self._recent.clear()
            self._bytes = 0
        kind = SEND_BATCH if code == SEND_BATCH else SEND
        known = self._known[around] = (SendHead(kind, ext=ext), ext)
        return known
