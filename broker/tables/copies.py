"""Which slaves have which state of this master's tables, and when do they get the next?

A slave asks with KEELMQ_COPY_TABLES (keelmq's own; a real master does not know it, and the slave falls back
to copying whole tables each ``slaveSyncMetadataPeriod``). The master holds the question until there is
something new:

    request   ext: brokerId, run, seen (revision the slave has; -1 = nothing), waitMs, parts (true: it takes
              parts of topics and groups, too, not only of offsets)
    answer    ext: run, revision, synced (true: to be on the slave's disk before the receipt)
              body: {"topics", "groups", "offsets", "delays", "timers", "modes", "auth"}: those that changed

``seen`` of the next question is the slave's receipt. Topics and groups leave at once, and are on the slave's
disk before the receipt. A change of them is answered when it is on this broker's disk and every broker that
could be elected has sent its receipt (``wait_for_copies``). It outlives the kill, or the loss of power, of
all of them. Offsets change with every batch a consumer reads: they are gathered for ``GATHER_MS``, and
written now and then. What an operator sets is treated as topics are.

Tables first, then membership: a slave joins the SyncStateSet only when it has the tables (``ready``). A
receipt counts for one HA link only: a slave that was killed may have lost gathered offsets since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from broker.state.current_role import CurrentRole
from ha.service import HaService
from model.codes import Response
from model.config import BrokerConfig
from model.errors import DiskError, Refused
from model.ids import BrokerId
from remoting import bodies
from remoting.codec import Command
from remoting.headers import need, need_int, opt_bool
from remoting.service import Connection
from remoting.slices import joined
from runtime.env import Env
from runtime.turns import Slice

GATHER_MS: Final = 50
"""Offsets wait at most so long for others to travel with them."""
OFFSETS_BOUND_MS: Final = 200
"""The promise: an offset a consumer committed, and how far delayed messages were delivered, is at the in-sync
slaves within this plus a round trip, where a round trip takes 400 ms or less. (At the worst it changes right
behind an answer: it waits ``GATHER_MS``, or for the next question if that is later, and is one way off then.)
"""
JOIN_LAG_MS_MAX: Final = 1000
"""A slave that joins the SyncStateSet lacks only offsets that changed in so long."""
MEMBERS_LOOK_S: Final = 0.02
HOLD_MS_MAX: Final = 10_000
DEPTH: Final = 4
"""Of an answer: down to one mode of one group, and one entry of one user's policies."""

Content = Callable[[int | None], tuple[dict[str, Any], int]]
"""The table since a mark of its own (None: all of it), and the mark it has now: as it is in that moment, in
values that do not change with it. They are written in slices."""
Prepare = Callable[[Slice], Awaitable[None]]
"""Does in slices what makes the content of a whole table take long."""


async def _nothing(slice_: Slice) -> None:
    """A table that is small, or made when it is written."""


@dataclass(slots=True)
class _Table:
    content: Content
    prepare: Prepare
    gathered: bool
    apart: bool
    revision: int = 0  # of its last change


@dataclass(slots=True)
class _Slave:
    """What one slave was told, and has."""

    seen: int = -1  # the revision of its last receipt ...
    had: dict[str, int] = field(default_factory=dict)  # ... and each table's mark in it
    told: int = -1  # the revision of the last answer ...
    marks: dict[str, int] = field(default_factory=dict)  # ... and each table's mark in it
    told_ms: float = -1e9
    told_on: Connection | None = None  # only there its receipt can come from the process that was told
    behind_ms: float | None = -1e9  # since when it lacks a change; None: it has all
    heard_ms: float = 0.0
    parts: bool = False  # it can take a part of the topics or groups
    asking: int = 0  # counts its questions: a newer one ends the one before
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def forget(self) -> None:
        """What it confirmed says nothing any more; a question that is held goes on at once."""
        self.seen = self.told = -1
        self.had, self.marks, self.told_on, self.behind_ms = {}, {}, None, -1e9
        self.wake.set()


