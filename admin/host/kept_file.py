"""How does a key that an operator changed on a running server get into its file?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from model.settings import with_values


def keep(file: Path, changes: Mapping[str, str]) -> None:
    """Write ``changes`` into ``file``; what it was is kept beside it, as ``.bak``. Blocks.

    It is replaced as a whole, with the same owner and rights. Raises OSError, and ConfigError where its form
    leaves no room for a key.
    """
    target = file.resolve()  # of a link, what it leads to
    text = target.read_text(encoding="utf-8")
    changed = with_values(str(target), text, changes)
    if changed == text:
        return
    shutil.copy2(target, target.with_name(f"{target.name}.bak"))
    new = target.with_name(f".{target.name}.new")
    try:
        shutil.copy2(target, new)
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
