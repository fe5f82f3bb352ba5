"""What did runs of one campaign leave that were killed? It is undone before the next run is measured beside
it, and nothing of anybody else's is: each run's ledger says whose it is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from chaos.drills.live.commands import heal_place
from chaos.live.noted import DRILL, Noted, is_ours
from model.errors import ConfigError, MqError


def named(directory: Path) -> str:
    """A campaign, as its runs' ledgers name it."""
    return str(directory.resolve())


def heal(directory: Path, tell: Callable[[str], object], run: int | None = None) -> None:
    """Undo what runs of the campaign in ``directory`` left; ``run``: the pid of one, if only that. Raises
    MqError, with what to do, when something stays."""
    for place in sorted(Path(tempfile.gettempdir()).glob(f"{DRILL}*")):
        if not _is_of(place, directory, run):
            continue
        try:
            heal_place(place, tell)
        except (MqError, OSError, RuntimeError) as error:
            raise MqError(
                f"what a run left stays, and the next ones would be measured beside it: {error}; "
                f"keelmq drill heal {place}, then the same command again"
            ) from None


def _is_of(place: Path, directory: Path, run: int | None) -> bool:
    try:
        noted = Noted.read(place) if is_ours(place) and place.is_dir() else None
    except (ConfigError, OSError):
        return False  # nobody knows whose it is
    return noted is not None and noted.campaign == named(directory) and run in (None, noted.pid)
