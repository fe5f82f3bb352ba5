"""``keelmq drill``: inject a fault into a cluster, measure the failover, check that nothing is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from admin import ending
from admin.console.drills import KINDS
from admin.exits import DONE, FAILED, UNFINISHED
from admin.group import LazyGroup
from admin.host.serve import loop_factory
from admin.local.cluster import LocalCluster
from admin.local.layout import no_drill
from admin.numbers import Number
from admin.outfile import CannotWrite, OutFile, OutFolder, on_stdout, write_whole
from admin.tls import client_env
from chaos.drills.campaign import CampaignPlan, campaign_line, run_campaign
from chaos.drills.drill import Show, run_drill, summary
from chaos.drills.load import DrillPlan
from chaos.drills.measure import Drill
from chaos.drills.screen import cannot_go_on, show_campaign, show_drill, show_summary
from chaos.history import History
from chaos.links.cluster_links import LINK_FAULTS, ClusterLinks
from chaos.live import folder, ports
from chaos.live.noted import Noted
from chaos.worlds.live import FAULTS, LiveWorld, World
from chaos.worlds.rocketmq_live import RocketMQWorld
from model.errors import ConfigError, MqError
from runtime.os_env import OsEnv

TEXTS: Final = {
    **KINDS,
    "cut-replication": "Cut the links between the master and its slaves; all others still hear it.",
    "silence-replication": "Swallow what the master and its slaves say to each other.",
    "slow-replication": "Delay replication by 30 ms (10 to 50) each way.",
    "reset-replication": "Reset the links between the master and its slaves.",
    "slice-replication": "Cut replication into pieces of some bytes.",
}
RECOVER_S: Final = {"keelmq": 30.0, "rocketmq": 75.0}
"""RocketMQ's own timers add up to more: 10 s to notice a frozen master, 5 s between two looks."""
SERVERS: Final = 6
"""NameServers and brokers of a cluster that is made for drills."""
CAMPAIGN_RATE: Final = 1000.0
CAMPAIGN_IN_FLIGHT: Final = 4
CAMPAIGN_AFTER_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Site:
    """Where the drills take place: a cluster that runs already, or one made for them and removed after."""

    target: str
    directory: Path | None
    settings: Sequence[str]
    proxied: bool = False
    """Whether the links of a cluster made for the drills go through proxies."""

    @asynccontextmanager
    async def world(self, env: OsEnv, tell: Callable[[str], object]) -> AsyncIterator[World]:
        """Raises ConfigError, ClusterNotReady, CannotDrill."""
        if self.directory is not None:
            no_drill(self.directory)
            cluster = LocalCluster.open(self.directory)
            await cluster.up(tell=tell)
            yield LiveWorld(env, cluster)
            return
        with folder.made(partial(click.echo, err=True)) as own, ports.held(SERVERS) as base:
            made = self._theirs if self.target == "rocketmq" else self._ours
            async with made(env, own, base, tell) as world:
                yield world

    @asynccontextmanager
    async def _theirs(
        self, env: OsEnv, own: Path, base: int, tell: Callable[[str], object]
    ) -> AsyncIterator[World]:
        theirs = RocketMQWorld(env, own, settings=self.settings, base_port=base)
        Noted.of_this_process().write(own)  # before any server: who heals is to know whose they are
        try:
            await theirs.start(tell)
            yield theirs
        finally:
            await folder.whole(theirs.stop())

    @asynccontextmanager
    async def _ours(
        self, env: OsEnv, own: Path, base: int, tell: Callable[[str], object]
    ) -> AsyncIterator[World]:
        cluster = LocalCluster.create(own, base_port=base, settings=self.settings)
        links = await ClusterLinks.lay(cluster.layout, own / "links.log") if self.proxied else None
        Noted.of_this_process().write(own)
        try:
            if links is not None:
                tell(f"links go through {links.means}")
            await cluster.up(tell=tell)
            yield LiveWorld(env, cluster, links)
        finally:
            try:
                cluster.down()
            finally:
                if links is not None:
                    links.stop()
            folder.clear(own)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One command as it was typed. Raises UsageError for options that exclude each other."""

    scenario: str
    directory: Path | None
    repeat: int
    campaign: bool
    acks: int
    limit_s: float
    rate: float | None
    size: int
    queues: int
    seed: int
    settings: tuple[str, ...]
    target: str
    history: Path | None
    out: Path | None

    def __post_init__(self) -> None:
        if self.directory is not None and (self.settings or self.target != "keelmq"):
            raise click.UsageError("--dir names a keelmq cluster that is there: no --set, no --target")
        if self.scenario in LINK_FAULTS and (self.directory is not None or self.target != "keelmq"):
            raise click.UsageError(
                f"{self.scenario} needs a cluster made for it, whose links go through proxies: "
                "no --dir, no --target"
            )
        if self.acks and not self.campaign:
            raise click.UsageError("--acks needs --campaign")

    @property
    def to_stdout(self) -> bool:
        return on_stdout(self.out)

    def plan(self) -> DrillPlan:
        return DrillPlan(
            scenario=self.scenario,
            rate=self.rate or (CAMPAIGN_RATE if self.campaign else 200.0),
            in_flight=CAMPAIGN_IN_FLIGHT if self.campaign else 1,
            size_bytes=self.size,
            seed=self.seed,
            queues=self.queues,
            recover_s=RECOVER_S[self.target],
            after_s=CAMPAIGN_AFTER_S if self.campaign else 1.0,
        )

    def site(self) -> Site:
        return Site(self.target, self.directory, self.settings, self.scenario in LINK_FAULTS)

    async def carry_out(self, console: Console) -> tuple[dict[str, Any], list[Drill]]:
        plan = self.plan()
        if not self.campaign:
            return await _run(plan, self.repeat, self.site(), self.history, console)
        whole = CampaignPlan(drill=plan, repeat=self.repeat, acks=self.acks, limit_s=self.limit_s)
        return await _run_campaign(whole, self.site(), self.history, console)


OPTIONS: Final = (
    click.Option(
        ["--dir", "directory"],
        type=click.Path(path_type=Path, file_okay=False),
        help="A cluster started by keelmq cluster up [a temporary one of its own].",
    ),
    click.Option(["--repeat"], type=click.IntRange(1), default=1, show_default=True, help="How many drills."),
    click.Option(
        ["--campaign"],
        is_flag=True,
        help="All drills after each other on one cluster, under load that never stops; judged at the end.",
    ),
    click.Option(
        ["--acks"],
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="With --campaign: go on with drills until so many sends were acknowledged.",
    ),
    click.Option(
        ["--limit", "limit_s"],
        type=Number(1),
        default=3600.0,
        show_default=True,
        help="With --campaign: begin no drill after so many seconds.",
    ),
    click.Option(["--rate"], type=Number(1), help="Messages/s in all [200; with --campaign 1000]."),
    click.Option(
        ["--size"], type=click.IntRange(1, 4_194_304), default=256, show_default=True, help="Body bytes."
    ),
    click.Option(["--queues"], type=click.IntRange(1, 64), default=4, show_default=True, help="Queues used."),
    click.Option(["--seed"], type=int, default=1, show_default=True, help="Chooses victims and bodies."),
    click.Option(["--set", "settings"], multiple=True, metavar="ROLE.KEY=V", help="For the own cluster."),
    click.Option(
        ["--target"],
        type=click.Choice(["keelmq", "rocketmq"]),
        default="keelmq",
        show_default=True,
        help="rocketmq: the real one, on this machine (needs Java).",
    ),
    click.Option(
        ["--history"],
        type=OutFolder(),
        help="Write each history there.",
    ),
    click.Option(["--json", "out"], type=OutFile(), help="Write the result here (- = stdout)."),
)


def _command(scenario: str) -> click.Command:
    return click.Command(
        scenario,
        params=list(OPTIONS),
        callback=partial(_drill, scenario),
        help=_help(scenario),
        short_help=TEXTS[scenario],
    )


def _drill(scenario: str, **options: Any) -> int:
    command = RunOptions(scenario=scenario, **options)
    console = Console(stderr=command.to_stdout)
    with ending.in_order():
        result, drills = ending.run(command.carry_out(console), loop_factory())
    result["settings"] = list(command.settings)
    code = exit_code(drills, command.repeat)
    if command.out is not None:
        try:
            write_whole(command.out, json.dumps(result) + "\n")
        except CannotWrite as error:
            click.echo(f"keelmq drill {scenario}: {error}", err=True)
            return code or UNFINISHED
    return code


def _help(scenario: str) -> str:
    return (
        f"{TEXTS[scenario]}\n\n"
        "Sends under load, injects the fault, measures until every queue is acknowledged again, mends, waits "
        "until the SyncStateSet is full, reads all back. Exit code 2 when anything is lost, doubled or "
        "disordered.\n\n"
        f"Example: keelmq drill {scenario} --repeat 5 --json drill.json"
    )


def exit_code(drills: Sequence[Drill], repeat: int) -> int:
    """2 for a broken promise, 3 when a drill did not come to its end, else 0."""
    if any(drill.violated for drill in drills):
        return FAILED
    if len(drills) < repeat or any(drill.unfinished is not None for drill in drills):
        return UNFINISHED
    return DONE


async def _run(
    plan: DrillPlan, repeat: int, site: Site, history: Path | None, console: Console
) -> tuple[dict[str, Any], list[Drill]]:
    env = client_env(seed=plan.seed)
    drills: list[Drill] = []
    try:
        with console.status("starting the cluster") as status:
            async with site.world(env, partial(_tell, status, "")) as world:
                for number in range(repeat):
                    told = partial(_tell, status, f"drill {number + 1}/{repeat}")
                    drill, events = await run_drill(
                        env, world, plan, number, env_of=partial(_env, plan.seed, number), show=Show(told)
                    )
                    drills.append(drill)
                    show_drill(console, plan.scenario, number, repeat, drill)
                    _keep(events, history, f"{plan.scenario}-{number}.jsonl")
    except MqError as error:
        if isinstance(error, ConfigError):
            raise
        # What was measured so far is still a result.
        cannot_go_on(console, error)
    result = summary(plan, site.target, drills)
    show_summary(console, result)
    return result, drills


async def _run_campaign(
    plan: CampaignPlan, site: Site, directory: Path | None, console: Console
) -> tuple[dict[str, Any], list[Drill]]:
    each = plan.drill
    env = client_env(seed=each.seed)

    def show(number: int, drill: Drill) -> None:
        line = campaign_line(number, plan, drill)
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    with console.status("starting the cluster") as status:
        async with site.world(env, partial(_tell, status, "")) as world:
            campaign, events = await run_campaign(
                env,
                world,
                plan,
                env_of=partial(_env, each.seed, 0),
                tell=partial(_tell, status, each.scenario),
                done=show,
            )
    _keep(events, directory, f"{each.scenario}-campaign.jsonl")
    result = campaign.to_json(each, site.target)
    show_campaign(console, result)
    return result, [*campaign.drills, campaign.total]


def _keep(events: History, directory: Path | None, name: str) -> None:
    if directory is None:
        return
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("w", encoding="utf-8") as file:
        events.write(file)


def _tell(status: Status, what: str, text: str) -> None:
    status.update(escape(f"{what}: {text}" if what else text))


def _env(seed: int, number: int, index: int) -> OsEnv:
    """Each client's own chance, else two clients would invent the same names."""
    return client_env(seed=(seed * 1_000_003 + number) * 1_000 + index)


