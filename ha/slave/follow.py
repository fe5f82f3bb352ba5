"""How does a slave's log follow its master's? Handshake and frames in, what to do with the log out.

No I/O or clock of its own: what this replica's log holds comes as a value (``OwnLog``; ``Reach``, which is
made for each frame), time as ``now_ms``.
One question it asks back, by ``LogBytes``: bytes of its own log, to compare (``ha.slave.tail``).
``Following`` is the way with Controllers, ``ClassicFollowing`` the one without. What always holds:

* bytes are appended at the log's end only,
* a log is not truncated below what is confirmed here, unless the confirmation may be a RocketMQ master's
  (``Master.proves_confirmed``), or the epochs were lost: then to the last whole record known, once what is
  before it was compared with the master's,
* nothing is acknowledged that the log does not hold, nor what has no epoch before it was compared with the
  master's. Bytes that are damaged are passed over: they are repaired from another replica, or named.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from ha.epochs import EpochStart, consistent_point, skipped_epochs
from ha.slave.tail import Differs, LogBytes, TailCompare
from ha.wire.codec import Body, MasterHandshake, Transfer
from model.errors import PeerError
from model.ids import NOWHERE, Epoch, PhysicalOffset

_BEGIN: Final = PhysicalOffset(0)


class OwnLog(NamedTuple):
    """This replica's log at one moment. Offsets are bytes in the CommitLog."""

    begin: PhysicalOffset
    end: PhysicalOffset
    flushed: PhysicalOffset
    confirmed: PhysicalOffset
    dispatched: PhysicalOffset
    """Where its last known whole record ends."""
    epochs: Sequence[EpochStart] = ()
    epochs_lost: bool = False
    """No copy of them could be read."""
    classic_from: PhysicalOffset | None = None
    """From where on a log that has epochs was written without a Controller; None: nowhere."""

    @property
    def without_epoch_from(self) -> PhysicalOffset | None:
        """Where the part of the log begins that belongs to no epoch; None: there is no such part."""
        if not self.epochs:
            return self.begin if self.end > self.begin else None
        return self.classic_from if self.classic_from is not None and self.classic_from < self.end else None


class Reach(NamedTuple):
    """How far this replica's log reaches at one moment: what each frame needs of ``OwnLog``."""

    begin: PhysicalOffset
    end: PhysicalOffset
    flushed: PhysicalOffset
    epochs: Sequence[EpochStart] = ()


class Master(NamedTuple):
    """What this slave knows of its master, apart from what the master says."""

    epoch: Epoch
    """The election that made it master, by the Controllers' word."""
    rocketmq_peer: bool = False
    """It may be a RocketMQ broker."""
    followed_rocketmq: bool = False
    """This process followed such a master before."""

    @property
    def proves_confirmed(self) -> bool:
        """Whether what is confirmed here is on every broker that can rightly be elected. A RocketMQ master
        confirms what it alone has (``allAckInSyncStateSet=false``, or a set of one), and counts bytes to
        other epochs than its successor may (docs/mixed-groups.md)."""
        return not (self.rocketmq_peer or self.followed_rocketmq)


class Truncate(NamedTuple):
    """Cut the log at ``to``."""

    to: PhysicalOffset
    why: str
    copied_again: bool = False
    """What is truncated of the confirmed part is in the master's log, and is copied again. Until then it is
    not here: the Controllers hear that first."""


class ForgetEpochs(NamedTuple):
    """Forget the epochs that start at ``start`` or later."""

    start: PhysicalOffset


class EpochsCoverLog(NamedTuple):
    """From now on every byte of the log belongs to an epoch."""


class LearnEpochs(NamedTuple):
    """Take over the master's epochs: they are those of this log, too."""

    entries: tuple[EpochStart, ...]
    why: str


class NoteEpoch(NamedTuple):
    """What is appended next belongs to this epoch."""

    epoch: Epoch
    start: PhysicalOffset


class Append(NamedTuple):
    offset: PhysicalOffset
    body: Body


class NoteDamage(NamedTuple):
    """The bytes at ``offset`` are said to be no record: look, and write it down."""

    offset: PhysicalOffset


class Confirm(NamedTuple):
    """Everything below ``offset`` is confirmed."""

    offset: PhysicalOffset


