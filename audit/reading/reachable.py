"""Can a store's files be read at all? Where their server is of no use for an audit, none of them is wrong."""

from __future__ import annotations

from audit.reading.layout import is_segment_name
from audit.reading.storage import open_folder
from audit.sources.location import CODECS, archive_of


def refuse_unreachable(location: str) -> None:
    """Ask a web server for a part of a file. Raises OSError where it sends whole files only, or none;
    ConfigError."""
    if not location.startswith(("http://", "https://")) or archive_of(location) is not None:
        return
    files = open_folder(location)
    try:
        for name in files.listdir("commitlog"):
            stem, _, suffix = name.rpartition(".")
            file = f"commitlog/{name}"
            if is_segment_name(stem if suffix in CODECS else name) and files.size(file):
                files.read(file, 0, 1)
                return
    finally:
        files.close()
