"""Does the end of this log lie in its master's, where no epoch says who wrote it?

Both are read as records. What proves one history is a whole record of ours, with the right CRC and in no
range known to be damaged, that the master has byte for byte: it names its place and the time it was stored
at, so what lies before it is the same, too. A blank proves nothing, nor does what was passed over. Where both
have other whole records behind the last one they share, there are two histories. Where one of them has no
readable record, its bytes are damaged, and that decides nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ha.wire.codec import Body
from model.errors import PeerError
from model.ids import PhysicalOffset

COMPARE_BYTES: Final = 64 * 1024
"""Enough for several records. More where no whole record is in them: a large one, a blank, damage."""
COMPARE_BYTES_MAX: Final = 16 << 20
"""Four of the largest messages (by default): kept in memory while it is compared."""
BLANK_HEAD_BYTES: Final = 8
COMPARE_WAIT_MS: Final = 5000
"""A master that is short of its budget for slaves sends empty frames meanwhile, but not for this long."""


class Piece(NamedTuple):
    """What [``begin``, ``until``) of a log is: a whole record, a right blank, or a record that ends behind
    the bytes there are."""

    begin: PhysicalOffset
    until: PhysicalOffset
    is_record: bool = True


class UnreadableError(PeerError):
    """The master's log is damaged at ``at``, where ours is sound: it cannot be compared until that is
    mended."""

    def __init__(self, text: str, at: PhysicalOffset) -> None:
        super().__init__(text)
        self.at = at


class LogBytes(Protocol):
    """This replica's bytes, and how bytes of a log are read as records."""

    def read(self, offset: PhysicalOffset, size: int) -> bytes: ...
    def pieces(self, data: bytes, offset: PhysicalOffset) -> Sequence[Piece]:
        """What whole pieces there are in ``data``, bytes of any log from ``offset`` on; the last one may end
        behind them. What lies between pieces is damaged."""

    def is_damaged(self, begin: PhysicalOffset, until: PhysicalOffset) -> bool:
        """Whether some of our bytes there are known to be damaged."""

    def damaged_until(self, offset: PhysicalOffset) -> PhysicalOffset:
        """Where the damage ends that ``offset`` is known to lie in; ``offset`` if it does not."""


class Differs(NamedTuple):
    """The master's log is another one from ``at`` on."""

    at: PhysicalOffset
    why: str


