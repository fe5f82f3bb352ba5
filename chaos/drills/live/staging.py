"""``keelmq drill staging``: kills, pauses and stops on a cluster that runs elsewhere, reached by ssh."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from admin import ending
from admin.exits import UNFINISHED
from admin.host.serve import loop_factory
from admin.outfile import OutFile, on_stdout, write_whole
from admin.tls import client_env
from chaos.drills.live.commands import env_of_client, exit_code, show, write_history
from chaos.drills.live.names import STAGING
from chaos.drills.live.scenario import DrillResult, DrillSpec, strike
from chaos.drills.live.verdicts import proves_nothing
from chaos.drills.screen import cannot_go_on
from chaos.live.ground import Ground
from chaos.remote import hosts as files
from chaos.remote import topics
from chaos.remote.cluster import RemoteCluster
from chaos.remote.hosts import UNDONE_BY, Hosts
from chaos.scenarios.matrix import plan
from chaos.worlds.live import CannotDrill
from model.errors import MqError
from runtime.env import Env

WHOLE_S: Final = 3.0
"""So long it may take to look whole before anything is struck."""


@click.command("staging")
@click.argument("hosts", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--kind", type=click.Choice(list(UNDONE_BY)), default="kill", show_default=True, help="What strikes."
)
@click.option("--strikes", type=click.IntRange(1), default=4, show_default=True, help="How often.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Draws the plan.")
@click.option("--yes", is_flag=True, help="Do not ask before the first strike.")
@click.option("--history", type=OutFile(), help="Write every send and read (JSON lines).")
@click.option("--json", "out", type=OutFile(), help="Write the result here.")
def staging(
    hosts: Path, kind: str, strikes: int, seed: int, yes: bool, history: Path | None, out: Path | None
) -> int:
    """Strike the servers of a staging cluster, one at a time, and check that nothing is lost.

    HOSTS names its servers and what may be done to them (docs/chaos.md). It must be whole before; it is left
    whole, also on Ctrl-C. After SIGKILL the hosts mend themselves, or keelmq drill heal --hosts HOSTS does.

    \b
    Example: keelmq drill staging staging.toml --kind pause --strikes 10 --json pauses.json
    """
    found = files.read(hosts)
    if kind not in found.allowed:
        raise click.UsageError(f"{hosts} allows {', '.join(found.allowed) or 'nothing'}, and no {kind}")
    if not yes:
        click.confirm(f"{kind} servers of {found.group} on {len(found.servers)} hosts?", abort=True)
    console = Console(stderr=on_stdout(out, history))
    drawn = plan(kind, "default", seed, strikes)
    drawn = replace(drawn, broker={}, load=replace(drawn.load, topic=topics.named()))
    spec = DrillSpec(
        scenario=f"staging/{kind}", seed=seed, plan=drawn, one_by_one=True, target=STAGING, stubborn=False
    )
    try:
        with (
            tempfile.TemporaryDirectory(prefix="keelmq-staging-") as own,
            ending.in_order(),
            console.status("looking at the cluster") as status,
        ):
            cluster = RemoteCluster(found, Path(own))
            tell = partial(_tell, status)
            told = ending.run(_run(client_env(seed=seed), spec, cluster, tell), loop_factory())
    except MqError as error:
        cannot_go_on(console, error, what="" if cluster.struck else "nothing was struck: ")
        if cluster.struck:
            console.print(f"keelmq drill heal --hosts {escape(str(hosts))} has every server run again")
        return UNFINISHED
    show(console, spec, told)
    if history is not None:
        write_history(told.history, history)
    if out is not None:
        write_whole(out, json.dumps(told.to_json(spec)) + "\n")
    return exit_code(told)


def _tell(status: Status, text: str) -> None:
    status.update(escape(text))


async def _run(
    env: Env, spec: DrillSpec, cluster: RemoteCluster, tell: Callable[[str], object]
) -> DrillResult:
    """Raises ClusterNotReady, CannotDrill before anything is struck, and MqError when the cluster cannot be
    left whole."""
    await cluster.wait_ready(timeout_s=WHOLE_S)
    tell("asking every host by ssh")
    if wrong := await env.offload(cluster.unreached):
        raise CannotDrill(unreached(wrong, cluster.hosts))
    try:
        told = await strike(env, spec, cluster, Ground(cluster), partial(env_of_client, spec.seed), tell)
    finally:
        wrong = await env.offload(lambda: cluster.mend(tell)) if cluster.struck else []
        namesrv = [node.address for node in cluster.layout.namesrvs]
        wrong += await topics.delete(env, namesrv, [spec.plan.load.topic])
        if wrong:
            raise MqError(f"not everything could be mended: {'; '.join(wrong)}")
    count_failed(told, spec, cluster.failed)
    return told


def unreached(wrong: Sequence[str], hosts: Hosts) -> str:
    """That servers cannot be told anything, and what to look at."""
    names = [text.partition(":")[0] for text in wrong]
    first = next(host for host in hosts.servers if host.name == names[0])
    command = " ".join([*hosts.ssh, first.ssh, "true"])
    count = "no host is" if len(wrong) == len(hosts.servers) else f"{', '.join(names)} are not"
    return f"{count} reached by ssh ({wrong[0]}); see that this works without a question: {command}"


def count_failed(told: DrillResult, spec: DrillSpec, failed: Sequence[str]) -> None:
    """A command that did not work, ``WHAT SERVER: why``, broke nothing, whatever was counted when it was
    sent."""
    for text in failed:
        told.outcome.refused.append({"at_ms": 0, "fault": spec.scenario, "reason": text})
        what = text.partition(" ")[0]
        if told.outcome.done[what]:
            told.outcome.done[what] -= 1
    proves = proves_nothing(spec.plan, told.outcome, told.drill.acked)
    told.drill.unfinished = told.drill.unfinished or proves
