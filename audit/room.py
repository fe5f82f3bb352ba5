"""Which folder is full, where a write failed, and what is to be set? An error of Arrow's, or of a buffer that
is written late, names neither."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_BY_NAME: Final = "TMPDIR"


def is_full(error: BaseException) -> bool:
    """Of Spark's errors only their text is here."""
    return getattr(error, "errno", None) in _FULL or os.strerror(errno.ENOSPC) in str(error)


def why(error: BaseException, beside: Path | None = None) -> str:
    """The error in words. ``beside``: what is written besides temporary files lies in this folder."""
    text, temporary = str(error), Path(tempfile.gettempdir())
    if not is_full(error) or _BY_NAME in text:
        return text
    if beside is not None and beside.is_dir() and _free(beside) < _free(temporary):
        return f"no room in {beside} ({text})"
    return f"no room for temporary files in {temporary}: set {_BY_NAME} to where there is ({text})"


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free
