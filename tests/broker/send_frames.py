"""Frames of sends from a seed, plain ones and odd ones, and a way to send them."""

from __future__ import annotations

import asyncio
import json
import random
import re
import struct
from typing import Any, Final, cast

from model.errors import PeerError, Refused
from model.topic import TopicConfig
from remoting import codec
from remoting.codec import Command
from remoting.headers import SEND_V1_NAMES, SEND_V2_NAMES, SendHeader
from remoting.service import Connection
from tests.broker.helpers import batch_body
from tests.fakes.broker.send_path import Side
from tests.fakes.broker.store import FakeConnection

SENDS: Final = (10, 310, 320)

TOPICS = ["T"] * 12 + [
    "U",
    "ReadOnly",
    "New",
    "Ünïcode",
    "%RETRY%g",
    "%DLQ%g",
    "SCHEDULE_TOPIC_XXXX",
    "bad topic",
    "",
]
NUMBERS = [
    "",
    "-",
    "05",
    "-0",
    " 5",
    "5 ",
    "+5",
    "5_0",
    "٣",
    "abc",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9" * 19,
    "9" * 20,
]
NAMES = [
    *("TAGS", "KEYS", "WAIT", "DELAY", "TRAN_MSG", "TIMER_DELAY_SEC", "CLUSTER", "MSG_REGION", "TRACE_ON"),
    *("INNER_NUM", "DELAYED_AS", "REAL_TOPIC", "__CRC32#", "POP_CK", "UNIQ_KEY", "p", "XKEYS", "a_b"),
    *("INSTANCE_ID", "bornTimestamp"),
]  # fmt: skip
VALUES = [
    "",
    "true",
    "false",
    "FALSE",
    "1",
    "3",
    "A",
    "k1 k2 k3",
    "blau und grün",
    "中",
    'q"uote',
    "\0",
    "a\x01b",
    "x" * 300,
]
UNIQUE = ["7F000001ABCD", "FD00000000000000000000000000021E", "é", 'A"', "a-b", "", "9" * 300]


def long_property(chance: random.Random) -> str:
    """In bytes longer than properties may be, with what stands before it; in characters not always."""
    return f"p\x01{chance.choice(['v' * 32_700, 'v' * 40_000, 'ü' * 16_384, 'ü' * 32_768])}\x02"


def properties(chance: random.Random) -> str:
    """Mostly those of an ordinary message."""
    pairs = [("UNIQ_KEY", f"{chance.getrandbits(128):032X}"), ("WAIT", "true")]
    if chance.random() < 0.4:
        pairs.append(("TAGS", chance.choice(["A", "B", "grün"])))
    if chance.random() < 0.3:
        pairs.append(("KEYS", " ".join(f"k{chance.randrange(9)}" for _ in range(chance.randrange(4)))))
    if chance.random() < 0.2:
        pairs[0] = ("UNIQ_KEY", chance.choice(UNIQUE))
    while chance.random() < 0.15:
        pairs.insert(chance.randrange(len(pairs) + 1), (chance.choice(NAMES), chance.choice(VALUES)))
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    if chance.random() < 0.04:
        text = chance.choice([text[:-1], text + "\x02", "", text + "\0", text + long_property(chance)])
    return text


def body(chance: random.Random, *, batch: bool) -> bytes:
    if batch:
        inner = [
            (chance.randbytes(chance.randrange(40)), properties(chance)[:16_000], chance.randrange(-2, 3))
            for _ in range(chance.choice([0, 1, 1, 2, 3, 8, 9]))
        ]
        packed = batch_body(inner)
        if chance.random() < 0.1:
            at = chance.randrange(len(packed) + 1)
            packed = packed[:at] + chance.randbytes(chance.randrange(3)) + packed[at + 1 :]
        return packed
    return chance.randbytes(chance.choice([0, 5, 5, 100, 100, 700, 2048, 2049]))


def fields(chance: random.Random, code: int) -> dict[str, str]:
    """The ext fields of a send, in any order and now and then with a mistake."""
    header = SendHeader(
        chance.choice(["pg", "pg", "pg", "grüppe", ""]),
        chance.choice(TOPICS),
        chance.choice([0, 1, 2, 3, 3, 3, 4, -1]) if chance.random() < 0.2 else chance.randrange(4),
        1_699_999_999_000 + chance.randrange(10**6)
        if chance.random() < 0.95
        else chance.choice([-1, 0, 2**62]),
        sys_flag=chance.choice([1, 0x300, 4, 8, 16, 128, -1]) if chance.random() < 0.1 else 0,
        flag=chance.choice([0, 0, 0, 7, -3]),
        properties=properties(chance),
        reconsume_times=chance.choice([0, 0, 0, 2]),
        batch=(code == 320) is (chance.random() < 0.97),
        max_reconsume_times=chance.choice([None, None, 16]),
        broker_name=chance.choice(["", "broker-a"]),
    )
    full_names = (code == 10) is (chance.random() < 0.97)
    ext = header.to_ext(full_names=full_names)
    if chance.random() < 0.08:
        del ext[chance.choice(list(ext))]
    if chance.random() < 0.08:
        names = SEND_V1_NAMES if full_names else SEND_V2_NAMES
        number = chance.choice(
            ["queue_id", "sys_flag", "flag", "born_timestamp_ms", "reconsume_times", "max_reconsume_times"]
        )
        ext[names[number]] = chance.choice(NUMBERS)
    if chance.random() < 0.05:
        ext[chance.choice(["batch", "m"])] = chance.choice(["TRUE", "True", "FALSE", "", "1"])
    if chance.random() < 0.05:
        ext[chance.choice(["AccessKey", "o", "x" * 300])] = chance.choice(VALUES)
    if chance.random() < 0.1:
        ext = dict(chance.sample(list(ext.items()), len(ext)))
    return ext


