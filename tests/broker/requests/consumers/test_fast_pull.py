"""The promise of broker.requests.consumers.fast_pull: a pull known by its bytes is read, and answered,
as the ordinary way does it; and no request goes before an earlier one."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.requests.batch import PULLS
from broker.requests.consumers import fast_pull
from broker.requests.consumers.fast_pull import KNOWN_BYTES, FastReads, KnownPulls
from broker.requests.consumers.pull_heads import compiled_heads
from broker.requests.consumers.told import Told
from model.codes import Request, Response
from model.errors import PeerError, Refused
from remoting import codec
from remoting.codec import Command, decode
from remoting.headers import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader
from runtime.report.slow_turns import SlowTurns
from store.files.compiled import compiled
from tests.broker.helpers import client_of, golden_exchanges, running

NEEDS_COMPILED = pytest.mark.skipif(compiled() is None, reason="there is no compiled path")
ODD_TEXTS = ['"queueOffset":"5', "\0\x0bqueueOffset\0\0\0\x011", "Ünïcode", "a b", "x" * 300, ""]


def a_pull(chance: random.Random, opaque: int) -> Command:
    """A pull as clients send it, or with something odd in it."""
    odd = chance.random() < 0.4
    header = PullHeader(
        chance.choice(["cg", "other", *(ODD_TEXTS if odd else [])]),
        chance.choice(["T", "Ü", "TBW102", *(ODD_TEXTS if odd else [])]),
        chance.randrange(3),
        chance.choice([0, 7, 12345678901, -1 if odd else 3]),
        32,
        chance.choice([0, PULL_SUSPEND, PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION]),
        chance.choice([0, 99, 10**17]),
        chance.choice([0, 15000]),
        chance.choice(["*", "A || B"]),
    )
    ext = header.to_ext()
    if odd:
        change = chance.randrange(6)
        if change == 0:
            ext["AccessKey"] = "a"
        elif change == 1:
            del ext[chance.choice(list(ext))]
        elif change == 2:
            ext[chance.choice(list(ext))] = chance.choice(["007", "+1", "1 ", "٣", "x", "1e3", "9" * 30])
        elif change == 3:
            ext["opaque"] = "4"
    code = Request.PULL_MESSAGE if not odd else chance.choice([11, 361, 310, 34])
    command = Command(int(code), ext, b"" if chance.random() < 0.9 else b"body", opaque)
    command.serialize = chance.choice([codec.JSON, codec.ROCKETMQ])
    command.flag = chance.choice([0, 0, 0, codec.FLAG_ONEWAY, codec.FLAG_RESPONSE]) if odd else 0
    return command


def ordinary(frame: bytes) -> tuple[Command, PullHeader] | None:
    try:
        command = decode(frame)
        return command, PullHeader.parse(command.ext)
    except (PeerError, Refused):
        return None


@settings(max_examples=60)
@given(seed=st.integers(0, 2**48))
def test_what_is_known_is_read_as_the_ordinary_way_reads_it(seed: int) -> None:
    chance = random.Random(seed)
    known = KnownPulls()
    for opaque in range(60):
        frame = bytearray(codec.encode(a_pull(chance, opaque)))
        if chance.random() < 0.3:  # a byte is another one, or the same text stands elsewhere
            frame[chance.randrange(8, len(frame))] = chance.choice(b'09"\\,:{} \0\x7f')
        found = known.find(bytes(frame))
        if found is None:
            continue
        right = ordinary(bytes(frame))
        assert right is not None, "the ordinary way refuses it"
        assert found[1] == right[1]
        right[0].ext = {}
        assert found[0] == right[0]


@NEEDS_COMPILED
@settings(max_examples=60)
@given(seed=st.integers(0, 2**48))
def test_the_compiled_path_cuts_the_same_numbers_out(seed: int) -> None:
    chance = random.Random(seed)
    marks = (fast_pull._BINARY_OFFSET, fast_pull._BINARY_COMMIT)
    json_marks = (fast_pull._JSON_OFFSET, fast_pull._JSON_COMMIT, fast_pull._JSON_OPAQUE)
    module = compiled()
    assert module is not None
    for opaque in range(40):
        command = a_pull(chance, chance.choice([opaque, 0, 999_999_999, 1_000_000_000]))
        frame = bytearray(codec.encode(command))
        if chance.random() < 0.6:  # bytes are others, or are not there, or stand elsewhere
            for _ in range(chance.choice([1, 1, 3])):
                frame[chance.randrange(8, len(frame))] = chance.choice(b'0193",: \xff\0\x01\x0b\x7f')
            del frame[len(frame) - chance.choice([0, 0, 0, 1, 9, len(frame) - 8, len(frame)]) :]
            if chance.random() < 0.3:
                at = chance.randrange(len(frame) + 1)
                frame[at:at] = chance.choice(
                    [b"0", b"9" * 20, *json_marks, *(mark + b"7" for mark in json_marks)]
                )
        data = bytes(frame)
        assert module.cut_binary(data, *marks) == fast_pull._cut_binary(data, *marks)
        assert module.cut_json(data, *json_marks) == fast_pull._cut_json(data, *json_marks)


@NEEDS_COMPILED
@settings(max_examples=60)
@given(seed=st.integers(0, 2**48))
def test_the_compiled_path_knows_the_same_pulls_again_wherever_they_lie(seed: int) -> None:
    chance = random.Random(seed)
    known = KnownPulls()
    for opaque in range(40):
        frame = bytearray(codec.encode(a_pull(chance, opaque)))
        known.find(bytes(frame))
        if chance.random() < 0.5:
            frame[chance.choice([0, 1, 2, 3, 4, 7, chance.randrange(len(frame))])] ^= chance.choice([1, 128])
        start, limit = (
            chance.choice([0, 3]),
            chance.choice([codec.FRAME_BYTES_MAX, len(frame), len(frame) - 1]),
        )
        data = chance.choice([bytes, bytearray])(bytes(start) + frame + bytes(chance.choice([0, 5])))
        end = chance.choice([len(data), start + len(frame), chance.randrange(start, len(data) + 1)])
        try:
            stop = codec.frame_end(data, start, end, limit)
        except PeerError:
            stop = 0
        is_known = bool(stop) and known.find(bytes(data[start:stop])) is not None
        found = known.find_at(data, start, end, limit)
        assert (found is not None) == is_known
        if found is not None:
            right = ordinary(bytes(data[start:stop]))
            assert right is not None, "the ordinary way refuses it"
            right[0].ext = {}
            assert found == (stop, *right)


NUMBERS = st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**63, -(2**70)]))


@pytest.mark.skipif(compiled() is None, reason="there is no compiled path")
@given(
    numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    opaque=st.sampled_from([0, 7, 999_999_999, 2**31 - 1]),
    body=st.binary(max_size=9),
    serialize=st.sampled_from([codec.JSON, codec.ROCKETMQ]),
)
def test_a_head_made_by_compiled_code_is_the_codecs(
    numbers: tuple[int, int, int, int, int], opaque: int, body: bytes, serialize: int
) -> None:
    heads = compiled_heads()
    assert heads is not None
    told = Told(Response.SUCCESS, "FOUND", *numbers, body)
    request = Command(11, opaque=opaque, serialize=serialize)
    head = heads.of(told, request)
    if head is None:
        assert max(numbers) >= 2**63 or min(numbers) < -(2**63), "no number of 64 bits"
    else:
        assert head == codec.head_of(told.reply(request))
    other = told._replace(code=Response.PULL_NOT_FOUND)
    assert heads.of(other, request) is None, "it has another remark"


@pytest.mark.skipif(compiled() is None, reason="there is no compiled path")
def test_parts_that_are_none_of_an_answer_are_refused() -> None:
    module = compiled()
    assert module is not None
    for json, binary in (
        ((b"",) * 6, (b"",) * 8),
        ((b"",) * 7, (b"",) * 7),
        ((b"x" * 900, *(b"",) * 6), (b"",) * 8),
        (("",) * 7, (b"",) * 8),
    ):
        with pytest.raises(ValueError, match="not the parts"):
            module.PullHeads(json, binary)


def test_plain_pulls_of_both_dialects_are_known_from_the_first_on() -> None:
    known = KnownPulls()
    for serialize in (codec.JSON, codec.ROCKETMQ):
        for number in range(5):
            command = Command(11, PullHeader("g", "T", 1, number, 32, 2, number, 9).to_ext(), b"", number + 1)
            command.serialize = serialize
            found = known.find(codec.encode(command))
            assert found is not None
            assert (found[1].queue_offset, found[1].commit_offset, found[0].opaque) == (
                number,
                number,
                number + 1,
            )
    assert len(known._known) == 2


def test_a_header_of_no_dialect_is_not_taken_for_a_known_one() -> None:
    known = KnownPulls()
    command = Command(11, PullHeader("g", "T", 1, 5, 32).to_ext(), b"", 3, serialize=codec.ROCKETMQ)
    frame = bytearray(codec.encode(command))
    assert known.find(bytes(frame)) is not None
    frame[4] = 3
    assert ordinary(bytes(frame)) is None
    assert known.find(bytes(frame)) is None


def test_pulls_of_the_java_client_are_known() -> None:
    pulls = [
        frame
        for frame, request, _ in golden_exchanges("pull.jsonl").values()
        if request.code == Request.PULL_MESSAGE
    ]
    assert pulls
    for frame in pulls:
        assert KnownPulls().find(frame) is not None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_pull, "KNOWN_BYTES_MAX", 20_000)
    known = KnownPulls()
    for number in range(100):
        frame = codec.encode(Command(11, PullHeader("g", f"T{number}", 1, 5, 32).to_ext(), b"", 3))
        assert known.find(frame) is not None
        assert known._bytes <= 20_000
        assert sum(KNOWN_BYTES + sum(map(len, around)) for around in known._known) == known._bytes
    long = codec.encode(Command(11, PullHeader("g", "T", 1, 5, 32, subscription="x" * 2000).to_ext(), b"", 3))
    assert known.find(long) is None


def test_a_number_outside_of_the_fields_is_not_taken_for_one_of_them() -> None:
    plain = codec.encode(Command(11, PullHeader("g", "T", 1, 5, 32).to_ext(), b"", 3))
    header = plain[8:].replace(b'{"code"', b'{"queueOffset":"5","code"')
    frame = struct.pack(">II", 4 + len(header), len(header)) + header
    assert KnownPulls().find(plain) is not None
    assert KnownPulls().find(frame) is None


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=NEEDS_COMPILED)])
@pytest.mark.parametrize(
    ("written", "instead"),
    [
        (b'{"code"', b'{"queueOffset":"5","code"'),
        (b'{"code"', b'{"commitOffset":"0","code"'),
        (b'{"code"', b'{"x":{"opaque":3,"y":1},"code"'),
        (b'"flag"', b'"remark":{"opaque":3,"y":1},"flag"'),
        (b'"topic":"T"', b'"topic":{"queueOffset":"5"}'),
        (b'"topic":"T"', b'"topic":{"commitOffset":"0"}'),
    ],
)
@pytest.mark.parametrize("key", [b"queueOffset", b"commitOffset", b"opaque"])
@pytest.mark.parametrize("how", ["escaped", "apart", "left out", "as it is"])
def test_a_number_that_is_not_its_keys_is_never_taken_for_it(
    is_compiled: bool, written: bytes, instead: bytes, key: bytes, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(fast_pull, "compiled", lambda: None)
    known = KnownPulls()

    def frame_of(number: bytes) -> bytes:
        header = codec.encode(Command(11, PullHeader("g", "T", 1, 5, 32).to_ext(), b"", 3))[8:]
        if how == "left out":
            header = re.sub(b'"%s":("\\d+"|\\d+),?' % key, b"", header)
        elif how != "as it is":
            odd = b'"\\u00%02x%s"' % (key[0], key[1:]) if how == "escaped" else b'"%s" ' % key
            header = header.replace(b'"%s"' % key, odd)
        header = header.replace(written, re.sub(b"[0-9]", number, instead, count=1))
        return struct.pack(">II", 4 + len(header), len(header)) + header

    for number in b"5", b"0", b"3", b"7", b"1":
        frame = frame_of(number)
        found, right = known.find(frame), ordinary(frame)
        if found is not None:
            assert right is not None, "the ordinary way refuses it"
            assert found[1] == right[1]
            assert found[0].opaque == right[0].opaque


async def test_answers_are_those_of_the_ordinary_way(tmp_path: Path) -> None:
    """The ordinary way is taken when a field is there that is not remembered."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        for number in range(20):
            await client.send("T", b"%d" % number, queue_id=number % 2)
        await client.pull_until("T", 0, 10)
        flags = PULL_SUBSCRIPTION | PULL_SUSPEND
        asked = [
            PullHeader("cg", topic, queue, offset, 4, flags, 0, 1, tags)
            for topic in ("T", "None")
            for queue in (0, 1, 9)
            for offset in (0, 3, 10, 99)
            for tags in ("*", "A", "||")
        ]
        for header in asked:
            fast = await client.call(11, header.to_ext())
            slow = await client.call(11, header.to_ext() | {"unknown": "1"})
            assert (fast.code, fast.remark, fast.ext, fast.body) == (
                slow.code,
                slow.remark,
                slow.ext,
                slow.body,
            )


