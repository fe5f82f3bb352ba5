"""The promise of ha.slave.follow: a log grows at its end, keeps what is proven, acknowledges what it has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ha.slave.follow import (
    Action,
    Agreed,
    Append,
    CannotGoOn,
    ClassicFollowing,
    Confirm,
    Following,
    LearnEpochs,
    Master,
    NoteEpoch,
    Truncate,
)
from ha.slave.tail import COMPARE_WAIT_MS, TailCompare, UnreadableError
from ha.wire.codec import MasterHandshake, Transfer
from model.errors import PeerError
from model.ids import Epoch, PhysicalOffset
from tests.fakes.ha.following import Slave
from tests.fakes.ha.frames import master_handshake, transfer

OURS, REAL = Master(Epoch(9)), Master(Epoch(9), rocketmq_peer=True)
SEGMENT = 1 << 16

EPOCHS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60)), min_size=0, max_size=4).map(
    lambda steps: _epochs_of(steps)
)


def _epochs_of(steps: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    epoch, start, found = 0, 0, []
    for raise_by, length in steps:
        epoch += raise_by
        found.append((epoch, start))
        start += length
    return tuple(found)


FRAMES = st.lists(
    st.builds(
        Transfer,
        st.integers(-1, 260),
        st.integers(1, 12),
        st.integers(0, 260),
        st.integers(-1, 300),
        st.binary(max_size=40) | st.integers(1, 250).map(lambda size: b"a" * size),
    ),
    max_size=6,
)


@st.composite
def slaves(draw: st.DrawFn) -> Slave:
    size = draw(st.integers(0, 200))
    epochs = tuple(entry for entry in draw(EPOCHS) if entry[1] <= size)
    confirmed, flushed = draw(st.integers(0, size)), draw(st.integers(0, size))
    slave = Slave(b"a" * size, epochs, confirmed, flushed)
    slave.epochs_lost = draw(st.booleans()) and not epochs
    slave.dispatched = draw(st.integers(0, confirmed))
    slave.classic_from = draw(st.none() | st.integers(0, 200).map(PhysicalOffset)) if epochs else None
    return slave


@st.composite
def handshakes(draw: st.DrawFn) -> MasterHandshake:
    epochs = draw(EPOCHS)
    end = draw(st.integers(epochs[-1][1] if epochs else 0, 260))
    return master_handshake(end, epochs[-1][0] if epochs else -1, epochs)


@given(
    slaves(),
    handshakes(),
    FRAMES,
    st.sampled_from([OURS, REAL, Master(Epoch(9), followed_rocketmq=True)]),
    st.booleans(),
    st.data(),
)
@settings(max_examples=400)
def test_whatever_a_master_says_the_log_grows_at_its_end_and_keeps_what_is_proven(
    slave: Slave,
    greeting: MasterHandshake,
    frames: list[Transfer],
    master: Master,
    synced: bool,
    data: st.DataObject,
) -> None:
    following = Following(synced=synced, log=slave)
    assert following.ack(slave.reach, always=True) is None, "nothing is said before the master's handshake"
    confirmed, lost = slave.confirmed, slave.epochs_lost
    whole = slave.own.dispatched
    try:
        slave.carry_out(following.on_handshake(greeting, slave.own, master))
        if slave.cut_to is not None and master.proves_confirmed and not lost:
            assert slave.cut_to >= confirmed
        if slave.cut_to is not None and lost:
            assert greeting.end >= confirmed, "what was confirmed is copied again"
            assert slave.cut_to >= min(confirmed, whole), "no further back than to the last whole record"
        said = -1
        for frame in frames:
            if slave.reseed is not None:
                return
            if data.draw(st.booleans()):  # most random offsets do not fit: make this one fit
                frame = transfer(len(slave.data), frame.epoch, frame.epoch_start, frame.confirmed, frame.body)
            same_epoch = data.draw(st.booleans())
            if same_epoch and slave.epochs:
                frame = transfer(frame.offset, *slave.epochs[-1], frame.confirmed, frame.body)
            before, cut = bytes(slave.data), slave.cut_to
            goes_on = following.goes_on(frame, slave.reach.end, slave.reach.epochs)
            actions = following.on_frame(frame, slave.reach, 0.0)
            if goes_on:
                behind = PhysicalOffset(frame.offset + len(frame.body))
                append: list[Action] = [Append(frame.offset, frame.body)] if frame.body else []
                assert actions == [*append, Confirm(PhysicalOffset(min(max(frame.confirmed, 0), behind)))]
            slave.carry_out(actions)
            if slave.cut_to == cut:
                assert bytes(slave.data[: len(before)]) == before
            else:
                assert lost
                assert slave.cut_to is not None
                assert slave.cut_to >= min(confirmed, whole), "no further back than to the last whole record"
                assert following.agreed, "what lies before the cut was compared"
            if slave.reseed is not None:
                return  # a broker ends the link there
            end = following.ack(slave.reach, always=data.draw(st.booleans()))
            if end is not None:
                assert said <= end <= slave.end
                assert not synced or end <= slave.flushed or not following.agreed
                said = end
    except PeerError:
        return


@given(slaves(), FRAMES, st.booleans())
def test_without_epochs_only_what_the_master_has_too_is_acknowledged(
    slave: Slave, frames: list[Transfer], synced: bool
) -> None:
    end = len(slave.data)
    following = ClassicFollowing(slave.own, segment_bytes=SEGMENT, synced=synced, log=slave)
    first = bytes(slave.data)
    for frame in frames:
        before = bytes(slave.data)
        try:
            slave.carry_out(following.on_frame(frame, slave.reach, 0.0))
        except PeerError:
            return
        assert following.agreed or bytes(slave.data) == first, "nothing comes behind what is not compared"
        if slave.reseed is not None:
            assert bytes(slave.data) == before
            return
        said = following.ack(slave.reach)
        if said is not None:
            assert said <= slave.end
            assert following.agreed or said <= max(end, 1)


def greet(slave: Slave, greeting: MasterHandshake, master: Master = OURS) -> None:
    following = Following(synced=False, log=slave)
    slave.carry_out(following.on_handshake(greeting, slave.own, master))


def test_an_epoch_is_noted_between_the_bytes_before_it_and_its_own() -> None:
    """When the second append fails, or the process dies, the log does not say that it reached the epoch."""
    slave = Slave(bytes(100), ((1, 0),), 100, 100)
    following = Following(synced=False, log=slave)
    slave.carry_out(following.on_handshake(master_handshake(140, 2, ((1, 0), (2, 120))), slave.own, OURS))
    actions = following.on_frame(transfer(100, 2, 120, 100, b"old" + bytes(17) + b"new"), slave.reach, 0.0)
    note = NoteEpoch(Epoch(2), PhysicalOffset(120))
    old, new = Append(PhysicalOffset(100), b"old" + bytes(17)), Append(PhysicalOffset(120), b"new")
    assert actions == [old, note, new, Confirm(PhysicalOffset(100))]
    # An epoch that begins where the frame does goes before its bytes.
    slave.carry_out(actions)
    actions = following.on_frame(transfer(123, 3, 123, 100, b"next"), slave.reach, 0.0)
    assert actions[:2] == [NoteEpoch(Epoch(3), PhysicalOffset(123)), Append(PhysicalOffset(123), b"next")]


def test_a_tail_that_was_never_confirmed_is_cut() -> None:
    slave = Slave(bytes(150), ((1, 0),), 100, 150)
    greet(slave, master_handshake(120, 2, ((1, 0), (2, 100))))
    assert (slave.cut_to, slave.reseed) == (100, None)


@pytest.mark.parametrize(
    "greeting",
    [
        master_handshake(90, 1, ((1, 0),)),  # it lost its end
        master_handshake(500, 2, ((1, 0), (2, 90))),  # and wrote on
    ],
)
def test_a_master_that_lacks_what_is_confirmed_here_cuts_nothing(greeting: MasterHandshake) -> None:
    slave = Slave(bytes(150), ((1, 0),), 100, 150)
    greet(slave, greeting)
    assert slave.cut_to is None
    assert len(slave.data) == 150
    assert slave.reseed is not None
    assert slave.reseed.why == (
        "the master's log leaves ours at 90, and ours is confirmed up to 100:"
        " acknowledged messages would be cut; an operator must say which log counts"
    )
    assert slave.reseed.master_end < 100, "so autoReseed does not put it aside"


def test_without_epochs_the_log_ends_where_the_value_says_and_never_before_it_begins() -> None:
    slave = Slave(b"a" * 150, (), 120, 150)
    slave.begin, slave.epochs_lost, slave.dispatched = 60, True, 110
    greeting = master_handshake(300, 2, ((1, 0), (2, 100)))
    following = Following(synced=False, log=slave)
    slave.carry_out(following.on_handshake(greeting, slave.own, OURS))
    assert (slave.end, slave.epochs, following.agreed) == (210, [], False)
    begin = following.ack(slave.reach)
    assert begin is not None
    assert begin < 110, "what is here is compared first"
    frame = transfer(begin, 2, 100, 110, b"a" * (110 - begin) + b"new")
    actions = following.on_frame(frame, slave.reach, 0.0)
    behind = "our epochs were lost, and what lies behind is copied again"
    assert actions[0] == Truncate(PhysicalOffset(110), behind, copied_again=True), (
        "the end of the last whole record, not in the middle of what is confirmed"
    )
    slave.carry_out(actions)
    assert (slave.end, slave.epochs, following.agreed) == (113, [(1, 0), (2, 100)], True)


def test_without_epochs_an_empty_log_takes_the_masters() -> None:
    slave = Slave(b"", (), 0, 0)
    slave.epochs_lost = True
    following = Following(synced=False, log=slave)
    greeting = master_handshake(300, 2, ((1, 0), (2, 100)))
    actions = following.on_handshake(greeting, slave.own, OURS)
    assert [action.entries for action in actions if isinstance(action, LearnEpochs)] == [()], "they are found"
    assert actions[-1] == Agreed()
    assert following.agreed


def test_without_epochs_a_log_that_an_unclean_election_left_does_not_go_on_in_the_masters() -> None:
    """It was confirmed under a master that the next one never heard of. With its epochs the cut is refused;
    without, the master's bytes were put behind it, and both were confirmed (swarm, seed 14242)."""
    slave = Slave(b"a" * 100 + b"b" * 20, (), 120, 120)
    slave.epochs_lost, slave.dispatched = True, 120
    following = Following(synced=False, log=slave)
    greeting = master_handshake(300, 4, ((1, 0), (4, 100)))
    slave.carry_out(following.on_handshake(greeting, slave.own, OURS))
    begin = following.ack(slave.reach)
    assert begin is not None
    theirs = (b"a" * 100 + b"c" * 50)[begin:]
    slave.carry_out(following.on_frame(transfer(begin, 4, 100, 150, theirs), slave.reach, 0.0))
    assert slave.reseed is not None
    assert "differs from the master's at 100" in slave.reseed.why
    assert (slave.end, slave.epochs, following.agreed) == (120, [], False)


