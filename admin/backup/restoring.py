"""How is a store made from a backup?

Into a directory that is not there or is empty, so that no store is ever mixed with another. The broker that
is started on it finds a log without queues and makes them; it has no identity and no epochs, so it is the
first of a group that is new to its Controllers.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from admin.backup.manifest import CannotBackUp, Damaged, Manifest, Part
from admin.backup.target import Target, create, make_directory
from store.files.segment import NAME_DIGITS


def check(target: Target, manifest: Manifest) -> None:
    """Read all that a backup holds, and note what is damaged: the next backup writes that anew. Raises
    CannotBackUp, OSError."""
    wrong, unnoted = list[Damaged](), list[Exception]()
    for part in {part.sha256: part for part in manifest.parts}.values():
        try:
            target.copy(part, None)
        except Damaged as error:
            wrong.append(error)
            try:
                target.mark(part)
            except (CannotBackUp, OSError) as refused:
                unnoted.append(refused)
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        if unnoted:
            raise CannotBackUp(f"{wrong[0]}{more}, and it cannot be noted there: {unnoted[0]}")
        raise CannotBackUp(
            f"{wrong[0]}{more}; the next keelmq backup create writes anew what the store still has of it"
        )


def restore(target: Target, manifest: Manifest, store: Path) -> None:
    """Make ``store``: it appears whole, or not at all. Raises CannotBackUp, OSError."""
    given, store = store, store.resolve()
    if store.is_dir() and store.samefile("."):
        raise CannotBackUp(
            f"{given} is where you are: another directory takes its place, so go elsewhere first"
        )
    with _alone(store):
        if store.exists() and (not store.is_dir() or any(store.iterdir())):
            raise CannotBackUp(f"{store} is not empty: a backup is restored into a new directory")
        _fill(target, manifest, store)


@contextmanager
def _alone(store: Path) -> Iterator[None]:
    """One restore into ``store`` at a time: they would write, and remove, the same files. What holds it goes
    with the restore; one that was killed leaves a file that holds nothing."""
    path = store.with_name(store.name + ".restoring.lock")
    with create(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if not ours:
            raise CannotBackUp(f"another restore into {store} is under way")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _fill(target: Target, manifest: Manifest, store: Path) -> None:
    draft = store.with_name(store.name + ".restoring")
    if draft.exists():
        shutil.rmtree(draft)
    for directory in (draft, draft / "commitlog", draft / "config"):
        make_directory(directory)
    try:
        for name, part in manifest.tables.items():
            _write(target, part, draft / name)
        for start in sorted(manifest.segments):
            path = draft / "commitlog" / f"{start:0{NAME_DIGITS}}"
            _write(target, manifest.segments[start], path)
            os.truncate(path, manifest.segment_bytes)
        os.sync()
        if store.exists():
            store.rmdir()
        draft.rename(store)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _write(target: Target, part: Part, path: Path) -> None:
    with create(path) as out:
        target.copy(part, out)