_APPEND: Final = partial(tuple.__new__, Append)  # both for each frame, by a call of Python less
_CONFIRM: Final = partial(tuple.__new__, Confirm)


class Agreed(NamedTuple):
    """The log goes on in the master's."""


class CannotGoOn(NamedTuple):
    """The log cannot be continued from the master's, which has ours up to ``master_end`` at the most. It is
    kept. /status calls it ``needs_reseed``, also with ``lacks_confirmed``, when an operator decides first."""

    why: str
    master_end: PhysicalOffset
    lacks_confirmed: bool = False
    """It could be continued, but what is confirmed here would be truncated."""


Action = (
    Truncate
    | ForgetEpochs
    | EpochsCoverLog
    | LearnEpochs
    | NoteEpoch
    | Append
    | NoteDamage
    | Confirm
    | Agreed
    | CannotGoOn
)


class _Acks:
    """How far the log is acknowledged to the master."""

    def __init__(self, *, synced: bool) -> None:
        self.synced = synced  # SYNC_FLUSH: what is on the disk counts
        self.said = NOWHERE

    def next_end(
        self, own: Reach, tail: TailCompare | None, *, empty: bool, always: bool
    ) -> PhysicalOffset | None:
        """What to tell the master now, or None. ``always``: also what it was told before."""
        end = min(own.end, own.flushed) if self.synced else own.end
        if self.said < 0 and end < own.end:
            return None  # the first report says where the stream goes on: it waits for the sync
        if tail is not None and not tail.compared:
            if self.said >= 0:
                return None  # it said where to begin; more would acknowledge what was not compared
            end = tail.at
        if empty and own.end == own.begin:
            end = _BEGIN  # the master starts with the first byte it has
        if end > self.said or (always and (end == self.said or self.said < 0)):
            self.said = end
            return end
        return None


