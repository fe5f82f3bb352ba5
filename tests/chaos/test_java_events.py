"""The promise of drills under the official Java client: what it tells is judged by the same checks, a broken
promise in its events is found, and none where its clock does not tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from chaos.checks import Evidence, check_all
from chaos.drills.live.java_load import shape
from chaos.history import Fail, History, HistoryEvent, Invoke, Ok, Read, Unknown
from chaos.java_events import JavaClock, JavaEvents, not_received, parsed
from chaos.workload import Load
from client.message import Queue
from model.message import encode_host, message_id

QUEUE = Queue("t", "broker-a", 0)
STORED = message_id(encode_host("127.0.0.1:10911"), 100)


def events(low_ms: float = 0.0, high_ms: float = 0.0) -> JavaEvents:
    """Java's clock is so much behind ours."""
    clock = JavaClock()
    clock.note(low_ms, 0, high_ms)
    return JavaEvents("t", "broker-a", clock)


def told(event: str, at_ms: float, key: str, **more: Any) -> bytes:
    found = {"event": event, "at_ns": round(at_ms * 1e6), "process": "p0", "key": key, **more}
    return json.dumps(found).encode() + b"\n"


def began(at_ms: float, key: str, **more: Any) -> bytes:
    return told("began", at_ms, key, **{"queue": 0, "body_crc": 1, **more})


def acked(at_ms: float, key: str, offset: int, **more: Any) -> bytes:
    given = {"status": "SEND_OK", "broker": "broker-a", "queue": 0, "offset": offset, "msg_id": key}
    return told("acked", at_ms, key, **{**given, "offset_msg_id": STORED, **more})


def received(at_ms: float, key: str, offset: int) -> bytes:
    return told("received", at_ms, key, process="c0", broker="broker-a", queue=0, offset=offset, body_crc=1)


def history(lines: Sequence[bytes], of: JavaEvents | None = None) -> History:
    made = of or events()
    found = [made.event(line) for line in map(parsed, lines) if line is not None]
    return History(event for event in found if event is not None)


def broken(lines: Sequence[bytes], final: Sequence[tuple[str, int]]) -> set[str]:
    """The checks that complain, where the end of the queue was read back as ``final``."""
    made = history(lines)
    for key, offset in final:
        made.add(Read(1000.0, "end", key, QUEUE, offset, 1, final=True))
    return {violation.checker for violation in check_all(Evidence(made))}


SENT = [began(1, "k0"), acked(2, "k0", 0), began(3, "k1"), acked(4, "k1", 1), received(5, "k0", 0)]


def test_what_java_sent_and_was_given_is_a_history_that_every_check_takes() -> None:
    assert broken(SENT, [("k0", 0), ("k1", 1)]) == set()
    assert history(SENT).events[:2] == [
        Invoke(1.0, "p0", "k0", QUEUE, 1),
        Ok(2.0, "p0", "k0", QUEUE, 0, 100, "127.0.0.1:10911"),
    ]


def test_an_acknowledged_send_that_is_lost_is_found() -> None:
    assert broken(SENT, [("k0", 0)]) == {"lost"}


def test_what_a_member_was_given_and_is_gone_is_found() -> None:
    assert broken(SENT[2:], [("k1", 1)]) >= {"phantom", "read_then_gone"}


def test_two_messages_of_a_producer_in_the_other_order_are_found() -> None:
    lines = [began(1, "k0"), acked(2, "k0", 1), began(3, "k1"), acked(4, "k1", 0)]
    assert broken(lines, [("k1", 0), ("k0", 1)]) == {"producer_order"}


def test_one_attempt_that_is_stored_twice_is_found() -> None:
    assert broken(SENT, [("k0", 0), ("k1", 1), ("k1", 2)]) == {"duplicates"}
    unknown = [*SENT, began(6, "k2"), told("open", 7, "k2", text="timed out")]
    assert broken(unknown, [("k0", 0), ("k1", 1), ("k2", 2)]) == set(), "it may be stored, once"
    assert broken(unknown, [("k0", 0), ("k1", 1), ("k2", 2), ("k2", 3)]) == {"duplicates"}