class Free:
    """A connection of which ``busy`` says whether an earlier request is still to begin."""

    def __init__(self, busy: bool) -> None:
        self.handling = int(busy)
        self.untaken = 0
        self.attributes: dict[str, object] = {}
        self.remote = "x:1"
        self.sent: list[Command] = []
        self.send = self.sent.append

    def room_for(self, most: int) -> int:
        return -1 if self.handling else most - self.untaken

    def write(self, data: bytes) -> None:
        """An answer that was encoded already."""
        self.sent.append(decode(data))


def reads(refused: Refused | None = None) -> FastReads:
    """All frames are left by the way of sends; a pull is answered, or ``refused``."""

    def tell(connection: object, request: Command, header: PullHeader) -> Told:
        if refused is not None:
            raise refused
        return Told(Response.SUCCESS, "FOUND", 1, 0, 1, 0, 0, b"")

    def split(connection: object, buffer: bytes, at: int, end: int) -> tuple[int, list[bytes]]:
        left = []
        while stop := codec.frame_end(buffer, at, end):
            left.append(bytes(buffer[at:stop]))
            at = stop
        return at, left

    sends = SimpleNamespace(
        process=split,
        join_or=lambda otherwise, rest: otherwise,
        config=SimpleNamespace(frame_bytes_max=codec.FRAME_BYTES_MAX),
    )
    slow = SlowTurns("broker", lambda: 0.0)
    guard = SimpleNamespace(
        starts=SimpleNamespace(
            take=lambda: True,
            take_known=lambda: True,
            known_room=lambda: 8,
            begun_known=lambda count, took_ms, now_ms: None,
        ),
        made=SimpleNamespace(size=0),
        slow=slow,
    )
    pulls = SimpleNamespace(tell_again=tell)
    return FastReads(cast(Any, sends), cast(Any, pulls), cast(Any, guard), cast(Any, None))


