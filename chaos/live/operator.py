"""What does an operator of a live cluster do while it is being broken? As the simulated world's does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

from admin import credentials
from admin.handover import hand_over
from admin.local import rolling
from admin.local.cluster import POLL_S, ClusterNotReady, LocalCluster
from admin.local.layout import CLUSTER, Node
from client.admin import AdminClient, SyncState
from model.errors import MqError
from runtime.env import Env
from runtime.tasks import Tasks

Ended = Callable[[Exception | None], None]
"""Hears of the end of what an operator did: None, or why the cluster did not let it."""

MEMBERS_S: Final = 10.0
"""How long a rolling change waits for all members before the next broker."""

WHOLE_S: Final = 60.0
"""How long an upgrade waits before the next server."""

WORK_S: Final = 600.0
"""How long one thing that an operator does may take."""


class Operator:
    """One thing at a time. ``refused`` is told what the cluster did not let it do."""

    def __init__(self, env: Env, cluster: LocalCluster, refused: Callable[[str], None]) -> None:
        self._env, self._cluster, self._refused = env, cluster, refused
        self._tasks = Tasks("operator")
        self._task: asyncio.Task[None] | None = None

    def hand_over(self, ended: Ended) -> bool:
        """Ask for another master; False while the operator is busy."""
        namesrvs = [one.address for one in self._cluster.layout.namesrvs]

        async def ask() -> None:
            await hand_over(
                self._env,
                namesrvs,
                self._controllers(),
                CLUSTER,
                self._group(),
                credentials=credentials.read(),
            )

        return self._work(ask, ended)

    def change(
        self,
        values: Mapping[str, str],
        master: Callable[[], str | None],
        restart: Callable[[Node], Awaitable[None]],
        ended: Ended,
    ) -> bool:
        """Restart the brokers with other ``values``, slaves first, each when all are members again."""

        async def change() -> None:
            left = list(self._cluster.layout.broker_nodes)
            while left:
                await self._cluster.wait_ready(timeout_s=MEMBERS_S)
                one = next((one for one in left if one.name != master()), left[0])
                left.remove(one)
                one.own.update(values)
                await restart(one)

        return self._work(change, ended)

    def upgrade(self, replace: Callable[[Node], Awaitable[None]], ended: Ended) -> bool:
        """``replace`` every server, NameServers first, masters last, each when nothing is lacking."""

        async def upgrade() -> None:
            done: set[str] = set()
            while True:
                views = await self._whole()
                step = rolling.next_step(self._cluster, views, done)
                if step is None:
                    return
                done.add(step.server)
                await replace(self._cluster.layout.node(step.server))

        return self._work(upgrade, ended)

    def leave(
        self,
        address: str,
        stop: Callable[[], Awaitable[None]],
        empty: Callable[[], Awaitable[None]],
        alone: AbstractAsyncContextManager[object],
        ended: Ended,
    ) -> bool:
        """Take the broker there out of the group: ``stop`` it, have it forgotten, ``empty`` its disk.
        ``alone``: nobody starts it meanwhile."""

        async def leave() -> None:
            number = await self._id_of(address)
            async with alone:
                await stop()
                await self.forget(number)
                await empty()

        return self._work(leave, ended)

    def replace(self, address: str, begin_anew: Callable[[], Awaitable[None]], ended: Ended) -> bool:
        """Have the broker there ``begin_anew`` with an empty store, and its former id forgotten once the new
        one is a member."""

        async def replace() -> None:
            number = await self._id_of(address)
            await begin_anew()
            await self.forget(number, successor=address)

        return self._work(replace, ended)

    async def forget(self, number: int, successor: str | None = None) -> None:
        """Have the Controllers forget broker ``number``, as ``keelmq group forget`` does, once it is dead and
        no member of the SyncStateSet, and another one at the address ``successor`` is. Raises
        ClusterNotReady."""
        why = ""
        try:
            async with asyncio.timeout(WHOLE_S), self._admin() as admin:
                while True:
                    try:
                        why = _kept(await self._state(admin), number, successor)
                        if not why:
                            await admin.forget(self._controllers(), CLUSTER, self._group(), [number])
                            return
                    except (MqError, OSError) as error:
                        why = str(error)
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ClusterNotReady(f"broker {number} is not forgotten after {WHOLE_S:.0f} s: {why}") from None

    async def _id_of(self, address: str) -> int:
        """The id of the broker there. Raises MqError."""
        async with self._admin() as admin:
            state = await self._state(admin)
        for number, at in {**state.not_in_sync, **state.in_sync}.items():
            if at == address and state.alive.get(number):
                return number
        raise MqError(f"the Controllers know no living broker at {address}")

    async def _state(self, admin: AdminClient) -> SyncState:
        found = (await admin.sync_state(self._controllers(), [self._group()])).get(self._group())
        if found is None:
            raise MqError(f"the Controllers know no group {self._group()}")
        return found

    def _admin(self) -> AdminClient:
        namesrvs = [one.address for one in self._cluster.layout.namesrvs]
        return AdminClient(self._env, namesrvs, credentials=credentials.read())

    def _controllers(self) -> list[str]:
        return [one.controller_address for one in self._cluster.layout.namesrvs]

    def _group(self) -> str:
        return self._cluster.layout.group_names[0]

    async def _whole(self) -> rolling.Views:
        """What the servers say, once nothing is lacking. Raises ClusterNotReady."""
        lacking = ""
        try:
            async with asyncio.timeout(WHOLE_S):
                while True:
                    views = await self._cluster.views()
                    lacking = rolling.lacking(self._cluster, views)
                    if not lacking:
                        return views
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ClusterNotReady(f"not whole after {WHOLE_S:.0f} s: {lacking}") from None

    async def wait(self) -> None:
        """Until nothing is under way: WORK_S at most."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        await self._tasks.cancel()

    def _work(self, ask: Callable[[], Awaitable[None]], ended: Ended) -> bool:
        if self._task is not None and not self._task.done():
            return False

        async def work() -> None:
            limit = asyncio.timeout(WORK_S)
            try:
                async with limit:
                    await ask()
            except Exception as raised:  # noqa: BLE001 - else the fault would count as done
                error = ClusterNotReady(f"no end after {WORK_S:.0f} s") if limit.expired() else raised
                # The cluster said no, or could not be asked: nothing was promised.
                self._refused(str(error) if isinstance(error, MqError | OSError) else repr(error))
                ended(error)
            else:
                ended(None)

        self._task = self._tasks.spawn(work(), name="work")
        return True


def _kept(state: SyncState, number: int, successor: str | None) -> str:
    """Why docs/operations.md says not to forget a broker yet; empty: nothing speaks against it."""
    if number in state.in_sync:
        return "it is a member of the SyncStateSet"
    if state.alive.get(number):
        return "it lives"
    if successor is not None and successor not in state.in_sync.values():
        return f"the one at {successor} that comes for it is no member yet"
    return ""