def a_log_without_epochs(data: bytes, confirmed: int | None = None) -> Slave:
    slave = Slave(data, (), len(data) if confirmed is None else confirmed, len(data))
    slave.epochs_lost = True
    return slave


def compare(slave: Slave, theirs: bytes, master: Master = OURS, start: int = 100) -> Following:
    """Meet a master whose log is ``theirs``, and whose second epoch begins at ``start``."""
    following = Following(synced=False, log=slave)
    greeting = master_handshake(len(theirs), 4, ((1, 0), (4, start)))
    slave.carry_out(following.on_handshake(greeting, slave.own, master))
    if slave.reseed is None:
        at = following.ack(slave.reach)
        assert at is not None
        slave.carry_out(following.on_frame(transfer(at, 4, start, 0, theirs[at:]), slave.reach, 0.0))
    return following


FAR = 100_000
"""More bytes than are compared when nothing is wrong with them."""


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (b"b" * (FAR + 100) + bytes(FAR), b"c" * FAR + bytes(FAR + 100)),  # blank where both end
        (b"b" * FAR + b"!" * FAR, b"c" * (2 * FAR)),  # ours is rotten there
    ],
)
def test_what_is_blank_or_damaged_proves_nothing_and_a_record_further_back_is_compared(
    ours: bytes, theirs: bytes
) -> None:
    slave = a_log_without_epochs(b"a" * 100 + ours)
    following = compare(slave, b"a" * 100 + theirs + b"C" * 500)
    assert slave.reseed is not None
    assert "differs from the master's" in slave.reseed.why
    assert (slave.end, slave.epochs, following.agreed) == (100 + len(ours), [], False)
    same = a_log_without_epochs(b"a" * 100 + ours)
    assert compare(same, b"a" * 100 + ours.replace(b"!", b"b") + b"C" * 500).agreed