class Following:
    """One link to a master of a group with Controllers.

    In: ``on_handshake`` once, then ``on_frame``. Out: actions in the order they are carried out, and ``ack``.
    A ``CannotGoOn`` is the last of them. Raises PeerError when the master's word cannot be true.
    """

    def __init__(self, *, synced: bool, log: LogBytes) -> None:
        self.master_end = _BEGIN  # as of the handshake
        self._log = log
        self._acks = _Acks(synced=synced)
        self._greeted = False
        self._epochs: tuple[EpochStart, ...] = ()  # the master's, as of the handshake
        self._empty = False  # the log held nothing: the master says where it starts
        self._tail: TailCompare | None = None  # is compared with the master's log first; None: need not be
        self._kind = ""  # why, of an ``_tail``
        self._cut: Truncate | None = None  # is made once the master is seen to have all before it
        self._counts = _BEGIN  # up to here what is here may not be lost to a master that lacks it

    @property
    def agreed(self) -> bool:
        """Whether our log is known to go on in the master's."""
        return self._greeted and (self._tail is None or self._tail.compared)

    def ack(self, own: Reach, *, always: bool = False) -> PhysicalOffset | None:
        """How far to acknowledge now, bytes; None: there is nothing new to say, or not yet."""
        if not self._greeted:
            return None
        return self._acks.next_end(own, self._tail, empty=self._empty, always=always)

    def on_handshake(self, frame: MasterHandshake, own: OwnLog, master: Master) -> list[Action]:
        actions: list[Action] = []
        if own.epochs_lost:
            if frame.end < own.confirmed:
                return [_lacks_confirmed(frame.end, own.confirmed)]
            self._counts = own.confirmed if master.proves_confirmed else _BEGIN
            own = self._to_confirmed(own)
        if own.epochs and 0 <= frame.last_epoch < own.epochs[-1][0]:
            _need_newest(frame, own, master)
        self._empty = own.end == own.begin
        self._greeted, self._epochs, self.master_end = True, frame.epochs, frame.end
        if own.epochs_lost and not self._empty:
            return actions + self._begin_compare(frame, own, "of lost epochs")
        if own.epochs_lost:
            actions += [self._cut] if self._cut is not None else []
            actions.append(LearnEpochs((), "our epochs were lost, and our log is empty"))
        elif own.without_epoch_from is not None:
            return actions + self._begin_compare(frame, own, "written without a Controller")
        return actions + self._agree_by_epochs(frame, own, master)

    def goes_on(self, frame: Transfer, end: PhysicalOffset, epochs: Sequence[EpochStart]) -> bool:
        """Whether all that ``on_frame`` would say is to append what ``frame`` has, if anything, and to
        confirm as far as it says and we have it: nearly always. ``end`` and ``epochs``: of our log."""
        return (
            frame.offset == end
            and not self._empty
            and (self._tail is None or self._tail.compared)
            and bool(epochs)
            and epochs[-1] == (frame.epoch, frame.epoch_start)
        )

    def acks(self, end: PhysicalOffset) -> bool:
        """Whether ``ack``, after a frame that ``goes_on``, says ``end``, where our log ends now: it counts as
        said. Else ``ack`` is to be asked."""
        acks = self._acks
        if acks.synced or not 0 <= acks.said <= end:
            return False
        acks.said = end
        return True

    def on_frame(self, frame: Transfer, own: Reach, now_ms: float) -> list[Action]:
        actions: list[Action] = []
        if self._tail is not None and not self._tail.compared:
            rest = self._compared(self._tail, frame, now_ms, actions)
            if rest is None:
                return actions
            frame = rest
            end = self._tail.end
            own = own._replace(end=end, flushed=min(own.flushed, end), epochs=_before(self._epochs, end))
        without_log = self._empty and own.end == own.begin
        if frame.offset < 0 and without_log:
            return actions  # neither has a log: a sign of life
        if frame.offset != own.end and not without_log:
            return [*actions, _not_at_our_end(frame.offset, own.end)]
        at, end, body = frame.offset, own.end, frame.body
        last = own.epochs[-1] if own.epochs else None
        if last != (frame.epoch, frame.epoch_start):  # else there is none to note: nearly always
            at = self._note_epochs(frame, last, actions)
            body = frame.body[at - frame.offset :]
        if frame.body:
            end = PhysicalOffset(frame.offset + len(frame.body))
            self._empty = False
        if at < end:
            actions.append(_APPEND((at, body)))
        confirmed = frame.confirmed  # by min and max, without a call of either
        confirmed = _BEGIN if confirmed < 0 else confirmed
        actions.append(_CONFIRM((end if end < confirmed else confirmed,)))
        return actions

    def _to_confirmed(self, own: OwnLog) -> OwnLog:
        """No copy of our epochs could be read. What is confirmed here has those of any master that was
        rightly elected; what lies behind may be of another one, and is copied again. The master of an unclean
        election need not have it: so the bytes are compared before anything is cut, and before its epochs are
        ours."""
        # What is confirmed may end inside of a record, as a piece of the stream does: a truncation must not.
        safe = min(own.confirmed, own.dispatched)
        end = min(own.end, max(safe, own.begin))
        if end < own.end:
            behind = "our epochs were lost, and what lies behind is copied again"
            self._cut = Truncate(end, behind, copied_again=True)
        return own._replace(end=end, confirmed=min(own.confirmed, end), classic_from=None)

    def _begin_compare(self, frame: MasterHandshake, own: OwnLog, kind: str) -> list[Action]:
        """No epoch tells who wrote our log's end: only its bytes do. Before they were compared nothing is
        cut, as all of it may have been acknowledged. ``kind``: of which log."""
        # What lies before its first epoch a master cannot send: a frame names the epoch of its bytes.
        begin = frame.epochs[0][1] if frame.epochs else frame.end
        if not begin < own.end <= frame.end:
            text = (
                f"our log, {kind}, ends at {own.end},"
                f" and the master's epochs cover {begin} to {frame.end} only"
            )
            lacks = frame.end < min(own.end, self._counts)
            return [CannotGoOn(text, frame.end, lacks_confirmed=lacks)]
        self._tail = TailCompare(self._log, max(begin, own.begin), own.end, master_has=True)
        self._kind = kind
        if self._tail.can_prove:
            return []
        text = f"our log, {kind}, has no whole record to compare between {begin} and its end at {own.end}"
        return [CannotGoOn(text, begin, lacks_confirmed=begin < self._counts)]

    def _agree_by_epochs(self, frame: MasterHandshake, own: OwnLog, master: Master) -> list[Action]:
        actions: list[Action] = [EpochsCoverLog()]  # the log ends before what was written without Controller
        point = consistent_point(frame.epochs, own.epochs, frame.end, own.end)
        if point is None and own.confirmed == own.begin == 0:
            # A young group: this broker led first, and its successor was rightly elected without a byte of
            # this log. So no byte of it was confirmed, and it may go without an operator's word.
            point = _BEGIN
        if self._empty:
            return [*actions, ForgetEpochs(_BEGIN), Agreed()]
        if point is None or point < own.begin:
            text = (
                f"no consistent point: our epochs are {text_of(own.epochs)} up to {own.end}, "
                f"the master's {text_of(frame.epochs)} up to {frame.end}"
            )
            parts = _differ_from(frame, own) if point is None else point
            if parts < own.confirmed and master.proves_confirmed:
                lacks = _lacks_confirmed(parts, own.confirmed)
                return [*actions, lacks._replace(why=f"{text}; {lacks.why}")]
            return [*actions, CannotGoOn(text, frame.end)]
        if point < own.confirmed and master.proves_confirmed:
            return [*actions, _lacks_confirmed(min(frame.end, point), own.confirmed)]
        if point < own.end:
            actions.append(Truncate(point, "the master's differs from there on"))
        # The log first: epochs without their bytes are harmless, bytes of a forgotten epoch are not.
        return [*actions, ForgetEpochs(point), Agreed()]

    def _compared(
        self, tail: TailCompare, frame: Transfer, now_ms: float, actions: list[Action]
    ) -> Transfer | None:
        """What of ``frame`` lies behind our end, which is the master's up to there; None: not known yet."""
        if frame.offset != tail.at:
            text = f"the master sends from {frame.offset}, we asked from {tail.at} on"
            if frame.offset < tail.at:
                raise PeerError(text)
            actions.append(CannotGoOn(text, self.master_end))
            return None
        known = tail.take(frame.body, now_ms)
        if isinstance(known, Differs):
            lacks = known.at < self._counts
            at = known.at if lacks else self.master_end
            actions.append(CannotGoOn(known.why, at, lacks_confirmed=lacks))
            return None
        if not tail.compared:
            return None
        actions += map(NoteDamage, tail.damaged)
        if self._cut is not None:
            actions.append(self._cut)
        # All that is here is in the master's log, so its epochs are ours.
        why = f"our log, {self._kind}, goes on in the master's"
        actions.append(LearnEpochs(_before(self._epochs, tail.end), why))
        return Transfer(
            PhysicalOffset(frame.offset + known),
            frame.epoch,
            frame.epoch_start,
            frame.confirmed,
            frame.body[known:],
        )

    def _note_epochs(self, frame: Transfer, last: EpochStart | None, actions: list[Action]) -> PhysicalOffset:
        """Note the epochs that begin in the frame, each before its own bytes and behind all others: noted any
        earlier, a log without them would pass for one that reached it. Up to where bytes are appended."""
        at = frame.offset
        for note in self._epochs_to_note(frame, last):
            if note.start > at:
                actions.append(Append(at, frame.body[at - frame.offset : note.start - frame.offset]))
                at = note.start
            actions.append(note)
        return at

    def _epochs_to_note(self, frame: Transfer, last: EpochStart | None) -> list[NoteEpoch]:
        epoch = (frame.epoch, frame.epoch_start)
        if last is None or frame.epoch > last[0]:
            if not (last[1] if last else 0) <= frame.epoch_start <= frame.offset + len(frame.body):
                raise PeerError(
                    f"the master sent epoch {frame.epoch} from {frame.epoch_start} at {frame.offset}"
                )
            return [NoteEpoch(*e) for e in (*skipped_epochs(self._epochs, frame.offset, last, epoch), epoch)]
        if frame.epoch < last[0] or frame.epoch_start != last[1]:
            raise PeerError(
                f"the master sent epoch {frame.epoch} from {frame.epoch_start},"
                f" ours is {last[0]} from {last[1]}"
            )
        return []


