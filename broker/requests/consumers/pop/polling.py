"""When is a pop tried again that found nothing?

When a message comes that it may be for, when another one of its group left some, and when its time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final, Literal, TypeVar

from broker.context import BrokerContext
from broker.requests.consumers.pop.held import HeldPop, HeldPops, Key
from broker.requests.consumers.waking import Searches, Waking, failed
from broker.state.clients import Subscription
from model.codes import Response
from model.pop import ALL_QUEUES
from remoting.codec import Command
from remoting.pop_headers import LookHeader, PopHeader
from remoting.service import Connection
from runtime.tasks import Tasks
from runtime.turns import Slice
from store.flow.dispatching.arrivals import Arrival, Listening

EARLY_MS: Final = 50
"""A pop is answered so long before its time is over, as in the original: its client does not wait longer."""
TIMER_MS: Final = 20
DROPPED_AT_ONCE: Final = 100
"""Pops of a connection that are taken out in one step when it ends."""

T = TypeVar("T")
News = tuple[str] | Literal["all", "in order"]
"""Who is to be tried: those that wait for a topic to which messages came, or who waits."""

Steps = Generator[None, None, T]
"""What takes long with very many queues: the loop may go round between two steps."""

SERVED: Final = Command(0)
"""Stands for an answer that is on its way already."""


class Polling:
    """Holds pops, and tries them again through ``serve(held, last)``, in steps; one that does not wait any
    more meanwhile is SERVED, but for its last try. ``released``: the answer when the role ends."""

    def __init__(self, context: BrokerContext, released: Callable[[Command], Command]) -> None:
        self.serve: Callable[[HeldPop, bool], Steps[Command | None]]
        self._released = released
        self._context = context
        self._config = context.config
        self.pops = HeldPops()
        self._arrivals: dict[str, set[int]] = {}
        """Of each topic that somebody waits for, where messages came: nobody was told yet."""
        self._tasks = Tasks("held pops")
        self._releases = Tasks("released pops")
        self._waking = Waking[News | Key](self._tasks, context.env.monotonic_ms, self._steps)
        self._searches = Searches[Key](self._tasks, context.effort, self._search)
        self._answering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0.0
        self._listening = Listening(context.store.on_arrive, self._arrived)

    def drop(self, connection: Connection) -> bool:
        """Of one that has ended: some of its pops have no places any more; whether there are others."""
        return self.pops.drop(connection, DROPPED_AT_ONCE)

    @property
    def held(self) -> int:
        return self.pops.count

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """How many pops of a group wait for one queue, or for all (-1)."""
        return self.pops.of((topic, group, max(queue_id, ALL_QUEUES)))

    def hold(
        self,
        connection: Connection,
        request: Command,
        header: PopHeader | LookHeader,
        subscription: Subscription | None,
        wait_ms: int,
    ) -> Response | None:
        """None: it waits. Else what to answer at once."""
        # By its bornTime a client whose clock is ahead would wait longer than it says it does.
        wait_ms = min(wait_ms, header.poll_ms, self._config.suspend_ms_max) - EARLY_MS
        if header.poll_ms <= 0 or wait_ms <= 0 or request.is_oneway or connection.closed:
            return Response.POLLING_TIMEOUT
        deadline_ms = self._context.env.monotonic_ms() + wait_ms
        held = HeldPop(connection, request.bare(), header, subscription, deadline_ms)
        full = (
            self.pops.count >= self._config.held_pops_max
            or self.pops.of(held.key) >= self._config.held_pops_per_queue
            or self.pops.of_connection(connection) >= self._config.held_pops_per_connection
            or self.pops.bytes + held.bytes > self._config.held_pop_bytes_max
        )
        if full:
            return Response.POLLING_FULL
        held.passed = self._context.trust.passed(connection, request)
        self.pops.add(held)
        self._listening.begin()
        self._arm()
        return None

    def more(self, header: PopHeader | LookHeader) -> None:
        """One of the group left messages: another one that waits may have them."""
        self._note((header.topic, header.group, max(header.queue_id, ALL_QUEUES)))

    def unblocked(self, topic: str, group: str, queue_id: int) -> None:
        """A queue that the group consumes in order is free again."""
        self._note((topic, group, ALL_QUEUES))
        self._note((topic, group, queue_id))

    def _arrived(self, arrived: Sequence[Arrival]) -> None:
        """Records were dispatched."""
        if not self.pops.count:
            self._listening.end()
            return
        for topic, queue_id, _, _ in arrived:
            queues = self._arrivals.get(topic)
            if queues is not None:
                queues.add(queue_id)
            elif self.pops.are_woken_by(topic):
                self._arrivals[topic] = {ALL_QUEUES, queue_id}
                self._waking.note((topic,))

    def _note(self, key: Key) -> None:
        if self.pops.of(key):
            self._waking.note(key)

    def _steps(self, noted: News | Key) -> Iterator[None]:
        if isinstance(noted, str):
            return self._told(self.pops.waiting_keys(), noted)
        if len(noted) == 1:
            return self._told(self.pops.woken_by(noted[0], self._arrivals.pop(noted[0])), "all")
        return self._tries(noted)

    def _told(self, keys: Iterable[Key], who: Literal["all", "in order"]) -> Iterator[None]:
        """Note whom the news concern: of those for whom nothing comes 100,000 may wait."""
        for key in keys:
            held = self.pops.first(key)
            if held is not None and (who == "all" or held.header.order):
                self._waking.note(key)
            yield

    def _tries(self, key: Key) -> Iterator[None]:
        """Try the pops of a key one after the other, until one gets nothing."""
        while (held := self.pops.first(key)) is not None:
            if _searches(held):
                self._searches.note(key)
                return
            is_over = yield from self._try(held, last=False)
            if is_over:
                self._over(held)
            yield
            if not is_over:
                return

    def _over(self, held: HeldPop) -> None:
        """The first of its key need not wait any more."""
        if self.pops.first(held.key) is held:
            self.pops.take(held.key)

    def _search(self, key: Key) -> Iterator[None]:
        """Try the first of a key, in a turn of the searches. The others have turns of their own."""
        held = self.pops.first(key)
        if held is None:
            return
        if not _searches(held):
            self._note(key)
        elif (yield from self._try(held, last=False)):
            self._over(held)
            self._note(key)

    def _try(self, held: HeldPop, *, last: bool) -> Steps[bool]:
        """Whether it need not wait any more. Errors are its own: the others wait on."""
        if held.connection.closed:
            return True
        try:
            answer = yield from self.serve(held, last)
        except Exception as error:  # noqa: BLE001 - see ``failed``
            what = f"a held pop of {held.header.topic} by {held.header.group}"
            answer = failed(held.request, what, error)
        if answer is not None and answer is not SERVED:
            held.connection.send(answer)
        return answer is not None

    def _arm(self) -> None:
        """Have the timer run for the first that is over. It runs at most once in ``TIMER_MS``."""
        deadline_ms = self.pops.next_deadline_ms()
        if deadline_ms is None:
            return
        now_ms = self._context.env.monotonic_ms()
        at_ms = max(deadline_ms, now_ms + TIMER_MS)
        if self._timer is not None:
            if self._timer_at_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later((at_ms - now_ms) / 1000, self._expire)

    def _expire(self) -> None:
        """Answer a slice of those whose time is over; the rest a slice a turn in a task that waits for no
        expression's turn, as woken ones may."""
        self._timer = None
        if self._answering is None or self._answering.done():
            slice_, steps = Slice(self._context.env.monotonic_ms), self._late()
            for _ in steps:
                if slice_.is_over():
                    self._answering = self._tasks.spawn(self._answer_all_late(steps), name="late")
                    break
        self._arm()

    async def _answer_all_late(self, steps: Iterator[None]) -> None:
        slice_ = Slice(self._context.env.monotonic_ms)
        for _ in steps:
            await slice_.breathe()

    def _late(self) -> Iterator[None]:
        """Answer those whose time is over, one after the other."""
        while (held := self.pops.overdue(self._context.env.monotonic_ms())) is not None:
            yield from self._try(held, last=True)
            yield

    def look_at_all(self) -> None:
        """Try all that wait."""
        self._waking.note("all")

    def look_again(self) -> None:
        """Try those that wait for a queue in order: its time, and no message, makes it free."""
        self._waking.note("in order")

    def release_all(self) -> None:
        """The role changed or the broker stops: nothing waits any more when this returns. A slice is answered
        then, the rest later (``answered``)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._arrivals.clear()
        self._waking.clear()
        self._searches.clear()
        left, slice_ = iter(self.pops.take_all()), Slice(self._context.env.monotonic_ms)
        for held in left:
            self._release(held)
            if slice_.is_over():
                self._releases.spawn(self._release_each(left, slice_), name="release")
                return

    async def answered(self) -> None:
        """Return when all that were released have their answer."""
        await self._releases.join()

    async def _release_each(self, left: Iterator[HeldPop], slice_: Slice) -> None:
        for held in left:
            await slice_.breathe()
            self._release(held)

    def _release(self, held: HeldPop) -> None:
        if not held.connection.closed:
            held.connection.send(self._released(held.request))


def _searches(held: HeldPop) -> bool:
    """Whether it is tried in a turn of the expressions."""
    return held.subscription is not None and held.subscription.chooses is not None
