"""Which bytes are one command on the wire, and which command are these bytes?

    at  size  field
     0     4  length of what follows, itself not counted
     4     1  header type: 0 = JSON, 1 = ROCKETMQ (binary)
     5     3  header length
     8     n  header
   8+n  rest  body

A ROCKETMQ header:

    size  field
       2  code           1  language code      2  version      4  opaque      4  flag
     4+n  remark: length, text (length 0 = none)
     4+n  ext: length in bytes, then repeated: 2 key length, key, 4 value length, value (length 0 = none)

Integers are signed and big-endian, text is UTF-8. A JSON header has the keys ``code extFields flag language
opaque remark serializeTypeCurrentRPC version``. Source of the format: Apache RocketMQ 5.x,
``remoting/protocol/RemotingCommand`` and ``RocketMQSerializable``.
"""

import json
import re
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from model.errors import PeerError
from runtime.env import Buffer

JSON: Final = 0
ROCKETMQ: Final = 1
VERSION: Final = 513  # what RocketMQ 5.5.0 sends: peers gate features by it
LANGUAGE: Final = "JAVA"
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
EXT_FIELDS_MAX: Final = 1024  # the largest known header has 20
HEADER_BYTES_MAX: Final = 2 * 1024 * 1024
"""The longest headers are answers to batches: 33 bytes a message."""
ODD_HEADER_BYTES_MAX: Final = 256 * 1024
"""A JSON header with blanks or escapes: 32 KiB of properties become six times as long when all is escaped."""
LONG_HEADER_BYTES: Final = 16 * 1024
"""The texts of a longer JSON header are counted before anything is built of it."""
ODD_PARTS_MAX: Final = 4096
"""Objects, lists and what stands in them, in an odd JSON header; what looks like them in a text is text."""
NUMBER_CHARS_MAX: Final = 40
BINARY_CODE_MAX: Final = 32767  # the code field of a ROCKETMQ header has 2 bytes

TLS_HANDSHAKE: Final = 0x1603  # how a TLS connection begins: a handshake record, SSL 3 or TLS

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