drill = LazyGroup(
    "drill",
    {
        "sim": (
            "chaos.drills.simulated.commands:sim",
            "Break a simulated cluster, thousands of times, from seeds.",
        ),
        "list": (
            "chaos.drills.live.listing:list_",
            "Show drills, scenarios, faults and checks, and what cannot be done here.",
        ),
        "run": (
            "chaos.drills.live.commands:run",
            "Carry out a simulated scenario on real processes.",
        ),
        "replay": (
            "chaos.drills.live.commands:replay",
            "Carry out the plan of a result again.",
        ),
        "shrink": (
            "chaos.drills.live.shrink:shrink",
            "Leave out faults that a live violation does not need.",
        ),
        "matrix": (
            "chaos.drills.live.matrix:matrix",
            "Carry out kinds of faults in each mode, many times; one table.",
        ),
        "campaign": (
            "chaos.drills.live.campaign.commands:campaign",
            "Strike so often as the campaign's plan asks, resumable; one page.",
        ),
        "staging": (
            "chaos.drills.live.staging:staging",
            "Strike a cluster that runs elsewhere, by ssh.",
        ),
        "compare": (
            "chaos.drills.compare:compare",
            "Hold two results, or directories of them, against each other.",
        ),
        "report": (
            "cli.drill_report:report",
            "Make one page of a drill's result.",
        ),
        "heal": (
            "chaos.drills.live.commands:heal_",
            "End what a drill left that was killed.",
        ),
        "model": (
            "chaos.model.commands:model",
            "Explore every interleaving of a small group by the real rules.",
        ),
    },
    help="Inject a fault, measure the failover, check that nothing is lost.",
)
for _scenario in FAULTS:
    drill.add_command(_command(_scenario))
