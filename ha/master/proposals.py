"""How does a change of the SyncStateSet get to the Controllers? One proposal at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ha.master.membership import Proposal
from ha.master.sync_set import SyncSet
from model.errors import MqError, Unknown
from model.ids import BrokerId
from runtime.backoff import Backoff
from runtime.env import Env
from runtime.loops import UNTIL_WOKEN, level_triggered
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

Answer = tuple[frozenset[BrokerId], int] | None
Propose = Callable[[frozenset[BrokerId], int], Awaitable[Answer]]
"""Ask the Controllers for a SyncStateSet, given the epoch of the set it replaces: the set and epoch they hold
now, or None when they refused. Raises Unknown when no answer came, ConnectionError when nothing was sent."""


class Proposals:
    """Proposes for one master as long as the desired set differs from the Controllers'."""

    def __init__(self, env: Env, sync: SyncSet, on_change: Callable[[], None]) -> None:
        """``on_change``: hear that the set, or what counts beside it, changed."""
        self.propose: Propose | None = None
        """How to ask in the epoch there is; None: the set stays."""
        self._wake = asyncio.Event()
        self._env = env
        self._sync = sync
        self._on_change = on_change
        self._backoff = Backoff(env.random, 50, 1000)
        self._told = ""  # why nothing could be proposed, as long as that is so
        self._tasks = Tasks("ha.proposals")

    def start(self) -> None:
        self._tasks.spawn(self._run(), name="propose")

    async def stop(self) -> None:
        await self._tasks.cancel()

    def consider(self) -> None:
        """Something happened: is there something to propose now?"""
        if self._sync.desired_members(self._env.monotonic_ms()) != self._sync.members:
            self._wake.set()

    async def _run(self) -> None:
        retry = Backoff(self._env.random, 50, 1000)
        await level_triggered(self._step, self._wake, UNTIL_WOKEN, retry, "proposing a SyncStateSet")

    async def _step(self) -> float:
        propose, now_ms = self.propose, self._env.monotonic_ms()
        if propose is None:
            return UNTIL_WOKEN
        self._sync.on_tick(now_ms)
        proposal = self._sync.propose(now_ms)
        if proposal is None:
            return UNTIL_WOKEN
        applied = await self._ask(propose, proposal)
        self._on_change()
        if applied:
            self._told = ""
            self._backoff.reset()
        else:
            # Not a wait of the loop: each acknowledgement would end it while the set is not as it should be.
            await asyncio.sleep(self._backoff.next_s())
        return 0.0

    async def _ask(self, propose: Propose, proposal: Proposal) -> bool:
        """Whether the Controllers' set is another one now."""
        sync, desired = self._sync, sorted(proposal.members)
        try:
            answer = await propose(proposal.members, proposal.base)
        except Unknown as error:
            log.warning("SyncStateSet %s proposed, outcome unknown: %s", desired, error)
            sync.on_unanswered(proposal)
        except (MqError, OSError) as error:
            if str(error) != self._told:
                log.info("SyncStateSet %s not proposed yet: %s", desired, error)
            self._told = str(error)
            sync.on_refused(proposal, self._env.monotonic_ms())
        except Exception:
            # Not foreseen; but without proposals the next slave to die would hold every answer for good.
            log.exception("SyncStateSet %s proposed, outcome unknown", desired)
            sync.on_unanswered(proposal)
        else:
            # The view may have told us of it before the answer came.
            if answer is not None and (sync.on_view(*answer) or answer[1] == sync.set_epoch != proposal.base):
                log.info("SyncStateSet is %s", sorted(sync.members))
                return True
            log.warning("SyncStateSet %s was refused", desired)
            sync.on_refused(proposal, self._env.monotonic_ms())
        return False
