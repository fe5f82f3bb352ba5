"""Which module holds a subcommand? It is imported when the subcommand is used, not before.

So ``keelmq broker`` does not pay for (or even need) what ``keelmq audit`` imports.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from model.installed import module_name as full_name


class LazyGroup(click.Group):
    """A group whose subcommands are named ``module:attribute``, beside the line ``--help`` shows for them."""

    def __init__(self, name: str, lazy: Mapping[str, tuple[str, str]], help: str = "", **more: Any) -> None:
        super().__init__(name, help=help, **{"no_args_is_help": True, **more})
        self._lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = self._lazy.get(cmd_name)
        if where is None:
            return super().get_command(ctx, cmd_name)
        module_name, _, attribute = where[0].partition(":")
        try:
            module = importlib.import_module(full_name(module_name))
        except ModuleNotFoundError as error:
            missing = error.name or module_name
            return _not_here(cmd_name, self._lazy[cmd_name][1], missing)
        command = getattr(module, attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{where[0]} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            own = self.commands.get(name)
            rows.append((name, own.get_short_help_str(80) if own else self._lazy[name][1]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _not_here(name: str, what: str, package: str) -> click.Command:
    """In place of a command whose package is not installed: its help says so, and its use fails."""
    lacks = (
        f"{name} needs the package {package}, which is not installed: "
        "install keelmq with its extras (pip install 'keelmq[audit,console,proxy]')"
    )

    def refuse() -> None:
        raise click.ClickException(lacks)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=refuse, help=f"{what}\n\n{lacks}", context_settings=anything)


class _Signposted(click.Group):
    """A group that knows where commands are that are looked for here: name to what is said."""

    elsewhere: Mapping[str, str] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in self.elsewhere:
            ctx.fail(self.elsewhere[args[0]])
        return super().resolve_command(ctx, args)


def group_of(
    name: str, help: str, *commands: click.Command, elsewhere: Mapping[str, str] | None = None
) -> click.Group:
    """A plain group of commands already imported; ``elsewhere``: where others are that are missed here."""
    group = _Signposted(name, help=help, no_args_is_help=True)
    group.elsewhere = elsewhere or {}
    for command in commands:
        group.add_command(command)
    return group