def test_a_byte_known_to_be_damaged_hides_no_other_record() -> None:
    slave = a_log_without_epochs(b"a" * 100 + b"b" * 900)
    slave.damaged = {995}
    compare(slave, b"a" * 100 + b"c" * 900)
    assert slave.reseed is not None
    same = a_log_without_epochs(b"a" * 100 + b"b" * 900)
    same.damaged = {995}
    assert compare(same, b"a" * 100 + b"b" * 890 + b"c" * 20).agreed


def test_a_log_with_nothing_to_compare_does_not_go_on() -> None:
    slave = a_log_without_epochs(b"a" * 100 + bytes(100))
    assert compare(slave, b"a" * 100 + bytes(200)).agreed, "the master's first epoch begins before"
    slave = a_log_without_epochs(b"a" * 100 + bytes(100))
    greet(slave, master_handshake(300, 4, ((4, 100),)))
    assert slave.reseed is not None
    assert "no whole record to compare between 100 and its end at 200" in slave.reseed.why
    assert slave.reseed.lacks_confirmed


@pytest.mark.parametrize("epochs", [((1, 0), (4, 100)), ((4, 300),)])
def test_nothing_is_cut_before_the_master_is_seen_to_have_what_is_before_it(
    epochs: tuple[tuple[int, int], ...],
) -> None:
    slave = a_log_without_epochs(b"a" * 100 + b"b" * 100, confirmed=150)
    following = Following(synced=False, log=slave)
    slave.carry_out(following.on_handshake(master_handshake(600, 4, epochs), slave.own, OURS))
    if slave.reseed is None:
        theirs = b"a" * 100 + b"c" * 500
        at = following.ack(slave.reach)
        assert at is not None
        slave.carry_out(following.on_frame(transfer(at, 4, 100, 0, theirs[at:]), slave.reach, 0.0))
    assert slave.reseed is not None
    assert (slave.cut_to, slave.end) == (None, 200)


