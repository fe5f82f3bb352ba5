"""What happens to a cluster under load when its master is killed? ``keelmq demo`` shows it and proves it.

Three NameServers with Controllers and three brokers run as processes of this machine. A third into the run
the master is killed with SIGKILL, at two thirds it is started again. Then Spark compares every replica with
every other and with every acknowledgement.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from admin import ending
from admin.exits import DONE, FAILED, UNFINISHED, WARNINGS
from admin.host.serve import loop_factory
from admin.local.cluster import LocalCluster
from admin.numbers import Number
from admin.tls import client_env
from audit.commands import make_engine
from audit.commands import run as run_audit
from audit.reading.storage import StoreSpec
from audit.tables import Engine
from cli.demo_report import page
from cli.demo_run import PRODUCERS, Plan, Result, run_cluster
from cli.demo_screen import PlainScreen, RichScreen, Screen
from cli.dips import dips, latencies
from model.errors import ConfigError, MqError

MARKER: Final = ".keelmq-demo"
"""A folder with this file is one of ours and may be replaced, unless the demo that made it still runs."""


@contextmanager
def prepared(out: Path) -> Iterator[None]:
    """An empty ``out``, which no other demo takes meanwhile. Raises ConfigError when something is there that
    is not ours, or a demo that still runs."""
    with _alone(out):
        prepare(out)
        with _alone(out):
            yield


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    if not (out / MARKER).is_file():
        yield
        return
    with (out / MARKER).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"a demo runs in {out}: wait for its end, or choose another --out") from None
        yield


def prepare(out: Path) -> None:
    """Make an empty ``out``. Raises ConfigError when something is there that is not ours."""
    if out.exists():
        if not out.is_dir():
            raise ConfigError(f"--out {out} is not a folder")
        if any(out.iterdir()) and not (out / MARKER).exists():
            raise ConfigError(f"--out {out} exists and is not a demo's folder: remove it or choose another")
        if (out / "cluster" / "cluster.json").exists():
            # A demo that was killed may have left servers behind; they are known by their configuration.
            LocalCluster.open(out / "cluster").down()
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARKER).write_text("made by keelmq demo; replaced by the next one\n")


def start_engine(screen: Screen) -> Engine:
    """Spark, ready to read; the local engine where Spark cannot run."""
    try:
        engine = make_engine("spark")
    except ConfigError as error:
        screen.say(f"{error}; auditing with the local engine")
        return make_engine("local")
    try:
        engine.warm_up()
    except MqError:
        engine.close()
        raise
    return engine


def audit_stores(cluster: LocalCluster, result: Result, engine: Engine, out: Path, screen: Screen) -> None:
    """Write the ledger, audit all stores against it."""
    ledger = out / "acked.jsonl"
    rows = list(result.history.ledger())
    ledger.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    specs = [StoreSpec(n.name, str(cluster.store_path(n))) for n in cluster.layout.broker_nodes]
    screen.say(f"auditing {len(specs)} stores against {len(rows)} acknowledgements with {engine.name}")
    result.audit = run_audit(specs, engine, str(ledger), out / "audit", quiet=True)


def summary_lines(result: Result, out: Path) -> Sequence[str]:
    """The verdict for a terminal."""
    drill, audit = result.drill, result.audit
    rto = f"{drill.rto_ms:.0f} ms" if drill.rto_ms is not None else "no new master answered"
    lines = [
        f"RTO {rto} (worst queue) · RPO {result.rpo} messages · {drill.duplicates} duplicates · "
        f"{drill.order_violations} order violations",
        f"{drill.acked:,} acknowledged, {drill.unknown} unknown, {drill.failed} refused, "
        f"{result.consumed:,} consumed; {result.victim} → {result.successor}, "
        f"epoch {result.epochs[0]} → {result.epochs[1]}",
    ]
    if audit is not None:
        lines.append(
            f"audit ({audit.engine}): {audit.verdict}, {len(audit.replicas)} replicas, "
            f"{audit.records:,} records, {len(audit.findings)} findings, {audit.seconds:.1f} s"
        )
    lines += [f"violation: {text}" for text in result.violations[:10]]
    if drill.unfinished:
        lines.append(f"not finished: {drill.unfinished}")
    verdicts = {
        DONE: "Nothing acknowledged is missing, order holds, all replicas are equal.",
        WARNINGS: "Nothing acknowledged is missing; the audit has warnings.",
        FAILED: "A promise was broken.",
        UNFINISHED: "Not everything could be checked.",
    }
    lines.append(verdicts[result.exit_code])
    lines.append(f"report: {out / 'index.html'}")
    return lines


@click.command()
@click.option("--seconds", type=Number(6, 3600), default=30.0, show_default=True, help="Of load.")
@click.option(
    "--rate", type=click.IntRange(PRODUCERS, 100_000), default=1000, show_default=True, help="Messages/s."
)
@click.option(
    "--size", type=click.IntRange(1, 4_194_304), default=1024, show_default=True, help="Body bytes."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses bodies and moments.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Report folder; an earlier demo's is replaced.",
)
@click.option("--keep", is_flag=True, help="Keep the stores and logs of the cluster after a good end, too.")
def demo(seconds: float, rate: int, size: int, seed: int, out: Path, keep: bool) -> int:
    """Run a cluster under load, kill its master, start it again, and audit every replica.

    Exit code 0 only if nothing acknowledged is missing, order holds and all replicas are equal.

    Example: keelmq demo --seconds 60 --rate 2000 --out demo
    """
    plan = Plan(seconds=seconds, rate=rate, size_bytes=size, seed=seed)
    console = Console()
    screen: Screen = RichScreen(console) if console.is_terminal else PlainScreen(click.echo)
    with prepared(out):
        result = _run(plan, out, screen)
        for line in summary_lines(result, out):
            click.echo(line)
        if result.exit_code == DONE and not keep:
            shutil.rmtree(out / "cluster")
        else:
            with (out / "history.jsonl").open("w") as file:
                result.history.write(file)
    return result.exit_code


def _run(plan: Plan, out: Path, screen: Screen) -> Result:
    """A cluster in ``out``, its drill, and the audit; the report is written."""
    cluster = LocalCluster.create(out / "cluster")
    # Spark takes seconds to start: it does so while the cluster settles.
    starter = ThreadPoolExecutor(1, thread_name_prefix="engine")
    starting: list[Future[Engine]] = []
    with ending.in_order():
        try:
            try:
                with screen:
                    started = partial(_start_engine_once, starting, starter, screen)
                    work = run_cluster(client_env(seed=plan.seed), cluster, plan, screen, started)
                    result = ending.run(work, loop_factory())
            finally:
                cluster.down()
            _start_engine_once(starting, starter, screen)  # where the load did not come to its end
            with screen:
                audit_stores(cluster, result, starting[0].result(), out, screen)
        finally:
            starter.shutdown()
            for engine in starting:
                if engine.exception() is None:
                    engine.result().close()
    told = result.to_json() | {"latency_ms": latencies(result), "dips": dips(result)}
    (out / "demo.json").write_text(json.dumps(told, indent=2) + "\n")
    (out / "index.html").write_text(page(result))
    return result


def _start_engine_once(starting: list[Future[Engine]], starter: ThreadPoolExecutor, screen: Screen) -> None:
    if not starting:
        starting.append(starter.submit(start_engine, screen))
