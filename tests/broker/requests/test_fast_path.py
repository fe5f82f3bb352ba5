"""The promise of the fast path: it stores and answers what the ordinary way would, only cheaper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.requests.fast_headers import SendExt
from broker.requests.fast_path import is_fast
from broker.requests.send_format import is_special
from model.errors import PeerError
from model.message import PROPERTIES_BYTES_MAX, java_hash
from model.topic import TopicConfig
from remoting import codec
from remoting.codec import Command
from remoting.headers import SendHeader
from remoting.service import Connection
from runtime import native
from tests.broker.helpers import batch_body, golden_exchanges
from tests.fakes.broker.send_path import WAYS, Side


@pytest.fixture(autouse=True, scope="module", params=WAYS, ids=["Python", "compiled"][: len(WAYS)])
def fast_path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every promise holds for both."""
    Side.usual = request.param
    yield
    Side.usual = None


UNIQ = "UNIQ_KEY\x01FD00000000000000000000000000021E\x02WAIT\x01true\x02"


def frame(
    opaque: int,
    body: bytes = b"hello",
    *,
    topic: str = "T",
    queue_id: int = 1,
    properties: str = UNIQ,
    code: int = 310,
    flag: int = 0,
    serialize: int = codec.JSON,
    **header: Any,
) -> bytes:
    send = SendHeader("pg", topic, queue_id, 1_699_999_999_000, properties=properties, **header)
    ext = send.to_ext(full_names=code == 10)
    return codec.encode(Command(code, ext, body, opaque=opaque, flag=flag, serialize=serialize))


def assert_same(frames: list[bytes], **side: Any) -> tuple[Side, int]:
    """Run ``frames`` both ways; return the fast side and how many frames it left to the ordinary way."""
    fast, slow_only = Side(**side), Side(**side)
    left = fast.fast(b"".join(frames))
    fast.ordinary(left)
    slow_only.ordinary(frames)
    assert fast.store.log.data == slow_only.store.log.data
    assert fast.store.dispatches == slow_only.store.dispatches
    assert fast.connection.data == slow_only.connection.data
    assert fast.context.stats.put_total == slow_only.context.stats.put_total
    return fast, len(left)


@pytest.mark.parametrize("serialize", [codec.JSON, codec.ROCKETMQ])
@pytest.mark.parametrize("code", [10, 310])
def test_plain_sends_take_the_fast_path_and_one_write(code: int, serialize: int) -> None:
    sent = [frame(i, b"x" * i, queue_id=i % 4, code=code, serialize=serialize) for i in range(64)]
    fast, left = assert_same(sent)
    assert left == 0
    assert fast.context.stats.put_fast_total == 64
    assert fast.store.appends == 1
    assert len(fast.connection.written) == 1


@pytest.mark.parametrize("serialize", [codec.JSON, codec.ROCKETMQ])
def test_a_batch_takes_the_fast_path_with_its_properties_untouched(serialize: int) -> None:
    messages = [(b"m%d" % i, f"KEYS\x01k{i}\x02UNIQ_KEY\x01AB{i}\x02TAGS\x01A\x02", i) for i in range(5)]
    fast, left = assert_same([frame(1, batch_body(messages), code=320, batch=True, serialize=serialize)])
    assert left == 0
    assert fast.context.stats.put_fast_total == 5


def test_a_pull_between_sends_leaves_them_on_the_fast_path() -> None:
    pulls = [codec.encode(Command(11, {"topic": "T"}, serialize=dialect)) for dialect in (0, 1)]
    sent = [frame(1), pulls[0], frame(2, serialize=codec.ROCKETMQ), pulls[1], frame(3)]
    side = Side()
    assert side.fast(b"".join(sent)) == pulls
    assert len(side.store.dispatches) == 3


def test_oneway_sends_are_stored_and_never_answered() -> None:
    fast, left = assert_same([frame(1, flag=2), frame(2)])
    assert left == 0
    assert len(fast.store.dispatches) == 2
    assert fast.connection.data.count(b'"opaque":') == 1