def test_without_epochs_too_the_refusal_says_that_the_master_lacks_what_is_confirmed() -> None:
    """So ``autoReseed`` puts nothing aside, and the event is told."""
    slave = a_log_without_epochs(b"a" * 100 + b"b" * 100)
    compare(slave, b"a" * 100 + b"c" * 500)
    assert slave.reseed is not None
    assert (slave.reseed.master_end, slave.reseed.lacks_confirmed) == (100, True)
    real = a_log_without_epochs(b"a" * 100 + b"b" * 100)
    compare(real, b"a" * 100 + b"c" * 500, REAL)
    assert real.reseed is not None
    assert not real.reseed.lacks_confirmed, "a RocketMQ master may have confirmed it alone"
    shorter = a_log_without_epochs(b"a" * 200)
    greet(shorter, master_handshake(150, 4, ((1, 0), (4, 100))))
    assert shorter.reseed is not None
    assert (shorter.reseed.master_end, shorter.reseed.lacks_confirmed) == (150, True)
    assert "leaves ours at 150, and ours is confirmed up to 200" in shorter.reseed.why


@pytest.mark.parametrize(
    ("begin", "confirmed", "theirs", "end", "at"),
    [
        (0, 150, ((4, 0),), 300, 0),  # a master that began anew, and is longer by now (seed 6 of test_losses)
        (0, 150, ((3, 100), (4, 120)), 300, 100),
        (0, 100, ((3, 100), (4, 120)), 300, None),  # what is confirmed it may have had, and deleted
        (120, 120, ((4, 0),), 300, None),
        (120, 130, ((1, 0), (4, 50)), 300, 50),  # it leaves ours before what we still have
        (0, 150, (), 300, None),
    ],
)
def test_without_a_common_epoch_the_refusal_says_whether_the_master_lacks_what_is_confirmed(
    begin: int, confirmed: int, theirs: tuple[tuple[int, int], ...], end: int, at: int | None
) -> None:
    """Its end says nothing of that: it grows."""

    def refused(master: Master) -> CannotGoOn:
        own = ((1, 0), (2, 60)) if theirs[:1] == ((1, 0),) else ((2, 0),)
        slave = Slave(b"a" * (200 - begin), own, confirmed, 200)
        slave.begin = begin
        greet(slave, master_handshake(end, 4, theirs), master)
        assert (slave.cut_to, slave.end) == (None, 200)
        assert slave.reseed is not None
        return slave.reseed

    ours, real = refused(OURS), refused(REAL)
    assert "no consistent point" in ours.why
    assert (ours.lacks_confirmed, ours.master_end) == (at is not None, end if at is None else at)
    assert (real.lacks_confirmed, real.master_end) == (False, end), "it may have confirmed it alone"


