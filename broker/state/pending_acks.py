"""When may the answer to a send leave?

An answer waits until replication (``ha.replicated``) and, with SYNC_FLUSH, the flush have passed the end of
its record. Answers wait in the order of the log, first for the slaves, then for the disk; each has its own
deadlines, so one slow record does not decide for those behind it. What passes in one step leaves each
connection in one write.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from broker.state.put_times import PutTimes
from model.config import BrokerConfig
from remoting import codec
from remoting.guard import LONG_ANSWER_BYTES, Made
from remoting.service import Connection
from remoting.transport.together import write_all_now
from runtime.env import Env
from runtime.report.slow_requests import SlowRequests

FLUSH_DISK_TIMEOUT: Final = 10
FLUSH_SLAVE_TIMEOUT: Final = 12
PENDING_BYTES_MAX: Final = 1 << 20
"""Answers one connection may have waiting; beyond, its requests are not read until half of them left."""
ALL_BYTES_MAX: Final = 64 << 20
"""Answers of all that wait; beyond, none that is long is made (``is_full``)."""
LATE_BYTES: Final = 64 << 10
"""Of answers whose time is over so many are written anew in one turn of the loop."""
GONE_BYTES_MAX: Final = 8 << 20
"""Answers to connections that ended; beyond, all that wait are looked through for them."""
_FRAME_BYTES_MAX: Final = 1 << 30
_SENDS: Final = "SEND_MESSAGE"
"""What slow ones are told as: the codes of a read's sends are not kept beside their answers."""


Answered = Sequence[tuple[Connection, bytes]]
"""Connections, and the answers to what came over them."""


