"""How do the Controllers agree on one order of commands that no crash takes back?

``Raft`` drives one ``controller.raft.node.Node``: it gives it time from the event loop, messages from
``controller.links``, files of one directory (``controller.raft.disk.directory``), and stops it when the disk
refuses a write: a member that cannot remember must not vote. A member that stopped for want of room begins
anew from its directory, as after a restart, once there is some.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from controller.links.roster import Roster
from controller.links.transport import Callbacks, Security, Transport
from controller.raft.calls import Callers, Failed, StateMachine
from controller.raft.codec import COMMAND_BYTES_MAX, Seat, decode_message
from controller.raft.disk.directory import Directory, no_room
from controller.raft.health import Progress, Vitals
from controller.raft.node import NO_OP, REGULAR, Node
from controller.raft.timing import RaftConfig
from model.errors import ConfigError, DiskError, MqError, PeerError, Refused, Unknown
from model.settings import is_loopback, split_address
from runtime.backoff import Backoff
from runtime.env import Env
from runtime.loops import UNTIL_WOKEN, level_triggered
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

QUEUED_MAX: Final = 4096
ROOM_AGAIN_MS: Final = 1000  # between two looks at a disk that was full
ROOM_AGAIN_S: Final = ROOM_AGAIN_MS / 1000
NOT_LEADER: Final = 2007


class NotLeader(Refused):
    """This Controller does not lead: nothing was proposed. ``leader_id`` names the leader, if it is known."""

    code = NOT_LEADER

    def __init__(self, leader_id: str | None) -> None:
        super().__init__(f"not the leader; the leader is {leader_id or 'not known'}")
        self.leader_id = leader_id


class ApplyFailed(MqError):
    """The command was committed, and applying it raised on every member: it changed nothing it should not."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a member takes no part. ``final``: it was stopped; otherwise it failed."""

    why: str
    final: bool


