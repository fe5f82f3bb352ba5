"""In which order do the workers take the tests?

Those that wait for real processes run beside those that compute, and begin first: no worker shall be alone
with a long one at the end. Costly tests begin early. When no waiting test is left to begin, every second one
comes from the other end: whole simulations, which compute only, run beside tests that wait for timers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

WAITING_FOLDERS: Final = ("tests/interop/", "tests/live/")
ON_SPARK: Final = (
    "tests/audit/engines/test_spark",
    "tests/audit/engines/test_commitlog",
    "tests/audit/engines/test_bounded.py::test_of_a_long_queue_spark_collects_the_breaks",
    "tests/audit/reading/test_derived.py::test_both_engines_say_the_same_of_what_is_made_of_a_log",
    "tests/audit/kinds/test_entries.py::test_both_engines_name_the_same_entries",
    "tests/audit/kinds/test_failover.py::test_both_engines_tell_what_was_promised",
    "tests/audit/reading/test_index.py::test_both_engines_say_the_same_of_an_index",
    "tests/audit/kinds/test_phantoms.py::test_both_engines_name_what_nobody_sent",
    "tests/cli/test_demo",
    "tests/packaging/test_wheel",
)
"""They share a worker: one Spark at a time, as each starts as many threads as there are cores."""
ON_ONE_CLUSTER: Final = (
    "tests/interop/test_java_client",
    "tests/interop/test_mqadmin.py",
    "tests/interop/test_pop",
    "tests/interop/test_request_reply",
    "tests/interop/test_trace",
)
"""They share a worker: the cluster of tests/interop/conftest.py starts once."""
ON_ONE_RUN: Final = (
    "tests/sim/test_scenarios.py::test_killing_the_master_loses_nothing",
    "tests/sim/test_scenarios.py::test_virtual_seconds_count_from_the_start_of_the_world",
    "tests/sim/test_scenarios.py::test_one_seed_is_one_trace_and_one_history",
    "tests/sim/test_scenarios.py::test_a_trace_does_not_depend_on_the_process_nor_on_its_hash_seed",
    "tests/sim/test_scenarios.py::test_a_run_keeps_its_history_for_a_look",
)
"""They share a worker: they look at the same simulated runs, which are made once."""
LONG_FIRST: Final = (
    "tests/audit/engines/test_spark",
    "tests/interop/test_java_client",
    "tests/live/test_drills",
    "tests/interop/test_acl",
    "tests/live/test_tls",
    "tests/live/test_attacks",
    "tests/interop/test_tls",
    "tests/interop/test_timers",
    "tests/interop/test_mixed",
    "tests/interop/test_signed_peers",
    "tests/interop/test_migration",
    "tests/interop/test_classic_pair",
)
"""Files of more than half a minute on a busy machine, the longest first (29 November 2026)."""
LANES: Final = 4
"""So many workers run files that wait while there are others that compute."""


def scope_of(nodeid: str) -> str:
    """What goes to one worker as a whole: a test, or a file or more that start something costly."""
    if nodeid.startswith(ON_ONE_CLUSTER):
        return ON_ONE_CLUSTER[0]
    if nodeid.startswith(WAITING_FOLDERS):
        return nodeid.partition("::")[0]
    if nodeid.startswith(ON_ONE_RUN):
        return ON_ONE_RUN[0]
    return ON_SPARK[0] if nodeid.startswith(ON_SPARK) else nodeid


class Order:
    """Scopes in the order they begin. Each is looked at once: there are thousands of them."""

    def __init__(self, scopes: Iterable[str]) -> None:
        ranked = sorted(scopes, key=_rank)
        self._waiting = deque(scope for scope in ranked if scope.startswith(WAITING_FOLDERS))
        self._computing = deque(scope for scope in ranked if not scope.startswith(WAITING_FOLDERS))
        self._from_the_end = False

    def take(self, *, waits: bool, left: Container[str]) -> str | None:
        """The next one of those still ``left``, of this kind or else of the other; None: that was all."""
        for scopes in (self._waiting, self._computing) if waits else (self._computing, self._waiting):
            while scopes:
                from_the_end = self._from_the_end and scopes is self._computing
                chosen = scopes.pop() if from_the_end else scopes.popleft()
                if chosen in left:
                    self._from_the_end = not self._waiting and not from_the_end
                    return chosen
        return None


def _rank(scope: str) -> int:
    """How early a scope begins."""
    return next((at for at, name in enumerate(LONG_FIRST) if scope.startswith(name)), len(LONG_FIRST))


def scheduler(config: Any, log: Any) -> LoadScopeScheduling:
    """The one that xdist asks for. It has no types."""
    from xdist.scheduler import LoadScopeScheduling

    class InTurn(LoadScopeScheduling):  # type: ignore[misc]
        order: Order | None = None

        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            self.order = self.order or Order(self.workqueue)
            busy = [n for n, units in self.assigned_work.items() if n is not node and self._waits(units)]
            chosen = self.order.take(waits=len(busy) < LANES, left=self.workqueue)
            if chosen is not None:
                self.workqueue.move_to_end(chosen, last=False)
            super()._assign_work_unit(node)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            nodeid = self.registered_collections[node][item_index]
            units, scope = self.assigned_work[node], self._split_scope(nodeid)
            units[scope][nodeid] = True
            if all(units[scope].values()):
                del units[scope]  # or each of thousands that have ended is counted again after every test
            self._reschedule(node)

        @staticmethod
        def _waits(units: dict[str, dict[str, bool]]) -> bool:
            return any(
                scope.startswith(WAITING_FOLDERS) and not all(done.values()) for scope, done in units.items()
            )

    return InTurn(config, log)