@pytest.mark.parametrize(
    "name", ["send_v1", "send_v2", "send_v2_oneway", "send_batch", "send_v2_binary_header"]
)
def test_what_real_clients_send_is_stored_and_answered_alike(name: str) -> None:
    request_frame, request, answer = golden_exchanges("send.jsonl")[name]
    topic = request.ext.get("b") or request.ext["topic"]

    def side() -> Side:
        made = Side()
        made.topics.put(TopicConfig(topic, 4, 4))
        return made

    fast, slow = side(), side()
    left = fast.fast(request_frame)
    fast.ordinary(left)
    slow.ordinary([request_frame])
    assert fast.store.log.data == slow.store.log.data
    assert fast.connection.data == slow.connection.data
    if answer is None:
        assert fast.connection.written == []
        return
    ours = codec.decode(fast.connection.data)
    assert set(ours.ext) == set(answer.ext)
    for field in ("transactionId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"):
        assert ours.ext[field] == answer.ext[field]
    assert ours.ext["msgId"].count(",") == answer.ext["msgId"].count(",")
    assert (ours.code, ours.flag, ours.opaque) == (answer.code, answer.flag, answer.opaque)
    assert ours.version == codec.VERSION  # the answer was recorded of an earlier release


ODD = [
    {"queue_id": -1},
    {"queue_id": 99},
    {"topic": "Unknown"},
    {"topic": "ReadOnly"},
    {"topic": "SCHEDULE_TOPIC_XXXX"},
    {"topic": "%RETRY%g"},
    {"topic": "bad topic"},
    {"properties": UNIQ + "DELAY\x012\x02"},
    {"properties": UNIQ + "TRAN_MSG\x01true\x02"},
    {"properties": UNIQ + "TIMER_DELAY_SEC\x013\x02"},
    {"properties": UNIQ.replace("true", "false")},
    {"properties": UNIQ + "CLUSTER\x01x\x02MSG_REGION\x01y\x02"},
    {"properties": UNIQ.rstrip("\x02")},
    {"properties": "TAGS\x01A\x02"},
    {"properties": ""},
    {"properties": UNIQ + "KEYS\x01a b\x02TAGS\x01blau und grün\x02"},
    {"properties": 'UNIQ_KEY\x01"quoted"\x02'},
    {"properties": UNIQ + "p\x01" + "v" * 32767 + "\x02"},
    {"body": b"x" * 5000},
    {"code": 320},
    {"code": 320, "batch": True, "body": b"\x00\x00"},
    {"code": 310, "batch": True},
    {"code": 310, "batch": True, "body": batch_body([(b"a", "UNIQ_KEY\x01A\x02", 0)])},
    {"flag": 2, "topic": "Unknown"},
    {"sys_flag": 1},
    {"sys_flag": 8},
    {"sys_flag": 16},
    {"sys_flag": -1},
    {"reconsume_times": 3, "max_reconsume_times": 5},
    {"unit_mode": True},
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: ",".join(f"{k}={str(v)[:20]!r}" for k, v in odd.items()))
def test_every_odd_request_ends_alike_and_order_is_kept(odd: dict[str, Any]) -> None:
    how = dict(odd)
    body = how.pop("body", b"hello")
    assert_same([frame(1), frame(2, body, **how), frame(3)], maxMessageSize="4096")


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("serialize", [codec.JSON, codec.ROCKETMQ])
def test_properties_with_a_nul_are_left_to_the_store_which_refuses_many(batch: bool, serialize: int) -> None:
    odd = UNIQ + "p\x01\0\x02"
    if batch:
        one = frame(1, batch_body([(b"a", odd, 0)]), code=320, batch=True, serialize=serialize)
    else:
        one = frame(1, properties=odd, serialize=serialize)
    assert assert_same([one])[1] == 1


PROPERTIES = st.lists(
    st.tuples(
        st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "DELAY", "p", "XKEYS", "TRACE_ON", "INNER_NUM"]),
        st.one_of(st.sampled_from(["", "true", "false", "1", "A", "é"]), st.text("ab\x01 1", max_size=4)),
    ),
    max_size=6,
).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs))

