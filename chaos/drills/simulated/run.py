"""What does one seed do to a simulated cluster, and were the promises kept? And many seeds at once.

The same scenario, seed and commit give the same trace, in any process.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from chaos.bugs import planted
from chaos.checks import Violation, check_all
from chaos.drills.simulated.shrink import Shrinking
from chaos.history import Happened, History
from chaos.scenarios import Plan, find
from chaos.sim.cluster import SimCluster
from chaos.sim.loop import START_S, BrokenInvariant, SimulationError
from chaos.sim.story import Story

VIOLATIONS_MAX: Final = 3
"""So many violations of each checker are kept of one run; the rest says the same."""

RUN_CPU_S_MAX: Final = 120.0
"""A run takes one or two. One that takes so long goes round in circles within a single call."""

EVENTS_TOLD: Final = 3
"""So many events of each node are shown beside a broken invariant."""


@dataclass(slots=True)
class Result:
    """One seed's run of ``virtual_s`` seconds, counted from its start. ``trace`` is equal for equal runs;
    ``replay`` is the command that repeats it."""

    scenario: str
    seed: int
    bug: str | None
    trace: str
    violations: list[Violation]
    coverage: dict[str, int]
    virtual_s: float
    wall_s: float
    plan: dict[str, Any] = field(default_factory=dict)
    cpu_s: float = 0.0

    def told(self) -> list[dict[str, Any]]:
        """Each violation, with the command that repeats it."""
        return [
            {
                "seed": self.seed,
                "scenario": self.scenario,
                "checker": violation.checker,
                "replay": self.replay,
                "text": violation.text,
            }
            for violation in self.violations
        ]

    @property
    def replay(self) -> str:
        plant = f" --plant {self.bug}" if self.bug else ""
        return f"keelmq drill sim --replay {self.seed} --scenario {self.scenario}{plant}"


class _ErrorLog(logging.Handler):
    """Keeps the exceptions nodes log as errors: they caught what they did not expect."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(logging.ERROR)
        self.cluster = cluster
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{record.getMessage()} ({record.exc_info[1]!r})"
            self.lines.append(f"{self.cluster.clock():.0f} ms {record.name}: {text}")


def run_seed(
    scenario: str, seed: int, bug: str | None = None, *, keep: Callable[[Story], object] | None = None
) -> Result:
    """Run one seed of a scenario, with ``bug`` planted or none. ``keep`` sees the run before it is taken
    apart. Raises KeyError for an unknown scenario or bug."""
    plan = find(scenario).drawn(seed)
    with planted(bug):
        return run_plan(scenario, seed, plan, bug, keep)


def shrink(
    scenario: str,
    seed: int,
    bug: str | None = None,
    *,
    plan: Plan | None = None,
    tell: Callable[[str], object] = print,
) -> tuple[Plan, Result]:
    """The smallest schedule found of which one of the same checkers complains, and its result; begins with
    ``plan``, or with what the seed draws. A seed without violations comes back as it is."""
    begin = plan or find(scenario).drawn(seed)

    def checkers(attempt: Plan) -> set[str]:
        result = run_plan(scenario, seed, attempt, bug, None)
        return {violation.checker for violation in result.violations}

    with planted(bug):
        left = Shrinking(checkers, begin, tell=tell).shrink()
        return left, run_plan(scenario, seed, left, bug, None)


def run_plan(
    scenario: str, seed: int, plan: Plan, bug: str | None, keep: Callable[[Story], object] | None
) -> Result:
    """Run one plan; ``scenario`` and ``bug`` only name it. ``keep`` as in ``run_seed``."""
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    with _nothing_collected():
        return _run_plan(scenario, seed, plan, bug, keep, begun_s, begun_cpu_s)


class EndlessRun(SystemExit):
    """Raised amid whatever runs: nothing that catches an ``Exception`` keeps it."""


@contextmanager
def _bounded() -> Iterator[None]:
    """Raises EndlessRun after ``RUN_CPU_S_MAX`` of this process's CPU; only a main thread hears of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_: int, frame: FrameType | None) -> None:
        where = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        raise EndlessRun(f"no end after {RUN_CPU_S_MAX:.0f} s of CPU{where}")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, RUN_CPU_S_MAX, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


_frozen: Final[list[bool]] = []


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Nothing may be collected at a moment that depends on what ran before in this process."""
    collecting = gc.isenabled()
    gc.disable()
    if not _frozen:
        # What is there before the first run stays: no run's collection has to look at it again.
        gc.collect()
        gc.freeze()
        _frozen.append(True)
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        gc.collect()