class _Tally:
    """So many reads, and the bytes of their answers."""

    __slots__ = ("count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0


# One of each is made for a read that waits: such a class is made without a call of Python.
class _Account(msgspec.Struct, eq=False):
    """What waits for one connection. ``gone``: it ended, and they leave as their turn comes, to nobody."""

    connection: Any
    """A ``Connection``."""
    count: int = 0
    size: int = 0
    paused: bool = False
    gone: bool = False


class _All:
    """Bytes of all that wait for somebody; ``gone``: those that wait for nobody any more."""

    __slots__ = ("gone", "size")

    def __init__(self) -> None:
        self.size = 0
        self.gone = _Tally()


class _PendingAck(msgspec.Struct, eq=False):
    """The answers of one read: they wait together for the end of its last record."""

    account: _Account
    answers: bytes
    end: int
    slave_deadline_ms: float
    disk_deadline_ms: float


class _Timer(NamedTuple):
    """When it is to look for answers that are late."""

    due_ms: float
    handle: asyncio.TimerHandle


class PendingAcks:
    """Holds answers back; never lets one out whose record is not where the configuration wants it.

    In: ``add``, and the watermarks through ``on_replicated`` and ``on_flushed``. Out: writes to connections.
    Holds: an OK leaves only with ``end <= replicated`` and, when flushes count, ``end <= flushed``; after
    ``drop`` nothing pending before it ever leaves as OK.
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        *,
        replicated: Callable[[], int],
        flushed: Callable[[], int],
        sync_to: Callable[[int], None],
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self._env = env
        self.reconfigure(config)
        self._wait_flush = config.flush_disk_type == "SYNC_FLUSH"
        self._replicated = replicated
        self._flushed = flushed
        self._sync_to = sync_to
        self._bytes_max = pending_bytes_max
        self._await_slaves: deque[_PendingAck] = deque()  # waiting for replication (and then for the disk)
        self._await_disk: deque[_PendingAck] = deque()  # replicated, waiting for the disk
        self._accounts: dict[Connection, _Account] = {}
        self._all = _All()
        self._timer: _Timer | None = None
        self.waits = PutTimes()
        """How long the answers to a read's sends waited for copies and the disk."""
        self.slow: SlowRequests | None = None
        self.made: Made | None = None

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no long answer is to be made."""
        return self._all.size + self._all.gone.size >= ALL_BYTES_MAX

    def __len__(self) -> int:
        return len(self._await_slaves) + len(self._await_disk) - self._all.gone.count

    def reconfigure(self, config: BrokerConfig) -> None:
        """``slaveTimeout`` and ``syncFlushTimeout`` may have changed: they hold for what begins to wait."""
        self._timeouts_ms = config.slave_timeout_ms, config.sync_flush_timeout_ms

    def add(self, connection: Connection, answers: bytes, end: int) -> None:
        """Send ``answers`` to ``connection`` once the log is safe up to ``end`` (bytes), or at once if it is.

        ``end`` never goes down between two calls without a ``drop`` in between.
        """
        if self.made is not None and len(answers) >= LONG_ANSWER_BYTES:
            self.made.add(len(answers))
        if self._wait_flush:
            if self._flushed() < end:
                self._sync_to(end)
            elif self._replicated() >= end and not self._await_slaves and not self._await_disk:
                self.waits.none()
                connection.write(answers)
                return
        elif self._replicated() >= end and not self._await_slaves:
            self.waits.none()
            connection.write(answers)
            return
        now_ms = self._env.monotonic_ms()
        self._expire_by(self._wait(connection, answers, end, now_ms, self._queue_of(end)))

    def add_all(self, answered: Answered, end: int) -> None:
        """``add`` of answers to several connections, with one write each."""
        if self._wait_flush and self._flushed() < end:
            self._sync_to(end)
        waiting = self._await_slaves or (self._wait_flush and (self._await_disk or self._flushed() < end))
        if not waiting and self._replicated() >= end:
            self.waits.none()
            write_all_now(answered)
            return
        now_ms = self._env.monotonic_ms()
        queue = self._queue_of(end) if self._wait_flush else self._await_slaves
        deadline_ms = float("inf")
        for connection, answers in answered:
            deadline_ms = self._wait(connection, answers, end, now_ms, queue)
        timer = self._timer
        if timer is None or timer.due_ms > deadline_ms:
            self._expire_by(deadline_ms)

    def _queue_of(self, end: int) -> deque[_PendingAck]:
        """What answers at ``end`` wait for first."""
        on_disk = self._wait_flush and not self._await_slaves and self._replicated() >= end
        return self._await_disk if on_disk else self._await_slaves

    def _wait(
        self, connection: Connection, answers: bytes, end: int, now_ms: float, queue: deque[_PendingAck]
    ) -> float:
        """Put them behind those that wait; when their time is over."""
        account = self._accounts.get(connection)
        if account is None:
            account = self._accounts[connection] = _Account(connection)
        slave_ms, disk_ms = self._timeouts_ms
        queue.append(_PendingAck(account, answers, end, now_ms + slave_ms, now_ms + disk_ms))
        size = len(answers)
        account.count += 1
        account.size += size
        self._all.size += size
        if account.size > self._bytes_max and not account.paused:
            # The producer goes on sending while its answers wait: stop reading it, or memory has no bound.
            account.paused = True
            connection.hold(True)
        return now_ms + (disk_ms if queue is self._await_disk else slave_ms)

    def on_replicated(self, offset: int) -> None:
        """The slaves have the log up to ``offset``."""
        slaves = self._await_slaves
        if not slaves or slaves[0].end > offset:
            return
        if self._wait_flush:
            while slaves and slaves[0].end <= offset:
                self._await_disk.append(slaves.popleft())
            self.on_flushed(self._flushed())
            self._expire_by(self._first_ms())
            return
        pending = slaves.popleft()
        if slaves:
            self._all_leave(pending, slaves, offset)
        elif self._leaves(pending):  # of a producer alone: nothing is gathered
            account = pending.account
            account.connection.write_now(pending.answers)
            if account.paused:
                self._read_again(account)

    def _all_leave(self, pending: _PendingAck, slaves: deque[_PendingAck], offset: int) -> None:
        """``pending``, and of those behind it all up to ``offset``."""
        out: dict[_Account, list[bytes]] = {}
        while True:
            if self._leaves(pending):
                out.setdefault(pending.account, []).append(pending.answers)
            if not slaves or slaves[0].end > offset:
                break
            pending = slaves.popleft()
        self._write(out)
        if slaves:
            self._expire_by(slaves[0].slave_deadline_ms)

    def on_flushed(self, offset: int) -> None:
        """Our own disk has the log up to ``offset``."""
        disk = self._await_disk
        out: dict[_Account, list[bytes]] = {}
        while disk and disk[0].end <= offset:
            pending = disk.popleft()
            if self._leaves(pending):
                out.setdefault(pending.account, []).append(pending.answers)
        if out:
            self._write(out)
            if disk:
                self._expire_by(disk[0].disk_deadline_ms)

    def give_up(self) -> None:
        """Wait no longer: what is pending is answered as if its time were over."""
        for pending in (*self._await_slaves, *self._await_disk):
            pending.slave_deadline_ms = pending.disk_deadline_ms = float("-inf")
        if self._timer is not None:
            self._timer.handle.cancel()
            self._expire(sys.maxsize)

    def drop(self) -> None:
        """Answer nothing that is pending, and close the connections that wait for it.

        Called when this broker ceases to be master, when its store broke, and at a stop: the records may or
        may not survive, which no answer code can say. Clients treat a closed connection as unknown.
        """
        waiting = [*self._await_disk, *self._await_slaves]
        self._await_slaves.clear()
        self._await_disk.clear()
        self._accounts.clear()
        self._all = _All()
        if self._timer is not None:
            self._timer.handle.cancel()
            self._timer = None
        for connection in dict.fromkeys(
            pending.account.connection for pending in waiting if not pending.account.gone
        ):
            connection.close()

    def forget(self, connection: Connection) -> None:
        """The connection is gone; its answers have nobody to go to. Those of all others are not looked
        through for them: thousands of connections may end at once."""
        account = self._accounts.pop(connection, None)
        if account is None:
            return
        account.gone = True
        self._all.gone.count += account.count
        self._all.gone.size += account.size
        self._all.size -= account.size
        if self._all.gone.size > GONE_BYTES_MAX:
            self._await_slaves = deque(pending for pending in self._await_slaves if not pending.account.gone)
            self._await_disk = deque(pending for pending in self._await_disk if not pending.account.gone)
            self._all.gone = _Tally()

    def _leaves(self, pending: _PendingAck) -> bool:
        """Take what no longer waits out of the account; whether there is anybody that it can go to."""
        account = pending.account
        if account.gone:
            self._all.gone.count -= 1
            self._all.gone.size -= len(pending.answers)
            return False
        size = len(pending.answers)
        account.count -= 1
        account.size -= size
        self._all.size -= size
        if not account.count:
            del self._accounts[account.connection]
        if pending.slave_deadline_ms > 0:  # not one that ``give_up`` answers
            begun_ms = pending.slave_deadline_ms - self._timeouts_ms[0]
            took_ms = self._env.monotonic_ms() - begun_ms
            self.waits.waited(took_ms)
            if self.slow is not None and took_ms >= self.slow.least_ms:
                self.slow.note(_SENDS, account.connection.remote, took_ms)
        return True

    def _write(self, out: dict[_Account, list[bytes]]) -> None:
        write_all_now(
            [
                (account.connection, answers[0] if len(answers) == 1 else b"".join(answers))
                for account, answers in out.items()
            ]
        )
        for account in out:
            if account.paused:
                self._read_again(account)

    def _read_again(self, account: _Account) -> None:
        if account.size <= self._bytes_max // 2:
            account.paused = False
            account.connection.hold(False)

    def _expire_by(self, deadline_ms: float) -> None:
        """Look for what is late by then: what the timer is for may have left, or wait longer."""
        timer = self._timer
        if timer is not None and timer.due_ms <= deadline_ms:
            return
        first_ms = self._first_ms()  # a shorter time may wait behind a longer one, of before ``reconfigure``
        if timer is None or first_ms < timer.due_ms:
            if timer is not None:
                timer.handle.cancel()
            self._arm(self._env.monotonic_ms())

    def _first_ms(self) -> float:
        """When the time of the first one is over."""
        return min(
            self._await_slaves[0].slave_deadline_ms if self._await_slaves else float("inf"),
            self._await_disk[0].disk_deadline_ms if self._await_disk else float("inf"),
        )

    def _arm(self, now_ms: float) -> None:
        first = self._first_ms()
        if first == float("inf"):
            self._timer = None
            return
        delay_s = max(first - now_ms, 1.0) / 1000
        self._timer = _Timer(first, asyncio.get_running_loop().call_later(delay_s, self._expire))

    def _expire(self, most: int | None = None) -> None:
        """Answer what is late, about ``most`` bytes of it; the rest in a later turn of the loop."""
        most = LATE_BYTES if most is None else most
        now_ms = self._env.monotonic_ms()
        out: dict[_Account, list[bytes]] = {}
        while most > 0 and self._await_slaves and self._await_slaves[0].slave_deadline_ms <= now_ms:
            text = "the slaves did not acknowledge the message in time"
            most -= self._late(self._await_slaves, FLUSH_SLAVE_TIMEOUT, text, most, out)
        while most > 0 and self._await_disk and self._await_disk[0].disk_deadline_ms <= now_ms:
            text = "the disk did not flush the message in time"
            most -= self._late(self._await_disk, FLUSH_DISK_TIMEOUT, text, most, out)
        for account, answers in out.items():
            account.connection.write(b"".join(answers))
            if account.paused:
                self._read_again(account)
        self._arm(now_ms)

    def _late(
        self,
        queue: deque[_PendingAck],
        code: int,
        remark: str,
        most: int,
        out: dict[_Account, list[bytes]],
    ) -> int:
        """Put the first of ``queue``, or its first ``most`` bytes, into ``out``; how many it were."""
        pending = queue[0]
        answers, account = pending.answers, pending.account
        if len(answers) > most and not account.gone:
            size = _whole_frames(answers, most)
            if size < len(answers):
                pending.answers = answers[size:]
                account.size -= size
                self._all.size -= size
                out.setdefault(account, []).append(with_code(answers[:size], code, remark))
                return size
        queue.popleft()
        if self._leaves(pending):
            out.setdefault(account, []).append(with_code(answers, code, remark))
        return len(answers)


def _whole_frames(answers: bytes, least: int) -> int:
    """Where the frame ends that passes ``least`` bytes."""
    at = 0
    while at < least and (end := codec.frame_end(answers, at, len(answers), _FRAME_BYTES_MAX)):
        at = end
    return at


def with_code(answers: bytes, code: int, remark: str) -> bytes:
    """The same answers, header included, under another ``code``: stored, but not as safe as was asked for."""
    out = []
    at = 0
    while end := codec.frame_end(answers, at, len(answers), _FRAME_BYTES_MAX):
        answer = codec.decode(answers[at:end])
        answer.code = code
        answer.remark = remark
        out.append(codec.encode(answer))
        at = end
    return b"".join(out)
