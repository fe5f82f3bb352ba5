"""How does the real asyncio code run under virtual time, with processes that can be killed and paused?

``SimLoop`` is an asyncio event loop without a selector: when nothing is ready, its clock jumps to the next
timer. Every handle runs in a context, and the context says which ``Life`` (one run of one node's process) the
handle belongs to. Handles of a dead life never run again (as after SIGKILL: no ``finally`` block, no
goodbye), those of a paused one wait for its resume (as after SIGSTOP).

One seed gives one trace: ready handles of different lives are merged in an order drawn from the seed, while
handles of one life keep the first-in-first-out order asyncio promises, unless ``shuffle`` is ``"all"``.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, NoReturn, Protocol, TypeVar

T = TypeVar("T")

START_S: Final = 1000.0
"""Virtual seconds the clock starts at: code that subtracts a timeout from it stays above zero."""
CALLS_PER_INSTANT_MAX: Final = 200_000
"""So many handles without the clock moving are taken for an endless loop."""
TASKS_SWEEP: Final = 512

Shuffle = Literal["nodes", "all"]


class SimulationError(RuntimeError):
    """The simulated program can no longer go on: nothing left to run, or an endless loop at one instant."""


class BrokenInvariant(SimulationError):
    """A server's own ``check_invariants`` failed; the text names the node, the virtual time and the rule."""


class Checked(Protocol):
    """Something that can tell whether it still keeps its rules."""

    def check_invariants(self) -> None:
        """Raises AssertionError with the rule that is broken."""


class Life:
    """One run of one node's process: from its start to its kill. Handles and tasks belong to a life."""

    __slots__ = (
        "alive",
        "broken",
        "changed",
        "checked",
        "context",
        "deferred",
        "index",
        "name",
        "paused",
        "tasks",
        "tasks_swept",
    )

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.index = index
        self.alive = True
        self.paused = False
        self.deferred: list[_SimHandle] = []
        # Strong references: asyncio keeps weak ones, and a task of a killed node that were collected would
        # run its finally blocks, at a moment that depends on the memory's history.
        self.tasks: list[asyncio.Task[Any]] = []
        self.tasks_swept = TASKS_SWEEP
        self.checked: list[Callable[[], Checked | None]] = []
        self.changed: dict[int, Checked] = {}
        """What is checked only after it changed, and did."""
        self.broken: AssertionError | None = None
        """What a server found by itself."""
        self.context = contextvars.copy_context()
        self.context.run(_life.set, self)

    def __repr__(self) -> str:
        return f"<Life {self.name}#{self.index}>"

    def watch(self, part: Checked) -> None:
        """Check ``part`` after every instant in which something of this life ran, for as long as it is."""
        try:
            self.checked.append(weakref.ref(part))
        except TypeError:  # its class has slots, and none for a weak reference
            self.checked.append(lambda: part)

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        if self.broken is not None:
            raise self.broken
        gone = False
        for ref in self.checked:
            part = ref()
            if part is None:
                gone = True
            else:
                part.check_invariants()
        if self.changed:
            changed = list(self.changed.values())
            self.changed.clear()
            for part in changed:
                part.check_invariants()
        if gone:
            self.checked = [ref for ref in self.checked if ref() is not None]


_life: contextvars.ContextVar[Life | None] = contextvars.ContextVar("keelmq_life", default=None)


def current_life() -> Life | None:
    """The life whose code is running now."""
    return _life.get()


class _SimHandle(asyncio.TimerHandle):
    """A call that waits for its turn or its time. A schedule makes them by the ten thousand: each knows its
    life from the start, and asks no loop whether it is debugged."""

    __slots__ = ("life",)

    _repr = None
    _source_traceback = None
    _scheduled = False

    _context: contextvars.Context
    _callback: Callable[..., object] | None
    _args: Any
    _when: float
    life: Life | None

    def cancel(self) -> None:
        """It leaves the heap when its time comes."""
        self._cancelled = True
        self._callback = self._args = None


_new_handle: Final[Callable[[type[_SimHandle]], _SimHandle]] = object.__new__
"""Without a call of a constructor: who makes one sets all."""


class _SimTask(asyncio.Task[T]):
    """A task whose hash is its number: a set of tasks has the same order in every run of a seed."""

    __slots__ = ("_number",)

    _number: int

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


_new_task: Final[Callable[[type[_SimTask[Any]]], _SimTask[Any]]] = asyncio.Task.__new__
_begin_task: Final[Callable[..., None]] = asyncio.Task.__init__
"""Two steps: what begins the task may already ask for its hash."""


