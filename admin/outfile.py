"""Where does a command write its result? Asked before the work begins: a drill takes minutes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class OutFile(click.Path):
    """The path of a file to be written, ``-`` for stdout; wrong usage when its folder is not there."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = Path(os.fsdecode(super().convert(value, param, ctx)))
        if str(found) != "-" and not found.parent.is_dir():
            self.fail(f"there is no folder {str(found.parent)!r} to write {str(found)!r} in", param, ctx)
        return found