class Copies:
    """The master's side of copying tables. ``add`` each table once, call ``changed`` for each change."""

    def __init__(self, env: Env, config: BrokerConfig, role_state: CurrentRole, ha: HaService) -> None:
        self.revision = 0
        self._env = env
        self._config = config
        self._role_state = role_state
        self._ha = ha
        self._run = _new_run(env)
        self._tables: dict[str, _Table] = {}
        self._slaves: dict[BrokerId, _Slave] = {}
        self.write: Callable[[Collection[str]], Awaitable[None]] = _write_nothing
        """Writes these tables to this broker's disk. Raises OSError."""
        self.noting: Callable[[], Callable[[], bool]] = lambda: lambda: True
        """Asks whether the offsets hold each pop that is in the log by now."""
        self._urgent = 0  # up to this revision nothing is gathered
        self._synced = 0  # up to this revision a receipt says that it is on the slave's disk
        self._receipt = asyncio.Event()
        role_state.on_change.append(self._role_changed)

    def add(
        self,
        name: str,
        content: Content,
        prepare: Prepare = _nothing,
        *,
        gathered: bool = False,
        apart: bool = False,
    ) -> None:
        """Copy this table, too. ``gathered``: its changes may wait ``GATHER_MS`` for others. ``apart``: it
        is copied as a whole, and stands for itself: it may be newer than the others of an answer."""
        self._tables[name] = _Table(content, prepare, gathered, apart)

    def changed(self, name: str) -> None:
        """``name`` changed."""
        self.revision += 1
        table = self._tables[name]
        table.revision = self.revision
        if not table.gathered:
            self._urgent = self._synced = self.revision
        if not self._slaves:
            return
        now_ms = self._env.monotonic_ms()
        for slave in self._slaves.values():
            if slave.behind_ms is None:
                slave.behind_ms = now_ms
        self._wake()

    def refuse(self) -> Refused | None:
        """Why no table can be changed now, as no message can be sent: no master, no lease, too few copies."""
        if not self._role_state.is_master:
            return Refused(
                "this broker is not the master of its group: its tables come from there",
                Response.SYSTEM_ERROR,
            )
        return self._ha.refuse()

    async def wait_for_copies(self, *changed: str) -> None:
        """Wait until this broker, and every one that could be elected and copies, has on its disk what
        changed so far in these tables, and so many have it as an answer promises.

        Raises Refused after ``slaveTimeout``: the change stands here, and asking again does no harm.
        """
        deadline_ms = self._env.monotonic_ms() + self._config.slave_timeout_ms
        if "offsets" in changed:
            is_noted = self.noting()
            await self._until(lambda: None if is_noted() else "the log before is not confirmed", deadline_ms)
        for name in changed:
            if self._tables[name].gathered:
                # A slave may have been told of it already, and not that it is to be on its disk: who answers
                # the operator did other things between the change and now.
                self.changed(name)
        self._synced = self.revision
        wanted = self.hurry()
        try:
            await self.write(changed)
        except (OSError, DiskError) as error:
            text = f"done on this broker, but not written: {error}; repeat the request"
            raise Refused(text, Response.SYSTEM_ERROR) from None
        await self._until(lambda: self._lacking(wanted), deadline_ms)

    async def _until(self, lacking: Callable[[], str | None], deadline_ms: float) -> None:
        """Wait until nothing is lacking. Raises Refused at the deadline, with what is."""
        while True:
            if not self._role_state.is_master:
                raise Refused(
                    "this broker ceased to be master before its slaves had the change: ask the new master",
                    Response.SYSTEM_ERROR,
                )
            what = lacking()
            if what is None:
                return
            left_ms = deadline_ms - self._env.monotonic_ms()
            if left_ms <= 0:
                raise Refused(
                    f"done on this broker, but {what} within {self._config.slave_timeout_ms} ms:"
                    " a failover now could undo it; repeat the request",
                    Response.SYSTEM_ERROR,
                )
            self._receipt.clear()
            try:
                # Not for all that is left: a member that died leaves the set, and is not waited for then.
                async with asyncio.timeout(min(left_ms / 1000, MEMBERS_LOOK_S)):
                    await self._receipt.wait()
            except TimeoutError:
                continue

    def _lacking(self, wanted: int) -> str | None:
        """What is missing until the change up to ``wanted`` is safe, or None."""
        behind = [b for b in self._awaited() if self._seen(b) < wanted]
        if behind:
            return f"not confirmed by in-sync slaves {behind}"
        # The set may have shrunk meanwhile. Without Controllers the wire of the slaves says no names.
        needed = self._ha.members_to_write if self._role_state.epoch > 0 else 1
        others = self._ha.members - {self._role_state.broker_id}
        copies = 1 + sum(self.has(b, wanted) for b in others)
        return f"there are {copies} of {needed} copies" if copies < needed else None

    def hurry(self) -> int:
        """Let nothing that changed so far wait for more; the revision that slaves are to have then."""
        self._urgent = self.revision
        self._wake()
        return self.revision

    def has(self, broker_id: BrokerId, revision: int) -> bool:
        """Has that slave what had changed up to ``revision``? A real RocketMQ broker never asks, so it counts
        as one that has: it copies whole tables from time to time, as of any master."""
        return broker_id in self._ha.rocketmq_slaves or self._seen(broker_id) >= revision

    def ready(self, broker_id: BrokerId) -> bool:
        """May that slave join the SyncStateSet? It has all topics and groups, and offsets that are not older
        than ``JOIN_LAG_MS_MAX``."""
        if broker_id in self._ha.rocketmq_slaves:
            return True
        slave = self._slaves.get(broker_id)
        if slave is None or slave.seen < 0 or slave.seen < self._urgent:
            return False
        return slave.behind_ms is None or self._env.monotonic_ms() - slave.behind_ms <= JOIN_LAG_MS_MAX

    async def question(self, connection: Connection, request: Command) -> Command:
        """KEELMQ_COPY_TABLES: answered as soon as there is something the slave has not got."""
        broker_id = BrokerId(need_int(request.ext, "brokerId", 0))
        run, seen = need(request.ext, "run"), need_int(request.ext, "seen", -1)
        hold_ms = need_int(request.ext, "waitMs", 0, HOLD_MS_MAX)
        self._need_master()
        slave = self._slaves.setdefault(broker_id, _Slave())
        slave.parts = opt_bool(request.ext, "parts")
        slave.asking += 1
        mine = slave.asking
        slave.wake.set()
        slave.heard_ms = self._env.monotonic_ms()
        self._receive(slave, seen if run == self._run and slave.told_on is connection else -1)
        if broker_id not in self._ha.members and self.ready(broker_id):
            self._ha.on_eligible(broker_id)
        deadline_ms = slave.heard_ms + hold_ms
        while (wait_ms := self._wait_ms(slave, deadline_ms)) > 0:
            slave.wake.clear()
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await slave.wake.wait()
            except TimeoutError:
                continue
            self._need_mine(slave, mine)
        slice_, long = Slice(self._env.monotonic_ms), False
        for name, table in self._tables.items():
            if self._known(slave, name, table) is None and table.revision > slave.seen:
                await table.prepare(slice_)
                long = True
        if long:
            await slice_.pause()
        self._need_mine(slave, mine)
        # All tables are as of one moment, that of ``revision``, but those that stand for themselves: they are
        # as of then or later. The answer is written in slices; what changes meanwhile goes with the next one.
        answer, body = self._answer(connection, request, slave)
        if long:
            await slice_.pause()  # of full tables that moment takes as long as two slices
        for name in [name for name, part in body.items() if part is None]:
            body[name], _ = self._tables[name].content(None)
            await slice_.breathe()
        answer.body = await joined(bodies.pieces(body, strict=False, ordered=False, depth=DEPTH), slice_)
        self._need_mine(slave, mine)
        return answer

    async def whole(self, names: Collection[str]) -> bytes:
        """JSON of these tables as they stand, also where this broker is no master. Written in slices."""
        slice_ = Slice(self._env.monotonic_ms)
        for name in names:
            await self._tables[name].prepare(slice_)
        await slice_.pause()
        body = {name: self._tables[name].content(None)[0] for name in names}
        await slice_.pause()
        return await joined(bodies.pieces(body, strict=False, ordered=False, depth=DEPTH), slice_)

    def on_connected(self, broker_id: BrokerId, keelmq: bool) -> None:
        """A slave made an HA link: perhaps a new process, without what the former one had in its memory."""
        if self._ha.epoch == 0:
            return
        if keelmq:
            # A question held for the same process is answered anew; its next one is the receipt.
            self._slaves.setdefault(broker_id, _Slave()).forget()
        else:
            former = self._slaves.pop(broker_id, None)
            if former is not None:
                former.asking += 1
                former.forget()

    def status(self) -> dict[str, Any]:
        """JSON-ready: what each slave has."""
        now_ms = self._env.monotonic_ms()
        return {
            "revision": self.revision,
            "slaves": {
                str(broker_id): {"seen": slave.seen, "heardMsAgo": round(now_ms - slave.heard_ms)}
                for broker_id, slave in sorted(self._slaves.items())
            },
        }

    def _wait_ms(self, slave: _Slave, deadline_ms: float) -> float:
        """How long the answer may wait; 0 or less: it goes now."""
        now_ms = self._env.monotonic_ms()
        if slave.seen >= self.revision:
            return deadline_ms - now_ms
        if slave.seen < self._urgent:
            return 0
        return min(slave.told_ms + GATHER_MS, deadline_ms) - now_ms

    def _receive(self, slave: _Slave, seen: int) -> None:
        if seen == slave.told:
            slave.had = slave.marks
        elif seen != slave.seen:
            slave.had = {}
        # Else the answer to its last question did not reach it. It asks again, and what changed since its
        # receipt is all that it needs: all of 20,000 topics would take longer than a change may.
        slave.seen = seen if seen <= slave.told else -1
        if slave.seen == self.revision:
            slave.behind_ms = None
        else:
            slave.behind_ms = slave.told_ms if slave.seen == slave.told else -1e9
        self._receipt.set()

    @staticmethod
    def _known(slave: _Slave, name: str, table: _Table) -> int | None:
        """The mark of the table that the slave has; None: it needs all of it."""
        if not table.gathered and not slave.parts:
            return None
        return slave.had.get(name)

    def _answer(
        self, connection: Connection, request: Command, slave: _Slave
    ) -> tuple[Command, dict[str, Any]]:
        """The answer without its body, and that, with None for what is looked at later. From here on the
        slave counts as told."""
        body: dict[str, Any] = {}
        marks: dict[str, int] = {}
        for name, table in self._tables.items():
            known = self._known(slave, name, table)
            if table.revision > slave.seen and table.apart:
                body[name] = None
            elif table.revision > slave.seen:
                body[name], marks[name] = table.content(known)
            elif known is not None:
                marks[name] = known
        slave.told, slave.marks, slave.told_ms = self.revision, marks, self._env.monotonic_ms()
        slave.told_on = connection
        ext = {"run": self._run, "revision": str(self.revision)}
        if slave.seen < self._synced:
            ext["synced"] = "true"
        return request.reply(ext=ext), body

    def _seen(self, broker_id: BrokerId) -> int:
        slave = self._slaves.get(broker_id)
        return -1 if slave is None else slave.seen

    def _awaited(self) -> list[BrokerId]:
        """Slaves whose receipt counts: every broker that could be elected, connected or not; but a real
        RocketMQ broker never asks. Without a Controller, where slaves have no identity on the HA port, those
        that asked lately."""
        if self._role_state.epoch > 0:
            return sorted(self._ha.candidates - self._ha.rocketmq_slaves)
        since_ms = self._env.monotonic_ms() - 2 * self._config.slave_metadata_ms - 1000
        return [b for b, slave in sorted(self._slaves.items()) if slave.heard_ms >= since_ms]

    def _need_mine(self, slave: _Slave, mine: int) -> None:
        """Raises Refused when the question is not the slave's last one, or the role ended."""
        self._need_master()
        if mine != slave.asking:
            raise Refused("the same broker asked again", Response.SYSTEM_ERROR)

    def _need_master(self) -> None:
        if not self._role_state.is_master:
            raise Refused("it is not master yet, or not any more", Response.SYSTEM_ERROR)

    def _wake(self) -> None:
        for slave in self._slaves.values():
            slave.wake.set()

    def _role_changed(self) -> None:
        self._wake()
        self._receipt.set()
        if not self._role_state.is_master:
            # What comes from the next master's tables is not a change of ours: nobody may add to it.
            self._slaves.clear()
            self._run = _new_run(self._env)


async def _write_nothing(names: Collection[str]) -> None:
    """Before the tables are loaded there is nothing to write."""


def _new_run(env: Env) -> str:
    """Names one term of this process as master: revisions of another mean nothing in it."""
    return f"{env.random.getrandbits(64):016x}"
