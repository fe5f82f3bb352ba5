"""Which release is this?"""

from __future__ import annotations


def version() -> str:
    """The installed version; a checkout that is not installed has none."""
    from importlib import metadata  # only here: it costs a server's start as much as asyncio does

    try:
        return metadata.version("keelmq")
    except metadata.PackageNotFoundError:
        return "0+checkout"
