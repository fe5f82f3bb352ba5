"""How do the Controllers hear that this broker lives, and a master that it still is one?

A heartbeat goes to every Controller each ``brokerHeartbeatInterval``, or each fifth of the heartbeat timeout
where that is shorter (300 ms by default). A master's asks their leader for a lease (``broker/role/lease``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from broker.membership.controllers import Controllers
from broker.role.epochs import recorded_epoch, reported_end
from broker.role.lease import Lease
from broker.role.machine import RoleMachine
from broker.role.parts import RoleParts
from model.errors import MqError
from model.ids import BrokerId, Epoch
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

HURRY_MS: Final = 100.0  # a lost connection is made anew at once, but not more often than this


class Heartbeats:
    """``on_lease`` hears each lease granted: its epoch and the leader's term, None = not said.
    ``on_no_lease`` hears that the leader grants none: it knows another master or epoch, or does not lead.
    ``on_back`` hears that a lease that had ended is there again."""

    def __init__(
        self,
        parts: RoleParts,
        machine: RoleMachine,
        controllers: Controllers,
        tasks: Tasks,
    ) -> None:
        self.lease = Lease(parts.env.monotonic_ms)
        self.on_lease: Callable[[Epoch, int | None], None] = lambda epoch, term: None
        self.on_no_lease: Callable[[], None] = lambda: None
        self.on_back: Callable[[], None] = lambda: None
        self._parts = parts
        self._machine = machine
        self._controllers = controllers
        self._tasks = tasks
        self._hurried_ms = float("-inf")
        self._renewing = False
        self._held = False
        self._timer: asyncio.TimerHandle | None = None

    def cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def send(self, broker_id: BrokerId) -> None:
        """One heartbeat to every Controller; a master asks the leader for a lease with it."""
        leader = self._controllers.leader
        if self._machine.is_master and self.lease.supported is not False:
            if not self._renewing:
                timeout_s = self._parts.config.controller_heartbeat_timeout_ms / 5000
                self._tasks.spawn(self.renew(broker_id, timeout_s), name="renew")
        else:
            leader = None
        self._controllers.beat(self.fields(broker_id), skip=leader)

    def send_to_all(self, broker_id: BrokerId) -> None:
        """Tell a new role or epoch now, not at the next heartbeat."""
        self._controllers.beat(self.fields(broker_id))

    def may_hurry(self) -> bool:
        """Whether a heartbeat may go out of turn now; counts as one that did."""
        now_ms = self._parts.env.monotonic_ms()
        if now_ms - self._hurried_ms < HURRY_MS:
            return False
        self._hurried_ms = now_ms
        return True

    def begin(self, epoch: Epoch, *, lease_required: bool) -> None:
        """Master of ``epoch`` soon: its leases count from now on."""
        self.lease.begin(epoch, required=lease_required)
        self._held = self.lease.holds()  # the end of another epoch's may not have been noticed yet

    async def renew(self, broker_id: BrokerId, timeout_s: float) -> None:
        """Ask for a lease; without an answer the next heartbeat asks again."""
        self._renewing = True
        epoch = self.lease.epoch
        try:
            ext = self.fields(broker_id) | {"leaseEpoch": str(epoch)}
            if self.lease.required:
                ext["keepsToLeases"] = "true"
            async with asyncio.timeout(timeout_s):
                granted = await self._controllers.ask_lease(ext, timeout_s)
        except (MqError, OSError) as error:  # TimeoutError is an OSError
            log.debug("%s: no lease: %s", self._parts.name, error)
            return
        finally:
            self._renewing = False
        if granted.elects_outsiders:
            self.lease.require(epoch)
        if self.lease.answered(epoch, granted.asked_ms, granted.lease_ms, granted.term):
            log.warning(
                "%s: the Controllers grant no leases, so this master does not notice when it is cut off from"
                " them: the rules of the original RocketMQ apply",
                self._parts.name,
            )
        if self.lease.holds():
            self._parts.ha.on_lease()
            self.on_lease(epoch, granted.term)
        elif granted.lease_ms == 0:
            self.on_no_lease()
        self._watch()

    def _watch(self) -> None:
        """Tell when a master's lease ended and when it is there again."""
        held = self.lease.holds()
        if held != self._held and self._machine.is_master:
            self._parts.env.events.add("lease_renewed" if held else "lease_ended", epoch=self.lease.epoch)
            if held:
                self.on_back()  # a registration may have waited for it
            else:
                log.warning("%s: the lease of epoch %d ended", self._parts.name, self.lease.epoch)
        self._held = held
        self.cancel_timer()
        self._timer = None
        if held and self.lease.supported:
            delay_s = self.lease.left_ms / 1000 + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._watch)

    def status(self) -> dict[str, Any] | None:
        if not self._machine.is_master or self.lease.supported is None:
            return None
        left_ms = self.lease.left_ms if self.lease.supported else None
        return {"supported": self.lease.supported, "leftMs": left_ms and round(left_ms)}

    def fields(self, broker_id: BrokerId) -> dict[str, str]:
        config, store = self._parts.config, self._parts.store
        current, last_epoch = self._parts.current.state, recorded_epoch(store)
        fields = {
            "clusterName": config.cluster_name,
            "brokerName": config.broker_name,
            "brokerAddr": config.address,
            "brokerId": broker_id,
            # A slave's is that of its log: one that has not met the new master yet ranks behind the others.
            "epoch": max(current.epoch, last_epoch) if current.is_master else last_epoch,
            "maxOffset": reported_end(store, synced=config.flush_disk_type == "SYNC_FLUSH"),
            "confirmOffset": store.confirmed,
            "heartbeatTimeoutMills": config.controller_heartbeat_timeout_ms,
            "electionPriority": config.election_priority,
            "haServerAddr": config.ha_address,
            "leases": "true",
            "allAckInSyncStateSet": str(self._parts.ha.all_ack).lower(),
        }
        return {name: str(value) for name, value in fields.items()}
