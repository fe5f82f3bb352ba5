"""How does a broker stop without losing what it answered, or what it is about to answer?

drain       no writes are taken; answers under way leave; a slave gets the log and the committed offsets
step down   that slave is elected
hang up     Controllers and NameServers see this broker go; clients are told, and answered once more
close       tables and log are written, files closed
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from broker.parts import BrokerParts

DRAIN_S: Final = 1.0  # time for answers that wait for slaves or the disk
QUIET_S: Final = 0.5  # drain time for clients after GO_AWAY: a busy one sends what it began before it knew
QUIET_AT_MOST_S: Final = 3.0


async def stop(broker: BrokerParts) -> None:
    """The whole sequence, once."""
    await _drain_and_step_down(broker)
    await broker.role.stop()
    # Slaves too slow to wait for: the sender shall know that its message is stored here, and only that.
    broker.context.pending_acks.give_up()
    await broker.registration.stop()
    await broker.processors.pulls.release_all()
    broker.processors.pops.role_ended()
    await broker.processors.pops.answered()
    await broker.roles.stop()
    await broker.tasks.cancel()
    if broker.started:
        await broker.server.dismiss(QUIET_S, QUIET_AT_MOST_S)
    await broker.server.stop()
    await broker.processors.replies.stop()
    await broker.group_address.stop()
    broker.context.pending_acks.drop()
    await broker.client.close()
    await broker.context.ha.stop()
    await broker.tables.stop()
    await broker.context.store.close()


async def _drain_and_step_down(broker: BrokerParts) -> None:
    roles, role_state = broker.roles, broker.context.role_state
    broker.role.on_stopping()
    target = roles.transfer_target() if role_state.is_master else None
    # No more writes, while replication goes on until the answers under way have left: the successor then has
    # all of them, and is elected as soon as the Controllers see this broker hang up.
    broker.group_address.hold(True)
    # Neither fenced nor going away yet: slaves copy what consumers committed from a master that answers.
    role_state.handing_over = True
    if not await roles.wait_drained(target, DRAIN_S):
        target = roles.transfer_target() if target is not None else None  # the first one stalled
    # No new connections from here on: one not yet accepted when a port closes is cut off with what was sent
    # on it.
    broker.server.stop_accepting()
    broker.server.go_away()
    broker.role.machine.on_change()
    role_state.set(replace(role_state.state, role="fenced", master_address=None))
    # One that lacks what was answered must not be named: an election asks which log is longest.
    if target is not None and (roles.end_of(target) or 0) >= broker.context.ha.replicated:
        await broker.role.hand_over_at_stop(target)
    broker.group_address.leave()