class ClassicFollowing:
    """One link to a master of a group without Controllers: there are no epochs, so the bytes at the log's end
    are compared."""

    def __init__(self, own: OwnLog, *, segment_bytes: int, synced: bool, log: LogBytes) -> None:
        self.master_end = _BEGIN  # nobody tells
        self._acks = _Acks(synced=synced)
        self._empty = own.end == own.begin
        # Not before the segment the log ends in, which may be the first one the master has, if that will do.
        floor = PhysicalOffset(max(own.end - own.end % segment_bytes, own.begin))
        self._tail = TailCompare(log, floor, own.end)
        if not self._tail.can_prove and floor > own.begin:
            self._tail = TailCompare(log, own.begin, own.end)

    @property
    def agreed(self) -> bool:
        return self._tail.compared

    def ack(self, own: Reach, *, always: bool = False) -> PhysicalOffset | None:
        """See ``Following.ack``."""
        return self._acks.next_end(own, self._tail, empty=self._empty, always=always)

    def on_handshake(self, frame: MasterHandshake, own: OwnLog, master: Master) -> list[Action]:
        raise PeerError("a handshake in the protocol that has none")

    def goes_on(self, frame: Transfer, end: PhysicalOffset, epochs: Sequence[EpochStart]) -> bool:
        """See ``Following.goes_on``; here a frame does not say what is confirmed."""
        return False

    def acks(self, end: PhysicalOffset) -> bool:
        """See ``Following.acks``."""
        return False

    def on_frame(self, frame: Transfer, own: Reach, now_ms: float) -> list[Action]:
        """See ``Following.on_frame``."""
        tail = self._tail
        at = own.end if tail.compared else tail.at
        if frame.offset != at and not (self._empty and own.end == own.begin):
            text = f"our log ends at {own.end}, the master's goes on at {frame.offset}: " + (
                "the range between is gone there" if frame.offset > at else "it is not the log we copied"
            )
            return [CannotGoOn(text, frame.offset)]
        before = tail.compared
        known = tail.take(frame.body, now_ms)
        if isinstance(known, Differs):
            return [CannotGoOn(known.why, known.at)]
        if not tail.compared:
            return []  # nothing goes behind our end before: it would be compared as ours on the next link
        begin, end = PhysicalOffset(frame.offset + known), own.end
        if begin != end and not self._empty:
            raise PeerError(f"our log's end is compared: what lies behind {end} has to be sent again")
        actions: list[Action] = [] if before else [NoteDamage(at) for at in tail.damaged]
        if len(frame.body) > known:
            actions.append(Append(begin, frame.body[known:]))
            end = PhysicalOffset(frame.offset + len(frame.body))
            self._empty = False
        actions.append(Confirm(end))
        return actions


