"""The promise of the check of liveness: it claims what a healthy majority owes, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.checks import Evidence, check_all
from chaos.checks.liveness import FULL, Group
from chaos.history import ENDED_FAULT, Happened, History, HistoryEvent, Invoke, Observed, Ok
from client.message import Queue

BROKERS, CONTROLLERS = ["b0", "b1", "b2"], ["n0", "n1", "n2"]
GROUP = Group(brokers=BROKERS, controllers=CONTROLLERS, enough=2, until_ms=20_000.0)
QUEUE = Queue("t", "broker-a", 0)
ALL = [*BROKERS, *CONTROLLERS, "clients"]


def found(
    *faults: Happened,
    answered: list[range],
    heard: dict[str, list[range]] | None = None,
    group: Group = GROUP,
) -> list[str]:
    """The violations of a run with acknowledgements in ``answered``."""
    events: list[HistoryEvent] = list(faults)
    for offset, at in enumerate(at for part in answered for at in part):
        events += [
            Invoke(at, "p", f"k{at}", QUEUE, 1),
            Ok(at + 1.0, "p", f"k{at}", QUEUE, offset, offset * 100),
        ]
    for name in BROKERS:
        spoke = (heard or {}).get(name, [range(0, 20_000, 100)])
        events += [Observed(at, name, 1, "slave", 1, 0, 0) for part in spoke for at in part]
    told = check_all(Evidence(History(events), complete=False, group=group))
    return [violation.text for violation in told if violation.checker == "serves_with_a_majority"]


def cut(at_ms: float, *pairs: tuple[str, str]) -> Happened:
    return Happened(at_ms, pairs[0][0], "partition", {"pairs": [list(pair) for pair in pairs]})


def apart(name: str, *but: str) -> list[tuple[str, str]]:
    return [(name, other) for other in ALL if other != name and other not in but]


SILENT = [range(0, 2000, 50), range(9000, 20_000, 50)]
SHORT = [range(0, 2000, 50), range(6000, 20_000, 50)]


@pytest.mark.parametrize(
    "faults",
    [
        [Happened(2000.0, "b0", "kill")],
        [Happened(2000.0, "b0", "kill"), Happened(2010.0, "n2", "pause")],
        [Happened(2000.0, "b0", "disk_full", {"full": True})],
        [cut(2000.0, *apart("b0"))],
        [cut(2000.0, ("b0", "b1"), ("b0", "b2"))],
        [Happened(500.0, "b1", "kill"), Happened(1500.0, "", FULL), Happened(2000.0, "b0", "kill")],
    ],
)
def test_a_majority_that_is_well_and_answers_nothing_for_five_seconds_is_told(faults: list[Happened]) -> None:
    (text,) = found(*faults, answered=SILENT)
    assert "b1, b2" in text
    assert found(*faults, answered=SHORT) == []


@pytest.mark.parametrize(
    "faults",
    [
        [Happened(1000.0, "b1", "kill"), Happened(2000.0, "b0", "kill")],
        [Happened(1000.0, "b1", "pause"), Happened(1500.0, "b1", "resume"), Happened(2000.0, "b0", "kill")],
        [Happened(2000.0, "n0", "kill"), Happened(2000.0, "n1", "kill")],
        [cut(2000.0, ("b0", "clients"))],
        [cut(1000.0, ("b1", "b2")), Happened(1500.0, "", "heal"), Happened(2000.0, "b0", "kill")],
        [Happened(500.0, "b1", "wipe"), Happened(1500.0, "", FULL), Happened(2000.0, "b0", "kill")],
        [Happened(2000.0, "b0", "kill"), cut(4000.0, *apart("b1")), Happened(8000.0, "", FULL)],
    ],
)
def test_where_no_majority_is_known_to_be_well_nothing_is_claimed(faults: list[Happened]) -> None:
    assert found(*faults, answered=SILENT) == []


HUNG = [range(0, 4000, 100), range(6000, 20_000, 100)]
DEAD = [range(0, 2000, 100)]


@pytest.mark.parametrize(
    ("heard", "claims"),
    [
        ({"b1": HUNG, "b2": HUNG, "b0": DEAD}, 0),
        ({"b1": HUNG, "b2": HUNG}, 0),
        ({"b1": HUNG, "b0": DEAD}, 1),
        ({"b1": HUNG}, 1),
        ({"b1": DEAD, "b0": DEAD}, 1),
        ({"b1": DEAD, "b0": DEAD, "b2": DEAD}, 0),
    ],
)
def test_a_machine_that_stood_still_owes_nothing_but_a_server_that_did_alone_does(
    heard: dict[str, list[range]], claims: int
) -> None:
    assert len(found(Happened(2000.0, "b0", "kill"), answered=SILENT, heard=heard)) == claims


def test_a_wiped_broker_is_well_again_where_no_former_identity_counts() -> None:
    faults = [Happened(500.0, "b1", "wipe"), Happened(1500.0, "", FULL), Happened(2000.0, "b0", "kill")]
    group = replace(GROUP, counts_all=False)
    assert (len(found(*faults, answered=SILENT, group=group)), len(found(*faults, answered=SILENT))) == (1, 0)


@pytest.mark.parametrize(("refused", "emptied"), [(False, True), (True, False), (True, True)])
def test_a_replaced_broker_is_well_again_only_once_its_former_identity_is_forgotten(
    refused: bool, emptied: bool
) -> None:
    """One whose disk nobody touched is who it was."""
    fields = {"fault": "replace"} | ({"refused": True, "emptied": emptied} if refused else {})
    end = Happened(900.0, "b1", ENDED_FAULT, fields)
    full, kill = Happened(1500.0, "", FULL), Happened(2000.0, "b0", "kill")
    faults = [Happened(500.0, "b1", "replace"), end, full, kill]
    assert len(found(*faults, answered=SILENT)) == (0 if refused and emptied else 1)
    assert len(found(*faults, answered=SILENT, group=replace(GROUP, counts_all=False))) == 1


def test_the_end_of_a_load_counts_and_what_comes_after_does_not() -> None:
    kill = Happened(2000.0, "b0", "kill")
    assert found(kill, answered=[range(0, 16_000, 50)]) == []
    assert len(found(kill, answered=[range(0, 14_000, 50)])) == 1
    assert found(answered=[]) == [], "a run that never began says nothing"


def test_a_write_that_needs_all_copies_is_owed_by_all_only() -> None:
    values: dict[str, Any] = {"brokers": BROKERS, "controllers": CONTROLLERS, "until_ms": 20_000.0}
    kill = Happened(2000.0, "b0", "kill")
    assert found(kill, answered=SILENT, group=Group(enough=3, **values)) == []
    assert len(found(answered=SILENT, group=Group(enough=3, **values))) == 1
