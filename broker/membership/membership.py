"""Do the Controllers know this broker, under which id, and what do they say of its group?

    no id -> id from brokerIdentity or applied for -> registered -> its group's view, again and again

Controllers that do not know the broker any more are told again. Order and rules: Apache RocketMQ 5.x,
``broker/controller/ReplicasManager``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from broker.membership.broker_id import BrokerIdAllocator
from broker.membership.controllers import Controllers, Overtaken, Start
from broker.membership.identity import Identity
from broker.membership.reboot import Found, UncleanRebootDetector
from broker.membership.view import View
from model.codes import Response
from model.config import BrokerConfig
from model.errors import MqError, Refused
from model.ids import BrokerId
from runtime.env import Env
from runtime.tasks import SerialCalls
from store.message_store import MessageStore
from store.recover.abort_file import Stop

log = logging.getLogger(__name__)

UNKNOWN_TO_CONTROLLER: Final = (
    Response.CONTROLLER_BROKER_METADATA_NOT_EXIST,
    Response.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
)

NOTE_S: Final = 1.0
"""A look at the Controllers' view waits at most so long for the disk to take a note. Who waited for a disk
that hangs would not hear that it was elected, and the group would have no master."""


class Superseded(MqError):
    """The Controllers know this broker's id as another process's."""

    def __init__(self, broker_id: BrokerId, here: str, there: str) -> None:
        super().__init__(
            f"id {broker_id} is registered by a process at {there}: is its store a copy of the one at {here}?"
            " stop one of them, and start the other again"
        )


class Membership:
    """One broker's place in its group. Calls raise what those of ``Controllers`` and ``Identity`` do."""

    def __init__(self, env: Env, config: BrokerConfig, store: MessageStore, controllers: Controllers) -> None:
        self.broker_id: BrokerId | None = None  # the permanent one, given by the Controllers
        self.registered = False
        self._env = env
        self._config = config
        self._store = store
        self._controllers = controllers
        self._identity = Identity(env.disk, config)
        self._allocator = BrokerIdAllocator(env, config, self._identity, controllers)
        self._was_registered = False
        self._process = f"{env.random.getrandbits(64):016x}"
        self._reboot = UncleanRebootDetector(env, config.store_path, self._process)
        self._registrations = 0
        self._suspect_since_ms = float("-inf")
        self._notes = SerialCalls(env.offload)  # of ``_reboot``: one may hang, and its caller give up
        self._noting = asyncio.Lock()  # the suspicion: one is not ended while another is noted

    async def start(self) -> None:
        """Read what the store says of this broker. Raises ConfigError, DiskError."""
        self.broker_id = self._identity.broker_id()
        await self._env.offload(partial(self._begin, self.broker_id is not None))

    def _begin(self, named: bool) -> None:
        recovered, was_longer, abort = self._store.recovered, self._store.was_longer, self._store.abort
        found = Found(
            clean=recovered is None or recovered.clean,
            synced=self._config.flush_disk_type == "SYNC_FLUSH",
            named=named,
            end=self._store.log.end,
            sync_failed=abort.found is Stop.LOST,
            was_longer=was_longer.end,
        )
        self._reboot.begin(found)
        try:
            was_longer.forget()  # bootId.json says it now
            abort.on_noted()
        except OSError as error:
            log.warning(
                "%s: cannot remove the note that the log may lack something: %s",
                self._config.broker_name,
                error,
            )

    @property
    def suspect(self) -> bool:
        """The log may lack its end, and no master has taken this broker into its set since."""
        return self._reboot.suspect

    @property
    def old(self) -> bool:
        """The disk was put back to an older state of itself: what it says of the group may be old."""
        return self._reboot.old

    @property
    def unclean(self) -> bool:
        """Whether the stop before this start was not an orderly one, and this broker acknowledges before a
        sync. Then a power failure may have taken what it had acknowledged."""
        recovered = self._store.recovered
        unclean = recovered is not None and not recovered.clean
        return unclean and self._config.flush_disk_type != "SYNC_FLUSH"

    async def forget_suspicion(self) -> None:
        """The log has all that it acknowledged, or the group has decided to go on without. Who gives up
        waiting ends nothing: the next note waits for its turn."""
        if self._reboot.suspect:  # a thread may be long in coming
            await self._notes.run(self._reboot.on_whole)

    async def on_view(self, view: View) -> None:
        """This broker is a slave. A master that took it into its set had all that is confirmed copied to it;
        a view that was asked for before the suspicion began says nothing. While a note hangs, the next look
        is soon enough."""
        trusted = self.broker_id in view.members - view.suspects
        if trusted and self.suspect and not self._notes.busy:
            await self._bounded(self._forget_by(view), "until then it says that it is suspect")

    async def _forget_by(self, view: View) -> None:
        async with self._noting:
            if view.asked_ms > self._suspect_since_ms:
                await self.forget_suspicion()

    async def _note(self, note: Callable[[], None]) -> None:
        async with self._noting:
            await self._notes.run(note)

    async def _bounded(self, noting: Coroutine[Any, Any, None], otherwise: str) -> None:
        """A note that was begun goes on when it is waited for no more."""
        try:
            async with asyncio.timeout(NOTE_S):
                await noting
        except TimeoutError:
            log.warning(
                "%s: the disk took no note within %g s; %s", self._config.broker_name, NOTE_S, otherwise
            )

    async def before_reseed(self) -> None:
        """The log is about to be put aside (``autoReseed``), or cut where it may be counted on: until it is
        copied anew, what it acknowledged is not here. The Controllers hear that first, or an election could
        count this broker as one that has it.

        Raises OSError, and what registering raises: then the log must stay.
        """
        self._suspect_since_ms = float("inf")  # no view from before the Controllers heard ends the suspicion
        try:
            await self._note(self._reboot.on_loss)
            await self._register(await self.id(), lost=True)
        finally:
            self._suspect_since_ms = self._env.monotonic_ms()

    async def on_look(self) -> None:
        """Note that the log has its first bytes."""
        if self._reboot.owes_bytes and self._store.log.end > 0 and not self._notes.busy:
            noting = self._notes.run(self._reboot.on_bytes)
            await self._bounded(noting, "until then an empty log would not be noticed")

    async def id(self) -> BrokerId:
        """The permanent id, applied for if there is none yet."""
        if self.broker_id is None:
            self.broker_id = await self._allocator.apply()
        return self.broker_id

    async def view(self, *, slave: bool) -> tuple[View, bool]:
        """What the Controllers say of the group, and whether this call registered the broker for it."""
        broker_id = await self.id()
        if not self.registered:
            return await self._register(broker_id), True
        view = await self._controllers.replica_info(broker_id)
        if view.registered_at == "":
            self.registered = False
            return await self._register(broker_id), True  # it was removed while it could not hear of it
        self._refuse_to_be_a_double(broker_id, view)
        if slave and self.suspect and broker_id in view.members & view.suspects:
            # It stayed a member while no other could lead. Now there is a master to compare its log with.
            return await self._register(broker_id), True
        return view, False

    async def on_superseded(self) -> None:
        """Another process has this broker's id: what that one acknowledges under it is perhaps not here."""
        await self._note(self._reboot.on_loss)

    def _refuse_to_be_a_double(self, broker_id: BrokerId, view: View) -> None:
        """Raises Superseded when a process at another address has this broker's place: what the Controllers
        say of the id is said of that one, also that it is master."""
        there = view.registered_at
        if there is None and view.master_id == broker_id:
            there = view.master_address
        if there is not None and there != self._config.address:
            self.registered = False
            raise Superseded(broker_id, self._config.address, there)

    async def _register(self, broker_id: BrokerId, *, lost: bool = False) -> View:
        """``lost``: it is suspect, whatever is noted meanwhile."""
        unclean = self.unclean and not self._was_registered
        while True:
            await self._count()
            self._registrations += 1
            before = self._reboot.before
            start = Start(self._reboot.starts, self._process, self._registrations, before)
            try:
                view = await self._controllers.register(
                    broker_id, start, unclean=unclean, suspect=lost or self.suspect, old=self.old
                )
                break
            except Overtaken as overtaken:
                if overtaken.process == self._process:
                    raise  # by a later call of this one
                await self._on_old_disk(overtaken)
        self.registered = self._was_registered = True
        if self._reboot.owes_registered:
            await self._bounded(self._note(self._reboot.on_registered), "the next start notes it")
        self._refuse_to_be_a_double(broker_id, view)
        return view

    async def _count(self) -> None:
        """An older state of this disk lacks this start: the Controllers find it by that."""
        if not self._reboot.counted:
            await self._bounded(self._note(self._reboot.count), "the next start may be suspect, without need")

    async def _on_old_disk(self, overtaken: Overtaken) -> None:
        """What a later start acknowledged is not on this disk."""
        log.error(
            "%s: %s; this broker is suspect, its log may lack what it acknowledged",
            self._config.broker_name,
            overtaken,
        )
        await self._note(partial(self._reboot.on_old_disk, overtaken.starts, overtaken.process))

    async def on_refused(self, refused: Refused, lacks: str | None) -> bool:
        """A Controller refused. If it does not know this broker, register or apply for the id again; whether
        to try at once.

        Raises MqError where it ``lacks`` what only a master has, and there is none: it would be one more that
        a majority is counted of, and have no voice.
        """
        if refused.code not in UNKNOWN_TO_CONTROLLER:
            return False
        if self.registered:
            self.registered = False
            return True
        # It never knew this broker, or forgot it: apply for the same id again.
        if lacks is not None and (await self._controllers.replica_info(await self.id())).master_id is None:
            raise MqError(
                "the Controllers do not know this broker, and there is no master to copy from what was lost"
                f" here: {lacks}. If it was removed: start it with an empty store"
            )
        # A log that is empty because its disk is gone is none of a new broker.
        empty = self._store.log.end == self._store.log.min_offset and not self.suspect
        self.broker_id = await self._allocator.apply_anew(await self.id(), empty=empty)
        return False
