"""The promise of bench/alerts.py: it shortens the times of the rules that are deployed, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from bench.alerts import FAULTS, RULES, Prometheus, shorter


def test_times_are_divided_and_conditions_stay() -> None:
    rule = "      - expr: a{le=~'5m'} > 300 or increase(b[1h]) > 0\n        for: 5m\n"
    assert shorter(rule, 20) == (
        "      - expr: a{le=~'5m'} > 300 or increase(b[180000ms]) > 0\n        for: 15000ms\n"
    )


def test_a_range_holds_some_scrapes_however_large_the_factor() -> None:
    assert shorter("rate(a[5m])", 1000) == "rate(a[10000ms])"


def test_nothing_else_of_the_deployed_rules_changes() -> None:
    times = re.compile(r"(?<=for: )\w+|(?<=\[)\w+(?=\])")
    deployed, shortened = RULES.read_text(), shorter(RULES.read_text(), 20)
    assert times.sub("", shortened) == times.sub("", deployed)
    assert not set(times.findall(shortened)) & (set(times.findall(deployed)) - {"0s"})


def test_what_must_fire_are_alerts_of_the_rules() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    names = {rule["alert"] for rule in group["rules"]}
    assert {alert for must in FAULTS.values() for alert in must} <= names


@pytest.mark.parametrize(
    ("targets", "alerts", "healthy"),
    [
        ("", "", False),
        ("up", "", False),
        ("up unknown", "", False),
        ("up up", "KeelmqNoControllerLeads", False),
        ("up up", "KeelmqDiskFull", True),
        ("up up", "", True),
    ],
)
def test_no_fault_comes_before_each_target_was_scraped(targets: str, alerts: str, healthy: bool) -> None:
    class Told(Prometheus):
        def __init__(self) -> None:
            self._targets = 2

        def ask(self, path: str) -> Any:
            if path == "alerts":
                return {"alerts": [{"labels": {"alertname": a}, "state": "firing"} for a in alerts.split()]}
            return {"activeTargets": [{"health": health} for health in targets.split()]}

    assert Told().healthy() is healthy