LANGUAGES: Final = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY"),
    *("OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
_LANGUAGE_CODES: Final = {name: code for code, name in enumerate(LANGUAGES)}

_LENGTHS: Final = struct.Struct(">iI")
_BINARY: Final = struct.Struct(">hBhiii")
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_short_at: Final = _SHORT.unpack_from
_int_at: Final = _INT.unpack_from
BINARY_BYTES: Final = _BINARY.size
"""Of a ROCKETMQ header up to its remark."""
KEYS_MAX: Final = 1024
KEY_CHARS_MAX: Final = 64
"""Of keys of ROCKETMQ headers that are remembered as they are written: so many, and so long."""
_KEYS: Final[dict[str, bytes]] = {}
assert BINARY_BYTES == 17, "code, language, version, opaque, flag, remark length"

_Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


@dataclass(slots=True)
class Command:
    """One request or response. ``ext`` values are text; an empty ``body`` is no body."""

    code: int
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str = LANGUAGE
    version: int = VERSION
    serialize: int = JSON
    proven: bool = field(default=False, compare=False, repr=False)  # here only: its signature was found fresh
    macs: dict[tuple[str, str], str] | None = field(default=None, init=False, compare=False, repr=False)
    """Here only, of a long body: see ``auth.is_signed``."""

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def reply(
        self,
        code: int = 0,
        *,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> "Command":
        """The answer to this request: same ``opaque``, same header type."""
        return Command(
            int(code), ext or {}, body, self.opaque, FLAG_RESPONSE, remark, serialize=self.serialize
        )

    def bare(self) -> "Command":
        """What its answer needs of it, for a request that waits: nothing that a client may make long."""
        return Command(
            self.code, opaque=self.opaque, flag=self.flag, version=self.version, serialize=self.serialize
        )

    def numbered(self, opaque: int, flag: int = 0) -> "Command":
        """A copy to send under ``opaque``: a command may go to several peers at once."""
        return Command(
            self.code,
            self.ext,
            self.body,
            opaque,
            flag,
            self.remark,
            self.language,
            self.version,
            self.serialize,
        )


class _HeaderIn(msgspec.Struct, gc=False):
    code: _Int
    extFields: dict[str, str] | UnsetType | None = UNSET
    flag: _Int | UnsetType = UNSET
    language: str | UnsetType | None = UNSET
    opaque: _Int | UnsetType = UNSET
    remark: str | UnsetType | None = UNSET
    serializeTypeCurrentRPC: str | UnsetType | None = UNSET
    version: _Int | UnsetType = UNSET


class _HeaderOut(msgspec.Struct, gc=False):
    """Members in the order the original writes them: alphabetical."""

    code: int
    extFields: dict[str, str] | UnsetType
    flag: int
    language: str
    opaque: int
    remark: str | UnsetType
    serializeTypeCurrentRPC: str
    version: int


_MARKS_MAX: Final = EXT_FIELDS_MAX + len(_HeaderIn.__struct_fields__)
_QUOTES_MAX: Final = 4 * (_MARKS_MAX + 8)  # a key and a text for each, and a few keys that nobody knows

_decode_json: Final = msgspec.json.Decoder(_HeaderIn).decode
_encode_json: Final = msgspec.json.Encoder().encode


def frame_end(buffer: Buffer, start: int, end: int, frame_bytes_max: int = FRAME_BYTES_MAX) -> int:
    """Where the frame at ``start`` ends, or 0 while ``buffer[start:end]`` holds only a part of it.

    Raises PeerError as soon as the lengths cannot be true: then nothing after them can be trusted.
    """
    available = end - start
    if available < 4:
        return 0
    if available < 8:
        _check_length(_INT.unpack_from(buffer, start)[0], frame_bytes_max)
        return 0
    length, mark = _LENGTHS.unpack_from(buffer, start)
    _check_length(length, frame_bytes_max)
    if mark >> 24 > ROCKETMQ:
        raise PeerError(f"unknown header type {mark >> 24}")
    if (mark & 0xFFFFFF) > length - 4:
        raise PeerError(f"header of {mark & 0xFFFFFF} bytes in a frame of {length}")
    if (mark & 0xFFFFFF) > HEADER_BYTES_MAX:
        raise PeerError(f"header of {mark & 0xFFFFFF} bytes, at most {HEADER_BYTES_MAX}")
    stop: int = start + 4 + length
    return stop if stop <= end else 0


def frames_end(buffer: Buffer, start: int, end: int, frame_bytes_max: int) -> int:
    """Where the whole frames from ``start`` on end: behind them is a part of one, or one that cannot be."""
    with suppress(PeerError):
        while stop := frame_end(buffer, start, end, frame_bytes_max):
            start = stop
    return start


def _check_length(length: int, frame_bytes_max: int) -> None:
    if length < 4:
        raise PeerError(f"frame length {length}")
    if length + 4 > frame_bytes_max:
        tls = ": it begins a TLS handshake, and there is no TLS here" if length >> 16 == TLS_HANDSHAKE else ""
        raise PeerError(f"frame length {length} is over the limit of {frame_bytes_max} bytes{tls}")


def decode(frame: Buffer) -> Command:
    """The command in one whole frame, length field included. Raises PeerError."""
    size = len(frame)
    if size < 8 or frame_end(frame, 0, size, max(size, FRAME_BYTES_MAX)) != size:
        raise PeerError(f"a frame of {size} bytes does not end where its length says")
    body_at = body_start(frame)
    return command_of(bytes(frame[:body_at]), bytes(frame[body_at:]))


def decoded(frame: Buffer | Command) -> Command:
    """``decode``, where that was not done. Raises PeerError."""
    return frame if isinstance(frame, Command) else decode(frame)


def body_start(frame: Buffer) -> int:
    """Where the body begins in a frame, of which the first eight bytes are enough."""
    mark: int = _LENGTHS.unpack_from(frame)[1]
    return 8 + (mark & 0xFFFFFF)


def command_of(head: bytes, body: bytes) -> Command:
    """The command of a frame that was cut before its body. Raises PeerError."""
    mark = _LENGTHS.unpack_from(head)[1]
    header = head[8:]
    command = _from_json(header) if mark >> 24 == JSON else _from_binary(header)
    command.body = body
    return command


def encode(command: Command) -> bytes:
    """The whole frame. Raises ValueError for a command no frame can carry: our own mistake."""
    return head_of(command) + command.body


def head_of(command: Command) -> bytes:
    """The frame up to its body: a long one need not be copied to be sent. Raises as ``encode``."""
    header = _to_json(command) if command.serialize == JSON else _to_binary(command)
    size = len(header)
    if size > 0xFFFFFF:
        raise ValueError(f"header of {size} bytes: the frame has 3 bytes for its length")
    length = 4 + size + len(command.body)
    return _LENGTHS.pack(length, command.serialize << 24 | size) + header


# JSON headers


def _from_json(header: bytes) -> Command:
    # Counted first: nothing is built of a header with more fields than any has.
    if len(header) > LONG_HEADER_BYTES:
        _need_few_texts(header)
    marks = header.count(b'":')
    if marks > _MARKS_MAX:
        return _from_odd_json(header)
    try:
        found = _decode_json(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return _from_odd_json(header)
    ext = found.extFields
    if not isinstance(ext, dict):
        ext = {}
    # Every key is followed by `":`. Headers without blanks (all known clients) have exactly as many of these
    # as the keys that were kept; anything else may hide a key given twice.
    named = (
        1
        + len(ext)
        + (found.extFields is not UNSET)
        + (found.flag is not UNSET)
        + (found.language is not UNSET)
        + (found.opaque is not UNSET)
        + (found.remark is not UNSET)
        + (found.serializeTypeCurrentRPC is not UNSET)
        + (found.version is not UNSET)
    )
    if marks != named or len(ext) > EXT_FIELDS_MAX or _has_apart_key(header):
        return _from_odd_json(header)
    return Command(
        found.code,
        ext,
        b"",
        found.opaque or 0,
        found.flag or 0,
        found.remark or None,
        found.language or "OTHER",
        found.version or 0,
        JSON,
    )


def _has_apart_key(header: bytes) -> bool:
    """Whether a blank stands between a key and its colon: such a key has no mark, as one that was given twice
    leaves one too many."""
    for blank in _BLANKS:
        if blank in header:
            return _APART.search(header) is not None
    return False


def _from_odd_json(header: bytes) -> Command:
    """What foreign clients may send: numbers, booleans and nulls as ext values, unknown keys, blanks."""
    if len(header) > ODD_HEADER_BYTES_MAX:
        raise PeerError(f"odd JSON header of {len(header)} bytes, at most {ODD_HEADER_BYTES_MAX}")
    _need_few_texts(header)
    _need_few_parts(header)
    try:
        found = json.loads(
            header.decode(),
            object_pairs_hook=_no_key_twice,
            parse_constant=_no_constant,
            parse_float=str,
            parse_int=_short_int,
        )
        if not isinstance(found, dict):
            raise PeerError("header is not a JSON object")
        ext = found.get("extFields") or {}
        if not isinstance(ext, dict):
            raise PeerError("extFields is not a JSON object")
        if len(ext) > EXT_FIELDS_MAX:
            raise PeerError(f"{len(ext)} ext fields, at most {EXT_FIELDS_MAX}")
        texts = {name: _as_text(value) for name, value in ext.items() if value is not None}
        command = Command(
            _as_int(found, "code", None),
            texts,
            b"",
            _as_int(found, "opaque", 0),
            _as_int(found, "flag", 0),
            None if found.get("remark") in (None, "") else _as_text(found["remark"]),
            "OTHER" if found.get("language") in (None, "") else _as_text(found["language"]),
            _as_int(found, "version", 0),
            JSON,
        )
        # A lone surrogate (`\ud800`) passes json.loads, but could never be sent on.
        "".join((*texts, *texts.values(), command.remark or "", command.language)).encode()
    except (ValueError, RecursionError) as error:
        raise PeerError(f"header is not JSON: {_short(error)}") from None
    return command


def _need_few_texts(header: bytes) -> None:
    """Raises PeerError for more texts than fields there may be, however they are written: each begins with a
    quote that has no backslash before it."""
    if header.count(b'"') - header.count(b'\\"') > _QUOTES_MAX:
        raise PeerError(f"JSON header of more than {EXT_FIELDS_MAX} fields")


def _need_few_parts(header: bytes) -> None:
    """Raises PeerError. Called where there are few quotes: the pieces between them are few."""
    if _parts(header) <= ODD_PARTS_MAX:
        return
    if b"\\" in header:
        header = header.replace(b"\\\\", b"").replace(b'\\"', b"")
    if sum(map(_parts, header.split(b'"')[::2])) > ODD_PARTS_MAX:
        raise PeerError(f"odd JSON header of more than {ODD_PARTS_MAX} parts")


def _parts(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[") + text.count(b",")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise PeerError("a key of the header is given twice")
    return found


_BLANKS: Final = (b'" ', b'"\t', b'"\n', b'"\r')
_APART: Final = re.compile(rb'"[ \t\r\n]+:')


def _no_constant(name: str) -> Any:
    raise PeerError(f"header holds {name}")


def _short_int(text: str) -> int:
    """Of thousands of digits each takes the square of its length."""
    if len(text) > NUMBER_CHARS_MAX:
        raise PeerError(f"header holds a number of {len(text)} digits")
    return int(text)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _as_int(found: dict[str, Any], name: str, default: int | None) -> int:
    value = found.get(name)
    if value is None:
        if default is None:
            raise PeerError(f"header has no {name}")
        return default
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and value.isascii():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**31) <= value < 2**31:
        raise PeerError(f"{name} is not a 32-bit number: {_short(value)}")
    return value


def _short(value: object) -> str:
    """For a log: text that a peer sent stands in quotes, without line breaks."""
    text = str(value) if isinstance(value, Exception) else ascii(value)
    return text if len(text) <= 80 else text[:80] + "…"


def _to_json(command: Command) -> bytes:
    return _encode_json(
        _HeaderOut(
            int(command.code),
            command.ext or UNSET,
            command.flag,
            command.language,
            command.opaque,
            UNSET if command.remark is None else command.remark,
            "JSON",
            command.version,
        )
    )


# ROCKETMQ headers


def _from_binary(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_length = _BINARY.unpack_from(header)
        remark, at = _text(header, _BINARY.size, remark_length, len(header))
        (ext_length,) = _INT.unpack_from(header, at)
        at += 4
        stop = at + ext_length
        if ext_length < 0 or stop > len(header):
            raise PeerError(f"ext fields of {ext_length} bytes in a header of {len(header)}")
        ext = binary_ext(header, binary_fields(header, at, stop))
    except struct.error:
        raise PeerError(f"binary header of {len(header)} bytes ends too early") from None
    except UnicodeDecodeError as error:
        raise PeerError(f"binary header is not UTF-8: {error}") from None
    name = LANGUAGES[language] if language < len(LANGUAGES) else "OTHER"
    return Command(code, ext, b"", opaque, flag, remark or None, name, version, ROCKETMQ)


def binary_fields(header: bytes, at: int, stop: int) -> list[tuple[str, int, int]]:
    """Name, begin and end of the value of each field in ``header[at:stop]``.

    Raises PeerError, struct.error (it ends too early), UnicodeDecodeError.
    """
    found: list[tuple[str, int, int]] = []
    while at < stop:
        key_at = at + 2
        key_end = key_at + _short_at(header, at)[0]
        if not key_at <= key_end <= stop:
            raise _no_text(key_at, key_end, stop)
        value_at = key_end + 4
        at = value_at + _int_at(header, key_end)[0]
        if not value_at <= at <= stop:
            raise _no_text(value_at, at, stop)
        if len(found) == EXT_FIELDS_MAX:
            raise PeerError(f"more than {EXT_FIELDS_MAX} ext fields")
        found.append((header[key_at:key_end].decode(), value_at, at))
    return found


def binary_ext(header: bytes, fields: list[tuple[str, int, int]]) -> dict[str, str]:
    """The values of ``fields``; empty ones are none. Raises PeerError, UnicodeDecodeError."""
    ext: dict[str, str] = {}
    for key, at, end in fields:
        value = header[at:end].decode()
        # The original writes the fields of its frequent headers twice when they are signed as well.
        if ext.get(key, value) != value:
            raise PeerError("a key of the header is given twice, with two values")
        if key and value:
            ext[key] = value
    return ext


def _no_text(at: int, end: int, stop: int) -> PeerError:
    return PeerError(f"binary header holds a text of {end - at} bytes where {stop - at} are left")


def _text(header: bytes, at: int, length: int, stop: int) -> tuple[str, int]:
    if length < 0 or at + length > stop:
        raise _no_text(at, at + length, stop)
    return header[at : at + length].decode(), at + length


def _key(name: str) -> bytes:
    """A key with its length, as a ROCKETMQ header has it; remembered, as there are few."""
    raw = name.encode()
    key = _SHORT.pack(len(raw)) + raw
    if len(_KEYS) < KEYS_MAX and len(name) <= KEY_CHARS_MAX:
        _KEYS[name] = key
    return key


def _to_binary(command: Command) -> bytes:
    code = int(command.code)
    if not -BINARY_CODE_MAX - 1 <= code <= BINARY_CODE_MAX:
        raise ValueError(f"code {code} does not fit a ROCKETMQ header: send it with a JSON header")
    remark = (command.remark or "").encode()
    parts: list[bytes] = []
    pack = _INT.pack
    for name, value in command.ext.items():
        text = value.encode()
        parts += (_KEYS.get(name) or _key(name), pack(len(text)), text)
    ext = b"".join(parts)
    head = _BINARY.pack(
        code,
        _LANGUAGE_CODES.get(command.language, _LANGUAGE_CODES["OTHER"]),
        command.version,
        command.opaque,
        command.flag,
        len(remark),
    )
    return b"".join((head, remark, _INT.pack(len(ext)), ext))
