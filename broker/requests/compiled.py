"""How does the fast path use the compiled code (``runtime/native``)?

That splits a read, encodes its plain sends and answers them; here is what touches the broker: appends, rolls,
a disk that refuses. What it leaves takes the ordinary way, as what the Python fast path leaves does.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from broker.requests.batch import BORN_HOST, PULLS, READ_MESSAGES_MAX
from broker.requests.send_format import PLAIN_SYS_FLAGS, BinaryAnswer, JsonAnswer
from broker.requests.turn import READ_BYTES_MAX, TURN_BYTES_MAX, Read, Turn
from broker.state.pending_acks import Answered
from model.config import BrokerConfig
from model.errors import DiskError
from model.message import PROPERTIES_BYTES_MAX
from remoting import codec
from remoting.headers import SEND_V1_NAMES
from remoting.service import Connection
from remoting.transport.order import WAITS
from store.files.record import BLANK_BYTES, Dispatch
from store.flow.writing import Writer
from store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runtime.native._native import Sends

Found: TypeAlias = tuple[int, list[bytes]]
Process: TypeAlias = "Callable[[Connection, bytes | bytearray, int, int], Found]"
"""See FastPath.process."""
Join: TypeAlias = "Callable[[Connection, bytes | bytearray, int, int], Found | None]"
"""The same; None: all of it waits for the end of the turn."""
Rest: TypeAlias = "Callable[[Connection, bytes | bytearray, int, Found], Found]"
"""Of a read up to so far: what is left when sends ``Found`` that much."""

_DONE: Final = 0
_ROLL: Final = 1
_BROKEN: Final = 2


class Path(Protocol):
    """What is needed of the fast path."""

    config: BrokerConfig
    store: MessageStore
    writer: Writer
    host: bytes
    extra: bytes
    json: JsonAnswer
    binary: BinaryAnswer

    @property
    def append(self) -> Callable[[Answered, Sequence[Any], int, Sequence[Dispatch]], None]:
        """Store what was taken; its answers leave when it is safe. Raises DiskError."""

    def split(
        self, buffer: bytes | bytearray, at: int, end: int, frames: list[bytes]
    ) -> tuple[int, list[bytes]]:
        """Every whole frame is slow."""


class CompiledSends:
    """The compiled half of one broker's fast path. ``queues_of`` a topic sends to may be fast, else None;
    ``refuse``: may no send be taken right now? ``soon`` calls something in this turn of the loop.

    What one connection sends while no other does is stored at once. Where reads of several come in a turn,
    the small ones are stored together at its end.
    """

    def __init__(
        self,
        module: ModuleType,
        path: Path,
        queues_of: Callable[[str], int | None],
        refuse: Callable[[], bool],
    ) -> None:
        def route(topic: str) -> tuple[str, int] | None:
            queues = queues_of(topic)
            return None if queues is None else (topic, queues)

        self.soon: Callable[[Callable[[], None]], object] = _call_soon
        self._path = path
        self._refuse = refuse
        self._log = path.store.log
        self.turn: Final = Turn()
        """What waits for its end."""
        self._begun = (0, 0, (0, 0, 0))
        self._due = False
        self._rest: Rest | None = None
        self._core: Sends = module.Sends(
            Dispatch,
            route,
            path.writer.offsets,
            path.host,
            path.extra,
            [name.encode() for name in SEND_V1_NAMES.values()],
            path.json.parts,
            path.binary.parts,
            PLAIN_SYS_FLAGS,
            PROPERTIES_BYTES_MAX,
            codec.HEADER_BYTES_MAX,
            (BORN_HOST, WAITS, PULLS),
        )
        path.writer.before_append = self.end_turn

    def join_or(self, otherwise: Process, rest: Rest | None = None) -> Join:
        """``process`` of a read that may wait for the end of an open turn, with ``rest`` of one that could
        not after all; ``otherwise``, if it may not or none is open."""
        self._core.otherwise, self._rest = otherwise, rest
        return self._core.join

    @property
    def waiting(self) -> bool:
        """Is there something for the end of the turn?"""
        return bool(self.turn.reads)

    def check_invariants(self) -> None:
        """Raise if records would be stored where they do not belong, or wait without an owner."""
        waiting = self.waiting
        assert waiting == (self._core.pending > 0), "records are pending just as long as their reads are"
        assert not waiting or self._due, "a turn that began also ends"

    def forget_routes(self) -> None:
        self.end_turn()  # by the rules of before
        self._core.forget_routes()

    def process(
        self, connection: Connection, buffer: bytes | bytearray, start: int, end: int, born: bytes
    ) -> tuple[int, list[bytes]]:
        """See FastPath.process."""
        asked, waits = self._enter(connection, end - start)
        now_ms, limit, maxima = self._begun
        left: list[bytes] = []
        try:
            log_end = self._log.end
            found = self._core.process(
                buffer, start, end, born, now_ms, log_end, limit, maxima, False, False, left
            )
        except BaseException:
            self._core.drop()
            self._abandon(self.turn.take())
            raise
        if waits and found[1] == _DONE and not left:
            if found[0] > start:
                self._wait(log_end, (connection, bytes(buffer[start : found[0]]), self._core.answers()))
            return found[0], left
        return self._store(connection, buffer, (start, end), born, found, left, asked=asked)

    def _go_on(
        self,
        connection: Connection,
        buffer: bytes | bytearray,
        start: int,
        end: int,
        found: tuple[int, int, bool, int] | None,
        left: list[bytes],
    ) -> tuple[int, list[bytes]]:
        """``process`` of a read that joined an open turn, and ends it. ``found`` None: by our mistake."""
        if found is None:
            self._core.drop()
            self._abandon(self.turn.take())
            return start, left
        if self.turn.begin != self._log.end:
            self.end_turn()  # it is void, and what this read added to it
            return self._core.otherwise(connection, buffer, start, end)
        born = connection.attributes[BORN_HOST]
        stored = self._store(connection, buffer, (start, end), born, found, left, asked=False)
        return stored if self._rest is None else self._rest(connection, buffer, end, stored)

    def _store(
        self,
        connection: Connection,
        buffer: bytes | bytearray,
        span: tuple[int, int],
        born: bytes,
        found: tuple[int, int, bool, int],
        left: list[bytes],
        *,
        asked: bool,
    ) -> tuple[int, list[bytes]]:
        """Append what is taken: of the turn, and of this read, of which the compiled code ``found`` and
        ``left`` so much; then the rest of it. ``asked``: whether sends may be taken now."""
        path, core, log = self._path, self._core, self._log
        now_ms, limit, maxima = self._begun
        (start, end), appended_at, appended_left = span, span[0], 0
        at, state, ordered, total = found
        try:
            while True:
                if not asked and self._refuse():
                    core.drop()
                    self._again(self.turn.take())
                    return path.split(buffer, start, end, [])
                asked = True
                self._append((connection, b"", core.answers()))
                if state != _ROLL:
                    break
                appended_at, appended_left = at, len(left)
                leave = self._roll(total)
                limit = log.end + log.room
                at, state, ordered, total = core.process(
                    buffer, at, end, born, now_ms, log.end, limit, maxima, ordered, leave, left
                )
        except DiskError:
            # Nothing was stored since the last append: the ordinary way says so to each sender.
            core.drop()
            return path.split(buffer, appended_at, end, left[:appended_left])
        except BaseException:
            core.drop()
            self._abandon(self.turn.take())
            raise
        if state == _BROKEN and not left:
            codec.frame_end(buffer, at, end, path.config.frame_bytes_max)
            raise AssertionError("lengths that cannot be true are refused by the codec as well")
        return at, left

    def _enter(self, connection: Connection, size: int) -> tuple[bool, bool]:
        """Of a read of ``size`` bytes. Did somebody ask whether sends may be taken? Not since its turn began.
        May it wait for the end of the turn? A long one ends it."""
        turn, waits = self.turn, size <= READ_BYTES_MAX
        asked = not turn.reads
        if not asked and (not waits or turn.begin != self._log.end):
            self.end_turn()
        last, self._core.last = self._core.last, connection
        if not turn.reads:
            waits = waits and last is not None and last is not connection
            # What holds for this read, and for all of its turn if it waits: the store time, where the segment
            # ends, and the maxima of the configuration (whose change ends a turn).
            config, log, batch_max = self._path.config, self._log, self._path.config.batch_messages_max
            maxima = (
                config.message_bytes_max,
                batch_max if batch_max < READ_MESSAGES_MAX else READ_MESSAGES_MAX,
                config.frame_bytes_max,
            )
            self._begun = (self._path.writer.stamp_ms(), log.end + log.room, maxima)
        return asked, waits

    def _roll(self, total: int) -> bool:
        """Go on in the next segment; whether ``total`` bytes do not even fit there. Raises DiskError."""
        log = self._log
        if total <= self._path.config.segment_bytes - BLANK_BYTES:
            log.roll()
        return total > log.room

    def _wait(self, begin: int, read: Read) -> None:
        first = not self.turn
        self.turn.add(begin, read)
        if first:
            now_ms, limit, maxima = self._begun
            most = READ_BYTES_MAX, TURN_BYTES_MAX
            reads = self.turn.reads
            self._core.open(reads, begin, now_ms, limit, maxima, most, self._go_on)
        if self._core.pending >= TURN_BYTES_MAX:
            self.end_turn()
        elif not self._due:
            self._due = True
            self.soon(self._end)

    def _end(self) -> None:
        self._due = False
        self.end_turn()

    def end_turn(self) -> None:
        """Store what waits for the end of the turn, if anything does: called there, and before anybody else
        appends. What cannot be stored goes the ordinary way, which says so to each sender."""
        turn = self.turn
        if not turn.reads:
            return
        if turn.begin != self._log.end or self._refuse():
            self._core.drop()
            self._again(turn.take())
            return
        with suppress(DiskError):  # then they went the ordinary way
            self._append(None)

    def _append(self, last: Read | None) -> None:
        """Store what is taken: of the turn, and of ``last``, the read at hand. Raises DiskError: nothing is
        stored, and what the turn held takes the ordinary way."""
        reads = self.turn.take() if self.turn.reads else []
        if not self._core.pending:
            return
        taken: tuple[bytes, Any] = self._core.take()
        records, block = taken
        if last is not None and not reads:  # of a producer alone
            answered = [(last[0], last[2])] if last[2] else []
        else:
            all_reads = reads if last is None else [*reads, last]
            answered = [(connection, answers) for connection, _, answers in all_reads if answers]
        try:
            self._path.append(answered, (records,), len(records), block)
        except DiskError:
            self._again(reads)
            raise
        except BaseException:
            self._abandon(reads)
            raise

    def _again(self, reads: list[Read]) -> None:
        """Their frames take the ordinary way, in the order they came."""
        for connection, taken, _ in reads:
            _, frames = self._path.split(taken, 0, len(taken), [])
            connection.handle_again(frames)

    def _abandon(self, reads: list[Read]) -> None:
        """A mistake of our own: nobody knows what became of them, which a connection that ends says."""
        for connection, _, _ in reads:
            connection.close()


def _call_soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)
