"""Who decides whether this broker is master, and what does it do about it?

With ``enableControllerMode`` the Controllers decide. One task looks at their view each
``syncBrokerMetadataPeriod``, and at once when something hints at a change (a notice 1008, a lost connection),
and makes this broker what the view says: level-triggered, so nothing is lost when a message is. Beside it
heartbeats go to every Controller; the connection they use stays open, its end tells that this broker died.

    no id -> id from brokerIdentity or applied for -> registered -> (elected) -> master | slave
    any of these -> fenced for good, when the store breaks

While no Controller answers, the broker keeps its role. Order and rules: Apache RocketMQ 5.x,
``broker/controller/ReplicasManager``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from broker.role.broker_id import LOST, BrokerIdAllocator
from broker.role.classic import ClassicRole
from broker.role.controllers import Controllers, View
from broker.role.host import RoleHost
from broker.role.identity import Identity
from broker.role.lease import Lease
from broker.role.link_watch import LOOK_S, LinkWatch
from broker.role.reboot import Found, UncleanRebootDetector
from broker.role.registration import FENCED
from broker.state.role_state import Role
from ha.own_log import classic_from
from ha.service import HaService
from model.codes import Response
from model.config import BrokerConfig
from model.errors import MqError, Refused, Unknown
from model.ids import MASTER_ID
from remoting.codec import Command
from remoting.headers import need_int, opt_int
from remoting.service import RemotingClient
from runtime.backoff import Backoff
from runtime.env import Env
from runtime.tasks import Tasks, every
from store.files.epoch_file import EpochEntry
from store.message_store import MessageStore

log = logging.getLogger(__name__)

RETRY_FIRST_MS: Final = 50
DRAIN_S: Final = 1.0  # a handover gives the transfer target so long to catch up
RESUME_S: Final = 2.0  # a master that handed over and is still master then takes writes again
OUTCOME_S: Final = 0.02  # and asks so often whether that came to nothing
YIELD_S: Final = 1.0  # at a stop: time for the Controllers to elect the transfer target
HURRY_MS: Final = 100.0  # a lost connection is made anew at once, but not more often than this
LEASE_FIRST_S: Final = 0.3  # a new master waits at most so long for its first lease before it serves
UNKNOWN_TO_CONTROLLER: Final = (
    Response.CONTROLLER_BROKER_METADATA_NOT_EXIST,
    Response.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
)


class RoleManager:
    """This broker's life with the Controllers, or the role its configuration gives it without them.

    ``on_change`` hears every change of role, master or epoch, and that a lease is there again; the
    NameServers are to be told then.
    ``on_no_ha_address`` hears again and again that this slave does not know where its master replicates
    from; only a NameServer that the master has registered at can tell (``ha_address_of``).
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        store: MessageStore,
        ha: HaService,
        client: RemotingClient,
        host: RoleHost,
    ) -> None:
        self.role: Role = "fenced"
        self.broker_id: int | None = None  # the permanent one, given by the Controller
        self.epoch = 0  # of the master this broker knows
        self.master_address: str | None = None
        self.reason: str | None = "no word from a Controller yet"
        self.on_change: list[Callable[[], None]] = []
        self.on_no_ha_address: list[Callable[[], None]] = []
        self._env = env
        self._config = config
        self._store = store
        self._ha = ha
        self._host = host
        self._controllers = Controllers(env, config, client)
        self._classic = ClassicRole(config, host)
        self._identity = Identity(env.disk, config)
        self._applicant = BrokerIdAllocator(env, config, self._identity, self._controllers)
        self._boot = UncleanRebootDetector(env, config.store_path)
        self.lease = Lease(env.monotonic_ms)
        self._hurried_ms = float("-inf")
        self._stopping = False
        self._renewing = False
        self._lease_held = False
        self._lease_timer: asyncio.TimerHandle | None = None
        self._resume_timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks("role")
        self._wake = asyncio.Event()
        self._changing = asyncio.Lock()
        self._registered = False
        self._was_registered = False
        self._asked_anew = False
        self._announced = False
        self._broken: str | None = None
        self._ha_address: str | None = None
        self._ha_hints: dict[str, str] = {}  # master's address -> HA address, as NameServers tell

    async def start(self) -> None:
        """Take up the work; returns before there is a role when Controllers decide.

        Raises ConfigError when the store's identity cannot be right, DiskError.
        """
        self._store.on_broken.append(self._store_broke)
        self._ha.on_broken.append(self._ha_broke)
        if not self._config.enable_controller_mode:
            classic = self._classic
            # Before the first byte that no epoch will tell from others at its place.
            self._store.epochs.leave(self._store.truncate_partial_tail())
            self.broker_id = classic.broker_id
            await classic.take_up()
            self._became(classic.role, 0, self._config.address if classic.role == "master" else None)
            return
        self.broker_id = self._identity.broker_id()
        await self._env.offload(partial(self._begin_boot, self.broker_id is not None))
        self._tasks.spawn(self._live(), name="life")
        # A lease is 0.8 of the timeout: four questions fit into it.
        timeout_ms = self._config.controller_heartbeat_timeout_ms
        period_s = min(self._config.broker_heartbeat_ms, timeout_ms / 5) / 1000
        self._tasks.spawn(every(period_s, self._beat, what="the heartbeat"), name="heartbeat")
        watch = LinkWatch(self._env.monotonic_ms, self._controllers.alive, self._linked)
        self._tasks.spawn(every(LOOK_S, watch.look, what="looking for lost replicas"), name="links")

    def _begin_boot(self, named: bool) -> None:
        recovered, was_longer = self._store.recovered, self._store.was_longer
        found = Found(
            clean=recovered is None or recovered.clean,
            synced=self._config.flush_disk_type == "SYNC_FLUSH",
            named=named,
            end=self._store.log.end,
            was_longer=was_longer.end,
        )
        self._boot.begin(found)
        try:
            was_longer.forget()  # bootId.json says it now
        except OSError as error:
            log.warning("%s: it stays noted that the log was longer: %s", self._config.broker_name, error)

    async def stop(self) -> None:
        """No more heartbeats, no more changes of role; the Controllers see the connection end. Idempotent."""
        self._stopping = True
        if self._store_broke in self._store.on_broken:
            self._store.on_broken.remove(self._store_broke)
            self._ha.on_broken.remove(self._ha_broke)
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        self._forget_resume()
        await self._tasks.cancel()
        await self._controllers.stop()
        if self._config.enable_controller_mode:
            self._controllers.hang_up()

    # What others ask and tell

    @property
    def registration_id(self) -> int:
        """The id for the NameServers: 0 while master, the permanent one while slave, -1 while fenced."""
        if self.role == "master" or self._announced:
            return MASTER_ID
        return self.broker_id if self.role == "slave" and self.broker_id is not None else FENCED

    async def notice(self, command: Command, address: str) -> None:
        """NOTIFY_BROKER_ROLE_CHANGED (1008): a hint to look at the Controllers' view now.

        The view itself is read from their leader: a forged notice moves nothing. ``address``: whom the
        connection was made to that it came on; a Controller that tells of an election leads, or did just now.
        """
        epoch = opt_int(command.ext, "masterEpoch", 0)
        if not command.ext.get("masterBrokerId") or epoch < self.epoch:
            return
        self._controllers.heard_of_election(address)
        if epoch > self.epoch:
            self._wake.set()

    async def hand_over_to(self, command: Command) -> int:
        """The Controllers' leader asks this master to make way (ELECT_MASTER): our log's end, all of it at
        the transfer target, bytes.

        No writes are taken and the lease is given up from here on, until another role comes, a lease is
        granted again, which the Controllers do while they elect nobody, or a moment has passed. Raises
        Refused: nothing changed.
        """
        transfer_target, epoch = need_int(command.ext, "brokerId", 0), need_int(command.ext, "masterEpoch", 0)
        if self.role != "master" or epoch != self.epoch:
            raise Refused(f"not master of epoch {epoch}", Response.CONTROLLER_INVALID_MASTER)
        # The end of an earlier handover's wait must not reopen writes in the middle of this one.
        self._forget_resume()
        drained = await self._host.drain(transfer_target, DRAIN_S)
        if self.role != "master" or epoch != self.epoch:
            text = f"not master of epoch {epoch} any more"  # whoever came since has its own writes and lease
            raise Refused(text, Response.CONTROLLER_INVALID_MASTER)
        if not drained:
            # No lease was granted while the transfer target was waited for, so the one it has ends any
            # moment; and the target of an earlier handover may still come.
            self._resume_later(epoch)
            text = f"broker {transfer_target} does not have the whole log within {DRAIN_S:g} s"
            raise Refused(text, Response.CONTROLLER_ELECT_MASTER_FAILED)
        self.lease.give_up(opt_int(command.ext, "term", -1))
        self._resume_later(epoch)
        return self._store.log.end

    def _resume_later(self, epoch: int) -> None:
        self._forget_resume()
        self._resume_timer = asyncio.get_running_loop().call_later(RESUME_S, self._resume, epoch)
        self._tasks.spawn(self._ask_outcome(self._resume_timer), name="outcome")

    async def _ask_outcome(self, waiting: asyncio.TimerHandle) -> None:
        while True:
            await asyncio.sleep(OUTCOME_S)
            if self._resume_timer is not waiting:
                return
            self._beat()

    def _forget_resume(self) -> bool:
        """Whether there was a timer to stop."""
        timer, self._resume_timer = self._resume_timer, None
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _resume(self, epoch: int) -> None:
        self._resume_timer = None
        if self.role == "master" and self.epoch == epoch:
            log.warning("%s: nobody took over, it takes writes again", self._config.broker_name)
            self._host.resume()

    async def step_down_for(self, transfer_target: int) -> None:
        """Have ``transfer_target`` elected: this broker is drained and about to stop. Raises nothing that
        matters: if it fails, the end of our connection starts an election."""
        if not self._config.enable_controller_mode or self.broker_id is None or self.role != "master":
            return
        self.lease.give_up()
        try:
            async with asyncio.timeout(YIELD_S):
                await self._controllers.elect(transfer_target, yields=self.broker_id, epoch=self.epoch)
        except (MqError, OSError) as error:
            log.info("%s stops without a handover: %s", self._config.broker_name, error)

    def lost(self, address: str) -> None:
        """The connection to ``address`` ended; if the Controllers' leader was there, look for another one."""
        if address == self._controllers.leader:
            self._controllers.leader = None
            self._wake.set()
        now_ms = self._env.monotonic_ms()
        if address in self._controllers.all() and now_ms - self._hurried_ms >= HURRY_MS:
            # Perhaps only the connection was lost: be heard again before we are taken for dead.
            self._hurried_ms = now_ms
            self._beat()

    def ha_address_of(self, master_address: str, ha_address: str) -> None:
        """A NameServer told the HA address of a master; Controllers of the real RocketMQ do not."""
        if not self._config.enable_controller_mode:
            self._tasks.spawn(self._follow_named(master_address, ha_address), name="classic master")
            return
        if self._ha_hints.get(master_address) != ha_address:
            self._ha_hints = {master_address: ha_address}
            of_group = master_address == self._config.group_address
            if self.role == "slave" and (
                of_group or (self._ha_address is None and self.master_address == master_address)
            ):
                self._wake.set()

    def status(self) -> dict[str, Any]:
        """JSON-ready. ``following``: how a slave gets on with its master's log (``ha.slave.State``)."""
        return {
            "role": self.role,
            "brokerId": self.broker_id,
            "epoch": self.epoch,
            "master": self.master_address,
            "controller": self._controllers.leader,
            "registered": self._registered,
            "reason": self.reason or self._ha.needs_reseed,
            "lease": self._lease_status(),
            "following": self._ha.status()["following"],
        }

    # Without Controllers

    async def _follow_named(self, master_address: str, ha_address: str) -> None:
        async with self._changing:
            if self._broken is not None or self.role != "slave":
                return
            if self._ha.follows and not self._classic.replicates_from(ha_address):
                return  # NameServers may disagree: a link that works is not left for the word of another one
            if await self._classic.named(master_address, ha_address):
                # Not ``on_change``: there is nothing to register, and an answer may name another master.
                self.master_address = master_address

    # With Controllers

    def _linked(self) -> set[int] | None:
        if self.role != "master" or self.broker_id is None:
            return None
        return {self.broker_id, *(slave["id"] for slave in self._ha.slaves())}

    async def _live(self) -> None:
        period_s = self._config.sync_broker_metadata_ms / 1000
        backoff = Backoff(self._env.random, RETRY_FIRST_MS, self._config.sync_broker_metadata_ms)
        while self._broken is None:
            self._wake.clear()
            wait_s = period_s
            try:
                await self._look()
            except (MqError, OSError, ValueError) as error:
                self._note(str(error) or type(error).__name__)
                wait_s = backoff.next_s()
            except Exception:
                # Not foreseen; but a broker that looks no more would keep its role whatever is decided.
                log.exception("%s: looking at the Controllers' view failed", self._config.broker_name)
                wait_s = backoff.next_s()
            else:
                backoff.reset()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _note(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("%s: %s", self._config.broker_name, reason)
        self.reason = reason

    async def _look(self) -> None:
        """Read the Controllers' view and become what it says."""
        if self.broker_id is None:
            self.broker_id = await self._applicant.apply()
        try:
            if self._registered:
                view = await self._controllers.replica_info()
                stayed = self.broker_id in view.members & view.doubtful
                if stayed and self._boot.suspect and self.role == "slave":
                    # A member for want of another one; now there is a master to vouch for it.
                    view = await self._register(self.broker_id)
            else:
                view = await self._register(self.broker_id)
            if view.master_id is None:
                lacks = self._host.lacks()
                if lacks is not None:
                    raise MqError(f"no master to copy from what was lost here: {lacks}")
                view = await self._elect(self.broker_id, view)
        except Refused as refused:
            if refused.code in UNKNOWN_TO_CONTROLLER:
                if self._registered:
                    self._registered = False
                    self._wake.set()
                else:
                    # It lost its memory of this broker, or never had it: apply for the same id anew.
                    empty = self._store.log.end == self._store.log.min_offset
                    self.broker_id = await self._applicant.apply_anew(self.broker_id, empty=empty)
            raise
        await self._become(self.broker_id, view)
        if self.role == "slave" and self.broker_id in view.members - view.doubtful:
            await self._env.offload(self._boot.settle)
        if self._boot.owes_bytes and self._store.log.end > 0:
            await self._env.offload(self._boot.on_bytes)
        if self.role == "slave" and self._ha_address is None:
            for hook in self.on_no_ha_address:
                hook()

    @property
    def _unclean(self) -> bool:
        """Whether this process began without an orderly end before it, and acknowledges what is not synced:
        what a power failure took was counted on by the master."""
        recovered = self._store.recovered
        unclean = recovered is not None and not recovered.clean
        return unclean and self._config.flush_disk_type != "SYNC_FLUSH"

    async def _register(self, broker_id: int) -> View:
        view = await self._controllers.register(
            broker_id, unclean=self._unclean and not self._was_registered, doubtful=self._boot.suspect
        )
        self._registered = self._was_registered = True
        # Before an election this broker must be known to be alive.
        if self._host.lacks() is None:
            await self._controllers.beat_leader(self._heartbeat(broker_id))
        return view

    async def _elect(self, broker_id: int, view: View) -> View:
        try:
            return await self._controllers.elect(broker_id)
        except Refused as refused:
            if refused.code in UNKNOWN_TO_CONTROLLER:
                raise
            if self.role == "master" and view.epoch > self.epoch:
                # Deposed, and nobody took over: what we confirm now could be lost.
                await self._fence(f"no master since epoch {view.epoch}: {refused.remark}")
            raise

    async def _become(self, broker_id: int, view: View) -> None:
        async with self._changing:
            if self._broken is not None or view.epoch < self.epoch:
                return
            if view.epoch > self.epoch:
                self._store.throttle.give_way()
            if view.master_id == broker_id:
                if self.role == "master" and view.epoch == self.epoch:
                    # A real Controller answers from what it has applied itself, though another may lead by
                    # now: its view says nothing of a proposal without an answer. Ours, which grant leases,
                    # answer when a majority has confirmed that they lead.
                    asked_ms = view.asked_ms if self.lease.supported else None
                    self._ha.adopt(view.members, view.set_epoch, asked_ms)
                else:
                    await self._lead(broker_id, view)
            else:
                await self._follow(broker_id, view)
            self.reason = None

    async def _lead(self, broker_id: int, view: View) -> None:
        lacks = self._host.lacks()
        if lacks is not None:
            # No heartbeats are sent meanwhile: the Controllers elect another one, if there is one.
            raise MqError(f"cannot lead before it is copied from a master: {lacks}")
        last = self._store.epochs.last
        recorded = last.epoch if last is not None else 0
        if self.role != "master":
            if view.epoch < recorded:
                raise MqError(
                    f"the Controller wants us to lead epoch {view.epoch}, but our log has epoch {recorded};"
                    f" {LOST}"
                )
            # We led this epoch before a restart, or were elected while we were down. If the machine lost the
            # end of the log, another replica may hold other bytes there, acknowledged and under the same
            # epoch: a Controller that understands gives a new epoch, or another master.
            unsure = self._unclean or self._boot.suspect
            if not self._asked_anew and (view.epoch == recorded or unsure):
                view = await self._controllers.elect(
                    broker_id,
                    restarted=True,
                    log_epoch=recorded,
                    doubtful=self._boot.suspect,
                    epoch=view.epoch,
                )
                self._asked_anew = True
                if view.master_id != broker_id:
                    await self._follow(broker_id, view)
                    return
        if self.role != "master":
            await self._ha.become_fenced()
        self._label(view.epoch)
        # Controllers that do not tell where slaves replicate from leave that to the NameServers, and a real
        # slave stays with whom they name first: they hear of us before anything that takes time. Writes are
        # refused until ``lead``. With Controllers of ours clients would come too early, for nothing.
        self._announced = view.master_ha_address is None and self.role != "master"
        try:
            if self._announced:
                self._host.announce(view.epoch)
            await self._lead_now(broker_id, view)
        finally:
            announced, self._announced = self._announced, False
            if announced and self.role != "master":
                for hook in self.on_change:
                    hook()  # it came to nothing: the NameServers are to know

    def _label(self, epoch: int) -> None:
        """Give every byte of the log an epoch, before ``epoch`` is led.

        What was written before there were Controllers, or in a time without them, belongs to the first epoch
        after it: a replica that has other bytes there is cut where that time began. Where no new epoch was
        given, this one begins there instead: a replica that has it from before finds it nowhere.

        A real broker's first epoch starts where its log ended when Controllers came. What lies before gets a
        number below all they give: a replica without it could not be sent it.
        """
        epochs, begin = self._store.epochs, self._store.log.min_offset
        since, last = classic_from(self._store), epochs.last
        if since is not None and (last is None or epoch > last.epoch):
            epochs.append(epoch, since)
        elif since is not None:
            epochs.replace([*epochs.entries[:-1], EpochEntry(epoch, since)])
            epochs.labelled()
        entries = epochs.entries
        if entries and entries[0].start > begin and entries[0].epoch > 0:
            epochs.replace([EpochEntry(0, begin), *entries])

    async def _lead_now(self, broker_id: int, view: View) -> None:
        self.lease.begin(view.epoch)
        self._lease_held = self.lease.holds()  # that of another epoch: its end may not have been noticed yet
        self._ha.holds_lease = self.lease.holds
        # Before it serves, so that it refuses nobody for want of one; without an answer it serves all the
        # same, and asks again with every heartbeat.
        await self._renew(broker_id, LEASE_FIRST_S)
        propose = partial(self._propose, broker_id, view.epoch)
        # Elected by Controllers that knew of the doubt: what this log has is what the group has.
        await self._env.offload(self._boot.settle)
        await self._host.lead(broker_id, view.epoch, view.members, view.set_epoch, propose)
        self._became("master", view.epoch, self._config.address)

    async def _follow(self, broker_id: int, view: View) -> None:
        address = view.master_address
        ha_address = view.master_ha_address
        if ha_address is None and address is not None:
            # Under a group address a NameServer does not say which broker the hint is of: one that is late is
            # refused there, and the next registration brings another.
            ha_address = self._ha_hints.get(address) or self._ha_hints.get(self._config.group_address)
        if ha_address is None and address == self.master_address and self.role == "slave":
            ha_address = self._ha_address
        wanted = ("slave", view.epoch, address, ha_address)
        if wanted == (self.role, self.epoch, self.master_address, self._ha_address):
            return
        # Only keelmq brokers tell the Controllers where slaves replicate from.
        self._ha.expect_master(rocketmq_peer=view.master_ha_address is None)
        await self._host.follow(broker_id, view.epoch, address, ha_address)
        self._asked_anew = True  # whoever elects us from now on has seen what our log holds
        self._ha_address = ha_address
        self._became("slave", view.epoch, address)

    def _became(self, role: Role, epoch: int, master_address: str | None) -> None:
        before = (self.role, self.epoch, self.master_address)
        self._forget_resume()
        self.role, self.epoch, self.master_address = role, epoch, master_address
        if role != "slave":
            self._ha_address = None
        if role != "fenced":
            self.reason = None
        if before == (role, epoch, master_address):
            return
        log.info("%s is %s in epoch %d, master %s", self._config.broker_name, role, epoch, master_address)
        if self._registered and self.broker_id is not None and role != "fenced":
            # The Controller learns the new epoch now, not half a second later.
            self._controllers.beat(self._heartbeat(self.broker_id))
        for hook in self.on_change:
            hook()

    async def _propose(
        self, broker_id: int, epoch: int, members: frozenset[int], set_epoch: int
    ) -> tuple[frozenset[int], int] | None:
        try:
            answer = await self._controllers.alter(broker_id, epoch, members, set_epoch)
        except Unknown:
            self._wake.set()  # the view tells what became of it
            raise
        if answer is None:
            self._wake.set()  # perhaps our set, epoch or role is not what it was
        return answer

    # Heartbeats

    def _beat(self) -> None:
        if not self._registered or self._broken is not None or self.broker_id is None or self._stopping:
            return
        if self._host.lacks() is not None:
            return  # who is not alive is not elected
        leader = self._controllers.leader
        if self.role == "master" and self.lease.supported is not False:
            if not self._renewing:
                timeout_s = self._config.controller_heartbeat_timeout_ms / 5000
                self._tasks.spawn(self._renew(self.broker_id, timeout_s), name="renew")
        else:
            leader = None
        self._controllers.beat(self._heartbeat(self.broker_id), skip=leader)

    async def _renew(self, broker_id: int, timeout_s: float) -> None:
        """Ask for a lease; no answer is noted, and asked for again with the next heartbeat."""
        self._renewing = True
        epoch = self.lease.epoch
        try:
            ext = self._heartbeat(broker_id) | {"leaseEpoch": str(epoch)}
            async with asyncio.timeout(timeout_s):
                asked_ms, lease_ms, term = await self._controllers.ask_lease(ext, timeout_s)
        except (MqError, OSError) as error:  # TimeoutError is an OSError
            log.debug("%s: no lease: %s", self._config.broker_name, error)
            return
        finally:
            self._renewing = False
        if self.lease.answered(epoch, asked_ms, lease_ms, term):
            log.warning(
                "%s: the Controllers grant no leases, so this master does not notice when it is cut off from"
                " them: the rules of the original RocketMQ apply",
                self._config.broker_name,
            )
        if self.lease.holds():
            self._ha.on_lease()
            # Of a leader that does not say its term nobody knows whether it is the one that elects.
            if term is not None and epoch == self.epoch and self._forget_resume():
                self._resume(epoch)
        elif lease_ms == 0:
            self._wake.set()  # the leader knows another master or epoch, or does not lead
        self._watch_lease()

    def _watch_lease(self) -> None:
        """Tell when a master's lease ended and when it is there again."""
        held = self.lease.holds()
        if held != self._lease_held and self.role == "master":
            self._env.events.add("lease_renewed" if held else "lease_ended", epoch=self.lease.epoch)
            for hook in self.on_change if held else ():
                hook()  # a registration may have waited for it
            if not held:
                log.warning("%s: the lease of epoch %d ended", self._config.broker_name, self.lease.epoch)
        self._lease_held = held
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        if held and self.lease.supported:
            delay_s = self.lease.left_ms / 1000 + 0.001
            self._lease_timer = asyncio.get_running_loop().call_later(delay_s, self._watch_lease)

    def _lease_status(self) -> dict[str, Any] | None:
        if self.role != "master" or self.lease.supported is None:
            return None
        left_ms = self.lease.left_ms if self.lease.supported else None
        return {"supported": self.lease.supported, "leftMs": left_ms and round(left_ms)}

    def _heartbeat(self, broker_id: int) -> dict[str, str]:
        last = self._store.epochs.last
        recorded = last.epoch if last is not None else 0
        config = self._config
        fields = {
            "clusterName": config.cluster_name,
            "brokerName": config.broker_name,
            "brokerAddr": config.address,
            "brokerId": broker_id,
            # A slave's is that of its log: one that has not met the new master yet ranks behind the others.
            "epoch": max(self.epoch, recorded) if self.role == "master" else recorded,
            "maxOffset": self._store.log.end,
            "confirmOffset": self._store.confirmed,
            "heartbeatTimeoutMills": config.controller_heartbeat_timeout_ms,
            "electionPriority": config.election_priority,
            "haServerAddr": config.ha_address,
            "leases": "true",
            "allAckInSyncStateSet": str(self._ha.all_ack).lower(),
        }
        return {name: str(value) for name, value in fields.items()}

    # The end of a store

    def _store_broke(self, error: BaseException) -> None:
        self._broke("the store is broken", error)

    def _ha_broke(self, error: BaseException) -> None:
        self._broke("stopped", error)

    def _broke(self, what: str, error: BaseException) -> None:
        """What failed for good must not lead, nor count as a replica: the Controllers hear of it at once."""
        if self._broken is None:
            self._broken = str(error) or type(error).__name__
            self._controllers.hang_up()
            self._wake.set()
            self._tasks.spawn(self._fence(f"{what}: {self._broken}"), name="fence")

    async def _fence(self, reason: str) -> None:
        async with self._changing:
            self._note(reason)
            await self._host.fence()
            self._became("fenced", self.epoch, None)