class TailCompare:
    """The end of one log, compared with the master's bytes.

    A master that lost its end (a power failure) and wrote on would otherwise go on in the middle of a record
    of a slave that still has it. So the slave's first report names an offset before its end, and what comes
    from there is compared. A log that differs further back than the last whole record that both have is
    found by ``keelmq audit``.
    """

    def __init__(
        self, log: LogBytes, floor: PhysicalOffset, end: PhysicalOffset, *, master_has: bool = False
    ) -> None:
        """``floor``: the master is asked for nothing before it. ``master_has``: by its word, it has bytes up
        to ``end``."""
        self.end = end
        self._master_has = master_has
        self._log = log
        self._need = end  # up to here the master's bytes are needed
        self._base, self._ours, self._pieces = _newest_records(log, floor, end)
        self.can_prove = bool(self._pieces)
        """Whether there is a whole record of ours to compare."""
        self.compared = floor >= end
        """Whether this log goes on in the master's. An empty one needs no proof."""
        # 0 would say "empty": of the log's first byte, the highest of a record's size, ours is taken.
        self.at = PhysicalOffset(max(self._base, 1))
        """So far the master's bytes came, and this is what it is told."""
        self._theirs = bytearray(self._ours[: self.at - self._base])
        self._waiting_ms: float | None = None

    @property
    def damaged(self) -> list[PhysicalOffset]:
        """Where bytes of ours between records are in no range known to be damaged, but are no record."""
        ends = [piece.until for piece in self._pieces]
        begins = [*(piece.begin for piece in self._pieces[1:]), self.end]
        return [
            at
            for at, until in zip(ends, begins, strict=False)  # of no pieces there is no end
            if at < until and not self._log.is_damaged(at, until)
        ]

    def take(self, body: Body, now_ms: float) -> int | Differs:
        """Take ``body``, the master's bytes at ``at``; how many of them the slave has. Raises
        UnreadableError when the master's bytes are damaged where they are needed: they may be mended."""
        if self.compared:
            return 0
        if not self.can_prove:
            return Differs(self.at, f"our log has no whole record to compare before its end at {self.end}")
        if not body and self.at < self._need:
            return self._wait(now_ms)
        self._waiting_ms = None
        before = self.at
        self._theirs += body
        self.at = PhysicalOffset(before + len(body))
        if self.at >= self._need:
            differs = self._judge()
            if differs is not None:
                return differs
        return min(len(body), max(self.end - before, 0))

    def _wait(self, now_ms: float) -> int | Differs:
        self._waiting_ms = now_ms if self._waiting_ms is None else self._waiting_ms
        if now_ms - self._waiting_ms < COMPARE_WAIT_MS:
            return 0
        if self._master_has or self.at >= self.end:
            # It holds damaged bytes back while another replica can mend them.
            text = f"the master says that its log goes on behind {self.at}, and sends nothing of it"
            raise UnreadableError(text, self.at)
        text = f"our log ends at {self.end}, the master has nothing behind {self.at}"
        return Differs(self.at, f"{text}: it is not the log we copied")

    def _judge(self) -> Differs | None:
        """Compare; ``compared`` when it is one history. Perhaps more is needed. Raises as ``take``."""
        same = {piece for piece in self._pieces if self._is_same(piece)}
        last = max((piece.until for piece in same if piece.is_record), default=None)
        proven = self._base if last is None else last
        others = [piece for piece in self._pieces if piece.begin >= proven and piece not in same]
        if last is not None and not others and self._all_damaged(max(piece.until for piece in same)):
            self.compared = True  # whatever the master has where ours is damaged contradicts nothing
            return None
        theirs = self._log.pieces(bytes(memoryview(self._theirs)[proven - self._base :]), proven)
        return self._look_at(theirs, others, proven)

    def _look_at(
        self, theirs: Sequence[Piece], others: Sequence[Piece], proven: PhysicalOffset
    ) -> Differs | None:
        """What the master has behind ``proven``, and what we have there that it lacks."""
        against = [
            piece
            for piece in theirs
            if piece.begin < self.end and (piece.until > self.end or _meets(piece, others))
        ]
        came = self._base + len(self._theirs)
        # A blank is known by its head.
        if any(piece.until <= came or not piece.is_record for piece in against):
            at = self._first_difference(others, proven)
            text = f"our log, which ends at {self.end}, differs from the master's at {at}"
            return Differs(at, f"{text}: one of the two lost its end and wrote on")
        if against and against[0].until <= self.end + COMPARE_BYTES_MAX:
            self._need = against[0].until  # a record that ends behind our log: whole it tells
        elif others or all(piece.until != self.end for piece in theirs):
            at = self._first_difference(others, proven)
            text = f"the master's log has no readable record at {at}, where it should be ours"
            raise UnreadableError(text, others[0].begin if others else proven)
        else:
            self.compared = True
        return None

    def _is_same(self, piece: Piece) -> bool:
        # Nobody reads what a blank is filled with.
        until = piece.until if piece.is_record else piece.begin + BLANK_HEAD_BYTES
        place = slice(piece.begin - self._base, until - self._base)
        return self._ours[place] == self._theirs[place]

    def _all_damaged(self, at: PhysicalOffset) -> bool:
        """Whether all of our bytes from ``at`` to our end, if there are any, are known to be damaged."""
        while at < self.end and (until := self._log.damaged_until(at)) > at:
            at = until
        return at >= self.end

    def _first_difference(self, others: Sequence[Piece], proven: PhysicalOffset) -> PhysicalOffset:
        if not others:
            return proven
        begin, until, _ = others[0]
        place = slice(begin - self._base, until - self._base)
        pairs = zip(self._ours[place], self._theirs[place], strict=False)
        return PhysicalOffset(begin + next(n for n, (a, b) in enumerate(pairs) if a != b))


def _meets(piece: Piece, others: Sequence[Piece]) -> bool:
    at = bisect_right(others, piece.begin, key=lambda other: other.until)
    return at < len(others) and others[at].begin < piece.until


def _newest_records(
    log: LogBytes, floor: PhysicalOffset, end: PhysicalOffset
) -> tuple[PhysicalOffset, bytes, Sequence[Piece]]:
    """The bytes before ``end``, from a piece's begin on, and their pieces that are not damaged: the last
    COMPARE_BYTES of them, and more up to a record. Without a record the bytes are none, and begin where it
    was looked for last."""
    back = COMPARE_BYTES
    while True:
        begin = PhysicalOffset(max(end - back, floor))
        data = log.read(begin, end - begin)
        pieces = [
            piece
            for piece in log.pieces(data, begin)
            if piece.until <= end and not log.is_damaged(piece.begin, piece.until)
        ]
        newest = max((piece.begin for piece in pieces if piece.is_record), default=None)
        if newest is not None:
            pieces = [piece for piece in pieces if piece.begin >= min(newest, end - COMPARE_BYTES)]
            return pieces[0].begin, data[pieces[0].begin - begin :], pieces
        if begin == floor or back == COMPARE_BYTES_MAX:
            return begin, b"", ()
        back = min(4 * back, COMPARE_BYTES_MAX)
