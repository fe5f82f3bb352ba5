"""How does a key that an operator changed on a running server get into its file?"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from model.errors import ConfigError
from model.settings import parse_file, with_values

_ONE_AT_A_TIME: Final = threading.Lock()
"""A NameServer and the Controller in its process have one file."""


Need = Callable[[Mapping[str, str], Mapping[str, str]], None]
"""Is given what a file says, and what it is to say. Raises ConfigError."""


def keep(file: Path, changes: Mapping[str, str], need: Need = lambda before, after: None) -> None:
    """Write ``changes`` into ``file``; what it was is kept beside it, as ``.bak``. Blocks.

    It is replaced as a whole, with the same owner and rights. Raises OSError, and ConfigError where its form
    leaves no room for a key, or ``need`` does.
    """
    with _ONE_AT_A_TIME:
        _keep(file, changes, need)


def _keep(file: Path, changes: Mapping[str, str], need: Need) -> None:
    target = file.resolve()  # of a link, what it leads to
    text = target.read_text(encoding="utf-8")
    changed = with_values(str(target), text, changes)
    if changed == text:
        return
    before, after = (parse_file(str(target), one) for one in (text, changed))
    try:
        need(before, after)
    except ConfigError as error:
        raise ConfigError(f"the next start would refuse {target}: {error}") from None
    _copy(target, target.with_name(f"{target.name}.bak"))
    new = target.with_name(f".{target.name}.new")
    try:
        _copy(target, new)
        with new.open("w", encoding="utf-8") as out:
            out.write(changed)
            out.flush()
            os.fsync(out.fileno())
        new.replace(target)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _copy(file: Path, to: Path) -> None:
    """Of this user alone until it has its owner and rights: a configuration may hold keys."""
    to.unlink(missing_ok=True)
    os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    shutil.copyfile(file, to)
    found = file.stat()
    try:
        os.chown(to, found.st_uid, found.st_gid)
    except OSError as error:
        # Only root gives files away; and in a user namespace (PrivateUsers=) others' owners are no users.
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise
    shutil.copystat(file, to)
