"""The promises of runtime.report.events: the last events are kept, all are counted."""

from __future__ import annotations

import ast

from runtime.report.events import EVENTS_MAX, KINDS, EventLog
from tests import ROOT

PACKAGES = ("ha", "store", "broker", "controller", "namesrv", "admin", "client", "remoting", "runtime")


def test_what_left_the_list_stays_counted() -> None:
    events = EventLog(lambda: 5)
    for _ in range(EVENTS_MAX + 10):
        events.add("promoted", epoch=1)
    events.add("demoted")
    assert len(events.to_json()) == EVENTS_MAX
    assert (events.totals["promoted"], events.totals["demoted"]) == (EVENTS_MAX + 10, 1)


def test_every_kind_is_counted_from_zero() -> None:
    assert EventLog(lambda: 5).totals == dict.fromkeys(KINDS, 0)


def test_the_kinds_are_those_that_servers_add() -> None:
    added: set[str] = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            # A decider names the event in its report, and its shell adds what the report names.
            added |= {str(ast.literal_eval(k.value)) for k in node.keywords if k.arg == "event"}
            name = node.args[0] if ast.unparse(node.func).endswith("events.add") else None
            if name is not None and ast.unparse(name) != "action.event":
                for text in (name.body, name.orelse) if isinstance(name, ast.IfExp) else (name,):
                    added.add(str(ast.literal_eval(text)))
    assert added == set(KINDS)