BATCHES = st.lists(st.tuples(st.binary(max_size=40), PROPERTIES, st.integers(-5, 5)), max_size=4).map(
    batch_body
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    code = draw(st.sampled_from([310, 310, 310, 310, 320, 10]))
    batch = code == 320 or draw(st.integers(0, 9)) == 0
    header = SendHeader(
        "pg",
        draw(st.sampled_from(["T", "T", "T", "U", "ReadOnly", "New", "%RETRY%g"])),
        draw(st.integers(-1, 4)),
        draw(st.integers(-1, 2**62)),
        sys_flag=draw(st.sampled_from([0, 0, 0, 1, 0x300, 4, 16])),
        flag=draw(st.integers(-3, 3)),
        properties=draw(st.one_of(st.just(UNIQ), PROPERTIES)),
        reconsume_times=draw(st.integers(0, 3)),
        batch=batch,
    )
    body = draw(BATCHES if batch else st.binary(max_size=300))
    ext = header.to_ext()
    if draw(st.integers(0, 19)) == 0:
        ext.pop(draw(st.sampled_from(sorted(ext))))
    return codec.encode(
        Command(
            code,
            ext,
            body,
            opaque=draw(st.integers(0, 2**31 - 1)),
            flag=draw(st.sampled_from([0, 0, 0, 2])),
            serialize=draw(st.sampled_from([0, 0, 0, 1])),
        )
    )


@given(sent=st.lists(frames(), max_size=12), segment_bytes=st.sampled_from([4096, 8192, 1 << 20]))
def test_both_ways_store_and_answer_the_same_bytes(sent: list[bytes], segment_bytes: int) -> None:
    assert_same(sent, segment_bytes=segment_bytes)


@given(sent=st.lists(frames(), min_size=1, max_size=6), cut=st.integers(0, 10_000))
def test_a_frame_cut_anywhere_waits_for_its_rest(sent: list[bytes], cut: int) -> None:
    data = b"".join(sent)
    cut = cut % len(data)
    side = Side()
    connection = cast(Connection, side.connection)
    consumed, slow = side.hot.process(connection, bytearray(data[:cut]), 0, cut)
    side.ordinary(slow)
    side.ordinary(side.fast(data[consumed:]))
    whole = Side()
    whole.ordinary(whole.fast(data))
    assert side.store.log.data == whole.store.log.data
    assert side.connection.data == whole.connection.data


def test_a_record_that_does_not_fit_goes_to_the_next_segment_whole() -> None:
    fast, left = assert_same([frame(i, b"x" * 700) for i in range(20)], segment_bytes=4096)
    assert left == 0
    assert fast.store.log.end > 3 * 4096
    assert fast.store.appends > 3


def test_a_message_no_segment_can_hold_is_left_to_the_ordinary_way() -> None:
    side = Side(segment_bytes=4096)
    assert len(side.fast(frame(1, b"x" * 5000))) == 1
    assert side.store.log.end == 0


def test_a_full_disk_stores_nothing_and_leaves_the_answers_to_the_ordinary_way() -> None:
    side = Side()
    sent = [frame(i) for i in range(5)]
    side.store.fail_appends = 1
    assert side.fast(b"".join(sent)) == sent
    assert side.connection.written == []
    assert side.store.log.end == 0


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"brokerIP1": "::1"}, "the address of this broker is IPv6"),
        ({"enabledAppendPropCRC": "true"}, "enabledAppendPropCRC"),
    ],
)
def test_where_no_send_takes_it_it_says_so(
    keys: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Side, "usual", None)
    side, sent = Side(**keys), frame(1)
    assert side.fast(sent) == [sent]
    assert side.hot.describe() == f"ordinary ({why})"
    assert Side().hot.describe() == native.describe()


def test_while_sends_are_refused_every_frame_is_left() -> None:
    side = Side()
    side.refusing = True
    sent = [frame(1), frame(2)]
    assert side.fast(b"".join(sent)) == sent


