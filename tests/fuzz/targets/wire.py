"""Decoders of what clients and NameServers say: frames, headers, bodies."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from broker.requests.consumers.pop.codec import Ack, Checkpoint
from broker.requests.fast_headers import ODD, BinaryHeads, decode_json, odd_json
from client.consuming.pull import parse_records
from client.routes import Route
from model.codes import Request
from model.compression import PIECE_BYTES, plain_pieces
from model.errors import PeerError, Refused
from model.message import decode_properties, encode_properties, parse_message_id, property_of
from model.pop import ExtraInfo, parse_message_offsets, parse_start_offsets
from model.sql92.compile import SqlError, compile_filter
from namesrv.codec import parse_queues, parse_registration, parse_version
from remoting import bodies, codec, headers, pop_headers
from remoting.pop_acks import BatchAck
from store.files.record import walk
from tests.broker.helpers import batch_body
from tests.fakes.at_once import ENDLESS, at_once
from tests.fakes.broker.send_path import WAYS, Side
from tests.fuzz.targets import golden
from tests.fuzz.targets.disk import real_records
from tests.fuzz.targets.target import Target, stable
from tests.namesrv.world import registration

PLAIN_MAX: Final = 1 << 20


def _stream(data: bytes) -> None:
    """Frames cut out of a stream, as connections do it."""
    at = 0
    while end := codec.frame_end(data, at, len(data), 1 << 16):
        assert at + 8 <= end <= len(data)
        _frame(data[at:end])
        at = end


def _frame(frame: bytes) -> None:
    command = codec.decode(frame)
    stable(command, codec.encode, codec.decode)


def _framed(serialize: int) -> Callable[[bytes], None]:
    """A header of one dialect, and whatever it says behind right lengths."""

    def run(data: bytes) -> None:
        head = struct.pack(">iI", 4 + len(data), serialize << 24 | len(data))
        _frame(head + data)

    return run


_HEADERS: Final[tuple[tuple[Any, bool], ...]] = (
    (lambda ext: headers.SendHeader.parse(Request.SEND_MESSAGE_V2, ext), True),
    (lambda ext: headers.SendHeader.parse(Request.SEND_MESSAGE, ext), False),
    (headers.PullHeader.parse, True),
    (headers.PullAnswer.parse, False),
    (headers.SendAnswer.parse, False),
    (headers.SendBackHeader.parse, True),
    (headers.EndTransactionHeader.parse, True),
    (headers.QueryMessageHeader.parse, False),
    (headers.QueueHeader.parse, False),
    (lambda ext: headers.OffsetHeader.parse(Request.UPDATE_CONSUMER_OFFSET, ext), False),
    (headers.BrokerHeader.parse, True),
    (pop_headers.PopHeader.parse, True),
    (pop_headers.PopAnswer.parse, True),
    (lambda ext: pop_headers.AckHeader.parse(ext, change=True), True),
    (lambda ext: pop_headers.LookHeader.parse(ext, peek=True, poll=True), False),
)


def _ext(data: bytes) -> dict[str, str]:
    texts = data[1:].decode("utf-8", "replace").split("\0")
    return dict(zip(texts[::2], texts[1::2], strict=False))


def _typed_header(data: bytes) -> None:
    """The first byte says which header, the rest its fields."""
    parse, writes = _HEADERS[data[0] % len(_HEADERS)] if data else _HEADERS[0]
    header = parse(_ext(data))
    if writes:
        again = parse(header.to_ext())
        assert again == header, f"{again} is not {header}"


def _header_seeds() -> Iterable[bytes]:
    for command in golden.commands():
        text = "\0".join(part for pair in command.ext.items() for part in pair).encode()
        if len(text) < 1000:
            for number in range(len(_HEADERS)):
                yield bytes((number,)) + text


def _pop_body(data: bytes) -> None:
    """The first byte says which: a checkpoint, an ack, many acks, or a client's."""
    kind, body = data[:1], data[1:]
    if kind == b"c":
        point = Checkpoint.parse(body)
        assert Checkpoint.parse(point.encode()) == point
    elif kind == b"b":
        ack = BatchAck.parse(bodies.loads_object(body), 4096, 4096)
        assert BatchAck.parse(ack.to_json(), 1 << 16, 4096) == ack
    else:
        one = Ack.parse(body, batch=kind == b"m")
        assert Ack.parse(one.encode(), batch=kind == b"m") == one


