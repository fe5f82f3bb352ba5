"""What other packages, and single files, add to the suite: scenarios, faults, checks.

A package names them by entry points; a scenario may also be one file, ``keelmq drill run FILE.py``. What they
import is ``keelmq.drills``.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos.faults import FAULTS, OwnFault
from model.errors import ConfigError

if TYPE_CHECKING:
    from chaos.checks.violation import Violation
    from chaos.scenarios.plan import Scenario

SCENARIOS_GROUP: Final = "keelmq.scenarios"
FAULTS_GROUP: Final = "keelmq.faults"
CHECKS_GROUP: Final = "keelmq.checks"
FILE: Final = ".py"


@functools.cache
def scenarios() -> Mapping[str, Scenario]:
    """Of other packages, by their names. Raises ConfigError."""
    found = {}
    for entry, value in _loaded(SCENARIOS_GROUP):
        if not _is_scenario(value):
            raise ConfigError(f"{_named(entry)} is no Scenario but {value!r:.80}")
        found[value.name] = value
    return found


@functools.cache
def checks() -> Mapping[str, Callable[[Any], Iterable[Violation]]]:
    """Of other packages, by the names of their entry points. Raises ConfigError."""
    found = {}
    for entry, value in _loaded(CHECKS_GROUP):
        if not callable(value):
            raise ConfigError(f"{_named(entry)} is no function of Evidence but {value!r:.80}")
        found[entry.name] = value
    return found


@functools.cache
def faults() -> Mapping[str, type[OwnFault]]:
    """Of other packages, by their names. Raises ConfigError."""
    found = {}
    for entry, value in _loaded(FAULTS_GROUP):
        if not (isinstance(value, type) and issubclass(value, OwnFault)):
            raise ConfigError(f"{_named(entry)} is no subclass of OwnFault but {value!r:.80}")
        if value.name in FAULTS:
            raise ConfigError(f"{_named(entry)} has the name of a fault of the suite: {value.name}")
        found[value.name] = value
    return found


def load_for(scenario: str) -> None:
    """What a plan of this scenario may name. Raises ConfigError."""
    faults()
    if scenario.endswith(FILE):
        scenario_in(Path(scenario))


@functools.cache
def scenario_in(path: Path) -> Scenario:
    """The one Scenario that a Python file defines. The file is run. Raises ConfigError."""
    spec = importlib.util.spec_from_file_location(f"keelmq_scenario_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"{path}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a stranger's code raises
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    found = [value for value in vars(module).values() if _is_scenario(value)]
    if len(found) != 1:
        raise ConfigError(f"{path} defines {len(found)} scenarios instead of one")
    scenario: Scenario = found[0]
    return scenario


def _is_scenario(value: Any) -> bool:
    from chaos.scenarios.plan import Scenario  # the scenarios of the suite import this module

    return isinstance(value, Scenario)


def _loaded(group: str) -> list[tuple[EntryPoint, Any]]:
    found = []
    for entry in sorted(entry_points(group=group), key=lambda one: one.name):
        try:
            found.append((entry, entry.load()))
        except Exception as error:  # whatever a stranger's code raises
            raise ConfigError(
                f"{_named(entry)} cannot be loaded: {type(error).__name__}: {error}; "
                "mend that package or uninstall it"
            ) from error
    return found


def _named(entry: EntryPoint) -> str:
    package = entry.dist.name if entry.dist is not None else "an unknown package"
    return f"{entry.group}: {entry.name} = {entry.value} of {package}"
