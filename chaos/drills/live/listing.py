"""``keelmq drill list``: what can be asked of a drill, broken by it, and checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Final

import click

from chaos import extensions
from chaos.checks import CHECKERS, liveness, masters, messages, order, replicas
from chaos.drills.live import stores
from chaos.drills.live.verdicts import BESIDE
from chaos.faults import FAULTS, Fault
from chaos.live.means import needs_of, refusal
from chaos.remote.hosts import UNDONE_BY
from chaos.scenarios import known
from chaos.scenarios.live_only import LiveOnly
from chaos.scenarios.matrix import FAULT_OF, KINDS
from chaos.worlds import live

Row = dict[str, Any]
SEEDS_LOOKED_AT: Final = 50
"""A scenario draws its faults from the seed: so many seeds say which kinds it may draw."""
TOLD: Final = {
    "no_errors": "No server or client ended by an error that no fault explains.",
    "consumed": "A consumer that follows the load is sent nowhere else, and given all of it.",
    "extras": "What was answered to other requests shows at the healed cluster (--extras).",
    "pushed": "A group of push consumers handled each acknowledged message (--extras).",
    stores.CHECKER: "Each store agrees with its log once all brokers have stopped.",
}


# A dataclass with slots is made twice: the last one is the class that its module knows.
LIVE_ONLY: Final = {kind.name: kind for kind in LiveOnly.__subclasses__()}


@click.command("list")
@click.option("--faults", "what", flag_value="faults", help="The faults of plans, with their arguments.")
@click.option("--checks", "what", flag_value="checks", help="The promises that every run is held against.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(what: str | None, as_json: bool) -> None:
    """Show the drills and the scenarios, and what of their faults this machine cannot do.

    \b
    Example: keelmq drill list --faults
    """
    rows = list({"faults": _faults, "checks": _checks, None: _commands}[what]())
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(f"{row['how']:68} {row['text']}")
        for fault, reason in row.get("refused", {}).items():
            click.echo(f"    not here: {fault}: {reason}")


def _commands() -> Iterator[Row]:
    # As the group is built: the commands' texts.
    from chaos.drills.commands import TEXTS

    for name in live.FAULTS:
        yield _row(name, f"keelmq drill {name}", TEXTS[name], [name])
    for name, scenario in known().items():
        drawn = [step.fault for seed in range(SEEDS_LOOKED_AT) for step in scenario.drawn(seed).steps]
        kinds = sorted({type(fault) for fault in drawn}, key=lambda kind: kind.name)
        refused = {kind.name: reason for kind in kinds if (reason := refusal(kind)) is not None}
        yield _row(name, f"keelmq drill run {name}", scenario.text, [k.name for k in kinds], refused)
    for name in KINDS:
        kind = {**FAULTS, **LIVE_ONLY}[FAULT_OF.get(name, name)]
        reason = refusal(kind)
        refused = {} if reason is None else {kind.name: reason}
        how = f"keelmq drill matrix DIR --kinds {name}"
        yield _row(f"matrix/{name}", how, _first(kind), [kind.name], refused)
    for name in UNDONE_BY:
        text = f"{name} servers of a cluster that runs elsewhere, one at a time"
        yield _row(f"staging/{name}", f"keelmq drill staging HOSTS.toml --kind {name}", text, [name])


def _row(name: str, how: str, text: str, broken: list[str], refused: dict[str, str] | None = None) -> Row:
    return {"name": name, "how": how, "text": text, "faults": broken, "refused": refused or {}}


def _faults() -> Iterator[Row]:
    """As a plan names them: what every fault has is its ``target``."""
    for name, kind in sorted({**FAULTS, **LIVE_ONLY, **extensions.faults()}.items()):
        given = {one.name: getattr(kind(), one.name) for one in fields(kind) if one.name != "target"}
        told = " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())
        reason = refusal(kind)
        yield {
            "name": name,
            "how": f"{name} {told}".rstrip(),
            "text": _first(kind) + ("" if name in FAULTS else " Not simulated."),
            "arguments": given,
            "needs": list(needs_of(kind)),
            "refused": {} if reason is None else {name: reason},
        }


def _checks() -> Iterator[Row]:
    for name in (*CHECKERS, *BESIDE):
        yield {"name": name, "how": name, "text": TOLD.get(name) or _first(_checker(name))}
    for name, check in extensions.checks().items():
        yield {"name": name, "how": name, "text": _first(check)}


def _checker(name: str) -> Callable[..., Any]:
    """The function of the suite that has its name."""
    modules = (messages, order, masters, replicas, liveness)
    found: Callable[..., Any] = next(filter(None, (getattr(module, name, None) for module in modules)))
    return found


def _first(told: type[Fault] | Callable[..., Any]) -> str:
    """The first paragraph of what it says of itself."""
    text, _, _ = (told.__doc__ or "").partition("\n\n")
    return " ".join(text.split())