def test_a_frame_that_cannot_be_ends_the_connection_after_what_was_good() -> None:
    side = Side()
    data = frame(1) + b"\x00\x00\x00\x05\x00\x00\x00\xff" + bytes(20)
    with pytest.raises(PeerError):
        side.hot.process(cast(Connection, side.connection), bytearray(data), 0, len(data))
    assert len(side.store.dispatches) == 1
    assert len(side.connection.written) == 1


def with_header(sent: bytes, old: str, new: str) -> bytes:
    """A frame with something else in its JSON header."""
    header, body = sent[8 : codec.body_start(sent)], sent[codec.body_start(sent) :]
    assert header.count(old.encode()) == 1
    header = header.replace(old.encode(), new.encode())
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize(
    "new",
    [
        '"flag":1099511627776',
        '"flag":1.0',
        '"flag":"0.0"',
        '"flag":0,"version":"abc"',
        '"flag":0,"version":1e0',
    ],
)
def test_a_header_that_is_none_for_the_ordinary_way_is_left_to_it(code: int, new: str) -> None:
    sent = with_header(frame(1, code=code), '"flag":0,', new + ",").replace(b',"version":513', b"")
    sent = (len(sent) - 4).to_bytes(4, "big") + (len(sent) - 8 - 5).to_bytes(4, "big") + sent[8:]
    with pytest.raises(PeerError):
        codec.decode(sent)
    assert Side().fast(sent) == [sent]


@pytest.mark.parametrize("new", ['"h":0.0', '"h":"0.0"', '"h":"0","l":"null"', '"h":"0","l":null'])
def test_a_number_that_is_none_for_the_ordinary_way_is_left_to_it(new: str) -> None:
    sent = with_header(frame(1), '"h":"0"', new)
    assert Side().fast(sent) == [sent]


def test_a_field_that_no_send_has_is_not_taken_twice() -> None:
    """Python's path forgives it: to look would cost each send."""
    once = with_header(frame(1), '"h":"0"', '"h":"0","ns":"x","nsd":"y"')
    twice = with_header(frame(1), '"h":"0"', '"h":"0","ns":"x","nsd":"y","\\u006es":"x"')
    with pytest.raises(PeerError):
        codec.decode(twice)
    side = Side()
    assert side.fast(once) == []
    assert side.fast(twice) == ([] if side.hot.compiled is None else [twice])


BROKEN = b"\x00\x00\x00\x05\x00\x00\x00\xff" + bytes(20)


@pytest.mark.parametrize("refusing", [False, True])
def test_frames_left_before_one_that_cannot_be_are_handed_on_first(refusing: bool) -> None:
    side = Side()
    side.refusing = refusing
    pull, special = codec.encode(Command(11)), frame(2, properties=f"DELAY\x011\x02{UNIQ}")
    good = frame(1) + pull + special
    data = bytearray(good + BROKEN)
    connection = cast(Connection, side.connection)
    left = [pull, special] if not refusing else [frame(1), pull, special]
    assert side.hot.process(connection, data, 0, len(data)) == (len(good), left)
    assert len(side.store.dispatches) == (not refusing)
    with pytest.raises(PeerError):
        side.hot.process(connection, data, len(good), len(data))


@pytest.mark.parametrize("serialize", [codec.JSON, codec.ROCKETMQ])
def test_a_whole_frame_longer_than_any_may_be_ends_the_connection(serialize: int) -> None:
    side = Side(frameMaxLength="5000")
    sent = [frame(n, bytes(size), serialize=serialize) for n, size in enumerate((9, 4000, 4900, 9))]
    assert len(sent[1]) <= 5000 < len(sent[2])
    data = bytearray(b"".join(sent))
    with pytest.raises(PeerError):
        side.hot.process(cast(Connection, side.connection), data, 0, len(data))
    assert len(side.store.dispatches) == 2


def test_a_topic_that_becomes_read_only_is_noticed_at_once() -> None:
    side = Side()
    assert side.fast(frame(1)) == []
    side.topics.put(TopicConfig("T", 4, 4, 4))
    assert len(side.fast(frame(2))) == 1


