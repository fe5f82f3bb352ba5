"""Does this broker's log say what the other replicas' logs say, where no CRC can tell?

KEELMQ_LOG_DIGESTS (7703, ours alone; docs/formats/store.md) asks a replica for digests of a part of its log.
Where they differ from ours, the records there are fetched (READ_LOG_RANGE) from all replicas,
``store/heal/agreement`` decides, and what is wrong here is replaced. What is wrong there, the other replica
finds in the same way. One pass follows each start, at ``checkOnStartMegabytesPerSecond``, over what was
there at the start; with ``scrubMegabytesPerSecond`` passes over all that is confirmed follow each other.

    request   ext: brokerName, offset, size (at most 1 MiB)
    answer    ext: offset, confirmOffset, epoch (as in ``broker/upkeep/log_repair``)   body: 8 bytes for each
              STEP_BYTES from offset on, up to what is confirmed; zeros where the log is known to be damaged.
              ``offset`` is larger than asked where the log begins later
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from broker.context import BrokerContext
from broker.upkeep.log_repair import CALL_S, PIECE_BYTES, LogRepair, need_same, verified
from model.codes import Request, Response
from model.errors import DiskError, MqError, Refused
from remoting.codec import Command
from remoting.headers import need, need_int
from remoting.service import Connection, RemotingClient
from runtime.backoff import Backoff
from runtime.loops import UNTIL_WOKEN, level_triggered
from runtime.report.lasting import lasting
from store.files.damage import may_have, resync
from store.files.record import RECORD_BYTES_MIN, BadRecord
from store.heal.agreement import Copy, decide

log = logging.getLogger(__name__)

STEP_BYTES: Final = 16 * 1024
DIGEST_BYTES: Final = 8
ASK_BYTES: Final = 256 * 1024
"""Compared at once: half a millisecond of both brokers' loops."""
LOOK_BACK_BYTES: Final = 256 * 1024
"""The record of a difference is looked for from so far before it, at first."""
RETRY_FIRST_MS: Final = 1000
RETRY_MAX_MS: Final = 60_000
PASS_PAUSE_S: Final = 10.0
UNKNOWN: Final = bytes(DIGEST_BYTES)


class _Told(NamedTuple):
    """What a replica answered: digests of [``begin``, ``end``), as far as both confirmed it."""

    begin: int
    end: int
    digests: list[bytes]


