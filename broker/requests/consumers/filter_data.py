"""How do expressions that heartbeats tell get into the table of filters?

Whether a new text is an expression is found out by compiling it: behind the heartbeat, and in a turn of its
own as a pull's (``broker/state/effort``). What a group tells meanwhile is one entry here, the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.context import BrokerContext
from broker.state.clients import Subscription
from broker.state.effort import Own
from broker.tables.filters import FilterData
from runtime.tasks import Tasks
from runtime.turns import Peer, Unhurried

AT_ONCE_MAX: Final = 64
"""Of a group with more topics nothing is done in one piece."""
NEWS_BYTES_MAX: Final = 64 << 20
"""Of the subscriptions that wait, about; the next heartbeat of another group brings its news again."""


@dataclass(slots=True)
class _News:
    """``wanted``: of the last heartbeat. ``left``: the last member went after it."""

    wanted: Mapping[str, Subscription]
    left: bool = False

    @property
    def bytes(self) -> int:
        return sum(subscription.weight for subscription in self.wanted.values())


class FilterNews:
    """Takes what members of groups want, and that they left, into ``context.filters``."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._peer: Peer = Own()
        self._tasks = Tasks("filters")
        self._news: dict[str, _News] = {}
        self._bytes = 0
        self._taken: dict[str, _News] = {}
        self._working: asyncio.Task[None] | None = None

    def heard(
        self, group: str, wanted: Mapping[str, Subscription], *, without_subscriptions: bool = False
    ) -> None:
        """A heartbeat of a member said what it wants, or left that out."""
        filters = self._context.filters
        if without_subscriptions:
            return
        if self._pending(group) is not None:
            self._note(group, _News(wanted))
        elif filters.is_news(group, wanted):
            gone = filters.left(group, wanted)
            long = max(len(wanted), len(gone)) > AT_ONCE_MAX
            if long or any(filters.needs(group, one) for one in wanted.values()):
                self._note(group, _News(wanted))
            else:
                now_ms = self._context.env.now_ms()
                for subscription in wanted.values():
                    filters.take(group, subscription, now_ms)
                self._all_died(gone)

    def left(self, group: str) -> None:
        """The last member of the group went."""
        news = self._pending(group)
        living = self._context.filters.left(group)
        if news is not None:
            news.left = True
        elif len(living) > AT_ONCE_MAX:
            self._note(group, _News({}))
        else:
            self._all_died(living)

    def clean(self) -> None:
        self._context.filters.clean(self._context.env.now_ms())

    def _pending(self, group: str) -> _News | None:
        return self._news.get(group) or self._taken.get(group)

    def _all_died(self, entries: list[FilterData]) -> None:
        for data in entries:
            self._context.filters.died(data, self._context.env.now_ms())

    def _note(self, group: str, news: _News) -> None:
        former = self._news.get(group)
        held = self._bytes - (0 if former is None else former.bytes)
        if held + news.bytes > NEWS_BYTES_MAX:
            return
        self._news[group], self._bytes = news, held + news.bytes
        if self._working is None or self._working.done():
            self._working = self._tasks.spawn(self._work(), name="filters")

    async def _work(self) -> None:
        while self._news:
            group = next(iter(self._news))
            news = self._news.pop(group)
            self._bytes -= news.bytes
            self._taken = {group: news}
            try:
                await self._take(group, news)
            finally:
                self._taken = {}

    async def _take(self, group: str, news: _News) -> None:
        filters, env = self._context.filters, self._context.env
        slice_ = Unhurried(env.monotonic_ms)
        for subscription in news.wanted.values():
            wrong = filters.needs(group, subscription) and not await self._compiles(subscription)
            filters.take(group, subscription, env.now_ms(), wrong=wrong)
            await slice_.breathe()
        for data in filters.left(group, news.wanted):
            self._all_died([data])
            await slice_.breathe()
        if news.left:
            for data in filters.left(group):
                self._all_died([data])
                await slice_.breathe()

    async def _compiles(self, subscription: Subscription) -> bool:
        effort = self._context.effort
        async with effort.turn(self._peer):
            effort.read(subscription.expression, subscription.expression_type)
            return subscription.chooses is not None
