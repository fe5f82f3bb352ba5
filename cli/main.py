"""Which commands does ``keelmq`` have? Each one's module is imported only when it is used.

Shell completion (bash, zsh, fish), for the running shell or its start-up file:

    eval "$(_KEELMQ_COMPLETE=bash_source keelmq)"
    eval "$(_KEELMQ_COMPLETE=zsh_source keelmq)"
    _KEELMQ_COMPLETE=fish_source keelmq | source
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from admin.exits import run
from admin.group import LazyGroup
from runtime.version import version

COMMANDS: Final = {
    "namesrv": ("admin.commands.server:namesrv", "Run a NameServer (and a Controller inside it)."),
    "controller": (
        "admin.commands.server:controller",
        "Run a Controller of its own, or move their leadership.",
    ),
    "broker": ("admin.commands.server:broker", "Run a broker."),
    "cluster": ("admin.commands.cluster:cluster", "A cluster of real processes on this machine."),
    "group": ("admin.commands.group:group", "One broker group: show it, hand it over, forget dead brokers."),
    "maintenance": ("admin.commands.maintenance:maintenance", "A broker that is not to lead: on, off."),
    "topic": ("admin.commands.messaging.topic:topic", "Topics: list, describe, create, alter, delete."),
    "consumer": (
        "admin.commands.messaging.consumer:consumer",
        "Consumer groups: list, describe their lag, reset, delete.",
    ),
    "producer": ("admin.commands.messaging.producer:producer", "Producers that are online: list, describe."),
    "top": ("admin.commands.top:top", "A cluster live: roles, rates, lag, disks."),
    "console": (
        "admin.commands.console:console",
        "A cluster in a browser: map, topics, groups, messages.",
    ),
    "bench": ("admin.commands.bench:bench", "Load from the shell: send, consume."),
    "send": ("admin.commands.messaging.message:send", "Send messages from the shell."),
    "tail": ("admin.commands.messaging.message:tail", "Show messages of a topic as they come."),
    "message": ("admin.commands.messaging.find:message", "Find stored messages by id, key or time."),
    "doctor": ("admin.commands.doctor:doctor", "What is wrong, and what to do about it."),
    "certs": ("admin.commands.certs:certs", "An authority and certificates for a cluster's TLS."),
    "user": ("admin.commands.access.user:user", "Users of ACL 2.0: list, create, update, delete."),
    "policy": ("admin.commands.access.policy:policy", "What users may do: list, create, update, delete."),
    "store": ("admin.commands.store:store", "Look into a store directory, ours or RocketMQ's."),
    "backup": ("admin.commands.backup:backup", "A store kept elsewhere: create, list, verify, restore."),
    "drill": (
        "chaos.drills.commands:drill",
        "Inject a fault, measure the failover, check that nothing is lost.",
    ),
    "audit": ("audit.commands:audit", "Compare the stores of all replicas; ends in a verdict."),
    "demo": ("cli.demo:demo", "The whole story in about a minute."),
}
COMPLETION_VARIABLE: Final = "_KEELMQ_COMPLETE"


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from runtime import native  # only here, as above

        click.echo(f"keelmq {version()}")
        click.echo(f"path of sends: {native.describe()}")
        ctx.exit()


def command() -> click.Group:
    """The root of all commands."""
    root = LazyGroup(
        "keelmq",
        COMMANDS,
        help="A broker group that stays up: the highly available core of Apache RocketMQ 5.x in Python.\n\n"
        "Exit codes: 0 done or clean, 1 warnings, 2 a check failed, 3 could not finish, 64 wrong usage.\n\n"
        'Completion: eval "$(_KEELMQ_COMPLETE=bash_source keelmq)" (or zsh_source; fish: fish_source).',
    )
    root.params.append(
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            help="Show the version and exit.",
            callback=_show_version,
        )
    )
    return root


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point; ends the process with the command's exit code."""
    root = command()
    if os.environ.get(COMPLETION_VARIABLE):
        root.main(prog_name="keelmq", complete_var=COMPLETION_VARIABLE)
    sys.exit(run(root, sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