class LogCompare:
    """``run`` is one task for the life of the broker. ``passes`` counts whole readings. ``undecided`` counts
    the records of the last one that differ between replicas without a way to tell which is right."""

    def __init__(self, context: BrokerContext, client: RemotingClient, repair: LogRepair) -> None:
        self.passes = 0
        self.undecided = 0
        self._undecided = 0  # so far in this pass
        self._unanswered = 0  # differences of this pass that nobody gave the bytes of
        self._context = context
        self._client = client
        self._repair = repair
        self._log = context.store.log
        self._end_at_start = 0
        self._wake = asyncio.Event()
        self._backoff = Backoff(context.env.random, RETRY_FIRST_MS, RETRY_MAX_MS)

    def soon(self) -> None:
        """There is another role or master: try again at once what nobody answered."""
        self._backoff.reset()
        self._wake.set()

    # What others ask

    async def digests(self, connection: Connection, request: Command) -> Command | None:
        """Answer KEELMQ_LOG_DIGESTS."""
        context = self._context
        if need(request.ext, "brokerName") != context.config.broker_name:
            raise Refused(f"this broker is of the group {context.config.broker_name}")
        epoch = verified(context)
        offset, size = need_int(request.ext, "offset", 0), need_int(request.ext, "size", 1, PIECE_BYTES)
        begin = max(offset, self._log.min_offset)
        end = max(min(offset + size, context.store.confirmed), begin)
        ext = {"offset": str(begin), "confirmOffset": str(context.store.confirmed), "epoch": str(epoch)}
        return request.reply(ext=ext, body=b"".join(self._digests(begin, end)))

    def _digests(self, begin: int, end: int) -> Iterator[bytes]:
        damage = self._context.store.damage
        for at in range(begin, end, STEP_BYTES):
            stop = min(at + STEP_BYTES, end)
            if damage.overlaps(at, stop):
                yield UNKNOWN
            else:
                yield blake2b(self._read(at, stop), digest_size=DIGEST_BYTES).digest()

    def _read(self, begin: int, end: int) -> bytes:
        """Bytes of the log, also across segments."""
        context: list[bytes] = []
        while begin < end and (data := self._log.read(begin, end - begin)):
            context.append(data)
            begin += len(data)
        return b"".join(context)

    # What we ask

    @lasting
    async def run(self) -> None:
        self._end_at_start = self._log.end
        rest = Backoff(self._context.env.random, RETRY_FIRST_MS, RETRY_MAX_MS)
        await level_triggered(self._turn, self._wake, UNTIL_WOKEN, rest, "comparing the log")

    async def _turn(self) -> float:
        """One pass, if one is due; how long to rest behind it."""
        # What no evidence decided another replica may decide: when ``soon`` tells of one.
        over = self.passes and not self.undecided
        if self._context.store.scrub.rate() <= 0 and (over or not self._rate()):
            return UNTIL_WOKEN
        try:
            done = await self.once(None if self._context.config.scrub_megabytes_per_s else self._end_at_start)
        except (MqError, OSError, ValueError) as error:  # ValueError: cut or deleted under our eyes
            log.info("cannot compare the log with a replica's: %s", error)
            done = False
        if not done:
            return self._backoff.next_s()
        self._backoff.reset()
        return PASS_PAUSE_S if self._context.config.scrub_megabytes_per_s else UNTIL_WOKEN

    async def once(self, until: int | None = None) -> bool:
        """Compare all that is confirmed now, or ends at ``until``, with one replica; False when there was
        none, or not all of it could be compared. Raises MqError, OSError."""
        if until is not None and until <= self._log.min_offset:
            self.passes += 1  # the log began empty: what this process wrote did not rot before it
            return True
        peers = await self._repair.peers()
        if peers and self._context.ha.verified_epoch is None:
            return False
        confirmed: int = self._context.store.confirmed  # a log that grows faster than this reads has no end
        until = confirmed if until is None else min(until, confirmed)
        for peer in peers:
            self._undecided = self._unanswered = 0
            at: int = self._log.min_offset
            while at < min(until, self._context.store.confirmed):
                stop = await self._piece(peer, at, min(at + ASK_BYTES, until), peers)
                if stop <= at:
                    break  # this replica does not know that yet, or does not answer
                rate = self._rate()
                rest_s = max((stop - at) / rate if rate else 0.0, self._context.store.throttle.left_s)
                await asyncio.sleep(rest_s)
                at = stop
            if at > self._log.min_offset:
                whole_log = at >= until - STEP_BYTES and not self._unanswered
                self.passes += whole_log
                # One that broke off in the middle has not looked at all of them again.
                self.undecided = self._undecided if whole_log else max(self.undecided, self._undecided)
                return whole_log
        return not peers and not self._context.config.enable_controller_mode

    def _rate(self) -> int:
        config = self._context.config
        return (config.scrub_megabytes_per_s or config.check_on_start_megabytes_per_s) << 20

    async def _piece(self, peer: str, at: int, until: int, peers: list[str]) -> int:
        """Compare [``at``, ``until``) of the log with ``peer``'s; returns how far that was possible."""
        generation = self._log.generation
        try:
            told = await self._ask(peer, at, min(until, self._context.store.confirmed))
        except (MqError, OSError) as error:
            log.info("no digests of %s from %d on: %s", peer, at, error)
            return at
        if generation != self._log.generation:
            return at  # cut or put aside while we asked: there may be nothing left here to compare
        begin, end, _ = told
        if begin >= end or begin < self._log.min_offset:
            # Its log begins later than ours, or ours lost that part meanwhile.
            return max(begin, at, self._log.min_offset) if begin < self._context.store.confirmed else at
        for step in self._differing(told):
            if self._is_there(generation, step):
                others = [peer, *(p for p in peers if p != peer)]
                await self._judge(step, min(step + STEP_BYTES, end), others)
        if generation != self._log.generation:
            return at
        return min(begin + len(told.digests) * STEP_BYTES, end)

    async def _ask(self, peer: str, at: int, end: int) -> _Told:
        """The digests that ``peer`` has of [``at``, ``end``). Raises MqError, OSError."""
        ext = {"brokerName": self._context.config.broker_name, "offset": str(at), "size": str(end - at)}
        answer = await self._client.call(peer, Command(int(Request.KEELMQ_LOG_DIGESTS), ext), CALL_S)
        if answer.code != Response.SUCCESS:
            raise Refused(f"{answer.code} {answer.remark or ''}", answer.code)
        need_same(self._context, answer)
        return _Told(
            need_int(answer.ext, "offset", at),
            min(end, need_int(answer.ext, "confirmOffset", 0)),
            [answer.body[i : i + DIGEST_BYTES] for i in range(0, len(answer.body), DIGEST_BYTES)],
        )

    def _differing(self, told: _Told) -> list[int]:
        """Where the steps begin that the other replica has otherwise.

        A step that is damaged here is one of them: it may hold more that no CRC tells, beside the damage.
        That would never be mended, for want of a neighbour that is the same everywhere.
        """
        ours = self._digests(told.begin, told.end)
        return [
            told.begin + number * STEP_BYTES
            for number, (mine, other) in enumerate(zip(ours, told.digests, strict=False))
            if mine != other and other != UNKNOWN
        ]

    async def _judge(self, begin: int, end: int, peers: list[str]) -> None:
        """Judge the records that differ in [``begin``, ``end``). Raises DiskError."""
        segment_bytes = self._log.segment_bytes
        while begin < end:
            stop = min(end, begin - begin % segment_bytes + segment_bytes)
            generation = self._log.generation
            copies = await self._copies(begin, stop, peers[:1])
            if not self._is_there(generation, begin):
                return
            self._unanswered += not copies
            if copies:
                mine, (other,) = self._read(begin, stop), copies
                at = begin
                while (at := _first_difference(mine, other, at - begin) + begin) < stop:
                    known = self._context.store.damage.at(at)
                    at = known.until if known is not None else await self._record(at, peers)
                    if not self._is_there(generation, begin):
                        return
            begin = stop

    def _is_there(self, generation: int, begin: int) -> bool:
        """Do the bytes from ``begin`` on still stand where they stood when the log was of ``generation``?"""
        return generation == self._log.generation and begin >= self._log.min_offset

    async def _record(self, at: int, peers: list[str]) -> int:
        """Judge the record byte ``at`` lies in; returns where it ends."""
        place = self._place(at)
        if place is None:
            return at + RECORD_BYTES_MIN  # damaged, the scrub will note it; the next one may be whole
        begin, until = place
        generation, epoch = self._log.generation, self._context.ha.verified_epoch
        others = await self._copies(begin, until, peers)
        # Answers of two epochs are not compared: another master may have written in between.
        if not others or epoch != self._context.ha.verified_epoch or not self._is_there(generation, begin):
            self._unanswered += 1
            return until
        mine = self._read(begin, until)
        if all(other == mine for other in others):
            return until  # mended meanwhile
        winner = decide([self._copy(begin, data) for data in (mine, *others)])
        if winner is None:
            self._undecided += 1
            log.error(
                "record [%d, %d) differs between replicas, and no evidence says which is right", begin, until
            )
        elif winner != mine:
            try:
                await self._context.store.repairer.replace(begin, winner)
            except BadRecord as bad:
                log.error("cannot replace the record at %d: %s", begin, bad)
        return until

    def _place(self, at: int) -> tuple[int, int] | None:
        """The record or blank with byte ``at`` in it; None when it cannot be found, or is damaged."""
        segment_bytes = self._log.segment_bytes
        base = at - at % segment_bytes
        limit = min(base + segment_bytes, self._context.store.confirmed)
        back = LOOK_BACK_BYTES
        while True:
            begin = max(base, at - back)
            found: int | None = begin
            if begin > base:
                near = resync(lambda size, p: self._log.read(base + p, size), base, begin - base, at - base)
                found = base + near if near is not None else None
            while found is not None and found <= at:
                size = self._size(found, limit)
                if size == 0:
                    # Damaged, the scrub notes it. Good records may begin again before ``at``.
                    near = resync(
                        lambda size, p: self._log.read(base + p, size), base, found - base, limit - base
                    )
                    found = base + near if near is not None and base + near <= at else None
                elif found + size > at:
                    return found, found + size
                else:
                    found += size
            if begin == base:
                return None
            back *= 8

    def _size(self, offset: int, limit: int) -> int:
        """Bytes of the whole record or blank at ``offset``; 0 when there is none."""
        says = int.from_bytes(self._log.read(offset, 4), "big", signed=True)
        if not may_have(says, limit - offset):
            return 0
        try:
            return abs(self._log.whole(self._read(offset, offset + says), 0, offset))
        except BadRecord:
            return 0

    def _copy(self, offset: int, data: bytes) -> Copy:
        try:
            is_whole = abs(self._log.whole(data, 0, offset)) == len(data)
        except BadRecord:
            is_whole = False
        return Copy(data, is_whole, is_whole and self._context.store.repairer.names(offset, data))

    async def _copies(self, begin: int, until: int, peers: list[str]) -> list[bytes]:
        """The bytes [``begin``, ``until``) of each of ``peers`` that answers."""
        found: list[bytes] = []
        for peer in peers:
            try:
                data = await self._repair.fetch(peer, begin, until)
            except DiskError:
                raise
            except (MqError, OSError) as error:
                log.info("no bytes of %s in [%d, %d): %s", peer, begin, until, error)
                continue
            if len(data) == until - begin:
                found.append(data)
        return found


def _first_difference(one: bytes, other: bytes, at: int) -> int:
    """The first position from ``at`` on where they differ, else their length."""
    if one[at:] == other[at:]:
        return len(one)
    return next((i for i in range(at, min(len(one), len(other))) if one[i] != other[i]), len(one))