class Raft:
    """One member of the group. ``machine`` gets each committed command once, in the same order everywhere."""

    def __init__(
        self,
        env: Env,
        node_id: str,
        addresses: Mapping[str, str],
        directory: str,
        machine: StateMachine,
        *,
        config: RaftConfig | None = None,
        security: Security | None = None,
    ) -> None:
        """``addresses``: id -> host:port of every member's Raft port, this one included.

        Raises ConfigError when neither secret nor TLS is given although a member is not on loopback.
        """
        if node_id not in addresses:
            raise ConfigError(f"Controller {node_id} is not among the members {sorted(addresses)}")
        config = config or RaftConfig()
        self.node_id = node_id
        self.on_change: list[Callable[[], None]] = []  # leader or term changed; the node failed
        self._env = env
        self._config = config
        self._machine = machine
        self._directory = Directory(env.disk, directory, node_id)
        self._vitals = Vitals(config.bounds())
        self._new_transport = partial(
            Transport,
            env,
            Roster(node_id, addresses, self._incarnation),
            Callbacks(self._on_message, self._on_up, self._on_down),
            security=security or Security(),
            limits=config.limits(),
        )
        self._transport = self._new_transport()
        self._tasks = Tasks(f"raft.{node_id}", on_error=self._fail)
        self._wake = asyncio.Event()
        self._node: Node | None = None
        self._ended: Ended | None = None
        self._seen: tuple[bool, str | None, int] = (False, None, 0)
        self._callers = Callers()

    # life

    async def start(self) -> None:
        """Read the directory, listen, take part. Raises DiskError on damage, OSError for a taken port."""
        try:
            self._open()
            await self._transport.start()
        except BaseException:
            self._close()
            raise
        self._tasks.spawn(self._drive(), name="drive")

    async def stop(self) -> None:
        """Hand leadership over if that is quick, make everything durable, end. Idempotent."""
        if self._ended is None and self._node is not None:
            await self._transfer_before_stop()
            try:
                if self._directory.journal is not None:
                    self._directory.journal.sync()
            except DiskError as error:
                log.error("Controller %s: the last sync failed: %s", self.node_id, error)
        self._end("this Controller stops")
        await self._transport.stop()
        await self._tasks.cancel()

    def abort(self) -> None:
        """End at once, as a crash would: nothing is synced, nobody is told."""
        self._end("this Controller was aborted")

    # state

    @property
    def leader_id(self) -> str | None:
        """The leader, as far as this member knows."""
        return None if self._node is None or self._ended is not None else self._node.leader()

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows: another may already lead a later term."""
        return self._node is not None and self._ended is None and self._node.leads()

    def followed_ms(self) -> float | None:
        """The newest ``Env.monotonic_ms`` at which a majority certainly followed this leader, or None.

        The next leader begins after that.
        """
        return None if self._node is None or self._ended is not None else self._node.followed_ms()

    @property
    def term(self) -> int:
        return 0 if self._node is None else int(self._node.term)

    @property
    def commit_index(self) -> int:
        return 0 if self._node is None else int(self._node.commit_index)

    @property
    def peers(self) -> list[str]:
        """Ids of the other members there is a link to."""
        return self._transport.peers

    @property
    def progress(self) -> Progress | None:
        """How far this member is, and how far behind; None before the start."""
        return None if self._node is None else self._node.progress()

    def status(self) -> dict[str, Any]:
        """What ``/status`` shows of ``progress``, and of the ticks (docs/raft.md)."""
        tls = self._transport.tls_status()
        found = self._vitals.to_json(self._env.monotonic_ms(), self.progress)
        return found if tls is None else {**found, "tls": tls}

    @property
    def failed(self) -> bool:
        """Whether this member takes no part any more, until it is restarted or its disk has room again."""
        return self._ended is not None and not self._ended.final

    def health(self) -> str | None:
        """None, or why this member cannot do its work."""
        ended = self._ended
        if ended is not None and not ended.final:
            return ended.why
        if ended is None and (why := self._vitals.stalled(self._env.monotonic_ms())):
            return why
        seat, incarnation = self.seats.get(self.node_id), self._incarnation()
        if seat is not None and incarnation is not None and incarnation < seat.incarnation:
            return f"this Controller was replaced by the one at {seat.address}: end it for good"
        if self.leader_id is None:
            return self._why_no_leader()
        if not self.admitted:
            return "this Controller may have forgotten what it promised and waits for the leader to admit it"
        return self._vitals.behind(self.progress)

    def _why_no_leader(self) -> str:
        if not self.peers:
            return self._transport.unlinked()
        why = None if self._node is None else self._node.unelected
        return "no leader among the Controllers" + ("" if why is None else f": {why}")

    @property
    def admitted(self) -> bool:
        """Whether this member may vote: false from a start with an empty directory until a leader found that
        it holds every decision."""
        journal = self._directory.journal
        return journal is not None and journal.admitted

    # proposals

    async def propose(self, command: bytes, timeout_s: float = 3.0) -> bytes:
        """Commit and apply ``command``; what ``apply`` answered on this member.

        Raises NotLeader or Refused (too large, too many waiting): nothing happened; ApplyFailed; or Unknown:
        it may or may not be applied, now or later.
        """
        if len(command) > COMMAND_BYTES_MAX:
            raise Refused(f"a command of {len(command)} bytes; at most {COMMAND_BYTES_MAX} are taken")
        answer = await self._callers.wait(self._submit(REGULAR + command), timeout_s)
        if isinstance(answer, Failed):
            raise ApplyFailed(answer.text)
        return bytes(answer)

    async def barrier(self, timeout_s: float = 3.0) -> None:
        """Return when the state on this member holds all that was committed before the call.

        A majority is asked whether it still follows; nothing is written, and all that wait share the
        question. Raises NotLeader or Unknown.
        """
        read = self._callers.shared_read(self._leading().read, lambda: NotLeader(self.leader_id))
        self._wake.set()
        await self._callers.wait(asyncio.shield(read), timeout_s)

    async def settle(self, timeout_s: float = 3.0) -> None:
        """Return when all that was proposed here before, of whatever outcome, is applied or never will be.

        Unlike ``barrier`` this commits an entry, behind those whose callers gave up. Raises NotLeader,
        Refused, Unknown.
        """
        await self._callers.wait(self._submit(NO_OP), timeout_s)

    def _submit(self, entry: bytes) -> asyncio.Future[Any]:
        node = self._leading()
        if node.queued() >= QUEUED_MAX:
            raise Refused("too many commands are waiting", code=2)
        future, done = self._callers.expect(lambda: NotLeader(self.leader_id))
        node.propose(entry, done)
        self._wake.set()
        return future

    def _leading(self) -> Node:
        if self._node is None or not self.is_leader:
            raise NotLeader(self.leader_id)
        return self._node

    # the loop

    async def _drive(self) -> None:
        now_ms, pulse = self._env.monotonic_ms, self._vitals.pulse
        due_ms = now_ms()

        async def turn() -> float | None:
            nonlocal due_ms
            assert self._node is not None, "started"
            due_ms = min(due_ms, now_ms())
            self._step()
            pulse.ticked(due_ms, now_ms())
            wait_s = self._node.next_tick_s()
            due_ms = now_ms() + wait_s * 1000
            return wait_s

        await level_triggered(
            turn,
            self._wake,
            UNTIL_WOKEN,
            Backoff(self._env.random, 1, 1),  # a tick that fails is the last one
            f"Controller {self.node_id}: tick",
            ended=lambda: self._ended is not None,
        )

    def _step(self) -> None:
        assert self._node is not None, "started"
        self._callers.question_leaves()
        try:
            self._node.tick()
            self._follow_seats()
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return
        self._look()

    def _look(self) -> None:
        """Tell about a new leader or term; a leader that is none any more lets its callers go."""
        assert self._node is not None, "started"
        seen = (self.is_leader, self.leader_id, self.term)
        if seen == self._seen:
            return
        was_leader = self._seen[0]
        self._seen = seen
        if was_leader != self.is_leader:
            self._env.events.add("leader_lost" if was_leader else "leader_elected", term=self.term)
        if was_leader and not seen[0]:
            self._callers.release(Unknown("leadership was lost before the command was committed"))
        self._tell()

    def _tell(self) -> None:
        for hook in list(self.on_change):
            try:
                hook()
            except Exception:
                log.exception("Controller %s: a hook for changes of leadership failed", self.node_id)

    def _on_message(self, peer: str, body: bytes) -> None:
        if self._node is None or self._ended is not None:
            return
        message = decode_message(body)
        try:
            moved = self._node.received(peer, message)
            self._follow_seats()
        except PeerError:
            raise
        except Exception as error:  # noqa: BLE001
            # The disk, a contradiction, or a mistake of ours: half a step was taken, take no other.
            self._fail(error)
            return
        if moved:
            self._wake.set()

    def _on_up(self, peer: str) -> None:
        if self._node is not None and self._ended is None:
            self._node.up(peer)
            self._wake.set()

    def _on_down(self, peer: str) -> None:
        if self._node is not None and self._ended is None:
            self._node.down(peer)
            self._wake.set()

    def _incarnation(self) -> int | None:
        journal = self._directory.journal
        return None if journal is None else journal.incarnation

    def _follow_seats(self) -> None:
        """The links go where the log says that the members are, and end where it says that they are not."""
        if self._node is None:
            return
        seats = self._node.seats
        roster = self._transport.identity.roster
        if seats.none_replaced and roster.none_replaced:
            return
        replaced = {seat.node_id: (seat.incarnation, seat.raft_address) for seat in seats.current.values()}
        for peer in roster.update(replaced):
            log.info("Controller %s: %s is at %s", self.node_id, peer, roster.addresses[peer])
            self._transport.drop(peer)

    @property
    def addresses(self) -> dict[str, str]:
        """id -> Raft address of each member: as configured, or where its replacement is."""
        return self._transport.addresses

    @property
    def seats(self) -> dict[str, Seat]:
        """The members that were replaced, as this member's log says."""
        return {} if self._node is None else self._node.seats.current

    async def replace(
        self, old: str, address: str, raft_address: str, timeout_s: float = 3.0, *, lost: bool = True
    ) -> int:
        """Give the seat of member ``old`` to a new machine: the incarnation that counts from now on.
        ``lost``: the caller knows that ``old`` is lost; else one that answers is refused.

        Raises NotLeader; Refused with the reason, nothing was changed then; Unknown.
        """
        node = self._leading()
        others = sorted(self._transport.identity.ids - {self.node_id})
        if old == self.node_id:
            raise Refused(f"{old} leads: make another one leader first (keelmq controller transfer)")
        if old not in others:
            raise Refused(f"{old} is not another member: {', '.join(others) or 'there is none'}")
        if self._transport.loopback_only and not is_loopback(split_address(raft_address)[0]):
            raise Refused(f"raftSecretFile is needed: {raft_address} is not on loopback")
        future, done = self._callers.expect(lambda: NotLeader(self.leader_id))
        node.replace(old, address, raft_address, done, lost=lost)
        self._follow_seats()
        self._wake.set()
        return int(await self._callers.wait(future, timeout_s))

    async def transfer(self, to: str | None = None) -> str:
        """Make member ``to``, or any that holds the whole log, the leader: the id of the new leader.

        Raises NotLeader; Refused when nobody took over within an election timeout, or ``to`` cannot; Unknown
        when leadership was given up and no new leader is known yet.
        """
        self._leading()
        timing = self._config.timing()
        others = sorted(self._transport.identity.ids - {self.node_id})
        if to is not None and to not in others:
            raise Refused(f"{to} is not another member: {', '.join(others) or 'there is none'}")
        try:
            async with asyncio.timeout(timing.election_max_s):
                while self.is_leader or self.leader_id is None:
                    if self._ended is not None or self._node is None:
                        raise Unknown("this Controller ended meanwhile")
                    # A member that lags gets the rest meanwhile; one that heard it ignores the repetition.
                    self._node.transfer_leadership(to)
                    await asyncio.sleep(timing.retry_s / 2)
        except TimeoutError:
            if self.is_leader:
                raise Refused(f"{to or 'no member'} did not take over in time") from None
            raise Unknown("leadership was given up, a new leader is not known yet") from None
        return self.leader_id or ""

    async def _transfer_before_stop(self) -> None:
        assert self._node is not None, "looked at by the caller"
        if not self._node.leads() or self._node.transfer_leadership() is None:
            return
        try:
            await self.transfer()
        except (Refused, Unknown) as error:
            log.info("Controller %s stops as leader: %s", self.node_id, error)

    def _fail(self, error: BaseException) -> None:
        """Step down: from here on this member says nothing, so the others look for a new leader."""
        if self._ended is not None:
            return
        self._ended = Ended(f"Controller {self.node_id} takes no part any more: {error}", final=False)
        log.critical("%s", self._ended.why, exc_info=error)
        self._close()
        self._callers.release(Unknown(self._ended.why))
        self._tell()
        if no_room(error):
            self._tasks.spawn(self._come_back(self._ended), name="come back")

    async def _come_back(self, failure: Ended) -> None:
        """Begin anew when the disk has room again. What is in memory is forgotten, so the rules of a start
        hold: only what is read from the disk, and written there again, counts."""

        async def try_again() -> None:
            if not self._directory.has_room():
                return
            await self._transport.stop()
            if self._ended is not failure:
                return
            self._ended = None
            self._transport = self._new_transport()
            try:
                await self.start()
            except (MqError, OSError) as error:
                self._ended = failure
                log.warning("Controller %s: there is room again, but: %s", self.node_id, error)
                return
            log.warning("Controller %s takes part again: its disk has room", self.node_id)
            self._tell()

        await asyncio.sleep(ROOM_AGAIN_S)
        await level_triggered(
            try_again,
            asyncio.Event(),
            ROOM_AGAIN_S,
            Backoff(self._env.random, ROOM_AGAIN_MS, ROOM_AGAIN_MS),
            f"Controller {self.node_id}: wait for room",
            ended=lambda: self._ended is not failure,
        )

    def _end(self, why: str) -> None:
        if self._ended is not None and self._ended.final:
            return
        self._ended = Ended(why, final=True)
        self._close()
        self._callers.release(Unknown(why))

    def _close(self) -> None:
        self._transport.abort()
        self._directory.close()
        self._wake.set()

    def _open(self) -> None:
        self._machine.begin()
        storage = self._directory.open(self._config.compact_entries)
        self._node = Node(
            self.node_id,
            self._transport.identity.ids - {self.node_id},
            timing=self._config.timing(),
            storage=storage,
            machine=self._machine,
            chance=self._env.random,
            send=self._transport.send,
            clock_ms=self._env.monotonic_ms,
        )
        self._follow_seats()
        storage.journal.sync()