@pytest.mark.parametrize("order", ["ppp", "opp", "pop", "ppo", "o"])
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("reader", [False, True])
def test_a_pull_goes_before_no_earlier_request_of_its_connection(
    order: str, busy: bool, reader: bool
) -> None:
    pull = PullHeader("g", "T", 0, 0, 32).to_ext()
    frames = [
        codec.encode(Command(11 if kind == "p" else 34, pull, b"", number))
        for number, kind in enumerate(order)
    ]
    connection, data = Free(busy), b"".join(frames)
    if reader:
        connection.attributes[PULLS] = True
    at, left = reads()._process(cast(Any, connection), data, 0, len(data))
    at_once = 0 if busy else (order + "o").index("o")
    assert at == len(data)
    assert [answer.opaque for answer in connection.sent] == list(range(at_once))
    assert left == frames[at_once:]


def test_a_consumer_that_is_to_be_asked_takes_the_ordinary_way() -> None:
    frame = codec.encode(Command(11, PullHeader("g", "T", 0, 0, 32).to_ext(), b"", 1))
    for code, left in ((Response.SUBSCRIPTION_NOT_LATEST, [frame]), (Response.TOPIC_NOT_EXIST, [])):
        connection = Free(busy=False)
        refusing = reads(Refused("no", code))
        assert refusing.process(cast(Any, connection), frame, 0, len(frame)) == (len(frame), left)
        assert [answer.code for answer in connection.sent] == ([] if left else [code])


def test_a_pull_before_a_frame_that_cannot_be_is_answered_and_one_left_is_handed_on() -> None:
    pull = PullHeader("g", "T", 0, 0, 32).to_ext()
    frames = [codec.encode(Command(code, pull)) for code in (11, 34)]
    path = reads()

    def split(connection: object, buffer: bytes, at: int, end: int) -> tuple[int, list[bytes]]:
        return sum(map(len, taken)), list(taken)

    path._sends.process = split  # type: ignore[method-assign, assignment]
    for taken in ([frames[0]], frames):
        connection, data = Free(busy=False), b"".join(taken) + b"\x00\x00\x00\x05\x00\x00\x00\xff"
        if len(taken) == 1:
            with pytest.raises(PeerError):
                path.process(cast(Any, connection), data, 0, len(data))
        else:
            assert path.process(cast(Any, connection), data, 0, len(data)) == (len(data) - 8, frames[1:])
        assert len(connection.sent) == 1
