"""Can a store's files be read at all? Where their server is of no use for an audit, none of them is wrong."""

from __future__ import annotations

from audit.reading.layout import is_segment_name
from audit.reading.storage import open_folder
from audit.sources.http import NO_RANGES
from audit.sources.location import CODECS, archive_of


def refuse_unreachable(location: str) -> None:
    """Ask a web server for a part of a segment. Raises OSError where it sends whole files only, or none at
    all; ConfigError."""
    if not location.startswith(("http://", "https://")) or archive_of(location) is not None:
        return
    files = open_folder(location)
    try:
        for name in files.listdir("commitlog"):
            stem, _, suffix = name.rpartition(".")
            file = f"commitlog/{name}"
            if is_segment_name(stem if suffix in CODECS else name) and files.size(file):
                try:
                    files.read(file, 0, 1)
                except OSError as error:
                    if error.strerror == NO_RANGES:  # what else it is may be of this file alone
                        told = f"no segment can be read: {NO_RANGES}"
                        raise OSError(error.errno, told, error.filename) from None
                return
    finally:
        files.close()