def test_a_record_that_is_rotten_at_the_master_is_no_other_history() -> None:
    slave = a_log_without_epochs(b"a" * 200)
    assert compare(slave, b"a" * 155 + b"!" + b"a" * 444).agreed, "one behind it is the same"
    slave = a_log_without_epochs(b"a" * 200)
    with pytest.raises(UnreadableError, match="no readable record at 195") as found:
        compare(slave, b"a" * 195 + b"!" + b"a" * 404)
    assert found.value.at == 190
    assert (slave.reseed, slave.cut_to, slave.end) == (None, None, 200)


def test_what_the_master_holds_back_is_waited_for() -> None:
    """It sends no bytes known to be damaged while another replica can mend them."""
    slave = a_log_without_epochs(b"a" * 200)
    following = Following(synced=False, log=slave)
    slave.carry_out(following.on_handshake(master_handshake(300, 4, ((1, 0), (4, 100))), slave.own, OURS))
    assert following.ack(slave.reach) == 1
    slave.carry_out(following.on_frame(transfer(1, 4, 100, 0, b"a" * 149), slave.reach, 0.0))
    slave.carry_out(following.on_frame(transfer(150, 4, 100, 0, b""), slave.reach, 1.0))
    with pytest.raises(PeerError, match="goes on behind 150, and sends nothing"):
        following.on_frame(transfer(150, 4, 100, 0, b""), slave.reach, 1.0 + COMPARE_WAIT_MS)
    assert slave.reseed is None


def test_a_record_that_is_rotten_here_is_passed_over_and_noted() -> None:
    slave = a_log_without_epochs(b"a" * 155 + b"!" + b"a" * 44)
    following = compare(slave, b"a" * 300)
    assert following.agreed
    assert slave.noted == [150]


def classic(slave: Slave, theirs: bytes, segment_bytes: int = SEGMENT) -> ClassicFollowing:
    """Meet a master without Controllers whose log is ``theirs``."""
    following = ClassicFollowing(slave.own, segment_bytes=segment_bytes, synced=False, log=slave)
    at = following.ack(slave.reach)
    assert at is not None
    slave.carry_out(following.on_frame(transfer(at, 0, 0, 0, theirs[at:]), slave.reach, 0.0))
    return following


def test_without_controllers_too_a_log_with_nothing_to_compare_does_not_go_on() -> None:
    for ours in (b"!" * 200, bytes(200)):
        slave = Slave(ours, (), 200, 200)
        following = classic(slave, b"b" * 300)
        assert slave.reseed is not None
        assert "no whole record to compare before its end at 200" in slave.reseed.why
        assert (slave.end, following.agreed) == (200, False)


