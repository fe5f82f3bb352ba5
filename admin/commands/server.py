"""The commands that run one server: ``keelmq namesrv | controller | broker``.

Apart from ``cluster``: a server's start does not wait for what only the cluster commands import.
"""

from __future__ import annotations

import click

from admin.group import LazyGroup
from admin.host.serve import serve

_conf = click.option("-c", "file", metavar="FILE", help="RocketMQ .conf (properties), or TOML: *.toml")
_set = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Overrides FILE.")


@click.command(short_help="Run a NameServer (and a Controller inside it).")
@_conf
@_set
@click.pass_context
def namesrv(ctx: click.Context, file: str | None, settings: tuple[str, ...]) -> None:
    """Run a NameServer until SIGTERM; with enableControllerInNamesrv=true a Controller runs inside it.

    Example: keelmq namesrv --set listenPort=9876
    """
    ctx.exit(serve("namesrv", file, settings))


@click.group(
    cls=LazyGroup,
    lazy={
        "transfer": ("admin.commands.controllers.transfer:transfer", "Make another Controller leader."),
        "replace": (
            "admin.commands.controllers.replace:replace",
            "Give a lost Controller's id to a new machine.",
        ),
    },
    invoke_without_command=True,
    no_args_is_help=False,
    short_help="Run a Controller of its own, move their leadership, or replace one.",
)
@_conf
@_set
@click.pass_context
def controller(ctx: click.Context, file: str | None, settings: tuple[str, ...]) -> None:
    """Run a Controller until SIGTERM; with a command, do that to running Controllers instead.

    Example: keelmq controller --set controllerDLegerPeers=n0-127.0.0.1:9878 --set controllerDLegerSelfId=n0
    """
    if ctx.invoked_subcommand is not None:
        if file is not None or settings:
            raise click.UsageError("-c and --set are for running a Controller")
        return
    ctx.exit(serve("controller", file, settings))


@click.command(short_help="Run a broker.")
@_conf
@_set
@click.pass_context
def broker(ctx: click.Context, file: str | None, settings: tuple[str, ...]) -> None:
    """Run a broker until SIGTERM.

    Example: keelmq broker -c broker.conf --set brokerName=broker-a
    """
    ctx.exit(serve("broker", file, settings))
