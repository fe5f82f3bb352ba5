"""Another release of this project, for upgrades: where does it come from, and what is it called?

``KEELMQ_PREVIOUS`` or ``--previous`` names a source tree or a wheel. Without, of a clone, its newest tag
before this commit; without tags, the last commit that is a day older than this one.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model.errors import MqError
from model.installed import PACKAGES

NAMED_BY: Final = "KEELMQ_PREVIOUS"
DAY_S: Final = 86_400
GIT_S: Final = 60.0


class NoRelease(MqError):
    """There is no other release to start; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """``path``: the folder that is put on a server's path. ``name``: a tag, a commit, or a file's name."""

    name: str
    path: Path


def previous(given: Path | None, into: Path) -> Release:
    """The release that an upgrade begins with; what has to be unpacked, in ``into``. Raises NoRelease."""
    named = os.environ.get(NAMED_BY)
    given = given or (Path(named) if named else None)
    if given is None:
        return _of_history(PACKAGES, into)
    if given.is_dir():
        return _checked(Release(_described(given) or given.resolve().name, given.resolve()))
    try:
        with zipfile.ZipFile(given) as wheel:
            wheel.extractall(into)
    except (OSError, zipfile.BadZipFile) as error:
        raise NoRelease(f"{given} is neither a source tree nor a wheel: {error}") from None
    return _checked(Release(given.name, into))


def this() -> str:
    """What this release is called."""
    return _described(PACKAGES) or PACKAGES.name


def exact() -> str:
    """As ``this``; of a clone with changes that are not committed also which: two results of one name are of
    one code. Pages are none: a campaign writes its own."""
    changed = _git(PACKAGES, "diff", "HEAD", "--", ".", ":(exclude)*.md") if _is_clone(PACKAGES) else ""
    mark = f"-changed.{hashlib.sha256(changed.encode()).hexdigest()[:8]}" if changed else ""
    return this() + mark


def _of_history(clone: Path, into: Path) -> Release:
    commit = _git(clone, "describe", "--tags", "--abbrev=0", "HEAD^").strip() or _a_day_ago(clone)
    if not commit:
        raise NoRelease(f"{clone} has no earlier release: name a source tree or a wheel by --previous")
    made = subprocess.run(["git", "-C", str(clone), "archive", commit], capture_output=True, timeout=GIT_S)
    if made.returncode != 0:
        raise NoRelease(f"git archive {commit}: {made.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(into, filter="data")
        else:  # Python 3.11.3 and older have none; git packed it
            packed.extractall(into)
    return _checked(Release(_git(clone, "describe", "--tags", "--always", commit).strip(), into))


def _a_day_ago(clone: Path) -> str:
    now_s = _git(clone, "log", "-1", "--format=%ct").strip()
    if not now_s:
        return ""
    return _git(clone, "rev-list", "-1", f"--before={int(now_s) - DAY_S}", "HEAD").strip()


def _described(tree: Path) -> str:
    """Of a clone the tag or commit; "" of anything else, also when it lies in another's clone."""
    return _git(tree, "describe", "--tags", "--always").strip() if _is_clone(tree) else ""


def _is_clone(tree: Path) -> bool:
    return (tree / ".git").exists()


def _git(clone: Path, *arguments: str) -> str:
    """What git said; "" where it failed or is missing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(clone), *arguments], capture_output=True, text=True, timeout=GIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _checked(release: Release) -> Release:
    if not any((release.path / where / "admin").is_dir() for where in ("", "keelmq")):
        raise NoRelease(f"{release.path} holds no keelmq: name a source tree or a wheel by --previous")
    return release