def _run_plan(
    scenario: str,
    seed: int,
    plan: Plan,
    bug: str | None,
    keep: Callable[[Story], object] | None,
    begun_s: float,
    begun_cpu_s: float,
) -> Result:
    run = Story(seed, plan)
    errors = _ErrorLog(run.cluster)
    root = logging.getLogger()
    root.addHandler(errors)
    loop = run.cluster.loop
    try:
        _carry_out(run)
        virtual_s = loop.time() - START_S
        starts = [error for error in run.cluster.errors if not (plan.errors_expected and _by_its_disk(error))]
        run.evidence.errors = [*starts, *loop.errors]
        if not plan.errors_expected:
            run.evidence.errors = [*run.evidence.errors, *errors.lines]
        if plan.swarm:
            run.account()
        if run.neighbour is not None:
            run.found += run.neighbour.broken()
        violations = _few([*run.found, *check_all(run.evidence)])
        if keep is not None:
            keep(run)
        return Result(
            scenario,
            seed,
            bug,
            f"{loop.trace & (1 << 64) - 1:016x}",
            violations,
            run.coverage(),
            virtual_s,
            time.perf_counter() - begun_s,
            plan.to_json(),
            time.process_time() - begun_cpu_s,
        )
    finally:
        root.removeHandler(errors)
        run.cluster.close()


def _carry_out(run: Story) -> None:
    """To its end, or to what ended it, which is a violation."""
    try:
        with _bounded():
            run.cluster.loop.run_until_complete(run.main())
    except BrokenInvariant as error:
        run.found.append(
            Violation("invariant", "\n".join([str(error), *_last_events(run.history, run.cluster.beside)]))
        )
        run.evidence.complete = False
    except (SimulationError, EndlessRun) as error:
        run.found.append(Violation("simulation", str(error)))
        run.evidence.complete = False
    except Exception as error:  # noqa: BLE001
        # Whatever it is, it belongs to this seed, and the others go on.
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        run.found.append(Violation("crashed", text))
        run.evidence.complete = False


def _by_its_disk(error: str) -> bool:
    """A start that failed because the disk is broken, as planned: it says so, and is tried again."""
    return any(said in error for said in ("sync failed", "write failed", "read failed", "no space left"))


def _last_events(*histories: History) -> list[str]:
    """What each node told last, oldest first."""
    last: dict[str, list[Happened]] = {}
    for event in (event for history in histories for event in history.happened()):
        last.setdefault(event.node, []).append(event)
    told = sorted(
        (event for events in last.values() for event in events[-EVENTS_TOLD:]), key=lambda e: e.at_ms
    )
    return [f"    {event.line()}" for event in told]


def _few(violations: Iterable[Violation]) -> list[Violation]:
    counts: Counter[str] = Counter()
    kept = []
    for violation in violations:
        counts[violation.checker] += 1
        if counts[violation.checker] <= VIOLATIONS_MAX:
            kept.append(violation)
    return kept


@contextmanager
def quietly() -> Iterator[None]:
    """What servers log by the way up to WARNING is not shown; faults make them warn by the thousand."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _run_quietly(job: tuple[str, int, str | None]) -> Result:
    with quietly():
        return run_seed(*job)


def run_seeds(
    scenarios: Iterable[str], seeds: Iterable[int], *, jobs: int = 1, bug: str | None = None
) -> Iterator[Result]:
    """Run every seed of every scenario, ``jobs`` at a time, each in a fresh interpreter's process; results
    come in order."""
    work = [(scenario, seed, bug) for seed in seeds for scenario in scenarios]
    if jobs <= 1 or len(work) == 1:
        yield from map(_run_quietly, work)
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_follow_the_parent) as pool:
        try:
            yield from pool.map(_run_quietly, work, chunksize=max(1, min(8, len(work) // (jobs * 4))))
        except BaseException:
            # Nobody takes their results any more: they end now, not after the schedules they hold.
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _follow_the_parent() -> None:
    """A worker ends when its parent tells it to or is gone, however it went; not by the terminal's Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a worker"

    def follow() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, name="follow-parent", daemon=True).start()


def summary(results: Iterable[Result], wall_s: float) -> dict[str, Any]:
    """The JSON that ``keelmq drill sim`` writes."""
    coverage: Counter[str] = Counter()
    violations: list[dict[str, Any]] = []
    count = 0
    for result in results:
        count += 1
        coverage.update(result.coverage)
        violations += result.told()
    return {
        "seeds": count,
        "violations": violations,
        "schedules_per_second": round(count / wall_s, 3) if wall_s > 0 else 0.0,
        "coverage": dict(sorted(coverage.items())),
    }
