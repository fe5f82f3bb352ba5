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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from model.errors import MqError
from model.installed import OURS, PACKAGES

NAMED_BY: Final = "KEELMQ_PREVIOUS"
DAY_S: Final = 86_400
GIT_S: Final = 60.0
COMMIT_DIGITS: Final = 12
CODE: Final = frozenset({".py", ".so"})
ELSEWHERE: Final = frozenset(
    {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"}
)
"""What would have git look at another repository than the one asked about."""


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


class Code(NamedTuple):
    """What runs: ``name`` is the commit, with a mark of what is not committed; ``written`` changes whenever
    one of its files is written, also when that is taken back."""

    name: str
    written: str


def code() -> Code:
    """Raises NoRelease where the name cannot be had."""
    return Code(exact(), _written())


def named() -> str:
    """Of which code a result is, wherever it was made: as ``exact``, but by the packages alone; where that
    cannot be told, by what is in their files. Two results of one name are of one code."""
    try:
        return exact(OURS)
    except NoRelease:
        found = hashlib.sha256()
        for package in OURS:
            for path in sorted((PACKAGES / package).rglob("*")):
                if path.suffix in CODE:
                    found.update(f"{path.relative_to(PACKAGES)}\0".encode() + path.read_bytes())
        return f"files.{found.hexdigest()[:COMMIT_DIGITS]}"


def exact(of: Sequence[str] = (".", ":(exclude)*.md")) -> str:
    """The commit of this code, and which changes of it are not committed: two results of one name are of one
    code. What was built for the compiled path is told, too. Pages are no code: a campaign writes its own.
    ``of``: where changes count. Raises NoRelease where it cannot be told: there is no other name for it."""
    if not _is_clone(PACKAGES):
        raise NoRelease(f"{PACKAGES} is no clone: nobody can say which commit this code is of")
    top, commit = _asked("rev-parse", "--show-toplevel", "HEAD").split()[-2:]
    if not os.path.samefile(top, PACKAGES):
        raise NoRelease(f"{PACKAGES} is no clone of its own: git takes it for a part of {top}")
    changed = hashlib.sha256(
        _asked("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--", *of).encode(
            "utf-8", "surrogateescape"
        )
    )
    unknown, built = hashlib.sha256(), hashlib.sha256()
    for name in sorted(filter(None, _asked("ls-files", "--others", "-z", "--", *OURS).split("\0"))):
        found = {".py": unknown, ".so": built}.get(Path(name).suffix)
        if found is not None:
            found.update(os.fsencode(name) + b"\0" + (PACKAGES / name).read_bytes())
    nothing = hashlib.sha256().digest()
    marks = {"changed": changed, "added": unknown, "compiled": built}
    told = [f"-{mark}.{has.hexdigest()[:8]}" for mark, has in marks.items() if has.digest() != nothing]
    return commit[:COMMIT_DIGITS] + "".join(told)


def _written() -> str:
    """Of every file of the code where, how large, and when it was written last: who takes a change back
    writes it again."""
    found = hashlib.sha256()
    for package in OURS:
        for path in sorted((PACKAGES / package).rglob("*")):
            if path.suffix in CODE:
                at = path.stat()
                found.update(f"{path} {at.st_ino} {at.st_size} {at.st_mtime_ns} {at.st_ctime_ns}\n".encode())
    return found.hexdigest()


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
    done = _ran(clone, *arguments)
    return done.stdout if not isinstance(done, Exception) and done.returncode == 0 else ""


def _asked(*arguments: str) -> str:
    """What git said of this code. Raises NoRelease."""
    done = _ran(PACKAGES, *arguments)
    if isinstance(done, Exception):
        raise NoRelease(f"nobody can say which commit this code is of: {done}")
    if done.returncode != 0:
        why = " ".join(done.stderr.split())
        raise NoRelease(f"nobody can say which commit this code is of: git {arguments[0]}: {why}")
    return done.stdout


def _ran(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str] | Exception:
    """git in that folder, whatever the environment says of another one."""
    env = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    try:
        return subprocess.run(
            ["git", "-C", str(clone), *arguments],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=GIT_S,
            env=env,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return error


def _checked(release: Release) -> Release:
    if not any((release.path / where / "admin").is_dir() for where in ("", "keelmq")):
        raise NoRelease(f"{release.path} holds no keelmq: name a source tree or a wheel by --previous")
    return release