ODD_NUMBERS = [
    "5.0",
    '"5.0"',
    "5e0",
    '"5e0"',
    "-0.0",
    "1099511627776",
    '"abc"',
    '"null"',
    '"05"',
    "true",
    "null",
]


def odd_numbers(chance: random.Random, header: bytes) -> bytes:
    """One of the numbers, in the header or in its ext fields, is none or is written otherwise."""
    found = list(re.finditer(rb'"(?:code|opaque|flag|version|[defghjl])":("?-?[0-9]+"?)', header))
    if not found:
        return header
    one = chance.choice(found)
    return header[: one.start(1)] + chance.choice(ODD_NUMBERS).encode() + header[one.end(1) :]


def key_twice(chance: random.Random, header: bytes) -> bytes:
    """An ext field, or one beside them, stands there once more, maybe escaped."""
    found = list(re.finditer(rb'[{,]("(\w+)":(?:"(?:[^"\\]|\\.)*"|-?[0-9]+))', header))
    one = chance.choice(found)
    again = one[1].replace(b'"' + one[2][:1], b'"\\u%04x' % one[2][0], 1) if chance.random() < 0.2 else one[1]
    return header[: one.start(1)] + again + b"," + header[one.start(1) :]


def odd_json(chance: random.Random, command: Command, *, twice: bool = False) -> bytes:
    """As other clients may write it: numbers, nulls and blanks. ``twice``: a field given twice as well."""
    if chance.random() < 0.4:
        plain = codec.encode(command)
        body_at = codec.body_start(plain)
        change = key_twice if twice and chance.random() < 0.5 else odd_numbers
        text = change(chance, plain[8:body_at])
        return struct.pack(">iI", 4 + len(text) + len(command.body), len(text)) + text + command.body
    ext: dict[str, Any] = dict(command.ext)
    for name, value in ext.items():
        if value.isascii() and value.isdigit() and not value.startswith("0") and chance.random() < 0.5:
            ext[name] = int(value)
        elif chance.random() < 0.05:
            ext[name] = None
    header = {"code": command.code, "extFields": ext, "opaque": command.opaque, "flag": command.flag}
    if chance.random() < 0.3:
        header["code"] = str(command.code)
    blanks = (", ", ": ") if chance.random() < 0.5 else (",", ":")
    text = json.dumps(header, separators=blanks, ensure_ascii=chance.random() < 0.5).encode()
    return struct.pack(">iI", 4 + len(text) + len(command.body), len(text)) + text + command.body


