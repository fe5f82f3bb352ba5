"""What becomes of a transactional message until its producer says commit or roll back?

A half message lies in RMQ_SYS_TRANS_HALF_TOPIC, where no consumer looks. END_TRANSACTION (37) copies it to
its topic (commit) or not (roll back), and writes an op record to RMQ_SYS_TRANS_OP_HALF_TOPIC that names the
half's queue offset; copy and op record are one append. A half without an op after ``transactionTimeOut`` is
written anew at the end of its queue and its producer asked (CHECK_TRANSACTION_STATE, 39), at most
``transactionCheckMax`` times; then it goes to TRANS_CHECK_MAX_TIME_TOPIC. Topics, properties and codes:
Apache RocketMQ 5.x, ``broker/transaction``.

Progress (the offsets of group CID_RMQ_SYS_TRANS, which slaves copy) moves only past halves whose op record is
confirmed, so a successor asks again rather than forget. An end that comes twice is carried out once, also
when the second comes to a successor, which first reads what its log has of the first; one for a half that was
written anew counts for the copy, which a successor finds before the op record. A half that wants to be
asked about late (CHECK_IMMUNITY_TIME_IN_SECONDS) is written anew meanwhile, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.half_places import HalfPlaces, ended_by, first_behind
from broker.requests.half_times import is_ahead, wait_ms, with_rest
from broker.requests.moving import moved
from broker.requests.properties import changed, int_property
from broker.requests.send import LONG_BODY_BYTES, SendProcessor
from broker.state.figures import Durations
from broker.state.pace import LONG_BYTES
from broker.tables.topics import HALF_TOPIC, OP_HALF_TOPIC
from model.acl.plain import Perm
from model.codes import Request, Response
from model.errors import MqError, Refused
from model.message import (
    PROPERTIES_BYTES_MAX,
    REAL_QID,
    REAL_TOPIC,
    STORE_HOST_V6,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_COMMIT,
    TRANSACTION_ENDED_AS,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    UNIQ_KEY,
    message_id,
    parse_message_id,
    property_of,
)
from remoting.acl.gate import NeededRight
from remoting.codec import Command
from remoting.headers import EndTransactionHeader, need
from remoting.service import Connection
from runtime.report.histogram import FINISH_S
from runtime.report.lasting import lasting
from runtime.turns import Slice
from store.files.record import NewMessage, Record, decode, encode, records_in
from store.flow.reading import GetStatus
from store.flow.writing import Prepared, Put

log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
DISCARDED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
PRODUCER_GROUP: Final = "PGROUP"
CHECK_TIMES: Final = TRANSACTION_CHECK_TIMES
OP_TAG: Final = "d"
ENDED_AS: Final = TRANSACTION_ENDED_AS
_WORDS: Final = {TRANSACTION_COMMIT: "committed", TRANSACTION_ROLLBACK: "rolled back"}
GIVEN_UP: Final = "given up"
OPEN: Final = "open"
SOMEHOW: Final = "ended, and nothing says how"
COPIES_MAX: Final = 1000
"""So many copies of one half are followed for one end."""
HELD_MAX: Final = 10_000
"""So many ended halves wait, 0.1 KB each, behind one that is to be asked about late."""
PUT_BACK_MS: Final = 600_000
"""A half that is to be asked about late is written anew then, so that the log keeps it."""
_COUNT: Final = 32
_BYTES: Final = 1 << 20
WAITING_MAX: Final = 1000
"""Ends that may wait for the log of the former master, or for their half to be confirmed; beyond, the
producer is asked later."""
KNOWN_STEP_S: Final = 0.05
ENTERED_STEP_S: Final = 0.005
OPS_LOOKED_AT_MAX: Final = 100_000
"""How many op records are read for one end; more means that its half is hours old."""


class Transactions:
    """Ends transactions (37), and on the master asks producers about those that do not end."""

    def __init__(self, context: BrokerContext, sender: SendProcessor) -> None:
        self._context = context
        self._sender = sender
        self._next_half = 0  # halves below it have ended, confirmed
        self._next_op = 0  # op records below it were read
        self._ops: deque[tuple[int, int]] = deque()  # (op offset, highest half offset it names), in order
        # Half offsets from _next_half on, and how they ended where that is known:
        self._ended: dict[int, str | None] = {}  # their op record is confirmed
        self._ending: dict[int, str | None] = {}  # their op record was written here, confirmed or not
        self._places = HalfPlaces()
        self._asked_in_place: dict[int, int] = {}  # halves with no room for it -> how often asked about
        self._known = asyncio.Event()  # the op records that were there at our promotion are read
        self._waiting = 0  # ends that came before
        self.finished = Durations(FINISH_S)  # from a message's birth to its commit

    @property
    def open_halves(self) -> int:
        """Half messages that have not ended yet."""
        end = self._context.store.max_queue_offset(HALF_TOPIC, 0)
        known = sum(offset >= self._next_half for offset in {*self._ended, *self._ending})
        return max(0, end - self._next_half - known)

    # What producers say

    async def end(self, connection: Connection, request: Command) -> Command | None:
        """END_TRANSACTION. Raises Refused. An end for a transaction that has ended is answered OK, unless it
        is known to have ended otherwise: an OK for what does not come would be none."""
        context = self._context
        if context.role_state.role == "slave":
            raise Refused("a slave cannot end a transaction: ask the master", Response.SLAVE_NOT_AVAILABLE)
        await context.admit(connection, request)
        header = EndTransactionHeader.parse(request.ext)
        if header.decision not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return request.reply()  # the producer does not know yet: it will be asked
        if not self._known.is_set():
            await self._until_known()
        half = self._half(header)
        await self._need_entered(half)
        self._need_right(connection, request, half, ("Pub",))
        made: Prepared | None = None
        made_of = -1
        while True:
            half, how = await self._look_up(connection, half)
            if how is not None:
                return _again(request, header.decision, how)
            refused = context.refuse_write()
            if refused is not None:
                raise refused
            if header.decision != TRANSACTION_COMMIT or made_of == half.physical_offset:
                break
            whole, made_of = self._whole(half), half.physical_offset
            if half.size >= LONG_BODY_BYTES:
                await asyncio.sleep(0)  # what was done is another piece of work
            made = self._sender.prepare(self._committed(whole))
            if half.size < LONG_BODY_BYTES:
                break
            await asyncio.sleep(0)
        ended_as = _WORDS[header.decision]
        op = self._sender.prepare(self._op(half.queue_offset, ended_as))
        puts = self._sender.put_prepared([op] if made is None else [made, op])
        self._ending[half.queue_offset] = ended_as
        counter = "TOPIC_COMMIT_NUMS" if header.decision == TRANSACTION_COMMIT else "TOPIC_ROLLBACK_NUMS"
        topic = property_of(half.properties, REAL_TOPIC) or ""
        context.stats.counters.add(counter, topic, 1, context.env.monotonic_ms())
        if made is not None:
            self.finished.observe(topic, (context.env.now_ms() - half.born_timestamp_ms) / 1000)
        return self._sender.answer(connection, request, request.reply(), puts, wait=True)

    def _need_right(
        self, connection: Connection, request: Command, half: Record, actions: tuple[str, ...]
    ) -> None:
        """Raises Refused unless the client has a right to the topic that the half is for."""
        topic = property_of(half.properties, REAL_TOPIC) or ""
        self._context.trust.need_topic(connection, request, topic, NeededRight(actions, Perm.PUB))

    async def _until_known(self) -> None:
        """Return when it is known what ended under the former master. Raises Refused: not known in time, or
        no master any more."""
        context = self._context
        if self._waiting < WAITING_MAX:
            self._waiting += 1
            try:
                async with asyncio.timeout(context.config.slave_timeout_ms / 1000):
                    await self._known.wait()
            except TimeoutError:
                pass
            finally:
                self._waiting -= 1
        refused = context.refuse_write()
        if refused is not None:
            raise refused
        if not self._known.is_set():
            raise Refused(
                "not known yet which transactions ended at the former master: the producer will be asked",
                Response.SYSTEM_BUSY,
            )

    async def _look_up(self, connection: Connection, half: Record) -> tuple[Record, str | None]:
        """The copy of ``half`` that stands for it now, and how it ended: None while it has not, and
        ``SOMEHOW`` where its op record does not say. Nothing waits between the last look and the return.
        Raises Refused, and PeerLeft.

        What copies there are the master knows that made them; its successor finds them in the log.
        """
        told: dict[int, Record | None] = {}  # the op records that were looked for
        while len(told) <= COPIES_MAX:
            half = self._newest(half)
            offset = half.queue_offset
            known = next((ends[offset] for ends in (self._ending, self._ended) if offset in ends), OPEN)
            if known not in (None, OPEN):
                return half, known
            if offset not in told:
                if known is OPEN and offset >= self._next_half:
                    return half, None
                told[offset] = await self._op_of(connection, half)
                continue  # others had their turn
            op = told[offset]
            if op is None:
                return half, None if known is OPEN else SOMEHOW
            how = property_of(op.properties, ENDED_AS)
            copy = self._copy_before(op, half) if how is None else None
            if copy is None:
                return half, how or SOMEHOW
            half = copy
        raise Refused("this transaction is too old to tell whether it has ended", Response.SYSTEM_BUSY)

    def _copy_before(self, op: Record, half: Record) -> Record | None:
        """The copy that ``op`` says took the place of ``half``: both were one append. None: it says something
        else, or the copy is gone."""
        store, before = self._context.store, self._first_behind(HALF_TOPIC, op.physical_offset) - 1
        place = store.place_of(HALF_TOPIC, 0, before)
        copy = store.without_body(place) if place is not None else None
        if copy is None or copy.physical_offset + copy.size != op.physical_offset:
            return None
        same = all(
            property_of(copy.properties, name) == property_of(half.properties, name)
            for name in (UNIQ_KEY, REAL_TOPIC, PRODUCER_GROUP)
        )
        return copy if same and copy.body_crc == half.body_crc else None

    async def _op_of(self, connection: Connection, half: Record) -> Record | None:
        """The op record that names ``half``: the log is asked, as progress is a number in a table and no
        proof. Raises Refused when it would take too long to tell, and PeerLeft."""
        looked = 0
        async with self._context.turns.take(connection) as turn:
            for op in self._records(OP_HALF_TOPIC, self._first_behind(OP_HALF_TOPIC, half.physical_offset)):
                if half.queue_offset in ended_by(op):
                    return op
                looked += 1
                if looked > OPS_LOOKED_AT_MAX:
                    raise Refused(
                        "this transaction is too old to tell whether it has ended", Response.SYSTEM_BUSY
                    )
                await turn.breathe()
        return None

    def _first_behind(self, topic: str, physical_offset: int) -> int:
        """The first of queue 0 that lies behind a place in the log, as the op records of a half do."""
        return first_behind(self._context.store, topic, physical_offset)

    def _half(self, header: EndTransactionHeader) -> Record:
        """Without its body: to ask again and again about a long one costs no more. Raises Refused."""
        record = self._context.store.without_body(header.physical_offset)
        if record is None:
            raise _gone()
        if record.topic != HALF_TOPIC:
            raise Refused("the message at this offset is not a prepared one", Response.SYSTEM_ERROR)
        if property_of(record.properties, PRODUCER_GROUP) != header.producer_group:
            raise Refused("the producer group wrong", Response.SYSTEM_ERROR)
        if record.queue_offset != header.queue_offset:
            raise Refused("the transaction state table offset wrong", Response.SYSTEM_ERROR)
        return record

    async def _need_entered(self, record: Record) -> None:
        """Raises Refused unless its queue has the record: a message's body may hold the bytes of a whole one,
        whose numbers its sender chose.

        A half that its producer was told of may not be confirmed yet; it is entered in a moment.
        """
        store, env = self._context.store, self._context.env
        deadline_ms = env.monotonic_ms() + self._context.config.slave_timeout_ms
        while store.dispatched <= record.physical_offset:
            if self._waiting >= WAITING_MAX or env.monotonic_ms() >= deadline_ms:
                raise Refused(
                    "this transaction is not confirmed yet: the producer will be asked", Response.SYSTEM_BUSY
                )
            self._waiting += 1
            try:
                await asyncio.sleep(ENTERED_STEP_S)
            finally:
                self._waiting -= 1
        if store.place_of(record.topic, record.queue_id, record.queue_offset) != record.physical_offset:
            raise Refused("the message at this offset is not a prepared one", Response.SYSTEM_ERROR)

    def _newest(self, half: Record) -> Record:
        """``half``, or the copy that took its place when its producer was asked: an end that crossed the
        question on its way counts for that."""
        renewed = self._places.newest(half.queue_offset)
        copy = self._context.store.without_body(renewed) if renewed is not None else None
        return copy or half

    def _whole(self, half: Record) -> Record:
        raw = self._context.store.lookup(half.physical_offset)
        if raw is None:
            raise _gone()
        return decode(raw)

    def _committed(self, half: Record) -> NewMessage:
        message = self._copy(
            half,
            self._context.topics.need_kept(property_of(half.properties, REAL_TOPIC) or ""),
            int_property(half.properties, REAL_QID) or 0,
            # TRAN_MSG stays, as in the original's records (its order of steps leaves it there).
            changed(half.properties, {}, (REAL_TOPIC, REAL_QID)),
        )
        message.sys_flag |= TRANSACTION_COMMIT
        message.prepared_transaction_offset = half.physical_offset
        return self._sender.delayed(message)

    def _copy(self, record: Record, topic: str, queue_id: int, properties: str) -> NewMessage:
        message = moved(record, (topic, queue_id), properties, self._context.store_host)
        return dataclasses.replace(message, sys_flag=message.sys_flag & ~TRANSACTION_MASK)

    def _op(self, half_offset: int, ended_as: str | None = None) -> NewMessage:
        """``ended_as`` None: a copy took the half's place."""
        host = self._context.store_host
        flags = STORE_HOST_V6 | STORE_HOST_V6 >> 1 if len(host) == 20 else 0
        return NewMessage(
            topic=OP_HALF_TOPIC,
            queue_id=0,
            flag=0,
            sys_flag=flags,
            born_timestamp_ms=self._context.env.now_ms(),
            born_host=host,
            store_host=host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=b"%d," % half_offset,
            properties=f"TAGS\x01{OP_TAG}\x02" + (f"{ENDED_AS}\x01{ended_as}\x02" if ended_as else ""),
        )

    # What the master asks

    @lasting
    async def run(self) -> None:
        """Look at the halves each ``transactionCheckInterval``, for ever. Started on promotion.

        Nothing is asked or ended before all that the former master wrote is confirmed and read: an end among
        it, carried out again, would be a message twice.
        """
        try:
            await self._run()
        finally:
            self._known.clear()  # another master may end transactions from now on

    async def _run(self) -> None:
        offsets, store = self._context.offsets, self._context.store
        first = store.min_queue_offset
        self._next_half = max(offsets.get(GROUP, HALF_TOPIC, 0) or 0, first(HALF_TOPIC, 0))
        self._next_op = max(offsets.get(GROUP, OP_HALF_TOPIC, 0) or 0, first(OP_HALF_TOPIC, 0))
        self._ops.clear()
        self._ended.clear()
        self._ending.clear()
        self._places.clear()
        self._asked_in_place.clear()
        taken_over = store.log.end
        while True:
            if store.dispatched < taken_over:
                await asyncio.sleep(KNOWN_STEP_S)
                continue
            try:
                await self._read_ops()
                self._known.set()
                if self._context.refuse_write() is None:
                    await self.check()
            except (MqError, OSError, ValueError, struct.error) as error:
                # Not enough replicas, no space, a page of the disk or a half that cannot be read: halves
                # wait, none is given up for it.
                log.warning("looking at transactions failed, trying again: %s", error)
            except Exception:
                # Not foreseen; but a master that looks no more asks about none of them until it is replaced.
                log.exception("looking at transactions failed, trying again")
            await asyncio.sleep(self._context.config.transaction_check_interval_ms / 1000)

    def _records(self, topic: str, offset: int) -> Iterator[Record]:
        """What is confirmed of queue 0 of ``topic`` from ``offset`` on."""
        while True:
            got = self._context.store.get(topic, 0, offset, _COUNT, _BYTES, None)
            if got.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.NO_MATCHED):
                offset = got.next_offset  # records before it were deleted, or entries that stand for none
                continue
            if got.status is not GetStatus.FOUND:
                return
            for chunk in got.chunks:
                yield from records_in(chunk)
            offset = got.next_offset

    async def _read_ops(self) -> None:
        slice_ = Slice(self._context.env.monotonic_ms)
        for op in self._records(OP_HALF_TOPIC, self._next_op):
            named = ended_by(op)
            ended_as = property_of(op.properties, ENDED_AS)
            self._ended |= {offset: ended_as for offset in named if offset >= self._next_half}
            self._ops.append((op.queue_offset, max(named, default=-1)))
            self._next_op = op.queue_offset + 1
            await slice_.breathe()

    async def check(self) -> None:
        """Ask about every half that is old enough. Raises Refused or DiskError; the rest comes next time.

        Others have their turn in between: without its producers a broker may hold very many halves, and a
        master that does nothing else for seconds loses its lease to one that would do the same.
        """
        slice_ = Slice(self._context.env.monotonic_ms)
        try:
            await self._look_at_halves(slice_)
        except Exception:  # not when it is cancelled: the next master, perhaps this one, begins at once
            await self._forget(slice_)
            raise
        await self._forget(slice_)

    async def _look_at_halves(self, slice_: Slice) -> None:
        looked = 0
        end = self._context.store.max_queue_offset(HALF_TOPIC, 0)
        passing = True  # every half so far has ended: progress follows
        for half in self._records(HALF_TOPIC, self._next_half):
            offset = half.queue_offset
            if offset >= end:
                break
            looked += 1
            if half.size >= LONG_BYTES or looked % _COUNT == 0 or slice_.is_over():
                await slice_.pause()
                await self._context.pace.room()  # it may be written anew
                refused = self._context.refuse_write()
                if refused is not None:
                    raise refused
            if offset in self._ended:
                if passing:
                    self._next_half = offset + 1
                continue
            passing = False
            if offset in self._ending:
                continue
            if is_ahead(half, self._context.env.now_ms()):
                self._put_back(half, half.properties)  # it gets a right age
            elif self._is_due(half):
                self._ask(half)
            elif self._age_ms(half) < 0:
                continue  # those behind it may be older
            elif self._age_ms(half) < self._context.config.transaction_timeout_ms:
                break  # and so are those behind it
            elif self._is_in_the_way(half):
                self._put_back(half, with_rest(half, self._age_ms(half)))

    def _is_in_the_way(self, half: Record) -> bool:
        """Whether those behind a half that is not to be asked about yet, or the age of the log, need it to
        go: each time it does costs all brokers its size."""
        held = len(self._ended) + len(self._ending)
        return held >= HELD_MAX or self._age_ms(half) >= PUT_BACK_MS

    async def resume(self, connection: Connection, request: Command) -> Command | None:
        """Ask again about a half that was given up (RESUME_CHECK_HALF_MESSAGE): it is a half anew."""
        context = self._context
        await context.admit(connection, request)
        message = need(request.ext, "msgId")
        try:
            raw = context.store.lookup(parse_message_id(message)[1])
        except ValueError as error:
            raise Refused(str(error), Response.SYSTEM_ERROR) from None
        record = decode(raw) if raw is not None else None
        if record is None or record.topic != DISCARDED_TOPIC:
            raise Refused(
                "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed:"
                f" {message} names no message of {DISCARDED_TOPIC}",
                Response.SYSTEM_ERROR,
            )
        await self._need_entered(record)
        self._need_right(connection, request, record, ("Update",))
        properties = changed(record.properties, {CHECK_TIMES: "0"})
        puts = await self._sender.put_moved([self._copy(record, HALF_TOPIC, 0, properties)])
        return self._sender.answer(connection, request, request.reply(), puts, wait=True)

    def _is_due(self, half: Record) -> bool:
        return self._age_ms(half) >= wait_ms(half, self._context.config.transaction_timeout_ms)

    def _age_ms(self, half: Record) -> int:
        return self._context.env.now_ms() - half.store_timestamp_ms

    def _put_back(self, half: Record, properties: str) -> None:
        """Write a half anew at the end of its queue: progress must not wait for it. Nobody is asked."""
        put = self._renew(half, self._copy(half, HALF_TOPIC, 0, properties), told=False)
        if half.queue_offset in self._asked_in_place:
            self._asked_in_place[put.queue_offset] = self._asked_in_place[half.queue_offset]

    def _ask(self, half: Record) -> None:
        """Write ``half`` anew at the end of its queue and ask its producer, or give it up."""
        context = self._context
        times = max(0, int_property(half.properties, CHECK_TIMES) or 0)
        times = max(times, self._asked_in_place.get(half.queue_offset, 0))
        if times >= context.config.transaction_check_max:
            unique = property_of(half.properties, UNIQ_KEY)
            log.warning("nobody ended the transaction of %s, giving it up", unique)
            context.topics.ensure(DISCARDED_TOPIC, 1)
            discarded = self._copy(half, DISCARDED_TOPIC, 0, half.properties)
            self._sender.put([discarded, self._op(half.queue_offset, GIVEN_UP)], stored_before=True)
            self._ending[half.queue_offset] = GIVEN_UP
            return
        properties = changed(half.properties, {CHECK_TIMES: str(times + 1)})
        if len(properties.encode()) > PROPERTIES_BYTES_MAX:
            # No record can hold it with the count: it stays where it is, and those behind it do not wait.
            self._asked_in_place[half.queue_offset] = times + 1
            same = self._copy(half, HALF_TOPIC, 0, half.properties)
            self._question(same, half.physical_offset, half.queue_offset)
            return
        again = self._copy(half, HALF_TOPIC, 0, properties)
        put = self._renew(half, again, told=True)
        self._question(again, put.physical_offset, put.queue_offset)

    def _renew(self, half: Record, again: NewMessage, *, told: bool) -> Put:
        """Let ``again`` take the place of ``half``. Raises Refused."""
        put = self._sender.put([again, self._op(half.queue_offset)], stored_before=True)[0]
        self._ending[half.queue_offset] = None
        self._places.on_moved(half.queue_offset, (put.queue_offset, put.physical_offset), told=told)
        return put

    def _question(self, half: NewMessage, physical_offset: int, queue_offset: int) -> None:
        """Send CHECK_TRANSACTION_STATE to one live producer of the group, if there is one."""
        group = property_of(half.properties, PRODUCER_GROUP) or ""
        producers = self._context.clients.producers.get(group, {})
        topic, trust = property_of(half.properties, REAL_TOPIC) or "", self._context.trust
        members = [
            member
            for member in producers.values()
            if not member.connection.closed and trust.may_publish(member.sender, topic)
        ]
        if not members:
            log.debug("no producer of group %s can be asked: asking again later", group)
            return
        unique = property_of(half.properties, UNIQ_KEY) or ""
        ext = {
            "bname": self._context.config.broker_name,
            "commitLogOffset": str(physical_offset),
            "msgId": unique,
            "offsetMsgId": message_id(self._context.store_host, physical_offset),
            "topic": HALF_TOPIC,
            "tranStateTableOffset": str(queue_offset),
            "transactionId": unique,
        }
        shown = NewMessage(
            topic=topic,
            queue_id=int_property(half.properties, REAL_QID) or 0,
            flag=half.flag,
            sys_flag=half.sys_flag,
            born_timestamp_ms=half.born_timestamp_ms,
            born_host=half.born_host,
            store_host=half.store_host,
            reconsume_times=half.reconsume_times,
            prepared_transaction_offset=0,
            body=half.body,
            properties=half.properties,
        )
        body = encode(shown, queue_offset, physical_offset, self._context.env.now_ms())
        member = self._context.env.random.choice(members)
        try:
            member.connection.need_room(len(body))
        except Refused as refused:
            log.debug("no check of a transaction: %s", refused)
            return
        member.connection.oneway(Command(int(Request.CHECK_TRANSACTION_STATE), ext, body))

    async def _forget(self, slice_: Slice) -> None:
        """Drop what lies behind, in slices, and note how far the queues are done with, if that is still ours
        to say."""
        done_to = self._next_half
        known: tuple[dict[int, Any], ...] = (self._ended, self._asked_in_place, self._ending)
        for halves in known:
            for offset in list(halves):
                if offset < done_to or (halves is self._ending and offset in self._ended):
                    halves.pop(offset, None)
                await slice_.breathe()
        await self._places.forget(done_to, slice_)
        if not self._context.role_state.is_master:
            return
        while self._ops and self._ops[0][1] < done_to:
            self._ops.popleft()
        done = self._ops[0][0] if self._ops else self._next_op
        if done_to:
            offsets = self._context.offsets
            offsets.commit(GROUP, HALF_TOPIC, 0, done_to)
            offsets.commit(GROUP, OP_HALF_TOPIC, 0, done)


def _gone() -> Refused:
    return Refused("find prepared transaction message failed", Response.SYSTEM_ERROR)


def _again(request: Command, decision: int, ended_as: str) -> Command:
    """The answer where it has ended. Raises Refused."""
    if ended_as not in (SOMEHOW, _WORDS[decision]):
        raise Refused(f"this transaction was {ended_as}", Response.SYSTEM_ERROR)
    return request.reply()