class SimLoop(asyncio.BaseEventLoop):
    """An event loop with a virtual clock. ``seed`` fixes the order of everything that may happen in any
    order. Threads, signals and sockets do not exist here; asking for them raises SimulationError."""

    def __init__(self, seed: int | str, *, shuffle: Shuffle = "nodes") -> None:
        super().__init__()
        self.now_s = START_S
        """``time`` without a call."""
        self._rng = random.Random(f"loop:{seed}")
        self._shuffle_all = shuffle == "all"
        self._heap: list[tuple[float, int, _SimHandle]] = []
        self._number = 0
        self._calls_at_instant = 0
        self._ready: deque[_SimHandle] = deque()
        self._world_life = Life("world", 0)
        self._lives: list[Life] = [self._world_life]
        self._running_life: Life | None = None
        self._ran: dict[int, Life] = {}  # since the clock moved, those that have something to check
        self.trace = 0
        """Grows into the run's fingerprint: two runs with equal traces did the same at the same time."""
        self.errors: list[str] = []
        """What asyncio would have logged: exceptions no one caught."""
        self.set_exception_handler(self._note_error)

    # Lives

    def new_life(self, name: str) -> Life:
        life = Life(name, len(self._lives))
        self._lives.append(life)
        return life

    def kill(self, life: Life) -> None:
        """From now on nothing of ``life`` runs."""
        life.alive = False
        life.deferred.clear()

    def pause(self, life: Life) -> None:
        life.paused = True

    def resume(self, life: Life) -> None:
        """Everything that came due during the pause becomes ready, in the order it came due."""
        life.paused = False
        if life.alive:
            self._ready.extend(life.deferred)
        life.deferred.clear()

    def spawn(self, life: Life, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run ``work`` as part of ``life``."""
        return self.create_task(work, name=name, context=life.context.copy())

    # asyncio's event loop

    def run_forever(self) -> None:
        with _tasks_not_listed():
            super().run_forever()

    def time(self) -> float:
        return self.now_s

    get_debug: Any = bool
    """Always False, and asked for each future: nothing of Python runs for the answer."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _new_handle(_SimHandle)
        if context is None:
            context = contextvars.copy_context()
        timer._context = context
        timer._callback = callback
        timer._args = args
        timer._cancelled = False
        timer._when = when
        timer.life = context.get(_life)
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, timer))
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _new_handle(_SimHandle)
        if context is None:
            context = contextvars.copy_context()
        handle._context = context
        handle._callback = callback
        handle._args = args
        handle._cancelled = False
        handle._when = self.now_s
        handle.life = context.get(_life)
        self._ready.append(handle)
        return handle

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        self._number += 1
        task: asyncio.Task[T] = _new_task(_SimTask)
        task._number = self._number  # type: ignore[attr-defined]
        _begin_task(task, coro, loop=self, name=name or f"task-{self._number}", context=context)
        life = (_life.get() if context is None else context.get(_life)) or self._world_life
        life.tasks.append(task)
        if len(life.tasks) >= life.tasks_swept:
            life.tasks = [task for task in life.tasks if not task.done()]
            life.tasks_swept = max(TASKS_SWEEP, 2 * len(life.tasks))
        return task

    def _run_once(self) -> None:
        """Every round until somebody stops the loop; asyncio's own loop around it has nothing to add."""
        # In one piece: see ALLOWED of bench/facts.py.
        heap, ready, pop, ran = self._heap, self._ready, heapq.heappop, self._ran
        while True:
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                self._next_instant()
            now = self.now_s
            while heap and heap[0][0] <= now:
                timer = pop(heap)[2]
                if not timer._cancelled:
                    ready.append(timer)
            if len(ready) == 1:
                batch = [ready.popleft()]
            else:
                batch = self._order(list(ready))
                ready.clear()
            self._calls_at_instant += len(batch)
            if self._calls_at_instant > CALLS_PER_INSTANT_MAX:
                raise SimulationError(f"endless loop at {now:.3f} s: {batch[:3]!r}")
            for handle in batch:
                if handle._cancelled:
                    continue
                life = handle.life
                if life is not None:
                    # Looked at just before each call: an earlier one of this batch may have killed the life.
                    if not life.alive:
                        continue
                    if life.paused:
                        life.deferred.append(handle)
                        continue
                    self.trace = hash((self.trace, now, life.index))
                self._running_life = life
                callback: Any = handle._callback
                try:
                    handle._context.run(callback, *handle._args)
                except BaseException as error:  # noqa: BLE001
                    self._tell_raised(handle, callback, error)
                if life is not None and (life.checked or life.changed):
                    ran[life.index] = life
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _tell_raised(self, handle: _SimHandle, callback: Any, error: BaseException) -> None:
        """As asyncio does it: the loop goes on, and somebody hears of it."""
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise error
        text = f"Exception in callback {callback!r}"
        self.call_exception_handler({"message": text, "exception": error, "handle": handle})

    def _next_instant(self) -> None:
        """Nothing is ready: the clock moves to the next timer, once all that ran keeps its invariants."""
        if self._ran:
            self._check_invariants()
        heap = self._heap
        while heap and heap[0][2]._cancelled:
            heapq.heappop(heap)
        if not heap:
            raise SimulationError(f"deadlock at {self.now_s:.3f} s: {self._waiting()}")
        if heap[0][0] > self.now_s:
            self.now_s = heap[0][0]
            self._calls_at_instant = 0

    def _check_invariants(self) -> None:
        for life in self._ran.values():
            if not life.alive:
                continue  # killed between two halves of a step
            try:
                life.check_invariants()
            except AssertionError as error:
                at_ms = (self.now_s - START_S) * 1000
                raise BrokenInvariant(f"{life.name} at {at_ms:.3f} ms: {error}") from error
        self._ran.clear()

    def _order(self, batch: list[_SimHandle]) -> list[_SimHandle]:
        if self._shuffle_all:
            self._rng.shuffle(batch)
            return batch
        if not batch:
            return batch
        first = batch[0].life
        for handle in batch:
            if handle.life is not first:
                break
        else:
            return batch
        queues: dict[int, list[_SimHandle]] = {}
        turns: list[int] = []
        for handle in batch:
            life = handle.life
            index = 0 if life is None else life.index
            queues.setdefault(index, []).append(handle)
            turns.append(index)
        self._shuffle(turns)
        following = {index: iter(queue) for index, queue in queues.items()}
        return [next(following[index]) for index in turns]

    def _shuffle(self, turns: list[int]) -> None:
        """``Random.shuffle``, which calls for each draw."""
        bits = self._rng.getrandbits
        for last in range(len(turns) - 1, 0, -1):
            width = (last + 1).bit_length()
            at = bits(width)
            while at > last:
                at = bits(width)
            turns[last], turns[at] = turns[at], turns[last]

    def note(self, *facts: int | float) -> None:
        """Mix numbers into the trace (numbers only: the hash of a text differs between processes)."""
        self.trace = hash((self.trace, self.now_s, *facts))

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        what = context.get("message", "")
        life = self._running_life
        where = f"{life.name}: " if life is not None else ""
        self.errors.append(f"{self.now_s:.6f} {where}{what}: {error!r}")

    def _waiting(self) -> str:
        names = [
            f"{life.name}/{task.get_name()}"
            for life in self._lives
            if life.alive
            for task in life.tasks
            if not task.done()
        ]
        return f"no timer and no ready handle; {len(names)} tasks wait: {', '.join(names[:8])}"

    def close(self) -> None:
        """End the simulation: pending coroutines are closed with their lives dead, so that nothing of one
        run is left to be collected, with side effects, during the next."""
        if self.is_closed():
            return
        for life in self._lives:
            life.alive = False
            life.deferred.clear()
        self._heap.clear()
        for life in self._lives:
            for task in life.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close_quietly(task.get_coro())
            life.tasks.clear()
        self._heap.clear()
        super().close()

    # What a simulated program must not ask for

    def _process_events(self, event_list: object) -> None:
        """There is no selector, hence no events."""

    def _write_to_self(self) -> None:
        """There are no threads to wake the loop from."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("simulation has no threads: use Env.offload")

    async def create_server(self, *args: Any, **keywords: Any) -> NoReturn:
        raise SimulationError("simulation has no sockets: use Env.network")

    async def create_connection(self, *args: Any, **keywords: Any) -> NoReturn:
        raise SimulationError("simulation has no sockets: use Env.network")


@contextmanager
def _tasks_not_listed() -> Iterator[None]:
    """asyncio keeps a weak set of all tasks, for ``asyncio.all_tasks``; here each life knows its own."""
    every: Any = getattr(asyncio.tasks, "_all_tasks", None)
    if every is None:
        yield
        return
    every.add = id  # of all that take one argument and change nothing, the cheapest
    try:
        yield
    finally:
        del every.add


def _close_quietly(coroutine: Any) -> None:
    """Unwind a coroutine of a life that is over; what its finally blocks do or raise no longer matters."""
    try:
        coroutine.close()
    except (Exception, asyncio.CancelledError):  # noqa: BLE001, S110
        # A dead process reports nothing.
        pass