def odd_binary(chance: random.Random, frame: bytes) -> bytes:
    """A ROCKETMQ header with a remark, a field given twice, or bytes behind its fields."""
    size = struct.unpack_from(">I", frame, 4)[0] & 0xFFFFFF
    header, body = frame[8 : 8 + size], frame[8 + size :]
    ext = header[21:]
    match chance.randrange(4):
        case 0:
            header = header[:13] + struct.pack(">i", 2) + b"ok" + header[17:]
        case 1:
            field = struct.pack(">h", 1) + b"j" + struct.pack(">i", 1) + b"0"
            header = header[:17] + struct.pack(">i", len(ext) + len(field)) + ext + field
        case 2:
            header += b"behind"
        case _:
            header = header[:2] + bytes([chance.randrange(256)]) + header[3:]
    return struct.pack(">iI", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def broken(chance: random.Random, frame: bytes) -> bytes:
    """A whole frame with a header that may be none: a connection may end here."""
    mark = struct.unpack_from(">I", frame, 4)[0]
    at = 8 + chance.randrange(mark & 0xFFFFFF)
    # Of JSON the fast decoder passes over what it does not need: see broker/requests/fast_headers.
    byte = chance.choice(b'{}"') if mark >> 24 == codec.JSON else chance.randrange(256)
    return frame[:at] + bytes([byte]) + frame[at + 1 :]


def plain_frame(chance: random.Random, opaque: int) -> bytes:
    """Of a send as clients make them."""
    code = chance.choice([310, 310, 10, 320])
    unique = f"UNIQ_KEY\x01{chance.getrandbits(128):032X}\x02"
    text = unique + chance.choice(
        ["", "WAIT\x01true\x02", "TAGS\x01grün\x02", "KEYS\x01a b\x02INSTANCE_ID\x01i\x02"]
    )
    header = SendHeader(
        chance.choice(["pg", "grüppe"]),
        chance.choice(["T", "T", "U", "Ünïcode"]),
        chance.randrange(2),
        1_699_999_999_000 + chance.randrange(10**6),
        sys_flag=chance.choice([0, 0, 0, 0x301]),
        flag=chance.choice([0, 0, 7]),
        properties=text,
        reconsume_times=chance.choice([0, 0, 2]),
        batch=code == 320,
        broker_name=chance.choice(["", "broker-a"]),
    )
    inner = [(chance.randbytes(9), unique + "TAGS\x01A\x02", n) for n in range(chance.randrange(1, 9))]
    content = batch_body(inner) if code == 320 else chance.randbytes(chance.choice([0, 9, 128, 1024]))
    dialect = chance.choice([codec.JSON, codec.ROCKETMQ])
    flag = chance.choice([0] * 8 + [2])
    ext = header.to_ext(full_names=code == 10)
    return codec.encode(Command(code, ext, content, opaque, flag, serialize=dialect))


def any_frame(chance: random.Random, opaque: int, *, twice: bool = False) -> bytes:
    code = chance.choice([310] * 6 + [320, 320, 10, 10])
    batch = code == 320 if chance.random() < 0.98 else code != 320
    flag = chance.choice([0] * 8 + [2, 4])
    dialect = chance.choice([codec.JSON, codec.ROCKETMQ])
    command = Command(code, fields(chance, code), body(chance, batch=batch), opaque, flag, serialize=dialect)
    if chance.random() < 0.1:
        if dialect == codec.JSON:
            return odd_json(chance, command, twice=twice)
        return odd_binary(chance, codec.encode(command))
    return codec.encode(command)


class Way(Side):
    """A side whose connection ends at a header that is none, as that of a real server does, or at a frame
    that is longer than ``frame_bytes_max``."""

    def __init__(
        self, segment_bytes: int, *, compiled: bool = False, frame_bytes_max: int = codec.FRAME_BYTES_MAX
    ) -> None:
        super().__init__(
            segment_bytes=segment_bytes,
            compiled=compiled,
            maxMessageSize="2048",
            maxMessagesInBatch="8",
            frameMaxLength=str(frame_bytes_max),
        )
        self.topics.put(TopicConfig("Ünïcode", 4, 4))
        self.ended = ""

    def each(self, frames: list[bytes], connection: FakeConnection | None = None) -> None:
        """Each frame the ordinary way."""
        connection = connection or self.connection

        async def handle(request: Command) -> Command | None:
            try:
                return await self.sender.send(cast(Connection, connection), request)
            except Refused as refused:
                return request.reply(refused.code, remark=refused.remark)

        async def run() -> None:
            for frame in frames:
                codec.frame_end(frame, 0, len(frame), self.hot.config.frame_bytes_max)
                request = codec.decode(frame)
                if request.code not in SENDS or request.flag & codec.FLAG_RESPONSE:
                    continue
                answer = await handle(request)
                if answer is not None and not request.is_oneway:
                    connection.write(codec.encode(answer))

        try:
            asyncio.run(run())
        except PeerError as error:
            self.ended = str(error)

    def read(self, data: bytes) -> list[bytes]:
        """All of it the fast way, and what that leaves the ordinary way, until the connection ends. What it
        left."""
        at, all_left = 0, list[bytes]()
        while at < len(data) and not self.ended:
            try:
                stop, left = self.hot.process(
                    cast(Connection, self.connection), bytearray(data), at, len(data)
                )
            except PeerError as error:
                self.ended = str(error)
                break
            assert stop > at, "there are whole frames, or a broken one"
            at = stop
            all_left += left
            self.each(left)
        return all_left

    @property
    def seen(self) -> dict[str, Any]:
        return {
            "log": bytes(self.store.log.data),
            "queues": self.store.dispatches,
            "next": self.store.next_offsets,
            "answers": [codec.encode(answer) for answer in answers(self.connection.data)],
            "end": self.ended,
            "stored": (self.context.stats.put_total, self.context.stats.put_bytes_total),
        }


def answers(data: bytes) -> list[Command]:
    found = []
    at = 0
    while stop := codec.frame_end(data, at, len(data)):
        found.append(codec.decode(data[at:stop]))
        at = stop
    assert at == len(data), "whole answers"
    return found


def binary_header(group: str) -> bytes:
    """A send's header in RocketMQ's binary dialect, as a frame holds it."""
    ext = SendHeader(group, "T", 0, 1_700_000_000_000, properties="TAGS\x01a\x02").to_ext()
    frame = codec.encode(Command(310, ext, serialize=codec.ROCKETMQ))
    return frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
