"""``keelmq audit``: which stores, which ledger, which engine? The exit code is the verdict."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import click

from admin import ending
from admin.host.allocator import Allocator
from admin.numbers import Number
from admin.terminal import say
from audit import room
from audit.earlier.incremental import forget
from audit.findings import EXIT_CODES, as_text, new_of
from audit.reading.storage import StoreSpec, inside, parse_stores, shown
from audit.results import diff as diffs
from audit.rows.bounded import UNLISTED
from audit.run import AuditError, Report
from audit.run import audit as run_audit
from audit.tables import Engine
from model.errors import ConfigError

EVERY_S: Final = 2.0
"""With ``--continuous``: between two looks for sealed segments."""


class _WithDiff(click.Command):
    """A command whose arguments may begin with the name of another one. An option that takes one value is
    given once: of two, click would drop the first in silence."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        options = [one for one in given if isinstance(one, click.Option) and not one.multiple]
        for one in options:
            if options.count(one) > 1 and (not one.is_flag or one.secondary_opts):
                more = (
                    "; a folder of JSON lines, or of Parquet, is one ledger" if one.name == "ledger" else ""
                )
                raise click.UsageError(f"{'/'.join(one.opts + one.secondary_opts)} is given twice{more}", ctx)
        return super().parse_args(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["diff"]:
            return diff.make_context(f"{info_name} diff", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.command("diff")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def diff(old: Path, new: Path, as_json: bool) -> int:
    """Tell what changed between two audits: the folders of their --out.

    Exit codes: 0 nothing new, 1 new or worse warnings, 2 errors, 3 the newer audit did not finish, 64 wrong
    usage.

    \b
    keelmq audit diff reports/sunday reports/monday
    """
    change = diffs.compare(diffs.read(old), diffs.read(new))
    if as_json:
        click.echo(json.dumps(change.to_json(), ensure_ascii=False))
    else:
        for line in diffs.lines(change):
            say(line)
    return change.exit_code


@click.command("audit", cls=_WithDiff)
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@click.option(
    "--ledger",
    metavar="FILE",
    help="Acknowledged messages: JSON lines (also compressed), Parquet, or a history; a path or URL.",
)
@click.option("--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True)
@click.option("--master", metavar="URL", help="Spark master; default local[*]. Needs --engine spark.")
@click.option(
    "--conf",
    multiple=True,
    metavar="KEY=VALUE",
    help="Spark's configuration; repeated. Needs --engine spark.",
)
@click.option(
    "--out", default="audit-report", show_default=True, metavar="DIR", help="Where the report goes."
)
@click.option(
    "--full/--incremental",
    default=True,
    help="Read everything (default), or trust sealed segments that --incremental read into the same --out.",
)
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the result as metrics: NAME.prom for node_exporter's textfile collector.",
)
@click.option(
    "--continuous",
    is_flag=True,
    help="Audit a running group as its segments are sealed, until SIGTERM or SIGINT.",
)
@click.option(
    "--every",
    type=Number(min=0.1),
    metavar="SECONDS",
    help="With --continuous: how often to look for sealed segments; default 2.",
)
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of text.")
def audit(
    stores: tuple[str, ...],
    ledger: str | None,
    engine: str,
    master: str | None,
    conf: tuple[str, ...],
    out: str,
    full: bool,
    textfile: Path | None,
    continuous: bool,
    every: float | None,
    as_json: bool,
) -> int:
    """Check that the stores of one broker group hold the same log, and every acknowledged message.

    A STORE is a broker's storePathRootDir (keelmq's or RocketMQ's), name=DIR or name=URL, a tar file of one
    (.tar.gz, .tar.zst, ...), or @FILE: a list of hosts and their stores. Stores are only read, and may be in
    use. Exit codes: 0 clean, 1 warnings, 2 diverged, 3 could not finish, 64 wrong usage.

    \b
    keelmq audit /data/b0 /data/b1 /data/b2 --ledger acked.jsonl --out report
    keelmq audit a=/mnt/a b=s3://bucket/b --engine spark --master spark://host:7077
    keelmq audit a=ssh://10.0.0.1/data/a b=https://copies/b c=/backup/c.tar.gz
    keelmq audit /data/b0 /data/b1 /data/b2 --continuous --out report
    keelmq audit diff reports/sunday reports/monday
    """
    _refuse_unfit(engine, master, conf)
    _refuse_unfit_watch(continuous, every, finite=bool(ledger) or engine != "local" or as_json)
    directory = Path(out)
    specs = _apart(parse_stores(list(stores)), out, textfile)
    _look_at(textfile)
    if continuous:
        return watch(specs, directory, every or EVERY_S, textfile)
    report: Report | None = None
    with ending.in_order(quiet=True):  # what a scan spilled is removed by any signal
        try:
            if ledger and "://" not in ledger and not Path(ledger).exists():
                raise click.UsageError(f"--ledger {ledger}: no such file")
            made = make_engine(engine, master, dict(pair.split("=", 1) for pair in conf))
            try:
                more = [*(["--master", master] if master else []), *_without_values(conf)]
                report = run(specs, made, ledger, directory, full=full, quiet=as_json, more=more)
            finally:
                made.close()
        finally:
            written = _tell(textfile, report)
    _print(report, directory, as_json=as_json)
    diverged = report.verdict == "diverged"
    return EXIT_CODES[report.verdict if written or diverged else "unfinished"]


def _print(report: Report, directory: Path, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report.to_json()))
    elif not report.replicas:
        say(f"keelmq: {_nothing_read(report)}", err=True)
    else:
        from audit.pages import report as pages

        for line in pages.lines(report):
            say(as_text(line))
        say(as_text(f"report: {directory / 'index.html'}"))


def _look_at(textfile: Path | None) -> None:
    """Can it be written, and will it be read? Raises UsageError before anything is done."""
    if textfile is None:
        return
    if not textfile.parent.is_dir():
        raise click.UsageError(f"--textfile {textfile}: there is no folder {textfile.parent}")
    if textfile.suffix != ".prom":
        say(f"keelmq: --textfile {textfile}: node_exporter reads only files named *.prom", err=True)


def _tell(textfile: Path | None, report: Report | None) -> bool:
    """Write the metrics; False, and a line to stderr, where that cannot be done: the verdict stands."""
    if textfile is None:
        return True
    from audit.pages import textfile as metrics

    try:
        metrics.write(textfile, report)
    except OSError as error:
        say(f"keelmq: --textfile {textfile} could not be written: {error.strerror or error}", err=True)
        return False
    return True


def _apart(specs: list[StoreSpec], out: str, textfile: Path | None) -> list[StoreSpec]:
    """The stores, which are only read: raises UsageError if a result would lie in one."""
    for option, path in (("--out", out), ("--textfile", textfile)):
        for spec in specs:
            if path is not None and inside(str(path), spec.location):
                raise click.UsageError(f"{option} {path}: it lies in the store {shown(spec.location)}")
    return specs


def _nothing_read(report: Report) -> str:
    """Why no store was audited, and what to do, in one line."""
    reasons = "; ".join(f"{name} could not be read: {why}" for name, why in report.unreadable.items())
    return f"{reasons} (a STORE is a broker's storePathRootDir, the folder that holds commitlog)"


def _refuse_unfit(engine: str, master: str | None, conf: tuple[str, ...]) -> None:
    """Raises UsageError on options that do not fit."""
    if master and engine != "spark":
        raise click.UsageError("--master needs --engine spark")
    if conf and engine != "spark":
        raise click.UsageError("--conf needs --engine spark")
    if wrong := [pair for pair in conf if not (pair.partition("=")[0] and "=" in pair)]:
        raise click.UsageError(f"--conf {wrong[0]}: KEY=VALUE is expected")


def _refuse_unfit_watch(continuous: bool, every: float | None, *, finite: bool) -> None:
    """``finite``: there are options of an audit that ends. Raises UsageError."""
    if every is not None and not continuous:
        raise click.UsageError("--every needs --continuous")
    if continuous and finite:
        raise click.UsageError("--continuous has no ledger, the local engine, and text")


class Stop:
    """SIGTERM and SIGINT, while entered, are a wish to end in order."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __enter__(self) -> Self:
        signals = (signal.SIGTERM, signal.SIGINT)
        self._before = {number: signal.signal(number, self._told) for number in signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _told(self, number: int, frame: object) -> None:
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Whether to stop."""
        return self._event.wait(seconds)


def watch(specs: list[StoreSpec], directory: Path, every_s: float, textfile: Path | None) -> int:
    """Audit continuously until a signal. The exit code is the verdict. Raises ConfigError, OSError."""
    from audit.continuous import HISTORY, Continuous
    from audit.pages import report as shown
    from audit.pages import textfile as metrics

    told = metrics.Running(textfile) if textfile is not None else None

    def keep(report: Report | None) -> None:
        if report is not None:
            shown.save(report, directory)
        if told is not None:
            told.ended(report)

    def looked() -> None:
        if told is not None:
            told.looked()

    with Stop() as stop:
        made = Continuous(specs, lambda: make_engine("local"), directory, stop.wait, say, keep, looked)
        verdict = made.run(every_s)
    came = f"by all that came or went, {directory / HISTORY}"
    say(as_text(f"{verdict}, {came}; report: {directory / 'index.html'}"))
    return EXIT_CODES[verdict]


def run(
    specs: list[StoreSpec],
    engine: Engine,
    ledger: str | None,
    directory: Path,
    *,
    full: bool = True,
    quiet: bool = False,
    more: Sequence[str] = (),
) -> Report:
    """Audit and write the report into ``directory``; ``more`` are options that the report's command line
    names too. Raises ConfigError, AuditError, OSError."""
    from audit.pages import report as pages

    def progress(text: str) -> None:
        if not quiet and sys.stderr.isatty():
            say(f"{text} ...", err=True)

    directory.mkdir(parents=True, exist_ok=True)
    left = directory / "trusted.parquet"
    # A full audit trusts nothing, and makes anew what an incremental one left: else nobody asks for it.
    state = left if not full or forget(left) else None
    report = run_audit(
        specs,
        engine,
        ledger_path=ledger,
        state=state,
        unlisted=new_of(directory / UNLISTED),
        progress=progress,
    )
    options = ["--ledger", shown(ledger)] if ledger else []
    options += ["--engine", engine.name, *more, "--out", str(directory), *([] if full else ["--incremental"])]
    stores = [f"{spec.name}={shown(spec.location)}" for spec in specs]
    report.command = shlex.join(["keelmq", "audit", *stores, *options])
    try:
        pages.save(report, directory)
    except OSError as error:  # of a full disk it does not name the file
        if error.filename or not room.is_full(error):
            raise
        raise AuditError(f"no room in {directory} ({error})") from error
    return report


def _without_values(conf: Sequence[str]) -> list[str]:
    """Spark's settings may hold passwords: their names only."""
    return [part for pair in conf for part in ("--conf", f"{pair.partition('=')[0]}=***")]


def make_engine(name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> Engine:
    """The engine of that name. Raises ConfigError when Spark cannot run here."""
    if name == "local":
        from audit.engines.local import LocalEngine

        Allocator().begin()
        return LocalEngine()
    try:
        from audit.engines.spark import SparkEngine
    except ImportError as error:
        raise ConfigError(f"--engine spark needs the extra: pip install 'keelmq[audit]' ({error})") from None
    return SparkEngine(master, conf)
