"""Which cluster does a command mean? One of ``keelmq cluster up`` by directory, any other by address."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from admin.local.cluster import DEFAULT_DIRECTORY, LocalCluster
from admin.local.layout import NoCluster
from model.settings import some_addresses

_Command = TypeVar("_Command", bound=Callable[..., Any])

CONTROLLERS: Final = "--controllers 'HOST:PORT;...' (controllerAddr in a broker's file)"
NAMESRV: Final = "--namesrv 'HOST:PORT;...' (namesrvAddr in a broker's file)"
"""How a command is told of a cluster that is not in a directory here, and where to look that up."""


def cluster_directory(text: str) -> Callable[[_Command], _Command]:
    """Give a command ``directory: Path`` (--dir)."""
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        default=DEFAULT_DIRECTORY,
        show_default=True,
        help=text,
    )


def which_cluster(controllers_help: str) -> Callable[[_Command], _Command]:
    """Give a command ``directory: Path`` (--dir) and ``controllers: str | None`` (which wins over it)."""

    def add(command: _Command) -> _Command:
        command = click.option("--controllers", metavar="HOST:PORT;...", help=controllers_help)(command)
        return cluster_directory("A cluster of keelmq cluster up.")(command)

    return add


def opened(directory: Path, otherwise: str) -> LocalCluster:
    """The cluster of ``directory``. Raises ConfigError; where there is none, ``otherwise`` (CONTROLLERS or
    NAMESRV) says how to name another one's servers."""
    try:
        return LocalCluster.open(directory)
    except NoCluster as error:
        raise NoCluster(f"{error}; or name the servers of another one: {otherwise}") from None


def controllers_of(directory: Path, controllers: str | None) -> list[str]:
    """The Controllers' addresses, by what ``which_cluster`` gave."""
    if controllers is not None:
        return some_addresses(controllers, "--controllers")
    return [node.controller_address for node in opened(directory, CONTROLLERS).layout.namesrvs]