def _pop_seeds() -> Iterable[bytes]:
    yield b"c" + Checkpoint(5, 1000, 60000, 2, "T", "g", "broker-a", [0, 2]).encode()
    yield b"a" + Ack([100], 200, "group", "topic", 3, 1670212915531, "b").encode()
    yield b"m" + Ack([100, 101], 200, "group", "topic", 3, 1670212915531, "b", batch=True).encode()
    yield b"b" + bodies.dumps(BatchAck("g", "T", "0", 100, 1, 2, 1, 5000, [1, 3, 5]).to_json())


def _pop_text(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    if ";" in text:
        parse_start_offsets(text)
        parse_message_offsets(text)
    else:
        assert ExtraInfo.parse(ExtraInfo.parse(text).to_text()) == ExtraInfo.parse(text)


def _pop_text_seeds() -> Iterable[bytes]:
    yield b"10 1670212915531 60000 3 0 broker-a 2 11"
    yield b"0 0 5;1 0 1"


def _fast_header(data: bytes) -> None:
    """Both ways to read a send's header agree wherever the fast one reads it at all."""
    if data[:1] == b"{":
        try:
            head = decode_json(data)
        except ODD:
            head = odd_json(memoryview(data))
    else:
        heads = BinaryHeads()
        head = heads.head(data)
        if head.ext is not None:
            assert heads.head(data) == head, "a remembered header reads otherwise"


def _body(data: bytes) -> None:
    value = bodies.loads(data)
    try:
        text = bodies.dumps_dialect(value)
    except (TypeError, ValueError):
        return  # a number that msgspec reads and does not write
    assert bodies.dumps_dialect(bodies.loads(text)) == text, "the second text is another one"


def _registered(data: bytes) -> None:
    """The first byte says which form the body has."""
    kind = data[0] if data else 0
    ext = {"compressed": "true" if kind & 1 else "false", "bodyCrc32": "0"}
    command = registration("127.0.0.1:1")
    command.ext |= ext
    command.body, command.version = data[1:], (479, 400, 20)[kind >> 1 & 1 and 1 + (kind >> 2 & 1)]
    at_once(parse_registration(command, ENDLESS))


def _registered_seeds() -> Iterable[bytes]:
    for command in golden.commands():
        if command.code == Request.REGISTER_BROKER and command.body:
            for kind in range(8):
                yield bytes((kind,)) + command.body
    plain = registration("127.0.0.1:1").body
    yield b"\0" + plain


def _other_bodies(data: bytes) -> None:
    request = codec.Command(int(Request.QUERY_DATA_VERSION), body=data)
    for parse in (
        lambda: parse_version(request),
        lambda: parse_queues(request),
        lambda: Route.parse("T", data),
    ):
        try:
            parse()
        except PeerError:
            continue


def _properties(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    found = decode_properties(text)
    assert decode_properties(encode_properties(found)) == found
    for name in found:
        assert property_of(text, name) is not None or text.count(name + "\x01") > 1, name


def _message_id(data: bytes) -> None:
    host, offset = parse_message_id(data.decode("latin-1"))
    assert host
    assert 0 <= offset < 2**64


def _plain(data: bytes) -> None:
    """Bounded output, whatever a body says: the first byte is its sysFlag."""
    size = 0
    for piece in plain_pieces(data[2:], (data[0] << 8 | data[1]) if len(data) > 1 else 1, PLAIN_MAX):
        assert len(piece) <= max(PIECE_BYTES, len(data)) * 4
        size += len(piece)
    assert size <= max(PLAIN_MAX, len(data))


def _plain_seeds() -> Iterable[bytes]:
    import zlib

    for size in (0, 10, 5000, 4 << 20):
        yield b"\x03\x01" + zlib.compress(bytes(size), 9)
        yield b"\x00\x01" + zlib.compress(b"ab" * (size // 2))
    yield b"\x01\x01" + bytes.fromhex("04224d18604073")
    yield b"\x02\x01" + bytes.fromhex("28b52ffd")


def _pulled(data: bytes) -> None:
    for message in parse_records(data, "broker-a"):
        assert message.queue.broker_name == "broker-a"


def _pulled_seeds() -> Iterable[bytes]:
    yield from real_records("plain-11", 2)
    yield b"".join(real_records("plain-11", 4))


def _send_path(data: bytes) -> None:
    """A read of a connection, by each fast path there is here: what they store are whole records."""
    for way in WAYS:
        side = Side(compiled=way)
        consumed, slow = side.hot.process(cast(Any, side.connection), bytearray(data), 0, len(data))
        assert 0 <= consumed <= len(data)
        assert sum(map(len, slow)) <= consumed
        log = bytes(side.store.log.data)
        assert sum(found.size for found in walk(log)) == len(log), "what was stored is no log"


def _send_seeds() -> Iterable[bytes]:
    frames = []
    for code, body in (
        (Request.SEND_MESSAGE, b"one"),
        (Request.SEND_MESSAGE_V2, b"two"),
        (Request.SEND_BATCH_MESSAGE, batch_body([(b"three", "TAGS\x01a\x02", 0), (b"", "", 1)])),
    ):
        batch = code == Request.SEND_BATCH_MESSAGE
        header = headers.SendHeader("g", "T", 1, 1_700_000_000_000, properties="TAGS\x01a\x02", batch=batch)
        ext = header.to_ext(full_names=code == Request.SEND_MESSAGE)
        for serialize in (codec.JSON, codec.ROCKETMQ):
            frames.append(codec.encode(codec.Command(code, ext, body, 7, serialize=serialize)))
    yield from frames
    yield b"".join(frames)


def _sql(data: bytes) -> None:
    """An expression, a zero byte, and the properties of a message it is asked about."""
    expression, _, properties = data.decode("utf-8", "replace").partition("\0")
    chosen = compile_filter(expression)
    assert chosen(decode_properties(properties)) in (True, False)


SQL: Final = (
    *(
        "a > 5",
        "a BETWEEN 1 AND 5.5",
        "b IN ('x', 'y') OR NOT c IS NULL",
        "TRUE",
        "a = 'b' AND (c <> 1 OR d)",
    ),
    *("a CONTAINS 'x'", "a NOT STARTSWITH 'x'", "-a <= 1e5", "a IS NOT NULL", "b = TRUE"),
)


TARGETS: Final = (
    Target(name="send_path", run=_send_path, declared=(PeerError,), seeds=_send_seeds, weight=2),
    Target(
        name="sql92",
        run=_sql,
        declared=(SqlError,),
        seeds=lambda: [f"{text}\0a\x015\x02b\x01x\x02d\x01true\x02".encode() for text in SQL],
        weight=4,
    ),
    Target(name="remoting_stream", run=_stream, declared=(PeerError,), seeds=golden.frames, weight=6),
    Target(
        name="remoting_json",
        run=_framed(codec.JSON),
        declared=(PeerError,),
        seeds=lambda: golden.headers(codec.JSON),
        weight=6,
    ),
    Target(
        name="remoting_binary",
        run=_framed(codec.ROCKETMQ),
        declared=(PeerError,),
        seeds=lambda: golden.headers(codec.ROCKETMQ),
        weight=8,
    ),
    Target(name="typed_headers", run=_typed_header, declared=(Refused,), seeds=_header_seeds, weight=6),
    Target(
        name="fast_headers",
        run=_fast_header,
        declared=(),
        seeds=lambda: [*golden.headers(codec.JSON), *golden.headers(codec.ROCKETMQ)],
        weight=6,
    ),
    Target(name="pop_bodies", run=_pop_body, declared=(PeerError,), seeds=_pop_seeds, weight=3),
    Target(name="pop_texts", run=_pop_text, declared=(ValueError,), seeds=_pop_text_seeds, weight=2),
    Target(name="json_bodies", run=_body, declared=(PeerError,), seeds=golden.bodies_of, weight=4),
    Target(
        name="registration", run=_registered, declared=(PeerError, Refused), seeds=_registered_seeds, weight=3
    ),
    Target(name="route_bodies", run=_other_bodies, declared=(), seeds=golden.bodies_of, weight=3),
    Target(
        name="properties",
        run=_properties,
        declared=(),
        seeds=lambda: [b"KEYS\x01a b\x02TAGS\x01t\x02UNIQ_KEY\x017F\x02"],
        weight=8,
    ),
    Target(
        name="message_id",
        run=_message_id,
        declared=(ValueError,),
        seeds=lambda: [b"7F00000100002A9F0000000000000123", b"00" * 28],
        weight=10,
    ),
    Target(name="compressed_body", run=_plain, declared=(ValueError,), seeds=_plain_seeds, weight=3),
    Target(
        name="pulled_records",
        run=_pulled,
        declared=(PeerError,),
        seeds=_pulled_seeds,
        weight=5,
    ),
)
