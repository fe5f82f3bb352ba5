"""How do the Controllers agree on one order of commands that no crash takes back?

``Raft`` drives one ``controller.raft.node.Node``: it gives it time from the event loop, messages from
``controller.raft.transport``, files in one directory (``raft.journal``, ``raft.snapshot``, ``raft.lock``),
and stops it when the disk refuses a write: a member that cannot remember must not vote. One that stopped for
want of room begins anew from its directory, as after a restart, once there is some.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from controller.raft.calls import Done, Failed
from controller.raft.codec import COMMAND_BYTES_MAX, decode_message, decode_snapshot
from controller.raft.health import Bounds, Progress, Pulse, behind, stalled
from controller.raft.journal import ADVICE, Journal
from controller.raft.node import NO_OP, REGULAR, Node
from controller.raft.room import has_room, no_room
from controller.raft.timing import Timing
from controller.raft.tls import TlsFiles
from controller.raft.transport import Limits, Transport
from model.errors import ConfigError, DiskError, MqError, PeerError, Refused, Unknown
from runtime.env import Env, Lock, read_file, write_file
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

QUEUED_MAX: Final = 4096
ROOM_AGAIN_S: Final = 1.0  # between two looks at a disk that was full
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
class RaftConfig:
    """Times in ms. A leader is silent for ``election_min_ms`` before others look for a new one.

    A killed leader is noticed by its closed connections, so these times are for frozen and cut-off ones only,
    and should be longer than a sync takes on a busy disk.
    """

    append_ms: int = 100
    election_min_ms: int = 500
    election_max_ms: int = 1000
    compact_entries: int = 4096

    def timing(self) -> Timing:
        """Raises ConfigError when the times contradict each other."""
        if not self.append_ms * 3 < self.election_min_ms < self.election_max_ms:
            raise ConfigError("need 3 x raftAppendPeriodMs < raftElectionMinMs < raftElectionMaxMs")
        return Timing(
            append_s=self.append_ms / 1000,
            election_min_s=self.election_min_ms / 1000,
            election_max_s=self.election_max_ms / 1000,
            # A leader that was cut off stops before the others can have another one.
            fallback_s=self.election_min_ms * 0.75 / 1000,
            retry_s=self.election_min_ms / 10 / 1000,
        )

    def limits(self) -> Limits:
        silence_s = max(4 * self.election_max_ms / 1000, 1.0)
        return Limits(
            handshake_s=max(2 * self.election_max_ms / 1000, 1.0),
            ping_s=silence_s / 4,
            silence_s=silence_s,
            retry_s=self.append_ms / 1000,
        )


class Raft:
    """One member. ``apply`` gets each committed command once, in the same order on every member.

    ``apply(command) -> answer`` must depend on nothing but former commands and must not raise; if it does,
    the proposer gets ApplyFailed and the log goes on. ``snapshot()`` and ``restore(data)`` copy its state.
    """

    def __init__(
        self,
        env: Env,
        node_id: str,
        addresses: dict[str, str],
        directory: str,
        apply: Callable[[bytes], bytes],
        snapshot: Callable[[], bytes],
        restore: Callable[[bytes], None],
        *,
        config: RaftConfig | None = None,
        secret: bytes | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """``addresses``: id -> host:port of every member's Raft port, this one included.

        Raises ConfigError when neither secret nor TLS is given although a member is not on loopback.
        """
        if node_id not in addresses:
            raise ConfigError(f"Controller {node_id} is not among the members {sorted(addresses)}")
        self.node_id = node_id
        self.on_change: list[Callable[[], None]] = []  # leader or term changed; the node failed
        self._env = env
        self._others = sorted(set(addresses) - {node_id})
        self._directory = directory
        self._apply, self._take, self._restore = apply, snapshot, restore
        self._config = config or RaftConfig()
        self._timing = self._config.timing()
        self._bounds = Bounds.of(self._config.election_max_ms, self._config.compact_entries)
        self._pulse = Pulse()
        self._new_transport = partial(
            Transport,
            env,
            node_id,
            addresses,
            secret=secret,
            on_message=self._on_message,
            on_up=self._on_up,
            on_down=self._on_down,
            limits=self._config.limits(),
            tls=tls,
        )
        self._transport = self._new_transport()
        self._tasks = Tasks(f"raft.{node_id}", on_error=self._fail)
        self._wake = asyncio.Event()
        self._node: Node | None = None
        self._journal: Journal | None = None
        self._lock: Lock | None = None
        self._stopped = False
        self._failure: str | None = None
        self._seen: tuple[bool, str | None, int] = (False, None, 0)
        self._pending: set[asyncio.Future[Any]] = set()
        self._barrier: asyncio.Future[Any] | None = None
        self._initial = b""  # the state before the first command

    # life

    async def start(self) -> None:
        """Read the directory, listen, take part. Raises DiskError on damage, OSError for a taken port."""
        self._initial = self._take()
        await self._begin()

    async def _begin(self) -> None:
        try:
            self._open()
            await self._transport.start()
        except BaseException:
            self._close()
            raise
        self._tasks.spawn(self._drive(), name="drive")

    async def stop(self) -> None:
        """Hand leadership over if that is quick, make everything durable, end. Idempotent."""
        if not self._stopped and self._failure is None and self._node is not None:
            await self._hand_over()
            try:
                if self._journal is not None:
                    self._journal.sync()
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
        """Who leads, as far as this member knows."""
        return None if self._node is None or self._dead else self._node.leader()

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows: another may already lead a later term."""
        return self._node is not None and not self._dead and self._node.leads()

    def followed_ms(self) -> float | None:
        """The newest ``Env.monotonic_ms`` at which a majority certainly followed this leader, or None.

        Whoever leads next began to after that.
        """
        return None if self._node is None or self._dead else self._node.followed_ms()

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
        progress, age_ms = self.progress, self._pulse.age_ms(self._env.monotonic_ms())
        return {
            "tickAgeMs": None if age_ms is None else round(age_ms),
            "tickLateMaxMs": round(self._pulse.late_max_ms),
            **({} if progress is None else progress.to_json()),
        }

    def health(self) -> str | None:
        """None, or why this member cannot do its work."""
        if self._failure is not None:
            return self._failure
        if not self._dead and (why := stalled(self._pulse.age_ms(self._env.monotonic_ms()), self._bounds)):
            return why
        if self.leader_id is None:
            return "no leader among the Controllers"
        if not self.admitted:
            return "this Controller may have forgotten what it promised and waits for the leader to admit it"
        progress = self.progress
        return None if progress is None else behind(progress, self._bounds)

    @property
    def admitted(self) -> bool:
        """Whether this member may vote: false from a start with an empty directory until a leader found that
        it holds every decision."""
        return self._journal is not None and self._journal.admitted

    @property
    def _dead(self) -> bool:
        return self._stopped or self._failure is not None

    # proposals

    async def propose(self, command: bytes, timeout_s: float = 3.0) -> bytes:
        """Commit and apply ``command``; what ``apply`` answered on this member.

        Raises NotLeader or Refused (too large, too many waiting): nothing happened; ApplyFailed; or Unknown:
        it may or may not be applied, now or later.
        """
        if len(command) > COMMAND_BYTES_MAX:
            raise Refused(f"a command of {len(command)} bytes; at most {COMMAND_BYTES_MAX} are taken")
        answer = await self._wait(self._submit(REGULAR + command), timeout_s)
        if isinstance(answer, Failed):
            raise ApplyFailed(answer.text)
        return bytes(answer)

    async def barrier(self, timeout_s: float = 3.0) -> None:
        """Return when the state on this member holds all that was committed before the call.

        A majority is asked whether it still follows; nothing is written, and all that wait share the
        question. Raises NotLeader or Unknown.
        """
        if self._barrier is None:
            node = self._leading()
            self._barrier, done = self._expect()
            node.read(done)
            self._wake.set()
        # Not shared once the question is on its way: a later caller may have seen what came after it.
        await self._wait(asyncio.shield(self._barrier), timeout_s)

    async def settle(self, timeout_s: float = 3.0) -> None:
        """Return when all that was proposed here before, of whatever outcome, is applied or never will be.

        Unlike ``barrier`` this commits an entry, behind those whose callers gave up. Raises NotLeader,
        Refused, Unknown.
        """
        await self._wait(self._submit(NO_OP), timeout_s)

    def _submit(self, entry: bytes) -> asyncio.Future[Any]:
        node = self._leading()
        if node.queued() >= QUEUED_MAX:
            raise Refused("too many commands are waiting", code=2)
        future, done = self._expect()
        node.propose(entry, done)
        self._wake.set()
        return future

    def _leading(self) -> Node:
        if self._node is None or not self.is_leader:
            raise NotLeader(self.leader_id)
        return self._node

    def _expect(self) -> tuple[asyncio.Future[Any], Done]:
        """A future, and what the node calls to fulfil it."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)

        def done(result: Any, why: str | None) -> None:
            self._pending.discard(future)
            if future.done():
                return
            if why is None:
                future.set_result(result)
            else:
                future.set_exception(NotLeader(self.leader_id))

        self._pending.add(future)
        return future, done

    async def _wait(self, future: asyncio.Future[Any], timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise Unknown(f"no majority of the Controllers agreed within {timeout_s:g} s") from None

    # the loop

    async def _drive(self) -> None:
        loop, now_ms = asyncio.get_running_loop(), self._env.monotonic_ms
        due_ms = now_ms()
        while self._node is not None and not self._dead:
            self._wake.clear()
            due_ms = min(due_ms, now_ms())
            self._step()
            self._pulse.ticked(due_ms, now_ms())
            if self._dead:
                return
            wait_s = self._node.next_tick_s()
            due_ms = now_ms() + wait_s * 1000
            timer = loop.call_later(wait_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    def _step(self) -> None:
        assert self._node is not None, "started"
        # Whoever joins the barrier from now on may have seen later commits than its question stands for.
        self._barrier = None
        try:
            self._node.tick()
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
        if was_leader and not seen[0]:
            self._release(Unknown("leadership was lost before the command was committed"))
        self._tell()

    def _tell(self) -> None:
        for hook in list(self.on_change):
            try:
                hook()
            except Exception:
                log.exception("Controller %s: a hook for changes of leadership failed", self.node_id)

    def _on_message(self, peer: str, body: bytes) -> None:
        if self._node is None or self._dead:
            return
        message = decode_message(body)
        try:
            moved = self._node.received(peer, message)
        except PeerError:
            raise
        except Exception as error:  # noqa: BLE001
            # The disk, a contradiction, or a mistake of ours: half a step was taken, take no other.
            self._fail(error)
            return
        if moved:
            self._wake.set()

    def _on_up(self, peer: str) -> None:
        if self._node is not None and not self._dead:
            self._node.up(peer)
            self._wake.set()

    def _on_down(self, peer: str) -> None:
        if self._node is not None and not self._dead:
            self._node.down(peer)
            self._wake.set()

    async def transfer(self, to: str | None = None) -> str:
        """Have member ``to``, or any that holds the whole log, lead instead: the id of the new leader.

        Raises NotLeader; Refused when nobody took over within an election timeout, or ``to`` cannot; Unknown
        when leadership was given up and no new leader is known yet.
        """
        self._leading()
        if to is not None and to not in self._others:
            raise Refused(f"{to} is not another member: {', '.join(self._others) or 'there is none'}")
        try:
            async with asyncio.timeout(self._timing.election_max_s):
                while self.is_leader or self.leader_id is None:
                    if self._dead or self._node is None:
                        raise Unknown("this Controller ended meanwhile")
                    # A member that lags gets the rest meanwhile; one that heard it already ignores the term.
                    self._node.hand_over(to)
                    await asyncio.sleep(self._timing.retry_s / 2)
        except TimeoutError:
            if self.is_leader:
                raise Refused(f"{to or 'no member'} did not take over in time") from None
            raise Unknown("leadership was given up, a new leader is not known yet") from None
        return self.leader_id or ""

    async def _hand_over(self) -> None:
        assert self._node is not None, "looked at by the caller"
        if not self._node.leads() or self._node.hand_over() is None:
            return
        try:
            await self.transfer()
        except (Refused, Unknown) as error:
            log.info("Controller %s stops as leader: %s", self.node_id, error)

    def _fail(self, error: BaseException) -> None:
        """Step down: from here on this member says nothing, so the others look for a new leader."""
        if self._dead:
            return
        self._failure = f"Controller {self.node_id} takes no part any more: {error}"
        log.critical("%s", self._failure, exc_info=error)
        self._close()
        self._release(Unknown(self._failure))
        self._tell()
        if no_room(error):
            self._tasks.spawn(self._come_back(), name="come back")

    async def _come_back(self) -> None:
        """Begin anew when the disk has room again. What is in memory is forgotten, so the rules of a start
        hold: only what is read from the disk, and written there again, counts."""
        while not self._stopped:
            await asyncio.sleep(ROOM_AGAIN_S)
            if not has_room(self._env.disk, self._directory):
                continue
            await self._transport.stop()
            if self._stopped:
                return
            failure, self._failure = self._failure, None
            self._transport = self._new_transport()
            self._restore(self._initial)
            try:
                await self._begin()
            except (MqError, OSError) as error:
                log.warning("Controller %s: there is room again, but: %s", self.node_id, error)
                self._failure = failure
                continue
            log.warning("Controller %s takes part again: its disk has room", self.node_id)
            self._tell()
            return

    def _end(self, why: str) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._close()
        self._release(Unknown(why))

    def _close(self) -> None:
        self._transport.abort()
        if self._journal is not None:
            self._journal.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._wake.set()

    def _release(self, error: MqError) -> None:
        for future in list(self._pending):
            if not future.done():
                future.set_exception(error)
        self._pending.clear()

    # the directory

    def _open(self) -> None:
        disk, directory = self._env.disk, self._directory
        try:
            disk.makedirs(directory)
            self._lock = disk.lock(f"{directory}/raft.lock")
        except BlockingIOError:
            raise DiskError(f"{directory} is in use by another process") from None
        except OSError as error:
            raise DiskError(f"{directory}: {error}") from error
        path = f"{directory}/raft.snapshot"
        snapshot = None
        try:
            snapshot = decode_snapshot(read_file(disk, path))
        except FileNotFoundError:
            # Not asked beforehand: a disk that cannot say so must not look like an empty one.
            pass
        except OSError as error:
            raise DiskError(f"{path}: {error}") from error
        except DiskError as error:
            raise DiskError(f"{path}: {error}. {ADVICE}") from None
        journal = self._journal = Journal(disk, f"{directory}/raft.journal", self.node_id)
        if snapshot is not None and journal.created:
            raise DiskError(
                f"{directory} has a snapshot, but its journal with term and vote is gone. {ADVICE}"
            )
        if snapshot is None and len(journal) and journal.first_index > 1:
            raise DiskError(
                f"{journal.path} begins at entry {journal.first_index}, but its snapshot is gone. {ADVICE}"
            )

        def store(data: bytes) -> None:
            try:
                write_file(disk, path, data)
            except OSError as error:
                # Half of it would take the room the journal needs.
                with contextlib.suppress(OSError):
                    disk.remove(path + ".tmp")
                raise DiskError(f"{path}: {error}") from error

        self._node = Node(
            self.node_id,
            self._others,
            timing=self._timing,
            journal=journal,
            chance=self._env.random,
            send=self._transport.send,
            apply=self._apply,
            state=self._take,
            restore=self._restore,
            store_snapshot=store,
            snapshot=snapshot,
            compact_entries=self._config.compact_entries,
            clock_ms=self._env.monotonic_ms,
        )
        journal.sync()


def _retrieve(future: asyncio.Future[Any]) -> None:
    """A caller that left at its deadline does not leave an unheard exception."""
    if not future.cancelled():
        future.exception()
