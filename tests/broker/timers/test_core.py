"""The promises of broker.timers.core: the rules of the original, by numbers."""

from __future__ import annotations

import random

import pytest

from broker.timers.core import LONG_MAX, Note, RollsDone, Rules, Wheel, deliver_ms, entry_of, is_timer
from model.config import BrokerConfig

DAY_MS = 24 * 3600 * 1000


def rules(**keys: str) -> Rules:
    return Rules.of(BrokerConfig.from_mapping(keys))


@pytest.mark.parametrize(
    ("said", "meant"),
    [("1", 100), ("100", 100), ("150", 100), ("250", 200), ("999", 500), ("1000", 1000), ("5000", 1000)],
)
def test_the_precision_is_one_of_the_originals_four(said: str, meant: int) -> None:
    assert rules(timerPrecisionMs=said).precision_ms == meant


@pytest.mark.parametrize(
    ("slots", "meant"), [("1", 604740), ("2", 2), ("604740", 604740), ("604741", 604740)]
)
def test_a_roll_window_that_no_wheel_has_is_the_whole_wheel(slots: str, meant: int) -> None:
    assert rules(timerRollWindowSlot=slots).roll_slots == meant


@pytest.mark.parametrize(
    ("deliver", "out"), [(10_000, 9_000), (10_001, 10_000), (10_999, 10_000), (11_000, 10_000)]
)
def test_a_message_is_in_the_slot_that_ends_at_its_time_or_behind(deliver: int, out: int) -> None:
    assert rules().out_ms(deliver) == out


@pytest.mark.parametrize(
    ("properties", "at"),
    [
        ("TIMER_DELAY_SEC\x015\x02", 105_000),
        ("TIMER_DELAY_MS\x0150\x02", 100_050),
        ("TIMER_DELIVER_MS\x01123456\x02", 123_456),
        ("TIMER_DELIVER_MS\x011\x02TIMER_DELAY_MS\x012\x02TIMER_DELAY_SEC\x013\x02", 103_000),
        ("TIMER_DELIVER_MS\x011\x02TIMER_DELAY_MS\x012\x02", 100_002),
        ("TIMER_DELAY_MS\x01-7\x02", 99_993),
        ("TIMER_DELAY_MS\x01+7\x02", 100_007),
        ("TIMER_DELAY_SEC\x01soon\x02", None),
        ("TIMER_DELAY_SEC\x011_0\x02", None),
        ("TIMER_DELAY_SEC\x01 1\x02", None),
        ("TIMER_DELAY_MS\x01٣\x02", None),
        (f"TIMER_DELIVER_MS\x01{LONG_MAX + 1}\x02", None),
    ],
)
def test_the_time_is_read_as_the_original_reads_it(properties: str, at: int | None) -> None:
    assert is_timer(properties)
    assert deliver_ms(properties, 100_000) == at


@pytest.mark.parametrize(
    "properties", ["", "KEYS\x01TIMER_DELAY_MS\x02", "TIMER_DELAY_MS\x015\x02TIMER_OUT_MS\x010\x02"]
)
def test_what_has_no_time_or_had_it_is_no_timer_message(properties: str) -> None:
    assert not is_timer(properties)


@pytest.mark.parametrize(
    ("out", "due", "rolls"),
    [
        (2 * DAY_MS - 1000, 2 * DAY_MS - 1000, False),
        (2 * DAY_MS, DAY_MS, True),  # little is left: half a window, so that the rest is long enough
        (2 * DAY_MS + 57_599_000, DAY_MS, True),
        (2 * DAY_MS + 57_600_000, 2 * DAY_MS, True),
        (3 * DAY_MS, 2 * DAY_MS, True),
    ],
)
def test_what_waits_longer_than_the_window_rolls(out: int, due: int, rolls: bool) -> None:
    text = f"TIMER_OUT_MS\x01{out}\x02TIMER_DEL_UNIQKEY\x01T+k\x02REAL_TOPIC\x01T\x02"
    found = entry_of(text, 7, 999, rules())
    assert found is not None
    assert (found.due_ms, found.rolls, found.enqueued_ms) == (due, rolls, 0)
    assert found.deletes == (None if rolls else "T\x01k"), "a recall rolls with what it recalls"


def test_a_record_without_a_time_is_none() -> None:
    assert entry_of("TIMER_OUT_MS\x01x\x02", 0, 0, rules()) is None


@pytest.mark.parametrize(
    ("topic", "named", "hit"),
    [
        ("T", "T+u", True),
        ("T", "u", True),
        ("T", "S+u", False),
        ("T", "T+v", False),
        ("S", "u", False),
        ("S", "T+u", False),
        ("S", "S+u", False),
    ],
)
def test_a_recall_reaches_its_own_topics_messages_however_it_names_them(
    topic: str, named: str, hit: bool
) -> None:
    waits = entry_of("TIMER_OUT_MS\x015\x02REAL_TOPIC\x01T\x02UNIQ_KEY\x01u\x02", 0, 0, rules())
    text = f"TIMER_OUT_MS\x015\x02REAL_TOPIC\x01{topic}\x02TIMER_DEL_UNIQKEY\x01{named}\x02"
    recall = entry_of(text, 1, 0, rules())
    assert waits is not None
    assert recall is not None
    assert recall.deletes is not None
    assert waits.is_recalled_by({recall.deletes}) is hit


