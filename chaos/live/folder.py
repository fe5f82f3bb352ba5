"""The folder that a drill makes: its ledger is the first thing in it, and the last one out.

So whoever heals knows it whenever the drill is killed; and it goes only when all else is undone, as nobody
could undo the rest without it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from chaos.live.noted import DRILL, LEDGER, Noted, is_ours
from runtime.os_env import OsEnv
from runtime.tasks import Tasks

EMPTY_S: Final = 60.0
"""A drill notes itself in its folder at once: one that is empty for so long was killed before."""


@contextmanager
def made(tell: Callable[[str], object]) -> Iterator[Path]:
    """A new folder, which goes when all is undone; else ``tell`` hears what is to be done. Within
    ``ending.uncut`` no signal leaves it half removed."""
    own = Path(tempfile.mkdtemp(prefix=DRILL))
    try:
        clear(own)
        yield own
    finally:
        _end(own, tell)


async def whole(work: Coroutine[Any, Any, None]) -> None:
    """Await it to its end: a signal meanwhile, which cancels, is heard after."""
    task, cut = Tasks("end").spawn(work, name="end"), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cut = error
    task.result()
    if cut is not None:
        raise cut


def clear(own: Path, *, keep: bool = False) -> None:
    """Note that nothing is to be undone but the folder."""
    Noted.of_this_process(keep=keep, cleared=True).write(own)


def _end(own: Path, tell: Callable[[str], object]) -> None:
    noted = Noted.read(own) if own.exists() else None
    if noted is None:
        return
    try:
        if noted.cleared:
            remove(own)
            return
        why = "not everything could be undone"
    except OSError as error:
        why = str(error)
    tell(f"{own} stays, {why}: keelmq drill heal {own}")


def remove(place: Path) -> None:
    """Take a folder away. Raises OSError when something stays; its ledger does then, too."""
    if not place.exists():
        return
    for path in place.iterdir():
        if path.name == LEDGER:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    left = sorted(path.name for path in place.iterdir() if path.name != LEDGER)
    if left:
        raise OSError(f"{', '.join(left)} of {place} could not be removed")
    (place / LEDGER).unlink(missing_ok=True)
    place.rmdir()


def is_forgotten(place: Path) -> bool:
    """Whether a drill made it, and was killed before it noted anything."""
    if not place.name.startswith(DRILL) or not is_ours(place):
        return False
    if {path.name for path in place.iterdir()} - {f"{LEDGER}.new"}:
        return False
    return OsEnv().now_ms() / 1000 - place.stat().st_mtime > EMPTY_S
