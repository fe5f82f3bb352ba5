"""Where does a command write its result? Asked before the work begins: a drill takes minutes."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, Final

import click

from model.errors import MqError

STDOUT: Final = "-"


class OutFile(click.Path):
    """The path of a file to be written, ``-`` for stdout; wrong usage when its folder is not there, or when
    nothing can be written there."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not on_stdout(found) and not found.parent.is_dir():
            self.fail(f"there is no folder {str(found.parent)!r} to write {str(found)!r} in", param, ctx)
        where = Path(os.path.realpath(found))
        if not on_stdout(found) and (where.is_file() or not where.exists()) and not _may_write(where.parent):
            self.fail(f"nothing can be written in the folder {str(where.parent)!r}", param, ctx)
        return found


class OutFolder(click.Path):
    """The path of a folder, made when there is none; wrong usage when nothing can be written there."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = Path(os.fsdecode(super().convert(value, param, ctx)))
        there = next(one for one in (found, *found.absolute().parents) if one.exists())
        if not there.is_dir() or not _may_write(there):
            self.fail(f"nothing can be written in {str(there)!r}", param, ctx)
        return found


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


class CannotWrite(MqError):
    """A result is not in its file; the text names the file and the reason."""


def on_stdout(*paths: Path | None) -> bool:
    """Whether a result goes to stdout, so that nothing else may."""
    return any(str(path) == STDOUT for path in paths)


def write_whole(path: Path, text: str) -> None:
    """Write all of ``text`` to ``path``, or leave what is there; ``-`` is stdout. Raises CannotWrite."""
    if on_stdout(path):
        click.echo(text, nl=False)
        return
    where = Path(os.path.realpath(path))  # a link goes on to lead to the file
    draft = where.with_name(where.name + ".new")
    try:
        if where.exists() and not where.is_file():
            where.write_text(text, encoding="utf-8")  # a pipe or a device has no former content
            return
        try:
            draft.write_text("")
            if where.exists():
                shutil.copymode(where, draft)
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, where)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
    except OSError as error:
        raise CannotWrite(f"{path} was not written: {error.strerror or error}") from None
