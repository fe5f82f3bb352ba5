"""Which cluster does a command mean? One of ``keelmq cluster up`` by directory, any other by address."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from admin.local.cluster import DEFAULT_DIRECTORY, LocalCluster
from model.settings import some_addresses

_Command = TypeVar("_Command", bound=Callable[..., Any])


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


def controllers_of(directory: Path, controllers: str | None) -> list[str]:
    """The Controllers' addresses, by what ``which_cluster`` gave."""
    if controllers is not None:
        return some_addresses(controllers, "--controllers")
    return [node.controller_address for node in LocalCluster.open(directory).layout.namesrvs]