def _not_at_our_end(offset: PhysicalOffset, end: PhysicalOffset) -> CannotGoOn:
    if offset > end:
        return CannotGoOn(f"the master sends from {offset}, our log ends at {end}", offset)
    raise PeerError(f"the master sent offset {offset}, our log ends at {end}")


def _need_newest(frame: MasterHandshake, own: OwnLog, master: Master) -> None:
    newest = own.epochs[-1][0]
    if not (master.rocketmq_peer and master.epoch > newest):
        # A master of the past, or one that has not heard of its election: its log must not cut ours.
        raise PeerError(f"the master's newest epoch is {frame.last_epoch}, ours is {newest}")
    # Elected after all we know of, it did not record its epoch, as RocketMQ does when nothing was written
    # since the last. But a broker that was rightly elected has what was confirmed.
    _need_confirmed(frame, own)


def _need_confirmed(frame: MasterHandshake, own: OwnLog) -> None:
    if frame.end < own.confirmed:
        raise PeerError(f"the master's log ends at {frame.end}, ours is confirmed up to {own.confirmed}")


def _differ_from(frame: MasterHandshake, own: OwnLog) -> PhysicalOffset:
    """Two logs have no epoch in common: from where on do both name one for each byte? What lies before, the
    master may have had and deleted."""
    if not frame.epochs or not own.epochs:
        return frame.end
    return max(frame.epochs[0][1], own.epochs[0][1], own.begin)


def _lacks_confirmed(point: PhysicalOffset, confirmed: PhysicalOffset) -> CannotGoOn:
    text = (
        f"the master's log leaves ours at {point}, and ours is confirmed up to {confirmed}:"
        " acknowledged messages would be cut; an operator must say which log counts"
    )
    return CannotGoOn(text, point, lacks_confirmed=True)


def _before(epochs: Sequence[EpochStart], end: PhysicalOffset) -> tuple[EpochStart, ...]:
    return tuple((epoch, start) for epoch, start in epochs if start < end)


def text_of(epochs: Sequence[EpochStart]) -> str:
    """The newest epochs, for a log line."""
    return str([(epoch, start) for epoch, start in epochs[-4:]])
