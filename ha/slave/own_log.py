"""What does this replica's log hold, and how is a decision carried out on it? For ``ha.slave.follow``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from ha.slave.follow import (
    Action,
    Agreed,
    Append,
    CannotGoOn,
    Confirm,
    EpochsCoverLog,
    ForgetEpochs,
    LearnEpochs,
    NoteDamage,
    NoteEpoch,
    OwnLog,
    Reach,
    Truncate,
    text_of,
)
from ha.slave.tail import Piece
from model.errors import DiskError, MqError
from model.ids import PhysicalOffset
from store.files.damage import RECORD_BYTES_MAX
from store.files.epoch_file import EpochEntry
from store.files.record import HEAD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, BadRecord

if TYPE_CHECKING:
    from store.message_store import MessageStore

log = logging.getLogger(__name__)

_MAGIC: Final = re.compile(
    b"|".join(re.escape(m.to_bytes(4, "big")) for m in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))
)
_REACH: Final = partial(tuple.__new__, Reach)  # twice a frame


class CannotGoOnError(MqError):
    """This log cannot be continued from the master's. The text says why, /status says ``needs_reseed``.

    ``master_end``: up to here at most the master has our log. ``lacks_confirmed``: the log could be
    continued, but what is confirmed here would be truncated.
    """

    def __init__(self, text: str, master_end: PhysicalOffset, *, lacks_confirmed: bool = False) -> None:
        super().__init__(text)
        self.master_end = master_end
        self.lacks_confirmed = lacks_confirmed


class UntoldCutError(MqError):
    """What this broker acknowledged, and may be counted on to have, is to be cut off. The Controllers hear
    that first, or an election could count it as a holder. The cut and what follows were not carried out."""


def own_log(store: MessageStore) -> OwnLog:
    epochs = store.epochs
    return OwnLog(
        store.log.min_offset,
        store.log.end,
        store.log.flushed,
        store.confirmed_records_end,
        store.dispatched,
        epochs.entries,
        epochs.unreadable is not None,
        epochs.classic_from,
    )


def reach(store: MessageStore) -> Reach:
    log_ = store.log
    return _REACH((log_.min_offset, log_.end, log_.flushed, store.epochs.entries))


def classic_from(store: MessageStore) -> PhysicalOffset | None:
    """Where the part of the log begins that belongs to no epoch; None: there is no such part."""
    return own_log(store).without_epoch_from


def forget_epochs(store: MessageStore, offset: PhysicalOffset) -> None:
    """Forget epochs that start at ``offset`` or later; touches the disk only when there are any."""
    entries = store.epochs.entries
    if entries and entries[-1].start >= offset:
        store.epochs.truncate_suffix(offset)


class OwnBytes:
    """See ``ha.slave.tail.LogBytes``."""

    def __init__(self, store: MessageStore, segment_bytes: int) -> None:
        self._store = store
        self._segment_bytes = segment_bytes

    def read(self, offset: PhysicalOffset, size: int) -> bytes:
        damage, parts = self._store.damage, list[bytes]()
        until = PhysicalOffset(offset + size)
        while offset < until:
            damaged = damage.at(offset)
            if damaged is None:
                part = self._store.log.read(offset, damage.next_begin(offset, until) - offset)
            else:
                part = bytes(min(damaged.until, until) - offset)  # the disk may not give them
            if not part:
                break
            parts.append(part)
            offset = PhysicalOffset(offset + len(part))
        return b"".join(parts)

    def is_damaged(self, begin: PhysicalOffset, until: PhysicalOffset) -> bool:
        return self._store.damage.overlaps(begin, until)

    def damaged_until(self, offset: PhysicalOffset) -> PhysicalOffset:
        found = self._store.damage.at(offset)
        return offset if found is None else PhysicalOffset(found.until)

    def pieces(self, data: bytes, offset: PhysicalOffset) -> list[Piece]:
        found: list[Piece] = []
        cut: Piece | None = None  # the first that ends behind ``data``, if no whole one comes behind it
        at = 0
        while at < len(data):
            begin = PhysicalOffset(offset + at)
            says = self._says(data, at, begin)
            if says is not None and at + abs(says) <= len(data):
                found.append(Piece(begin, PhysicalOffset(begin + abs(says)), says > 0))
                at, cut = at + abs(says), None
                continue
            if says is not None and cut is None:
                cut = Piece(begin, PhysicalOffset(begin + abs(says)), says > 0)
            magic = _MAGIC.search(data, at + 5)
            if magic is None:
                break
            at = magic.start() - 4
        return found if cut is None else [*found, cut]

    def _says(self, data: bytes, at: int, offset: PhysicalOffset) -> int | None:
        """How many bytes the record at ``at`` has, or says it has if it ends behind ``data``; negative: a
        blank; None: it is neither."""
        try:
            size = self._store.log.whole(data, at, offset)
        except BadRecord:
            return None
        if size < 0:
            return size if (offset - size) % self._segment_bytes == 0 else None
        if size == 0:  # ``data`` ends in it: perhaps not even its head is there
            if len(data) - at < HEAD.size:
                return HEAD.size
            says, _, _, _, _, _, place, _, _ = HEAD.unpack_from(data, at)
            return says if place == offset else None
        return size


class LogActions:
    """Carries out what ``ha.slave.follow`` decided."""

    def __init__(self, store: MessageStore, told: Callable[[], bool] = lambda: False) -> None:
        """``told``: whether the Controllers know that this log loses what was acknowledged."""
        self._store = store
        self._told = told

    def carry_out(self, actions: Iterable[Action], master_end: PhysicalOffset) -> bool:
        """Whether the log was found to go on in the master's. Raises DiskError, CannotGoOnError,
        UntoldCutError."""
        store, agreed = self._store, False
        for action in actions:
            match action:
                case Append():
                    store.append_raw(action.offset, action.body)
                case Confirm():
                    store.confirm_copied(action.offset)
                case NoteDamage(offset):
                    self._note_damage(offset)
                case NoteEpoch(epoch, start):
                    store.epochs.append(epoch, start)
                case Truncate() as truncate:
                    self._truncate(truncate, master_end)
                case ForgetEpochs(start):
                    forget_epochs(store, start)
                case EpochsCoverLog():
                    store.epochs.labelled()
                case LearnEpochs(entries, why):
                    store.epochs.trust([EpochEntry(*entry) for entry in entries])
                    log.warning("%s: its epochs are %s", why, text_of(entries))
                case Agreed():
                    agreed = True
                case CannotGoOn(why, end, lacks_confirmed):
                    raise CannotGoOnError(why, end, lacks_confirmed=lacks_confirmed)
        return agreed

    def _note_damage(self, at: PhysicalOffset) -> None:
        store = self._store
        if store.log.min_offset <= at < store.dispatched and store.damage.at(at) is None:
            says = int.from_bytes(store.log.read(at, 4), "big")
            try:
                store.log.whole(store.log.read(at, min(max(says, HEAD.size), RECORD_BYTES_MAX)), 0, at)
            except BadRecord as bad:
                store.repairer.note(at, bad)

    def _truncate(self, truncate: Truncate, master_end: PhysicalOffset) -> None:
        store, to = self._store, truncate.to
        if to >= store.log.end:
            return
        # Not only what is confirmed may be counted on: a cut for want of epochs takes also what the master
        # answered since it told the last time what is confirmed.
        if (truncate.copied_again or to < store.confirmed_records_end) and not self._told():
            raise UntoldCutError(f"the log is to be cut from {store.log.end} to {to}: {truncate.why}")
        if to < store.confirmed_records_end and not truncate.copied_again:
            log.error(
                "log cut from %d to %d, below %d that a master confirmed: %s",
                store.log.end,
                to,
                store.confirmed_records_end,
                truncate.why,
            )
        else:
            log.warning("log cut from %d to %d: %s", store.log.end, to, truncate.why)
        try:
            store.truncate(to)
        except DiskError as error:
            if store.why_not_writable is not None:
                raise
            raise CannotGoOnError(f"the log cannot be cut at {to}: {error}", master_end) from error
