"""The promise of histories: what is written is read back, and sends are joined from their events."""

import io

import pytest

from chaos.history import Fail, History, Invoke, Ok, Unknown, from_json
from client.message import Queue
from tests.chaos.good import good_events

QUEUE = Queue("t", "broker-a", 3)


def test_a_history_survives_its_file() -> None:
    history = History(good_events())
    history.add(Fail(1.5, "p", "x", "no such thing"))
    out = io.StringIO()
    history.write(out)
    assert History.read(out.getvalue().splitlines()).events == history.events


@pytest.mark.parametrize(
    "line", ["{", '{"type":"what"}', '{"type":"fail"}', "[]", '{"type":"ok","queue":[1]}']
)
def test_a_line_that_is_no_event_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        History.read(["", line])


def test_sends_are_joined_from_invoke_and_end() -> None:
    history = History(
        [
            Invoke(1.0, "p", "a", QUEUE, 1),
            Invoke(1.0, "q", "b", QUEUE, 2),
            Ok(2.0, "p", "a", QUEUE, 7, 700, "127.0.2.1:10911"),
            Invoke(3.0, "p", "c", QUEUE, 3),
            Invoke(4.0, "p", "d", QUEUE, 4),
            Fail(5.0, "p", "c", "refused"),
            Unknown(6.0, "q", "b", "timeout", 2),
        ]
    )
    sends = {send.key: send for send in history.sends()}
    assert [(s.key, s.outcome, s.number, s.unknown_attempts) for s in sends.values()] == [
        ("a", "ok", 0, 0),
        ("b", "unknown", 0, 2),
        ("c", "fail", 1, 0),
        ("d", "unknown", 2, 1),
    ]
    assert (sends["a"].queue_offset, sends["a"].ended_ms, sends["d"].ended_ms) == (7, 2.0, None)
    assert [line["uniq_key"] for line in history.ledger()] == ["a"]


def test_an_end_without_its_beginning_is_an_error() -> None:
    with pytest.raises(ValueError, match="without an invoke"):
        History([Fail(1.0, "p", "a", "no")]).sends()
    with pytest.raises(ValueError, match="twice"):
        History([Invoke(1.0, "p", "a", QUEUE, 1)] * 2).sends()


def test_a_number_beyond_all_numbers_is_no_event() -> None:
    line = '{"type":"invoke","at_ms":5,"process":"p","key":"k","queue":["T","b",1e999],"body_crc":7}'
    with pytest.raises(ValueError, match="line 3"):
        from_json(line, 3)