def test_one_offset_for_two_messages_is_found() -> None:
    lines = [began(1, "k0"), began(1, "k1", process="p1"), acked(2, "k0", 0), acked(2, "k1", 0, process="p1")]
    assert "acknowledged_twice" in broken(lines, [("k0", 0)])


@pytest.mark.parametrize(
    ("line", "end"),
    [
        (acked(2, "k", 0, status="FLUSH_SLAVE_TIMEOUT"), Unknown),
        (told("open", 2, "k", text="RemotingSendRequestException: ..."), Unknown),
        (told("refused", 2, "k", code=1, text="the disk"), Unknown),
        (told("refused", 2, "k", code=1, text="[REJECTREQUEST]a slave"), Fail),
        (told("refused", 2, "k", code=14, text="not available now"), Fail),
        (told("unsent", 2, "k", text="RemotingConnectException: ..."), Fail),
    ],
)
def test_only_what_cannot_have_been_stored_counts_as_failed(line: bytes, end: type[Fail | Unknown]) -> None:
    assert [type(event) for event in history([began(1, "k"), line]).events] == [Invoke, end]


def test_a_send_whose_end_was_not_told_is_unknown() -> None:
    assert [send.outcome for send in history([began(1, "k")]).sends()] == ["unknown"]


def test_no_order_is_claimed_that_the_clocks_do_not_tell() -> None:
    """Two senders: another client's send ended, by our clock, 1 ms before Java's began, or did not."""
    lines = [began(10, "k1"), acked(11, "k1", 0)]
    for error_ms, expected in ((0.5, {"real_time_order"}), (1.5, set())):
        made = history(lines, events(-error_ms, 0.0))
        other: list[HistoryEvent] = [Invoke(8.0, "s", "k0", QUEUE, 1), Ok(9.0, "s", "k0", QUEUE, 1, 1)]
        found = check_all(Evidence(History([*other, *made.events]), complete=False))
        assert {violation.checker for violation in found} == expected


def test_answers_narrow_the_clock_and_one_that_does_not_fit_is_told() -> None:
    clock = JavaClock()
    for asked_ms, at_ms, heard_ms in ((100, 50, 110), (200, 145, 203), (300, 247.5, 305)):
        clock.note(asked_ms, round(at_ms * 1e6), heard_ms)
    assert (clock.first_ms(0), clock.last_ms(0), clock.error_ms) == (55.0, 57.5, 2.5)
    assert clock.gone_ms == 0.0
    clock.note(400, 300_000_000, 401)
    assert clock.gone_ms == 42.5
    assert clock.error_ms == 2.5, "what was known stays"


def test_what_its_group_was_never_given_is_told() -> None:
    made = events()
    lines = history(SENT, made)
    assert not_received(lines, made, "G") == [
        f"1 of 2 acknowledged messages were never given to G: k1 at {QUEUE} 1"
    ]
    history([received(6, "k1", 1)], made)
    assert not_received(lines, made, "G") == []
    assert made.counts["received"] == 2


def test_what_the_jvm_says_itself_is_no_event_and_half_a_line_is_an_error() -> None:
    assert parsed(b"OpenJDK 64-Bit Server VM warning: ...\n") is None
    for line in (b'{"event": "acked", "at_', b'{"event": "acked"}', b'{"at_ns": 1}'):
        with pytest.raises(ValueError):
            parsed(line)
    with pytest.raises(ValueError, match="no event of the Java client"):
        history([told("acked", 1, "k")])


def test_java_sends_as_many_a_second_from_producers_of_one_queue_each() -> None:
    for producers, in_flight, queues, each in ((4, 1, 8, 1), (4, 1, 4, 1), (4, 4, 4, 4), (1, 1, 4, 1)):
        load = Load(producers=producers, per_second=25.0, in_flight_max=in_flight, queues=queues)
        made: dict[str, Any] = shape(load, queues)
        assert made["producers"] == each
        assert made["per_second"] * queues * each == producers * 25.0