async def test_answers_wait_for_replication() -> None:
    side = Side()
    side.replicated = 0
    assert side.fast(frame(1)) == []
    assert side.connection.written == []
    side.replicated = side.store.log.end
    side.pending_acks.on_replicated(side.store.log.end)
    assert len(side.connection.written) == 1


@pytest.mark.parametrize("batch", [False, True])
def test_of_a_property_given_twice_the_last_value_counts(batch: bool) -> None:
    """As clients read it, which look at the tags of what they were sent once more."""
    twice = [f"{name}\x01{n}{name[0]}\x02" for n in (1, 2) for name in ("TAGS", "KEYS", "UNIQ_KEY")]
    text = "".join(twice) + "TAGS\x01\x02KEYS\x01\x02"
    inner = batch_body([(b"a", text, 0)])
    sent = frame(1, inner, code=320, batch=True) if batch else frame(1, properties=text)
    fast, left = assert_same([sent])
    assert left == 0
    (stored,) = fast.store.dispatches
    assert (stored.tags_code, stored.uniq_key, stored.keys) == (java_hash("2T"), "2U", "2K")


NAMES_AND_VALUES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "DELAY",
                "WAIT",
                "CLUSTER",
                "TRAN_MSG",
                "TIMER_DELAY_MS",
                "MSG_REGION",
                "TRACE_ON",
                "POP_CK",
                "REAL_TOPIC",
                "REAL_QID",
                "INNER_NUM",
                "INNER_MULTI_DISPATCH",
                "__CRC32#",
                "TAGS",
                "KEYS",
                "a_b",
                "_",
                "b",
                "XDELAY",
            ]
        ),
        st.sampled_from(["true", "false", "False", "1", "v_w"]),
    ),
    max_size=4,
)


@given(NAMES_AND_VALUES, st.integers(0, 4))
def test_beside_a_unique_key_the_short_test_says_the_same(pairs: list[tuple[str, str]], at: int) -> None:
    pairs.insert(at, ("UNIQ_KEY", "A1"))
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    ext = msgspec.structs.replace(FAST, properties=text)
    assert is_fast(310, ext, text, 4, b"A1") is not is_special(text)


FAST = SendExt("pg", "T", "TBW102", 8, 3, 0, 1, 0, UNIQ)


@pytest.mark.parametrize(
    ("code", "changes", "unique", "expected"),
    [
        (310, {}, "A1", True),
        (310, {"sys_flag": 1}, "A1", True),
        (320, {"batch": "true"}, "A1", True),
        (320, {}, "A1", False),
        (310, {"batch": "true"}, "A1", False),
        (310, {"batch": "TRUE"}, "A1", False),
        (310, {"batch": "false"}, "A1", True),
        (310, {"producer_group": ""}, "A1", False),
        (310, {"default_topic": ""}, "A1", False),
        (310, {"queue_id": 4}, "A1", False),
        (310, {"queue_id": -1}, "A1", False),
        (310, {"sys_flag": 4}, "A1", False),
        (310, {"sys_flag": 128}, "A1", False),
        (310, {"properties": UNIQ[:-1]}, "A1", False),
        (320, {"batch": "true", "properties": UNIQ + f"p\x01{'x' * PROPERTIES_BYTES_MAX}\x02"}, "A1", False),
        (310, {"properties": UNIQ + "DELAY\x013\x02"}, "A1", False),
        (310, {"properties": UNIQ + "REAL_TOPIC\x01X\x02"}, "A1", False),
        (310, {"properties": UNIQ + "__CRC32#\x010000000000\x02"}, "A1", False),
        (310, {}, "", False),
        (310, {}, 'A"', False),
        (310, {}, "\u00e9", False),
    ],
)
def test_a_send_is_fast_when_it_needs_no_rule_but_the_format(
    code: int, changes: dict[str, Any], unique: str, expected: bool
) -> None:
    ext = msgspec.structs.replace(FAST, **changes)
    assert is_fast(code, ext, ext.properties, 4, unique.encode()) is expected