def test_of_a_recall_with_a_long_id_a_hash_is_remembered() -> None:
    """Until its slot is due, days ahead: ids of 32 KB, each in a message of its own, filled the memory."""
    ids = ["u" * 30_000, "u" * 30_000 + "v", "ü" * 200]
    kept = []
    for named in ids:
        text = f"TIMER_OUT_MS\x015\x02REAL_TOPIC\x01T\x02TIMER_DEL_UNIQKEY\x01T+{named}\x02"
        recall = entry_of(text, 1, 0, rules())
        assert recall is not None
        assert recall.deletes is not None
        assert len(recall.deletes) <= 128
        kept.append(recall.deletes)
    for named, key in zip(ids, kept, strict=True):
        waits = entry_of(f"TIMER_OUT_MS\x015\x02REAL_TOPIC\x01T\x02UNIQ_KEY\x01{named}\x02", 0, 0, rules())
        assert waits is not None
        assert [waits.is_recalled_by({other}) for other in kept] == [other == key for other in kept]


def test_a_note_tells_what_was_delivered_whatever_the_precision_was_then() -> None:
    note = Note(read_ms=5000, queue_offset=10, first=3)
    for offset, due, delivered in [(9, 4999, True), (10, 4999, False), (9, 5000, False)]:
        found = entry_of(f"TIMER_OUT_MS\x01{due}\x02", offset, 0, rules())
        assert found is not None
        assert note.is_delivered(found) is delivered


def test_the_wheel_gives_back_what_it_took_slot_by_slot() -> None:
    wheel, chance = Wheel(), random.Random(1)
    left: dict[int, list[int]] = {}
    for offset in range(500):
        slot = chance.randrange(20) * 1000
        wheel.add(slot, offset, deletes=f"k{offset}" if offset % 50 == 0 else None, late=offset == 7)
        left.setdefault(slot, []).append(offset)
        wheel.check_invariants()
    assert wheel.offsets() == sorted((q, slot) for slot, offsets in left.items() for q in offsets)
    given = []
    while (slot_ms := wheel.next_slot) is not None:
        recalled = len([q for q in left[slot_ms] if q % 50 == 0])
        assert wheel.waiting(slot_ms) == len(left[slot_ms]) - 2 * recalled
        while front := wheel.front(slot_ms, 3):
            assert [q for q in front if wheel.is_late(slot_ms, q)] == [q for q in front if q == 7]
            for offset in front:
                given.append((slot_ms, offset))
                wheel.pop(slot_ms)
            wheel.check_invariants()
        wheel.close(slot_ms)
        wheel.check_invariants()
    assert given == sorted(given)
    assert len(given) == 500
    assert (wheel.count, wheel.first) == (0, None)


def test_a_message_that_should_have_rolled_waits_unless_its_roll_is_in_the_topic() -> None:
    def entry(offset: int, key: str, times: int, out: int) -> str:
        rolled = f"TIMER_ROLL_TIMES\x01{times}\x02" if times else ""
        return f"TIMER_OUT_MS\x01{out}\x02UNIQ_KEY\x01{key}\x02{rolled}"

    done = RollsDone()
    for offset, key, times in [(0, "a", 0), (1, "b", 0), (2, "a", 1), (3, "c", 0)]:
        found = entry_of(entry(offset, key, times, 5 * DAY_MS), offset, 0, rules())
        assert found is not None
        assert found.rolls
        done.on_record(found, seems_done=offset < 2)
    assert [found.queue_offset for found in done.left()] == [1], "2 and 3 wait in any case"
    assert done.left() == []


@pytest.mark.parametrize(("source", "left"), [(0, [1]), (1, [0]), (None, [1]), (7, [0, 1])])
def test_a_roll_is_that_of_the_message_it_names_though_others_have_its_unique_key(
    source: int | None, left: list[int]
) -> None:
    done = RollsDone()
    for offset, times, of in ((0, 0, None), (1, 0, None), (2, 1, source)):
        rolled = f"TIMER_ROLL_TIMES\x01{times}\x02" if times else ""
        text = f"TIMER_OUT_MS\x01{5 * DAY_MS}\x02UNIQ_KEY\x01a\x02{rolled}"
        found = entry_of(text, offset, 0, rules())
        assert found is not None
        done.on_record(found, seems_done=offset < 2, source=of)
    assert [found.queue_offset for found in done.left()] == left


@pytest.mark.parametrize("slots", [2, 3, 4, 5, 20])
def test_a_roll_is_never_in_the_slot_of_the_message_itself(slots: int) -> None:
    """A recall that rolled there would be too late."""
    found = [
        entry_of(
            f"TIMER_OUT_MS\x01{out}\x02", 0, 0, rules(timerRollWindowSlot=str(slots), timerPrecisionMs="100")
        )
        for out in range(0, 100 * 4 * slots, 50)
    ]
    rolling = [entry for entry in found if entry is not None and entry.rolls]
    assert len(rolling) >= 4 * slots
    assert all(entry.due_ms // 100 < entry.out_ms // 100 for entry in rolling)
