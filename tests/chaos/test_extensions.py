"""The promise to other packages: their scenarios, faults and checks are run as the suite's own."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos import extensions
from chaos.checks import Evidence, Violation, check_all
from chaos.drills.commands import drill
from chaos.faults import Step, kind_of
from chaos.history import History
from chaos.scenarios import Plan, find, known
from model.errors import ConfigError
from tests import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "clumsy.py"
NAME = "a_clumsy_operator_loses_nothing"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Before as well: what another test of this process asked is kept, and would hide what is added here."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    for kept in (extensions.scenarios, extensions.checks, extensions.faults, extensions.scenario_in):
        kept.cache_clear()
    sys.modules.pop("clumsy", None)


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: str) -> None:
    """The example as a package of its own, with these entry points."""
    shutil.copy(EXAMPLE, tmp_path)
    info = tmp_path / "clumsy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clumsy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_file_of_thirty_lines_is_a_scenario_with_a_fault_of_its_own(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 30
    out = tmp_path / "sim.json"
    done = CliRunner().invoke(drill, ["sim", "--scenario", str(EXAMPLE), "--seeds", "1", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["coverage"]["fault.stumble"] == 1
    plan = find(str(EXAMPLE)).drawn(0)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))).to_json() == plan.to_json(), (
        "it is replayed"
    )


def test_another_package_adds_a_scenario_a_fault_and_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NAME not in known()
    _forget()
    points = (
        "[keelmq.scenarios]\nclumsy = clumsy:CLUMSY\n[keelmq.faults]\nstumble = clumsy:Stumble\n"
        "[keelmq.checks]\nsomething_was_sent = clumsy:something_was_sent\n"
    )
    installed(tmp_path, monkeypatch, points)
    assert find(NAME) is known()[NAME]
    extensions.load_for(NAME)
    kind = kind_of("stumble")
    assert kind is not None
    step = Step.from_json({"at_ms": 5, "fault": "stumble", "target": "slave"})
    assert step.fault == kind("slave")
    found = [violation.checker for violation in check_all(Evidence(History(), complete=False))]
    assert found == ["something_was_sent"], "the check is asked as the suite's are"
    listed = CliRunner().invoke(drill, ["list"])
    assert NAME in listed.output


def test_a_check_of_another_package_that_raises_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(evidence: Evidence) -> Iterator[Violation]:
        yield Violation("odd", "once")
        raise KeyError("odd")

    monkeypatch.setattr(extensions, "checks", lambda: {"odd": odd})
    found = check_all(Evidence(History(), complete=False))
    assert [(one.checker, one.text) for one in found] == [("odd", "the check raised KeyError('odd')")]


@pytest.mark.parametrize("returned", ["nonsense", None, 5, ["nonsense"], [Violation("odd", "x"), 3]])
def test_a_check_of_another_package_that_returns_no_violations_is_one(
    returned: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "checks", lambda: {"odd": lambda evidence: returned})
    (found,) = check_all(Evidence(History()))
    assert (found.checker, "it returned " in found.text) == ("odd", True)


@pytest.mark.parametrize(
    ("group", "value", "says"),
    [
        ("scenarios", "clumsy:nothing", "cannot be loaded: AttributeError"),
        ("scenarios", "clumsy:Stumble", "is no Scenario"),
        ("faults", "clumsy:CLUMSY", "is no subclass of OwnFault"),
        ("checks", "clumsy:CLUMSY", "is no function of Evidence"),
        ("checks", "no_such_module:x", "uninstall it"),
    ],
)
def test_an_entry_point_that_is_wrong_is_told_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, value: str, says: str
) -> None:
    installed(tmp_path, monkeypatch, f"[keelmq.{group}]\nodd = {value}\n")
    with pytest.raises(ConfigError, match=f"odd = {value} of clumsy .*{says}"):
        getattr(extensions, group)()


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "defines 0 scenarios"), ("1 / 0", "ZeroDivisionError"), (None, "no such Python file")],
)
def test_a_file_that_is_no_scenario_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "odd.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        find(str(path))


def test_a_world_that_a_fault_has_no_means_for_says_so() -> None:
    find(str(EXAMPLE))
    kind = kind_of("stumble")
    assert kind is not None
    with pytest.raises(NotImplementedError, match="stumble has no means in the simulated world"):
        super(kind, kind("slave")).simulated(None, "b1")  # type: ignore[misc]
