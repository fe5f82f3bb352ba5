"""Does every group have a master that lives, and if not, who sees to it?

Events start an election at once: the end of a master's session, its silence, a broker that came back to a
group without master, a new Raft leader. Beside them a slow loop compares what is with what should be, for
ever, so no lost event leaves a group alone. Only the Raft leader acts: it proposes, ``core`` decides. Who was
elected is told to the group's brokers, by whichever leader finds it decided. Where nobody may be elected
nothing is proposed; the group is looked at again after a growing while, or when one of its brokers is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from controller.groups.commands import (
    ELECT_MASTER_FAILED,
    NOBODY,
    SUCCESS,
    Answer,
    Command,
    ElectMaster,
)
from controller.groups.elect import PRIORITY_LAST, End, further
from controller.groups.group import Group
from controller.groups.lease import Leases, matters
from controller.groups.liveness import Broker, Heartbeat, Liveness
from controller.groups.table import ReplicaTable, nobody
from controller.raft.raft import NotLeader, Raft
from model.config import ControllerConfig
from model.errors import MqError, Refused, Unknown
from runtime.backoff import Backoff
from runtime.env import Env
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_S: Final = 0.05
BACK_MS: Final = 300.0  # a master whose connection ended, but whom its slaves still hear, may come back
BACK_STEP_S: Final = 0.02
REST_MIN_MS: Final = 100  # before a group is looked at again in which nobody could be elected
REST_MAX_MS: Final = 2000
TELLS_MAX: Final = 100  # groups a new leader tells of their masters in one look: between two it must be heard
TELLS_STEP_MS: Final = 20

Ask = Callable[[str, list[int], Callable[[frozenset[int]], bool]], Awaitable[tuple[bool, frozenset[int]]]]


class ElectionCoordinator:
    """Elections this Controller starts by itself.

    ``propose`` commits a command and returns the table's answer; ``announce(group)`` tells the brokers of the
    group who their master is; ``ask(group, ids, decided)`` notes how far these brokers' logs reach now:
    whether one of them still hears the master, and who answered. Those that are slow are waited for while
    ``decided(answered)`` is false.
    """

    def __init__(
        self,
        env: Env,
        config: ControllerConfig,
        raft: Raft,
        table: ReplicaTable,
        live: Liveness,
        propose: Callable[[Command], Awaitable[Answer]],
        announce: Callable[[str], None],
        request_id: Callable[[], str],
        ask: Ask,
    ) -> None:
        self._env = env
        self._config = config
        self._raft = raft
        self._table = table
        self._live = live
        self._propose = propose
        self._announce = announce
        self._request_id = request_id
        self._ask = ask
        self._leases = Leases()
        self._again_ms = float("inf")  # what held an election up is over then
        self._tasks = Tasks(f"controller.{config.self_id}.keeper")
        self._wake = asyncio.Event()
        self._look_now = False
        self._look_ms = 0.0  # when every group is looked at again
        self._electing: set[str] = set()
        self._answered: dict[str, frozenset[int]] = {}  # in an election under way
        self._rests: dict[str, tuple[Backoff, float]] = {}  # nobody could be elected: not again before (ms)
        self._missed: set[str] = set()  # something happened while an election was under way
        self._lost: dict[str, tuple[int, int]] = {}  # group -> (master, epoch) already reported as lost
        self._told: dict[str, tuple[int, int]] = {}  # group -> (master, epoch) its brokers were told of
        self._tells = 0  # in this look
        self._ready_term = 0
        self._led_term = 0

    def start(self) -> None:
        self._raft.on_change.append(self.leadership_changed)
        self._tasks.spawn(self._run(), name="run")
        self.leadership_changed()

    async def stop(self) -> None:
        await self._tasks.cancel()

    # what happens

    def leadership_changed(self) -> None:
        """The Raft leader or term changed, perhaps to or from this Controller."""
        if self._raft.is_leader and self._led_term != self._raft.term:
            self._led_term = self._raft.term
            self._live.lead(self._env.monotonic_ms())
            self._leases.lead(self._env.monotonic_ms())
            self._rests.clear()
            self._told.clear()
            self._tasks.spawn(self._begin(), name="begin")

    def broker_back(self, group: str) -> None:
        """A broker that was not alive sent a heartbeat: it may be what a group without master waits for."""
        self._stir(group)
        found = self._table.groups.get(group)
        if found is not None:
            self._check(group, found)
        self._wake.set()  # for its expiry; the other groups have nothing to do with it

    def brokers_lost(self, brokers: list[Broker]) -> None:
        """Sessions ended. If one was a master's, elect at once."""
        for group, broker_id in brokers:
            found = self._table.groups.get(group)
            if found is not None and found.master == broker_id:
                self._stir(group)
                self._check(group, found)

    def elected(self, group: str, answer: Answer) -> None:
        """An election was committed, whoever asked for it: record it and tell the brokers."""
        broker_id, epoch = int(answer.ext["masterBrokerId"]), int(answer.ext["masterEpoch"])
        self._env.events.add("master_elected", group=group, broker_id=broker_id, epoch=epoch)
        log.info(
            "Controller %s: broker %d is master of %s in epoch %d",
            self._config.self_id,
            broker_id,
            group,
            epoch,
        )
        self._tell(group)

    def _tell(self, name: str) -> None:
        """Tell the brokers of a group who their master is, once for each master this leader finds: also one
        that a former leader had elected, or an election of unknown outcome."""
        group = self._table.groups.get(name)
        if group is not None and group.master is not None:
            self._told[name] = (group.master, group.epoch)
            self._announce(name)

    async def ready(self) -> None:
        """Return when this leader's table holds what former leaders committed. Raises NotLeader, Unknown."""
        term = self._raft.term
        if self._ready_term != term:
            await self._raft.settle()
            self._ready_term = term

    # what is done about it

    async def _begin(self) -> None:
        while self._raft.is_leader:
            try:
                await self.ready()
            except NotLeader:
                return
            except MqError as error:
                log.warning("Controller %s leads, but: %s", self._config.self_id, error)
                await asyncio.sleep(RETRY_S)
            else:
                self._look()
                return

    def _stir(self, group: str) -> None:
        """Something happened in the group that may let somebody be elected: do not wait any longer."""
        self._rests.pop(group, None)
        if group in self._electing:
            self._missed.add(group)

    def _rest(self, group: str) -> None:
        """Nobody could be elected, and nothing happened: look again after a while that grows."""
        backoff, _ = self._rests.get(group) or (Backoff(self._env.random, REST_MIN_MS, REST_MAX_MS), 0.0)
        self._rests[group] = backoff, self._env.monotonic_ms() + backoff.next_s() * 1000

    def _look(self) -> None:
        self._look_now = True
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                wait_ms = self._round()
            except Exception:
                # The next round looks at everything again; without one no group would ever be repaired.
                log.exception("Controller %s: a look at the groups failed", self._config.self_id)
                self._look_now = True
                wait_ms = self._config.scan_not_active_ms
            wait_ms = max(wait_ms, 1)
            due_ms = self._env.monotonic_ms() + wait_ms
            timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._wake.set)
            await self._wake.wait()
            timer.cancel()
            now_ms = self._env.monotonic_ms()
            if now_ms - due_ms > self._config.raft_election_min_ms:
                # This process stood still, perhaps the brokers on this machine with it.
                log.warning("Controller %s stood still for %d ms", self._config.self_id, now_ms - due_ms)
                self._live.lead(now_ms)

    def _round(self) -> float:
        """Elect where a session ended, look at every group when it is time to; in how many ms to go on."""
        now_ms = self._env.monotonic_ms()
        self.brokers_lost(self._live.expired(now_ms))
        if self._look_now or now_ms >= min(self._look_ms, self._again_ms):
            self._look_now = False
            self._tells = 0
            self._again_ms = float("inf")
            self._look_ms = now_ms + self._config.scan_inactive_master_ms
            for name, group in sorted(self._table.groups.items()):
                self._check(name, group)
        expiry_ms = self._live.next_expiry_ms()
        until_ms = min(self._look_ms, self._again_ms, now_ms + self._config.scan_not_active_ms)
        if expiry_ms is not None:
            until_ms = min(until_ms, expiry_ms + 1)
        return until_ms - now_ms

    def _check(self, name: str, group: Group) -> None:
        """Start an election if the group needs one and this Controller may."""
        if not self._raft.is_leader or self._ready_term != self._raft.term or name in self._electing:
            return
        if group.master is not None:
            now_ms = self._env.monotonic_ms()
            if self._told.get(name) != (group.master, group.epoch):
                if self._tells < TELLS_MAX:
                    self._tells += 1
                    self._tell(name)
                else:
                    self._look_at(now_ms + TELLS_STEP_MS)
            if self._live.is_presumed(name, group.master, now_ms):
                if not self._live.is_alive(name, group.master, now_ms):
                    self._look_at(self._live.presumed_until_ms(name, group.master) + 1)
                return
            if self._lost.get(name) != (group.master, group.epoch):
                self._lost[name] = (group.master, group.epoch)
                self._env.events.add("master_lost", group=name, broker_id=group.master)
                log.warning(
                    "Controller %s: master %d of %s is lost", self._config.self_id, group.master, name
                )
        elif self._candidate(name, group) is None:
            return
        _, rests_until_ms = self._rests.get(name, (None, 0.0))
        if self._env.monotonic_ms() < rests_until_ms:
            self._again_ms = min(self._again_ms, rests_until_ms)
            return
        if self._held(name):
            return
        self._electing.add(name)
        self._tasks.spawn(self._elect(name), name=f"elect.{name}")

    def _held(self, name: str, at_ms: float | None = None) -> bool:
        """Whether the former master's lease holds the election up, or did at ``at_ms``, when the candidates
        were asked; then it is looked at again in time."""
        left_ms = self.lease_left_ms(name, self._chosen(self.command(name)), at_ms)
        if left_ms > 0:
            self._look_at(self._env.monotonic_ms() + left_ms)
        return left_ms > 0

    def _look_at(self, at_ms: float) -> None:
        """Look at every group again at that time (monotonic, ms), if not before."""
        self._again_ms = min(self._again_ms, at_ms)
        self._wake.set()

    def lease_left_ms(self, name: str, chosen: int | None, at_ms: float | None = None) -> float:
        """How long, from ``at_ms`` or from now on, a lease may still let another broker confirm what
        ``chosen`` lacks; 0 = elect now."""
        at_ms = self._env.monotonic_ms() if at_ms is None else at_ms
        group = self._table.groups.get(name)
        if group is None or chosen is None:
            return 0.0
        # Without a master it is one of the members that led, or one that was removed, and it may not know.
        deposed = {*group.members, *group.removed, *self._leases.holders(name)}
        if group.virgin and group.epoch > 0:
            # All of it was removed, perhaps under a former leader: it may not know either.
            deposed.add(NOBODY)
        holders = [group.master] if group.master is not None else sorted(deposed)
        untils = [0.0]
        for holder in holders:
            beat = self._live.newest(name, holder)
            if holder != chosen and matters(beat, group.members, chosen, group.rule):
                untils.append(self._leases.until_ms((name, holder), beat, group.rule) - at_ms)
        return max(untils)

    def _chosen(self, command: ElectMaster) -> int | None:
        group = self._table.groups.get(command.group)
        return None if group is None else group.choice(command)

    def _in_vain(self, command: ElectMaster) -> bool:
        """Whether this election would find nobody for a group that has nobody, and so change nothing."""
        group = self._table.groups.get(command.group)
        if group is None or group.master is not None or group.choice(command) is not None:
            return False
        return command.broker_id == NOBODY or command.broker_id in group.replicas

    def grant(self, name: str, broker_id: int, epoch: int, beat: Heartbeat) -> int:
        """The lease for the master of ``epoch``, in ms from the sending of its heartbeat; 0 = none."""
        group = self._table.groups.get(name)
        if group is None or (group.master, group.epoch) != (broker_id, epoch):
            return 0
        # An election under way may depose it, and its outcome may be unknown until that is settled.
        if not self._raft.is_leader or self._ready_term != self._raft.term or name in self._electing:
            return 0
        now_ms, followed_ms = self._env.monotonic_ms(), self._raft.followed_ms()
        # What a later leader of the Controllers waits for is what the broker registered.
        registered_ms = (group.rule.timeout_ms if group.rule is not None else 0) or beat.timeout_ms
        timeout_ms = min(beat.timeout_ms, registered_ms)
        return self._leases.grant((name, broker_id), timeout_ms, followed_ms=followed_ms, now_ms=now_ms)

    def release(self, name: str, broker_id: int) -> None:
        """The broker says that it does not act as master, so its lease holds nothing up any more."""
        self._leases.release((name, broker_id))

    def _candidate(self, name: str, group: Group) -> int | None:
        alive = tuple(self._live.alive(name, self._env.monotonic_ms()))
        ends, unclean = self._live.ends(name), self._config.elect_unclean_master
        return group.choice(ElectMaster(group=name, alive=alive, answered=alive, ends=ends, unclean=unclean))

    async def _elect(self, name: str) -> None:
        try:
            answer = await self._attempts(name)
        finally:
            self._electing.discard(name)
            self._answered.pop(name, None)
        missed = name in self._missed
        self._missed.discard(name)
        if answer is not None and answer.code == SUCCESS:
            self.elected(name, answer)
        elif answer is not None and answer.changed:
            log.error("Controller %s: %s has no master: %s", self._config.self_id, name, answer.remark)
        if missed or (answer is not None and answer.changed):
            self._rests.pop(name, None)
        elif answer is not None:
            self._rest(name)
        # What happened while the election was under way: the new master may be lost already.
        self._look()

    async def _attempts(self, name: str) -> Answer | None:
        """What an election came to, or None when none was held."""
        for attempt in range(max(self._config.elect_retry_max, 1)):
            if attempt:
                await asyncio.sleep(RETRY_S)
            if not self._raft.is_leader:
                return None
            asked_ms = await self._ask_whether_it_is_gone(name)
            group = self._table.groups.get(name)
            if group is None or self._recovered(name, group) or self._held(name, asked_ms):
                return None
            command = self.command(name)
            if self._in_vain(command):
                self._rest(name)
                return None
            try:
                return await self._proposed(command)
            except NotLeader:
                return None
            except MqError as error:
                log.warning("Controller %s: election of %s: %s", self._config.self_id, name, error)
        self._rest(name)
        return None

    def _recovered(self, name: str, group: Group) -> bool:
        """The master was heard again while the candidates were asked."""
        master = group.master
        return master is not None and self._live.is_presumed(name, master, self._env.monotonic_ms())

    async def _ask_whether_it_is_gone(self, name: str) -> float:
        """Ask the candidates; when (monotonic, ms) they were asked for the last time. While one of them still
        hears a master whose connection ended, the master lives and may be back in a moment: a process that
        dies takes all its connections with it. So may one whom nobody could replace: after a standstill of
        the machine requests are given up, with their connections, by all of its brokers at once."""
        until_ms = self._env.monotonic_ms() + BACK_MS
        while True:
            asked_ms = self._env.monotonic_ms()
            following = await self._ask_candidates(name, lambda: self.command(name))
            group = self._table.groups.get(name)
            if group is None or group.master is None:
                return asked_ms
            if not following and self._chosen(self.command(name)) is not None:
                return asked_ms
            if not self._live.hung_up(name, group.master) or self._env.monotonic_ms() >= until_ms:
                return asked_ms
            await asyncio.sleep(BACK_STEP_S)

    async def _ask_candidates(
        self,
        name: str,
        wanted: Callable[[], ElectMaster],
        *,
        master_too: bool = False,
        all_of_them: bool = False,
    ) -> bool:
        """Whether one of them still hears its master. ``wanted``: the election they are asked for.
        ``master_too``: it confirms nothing any more, so its word counts like the others'. ``all_of_them``:
        those that are slow are waited for whoever could be elected without them; only the master is not."""
        group = self._table.groups.get(name)
        if group is None:
            return False
        # A suspect leads only when every replica said how far its log is.
        every = self._config.elect_unclean_master or group.majority_of > 0 or bool(group.suspect)
        able = group.replicas if every else {*group.members, *group.before}
        alive = self._live.alive(name, self._env.monotonic_ms())
        asked = [i for i in alive if i in able and (i != group.master or master_too)]

        def decided(answered: frozenset[int]) -> bool:
            if all_of_them:
                return answered >= {*asked} - {group.master}
            # The silent count with their heartbeats; but of several that are, one may just have died.
            if not group.majority_of and not answered and len(asked) > 1:
                return False
            if not group.majority_of and not group.suspect:
                return True
            self._answered[name] = answered
            # A majority that is slow is better than a minority that is quick.
            return self._chosen(msgspec.structs.replace(wanted(), unclean=False)) is not None

        following, self._answered[name] = await self._ask(name, asked, decided)
        return following

    async def _proposed(self, command: ElectMaster) -> Answer:
        try:
            return await self._propose(command)
        except Unknown:
            # It may still be applied: no lease before that is settled.
            self._ready_term = 0
            self._tasks.spawn(self._begin(), name="begin")
            raise

    async def elect(
        self,
        name: str,
        command: Callable[[], ElectMaster],
        step_down: Callable[[], Awaitable[bool]] | None = None,
        *,
        handed_over: bool = False,
    ) -> Answer:
        """The election a broker or an operator asks for. Raises NotLeader, Unknown, Refused (not now).

        ``step_down`` is done first, while no lease is granted: the master is asked to hand over; whether it
        did. ``handed_over``: it did before; then whom it names has the whole of its log.
        """
        if name in self._electing:
            raise Refused(f"an election of {name} is under way", ELECT_MASTER_FAILED)
        self._electing.add(name)
        try:
            if step_down is not None:
                handed_over = await step_down()
            asked_ms = self._env.monotonic_ms()
            wanted = command()
            compared = wanted.designate and not handed_over
            await self._ask_candidates(
                name,
                command,
                master_too=wanted.designate or wanted.restarted,
                all_of_them=compared and self._may_lack(wanted),
            )
            wanted = command()
            left_ms = self.lease_left_ms(name, self._chosen(wanted), asked_ms)
            if left_ms > 0:
                text = f"the lease of the former master of {name} holds for {left_ms:.0f} ms"
                raise Refused(text, ELECT_MASTER_FAILED)
            lacks = self._lacks(wanted) if compared else None
            if lacks is not None:
                raise Refused(lacks, ELECT_MASTER_FAILED)
            if self._in_vain(wanted):
                raise Refused(nobody(name, self._table.groups[name], wanted), ELECT_MASTER_FAILED)
            answer = await self._proposed(wanted)
        finally:
            self._electing.discard(name)
            self._answered.pop(name, None)
            if name in self._missed:
                self._missed.discard(name)
                self._look()
        if answer.code == SUCCESS:
            self.elected(name, answer)
        self._look()
        return answer

    def _may_lack(self, wanted: ElectMaster) -> bool:
        """Whether the transfer target an operator names may lack what was acknowledged, although it is a
        member: the former master counted fewer than all of them, and did not say that the transfer target has
        everything."""
        group = self._table.groups.get(wanted.group)
        if group is None or wanted.all_ack or group.majority_of > 0:
            return False  # in majority mode a majority decides, in mode *all* each member has it
        if wanted.broker_id == group.master or wanted.broker_id not in group.members:
            return False  # it stays, or the table refuses it
        beat = None if group.master is None else self._live.newest(wanted.group, group.master)
        # A real master that lives knows no request to make way and writes on: what its slaves say of
        # themselves one after the other cannot be compared. It is deposed as the original does it.
        return not (beat is not None and not beat.leases and group.master in wanted.alive)

    def _lacks(self, wanted: ElectMaster) -> str | None:
        """Why the transfer target an operator names may lack what was acknowledged, or None. The former
        master's lease is over: what its log and the members' have now is all there can be."""
        group = self._table.groups.get(wanted.group)
        if group is None or not self._may_lack(wanted):
            return None
        transfer_target, answered, name = wanted.broker_id, wanted.answered, wanted.group
        # As after a failure, who is not there is not waited for, and who is in doubt is no measure.
        others = [
            m for m in group.members if m in wanted.alive and m != transfer_target and m not in group.suspect
        ]
        for member in (transfer_target, *others):
            if member not in answered and member != group.master:
                return f"broker {member} of {name} does not say how far its log is; no master handed over"
        other = further(transfer_target, [m for m in others if m in answered], wanted.ends)
        if other is None:
            return None
        mine, its = (wanted.ends.get(i, End()) for i in (transfer_target, other))
        return (
            f"broker {transfer_target} lacks what broker {other} has: "
            f"its log ends at {mine.max_offset} of epoch"
            f" {mine.epoch}, not at {its.max_offset} of epoch {its.epoch}; no master of {name} handed over"
        )

    def command(
        self,
        name: str,
        broker_id: int = NOBODY,
        *,
        designate: bool = False,
        restarted: bool = False,
        log_epoch: int = PRIORITY_LAST,
        suspect: bool = False,
        master_epoch: int = -1,
    ) -> ElectMaster:
        """An election with all this Controller knows now."""
        now_ms = self._env.monotonic_ms()
        group = self._table.groups.get(name)
        alive = self._live.alive(name, now_ms)
        confirmed = group.master if group is not None and not restarted else broker_id
        beat = None if confirmed is None else self._live.newest(name, confirmed)
        return ElectMaster(
            group=name,
            request_id=self._request_id(),
            now_ms=self._env.now_ms(),
            alive=tuple(alive),
            # Before anyone was asked: who could answer.
            answered=tuple(sorted(self._answered.get(name, alive))),
            within_grace=tuple(self._live.presumed(name, group.replicas if group else (), now_ms)),
            broker_id=broker_id,
            designate=designate,
            restarted=restarted,
            log_epoch=log_epoch,
            suspect=suspect,
            all_ack=beat is not None and beat.all_ack,
            master_epoch=master_epoch,
            unclean=self._config.elect_unclean_master,
            ends=self._live.ends(name),
        )