def test_without_controllers_a_segment_with_nothing_to_compare_has_the_one_before_compared() -> None:
    for last in (b"", b"!" * 10):
        other, same = (Slave(b"a" * 100 + b"b" * 100 + last, (), 200, 200) for _ in range(2))
        assert not classic(other, b"a" * 190 + b"c" * 100, 200).agreed
        assert other.reseed is not None
        assert classic(same, b"a" * 100 + b"b" * 200, 200).agreed
    short = Slave(b"a" * 100 + b"b" * 110, (), 200, 200)
    assert ClassicFollowing(short.own, segment_bytes=200, synced=False, log=short).ack(short.reach) == 200, (
        "not before, where there is one to compare"
    )


def test_without_controllers_too_nothing_is_appended_before_it_is_compared() -> None:
    """On the next link it would be a record of ours that the master has."""
    slave = Slave(b"a" * 190 + b"bbbb", (), 190, 190)
    following = ClassicFollowing(slave.own, segment_bytes=SEGMENT, synced=False, log=slave)
    at, theirs = following.ack(slave.reach), b"a" * 190 + b"c" * 30
    assert at is not None
    for begin, end in ((at, 193), (193, 197), (197, 220)):
        slave.carry_out(following.on_frame(transfer(begin, 0, 0, 0, theirs[begin:end]), slave.reach, 0.0))
        assert (bytes(slave.data), following.agreed) == (b"a" * 190 + b"bbbb", False)
    assert slave.reseed is not None


def test_without_controllers_too_what_is_rotten_here_is_noted() -> None:
    slave = Slave(b"a" * 155 + b"!" + b"a" * 44, (), 200, 200)
    assert classic(slave, b"a" * 300).agreed
    assert slave.noted == [150]


@pytest.mark.parametrize("dialect", [compare, classic])
def test_behind_a_damaged_end_of_ours_any_record_of_the_master_goes_on(
    dialect: Callable[[Slave, bytes], Following | ClassicFollowing],
) -> None:
    """It may end inside of a record. Half a record that is not known to be damaged is another one."""
    theirs = b"a" * 190 + b"bbbbbbbbbb" + b"c" * 300
    slave = a_log_without_epochs(b"a" * 190 + b"!!!!")
    slave.damaged = set(range(190, 194))
    assert dialect(slave, theirs).agreed
    assert (slave.reseed, bytes(slave.data)) == (None, b"a" * 190 + b"!!!!" + theirs[194:])
    slave = a_log_without_epochs(b"a" * 190 + b"!!!!")
    slave.damaged = set(range(190, 193))
    dialect(slave, theirs)
    assert slave.reseed is not None
    slave = a_log_without_epochs(b"a" * 180 + b"b" * 10 + b"!!!!")
    slave.damaged = set(range(190, 194))
    dialect(slave, theirs)
    assert slave.reseed is not None, "there is another record before"


def test_a_log_without_a_record_has_no_damage_between_records() -> None:
    slave = Slave(b"!" * 200, (), 200, 200)
    tail = TailCompare(slave, PhysicalOffset(0), PhysicalOffset(200))
    assert (tail.can_prove, tail.compared, tail.damaged) == (False, False, [])


@pytest.mark.parametrize("master", [REAL, Master(Epoch(9), followed_rocketmq=True)])
def test_where_a_real_master_may_have_confirmed_the_cut_is_made(master: Master) -> None:
    # It confirms what it alone has, and counts bytes to the epoch before an election without a write.
    slave = Slave(bytes(150), ((1, 0),), 100, 150)
    greet(slave, master_handshake(90, 1, ((1, 0),)), master)
    assert (slave.cut_to, slave.reseed) == (90, None)


def test_with_sync_flush_the_first_report_waits_until_all_of_the_log_is_on_disk() -> None:
    """It says where the stream goes on: what lies behind it the master would send again."""
    slave = Slave(bytes(150), ((1, 0),), 100, 140)
    following = Following(synced=True, log=slave)
    slave.carry_out(following.on_handshake(master_handshake(150, 1, ((1, 0),)), slave.own, OURS))
    assert following.ack(slave.reach) is None
    assert following.ack(slave.reach, always=True) is None
    slave.flushed = 150
    assert following.ack(slave.reach) == 150
    slave.data += bytes(50)
    assert following.ack(slave.reach) is None
    slave.flushed = 170
    assert following.ack(slave.reach) == 170, "from then on as far as it is on disk"
