"""How is a source named: which of a URL may a report show, and what is a compressed copy?"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

_OPEN_OPTIONS: Final = frozenset({"endpoint_override", "scheme", "region", "allow_bucket_creation"})
CODECS: Final = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}
"""By a file's last suffix, what Arrow calls the compression."""
_ARCHIVE: Final = re.compile(r"\.(?:tar(?:\.(gz|zst|bz2))?|(tgz))$", re.IGNORECASE)


def shown(location: str) -> str:
    """A store's location as a report may name it: without the URL's user, password and unknown options."""
    if "://" not in location:
        return location
    url = urlsplit(location)
    user, at, host = url.netloc.rpartition("@")
    options = "&".join(
        f"{name}={value if name in _OPEN_OPTIONS else '***'}" for name, value in parse_qsl(url.query, True)
    )
    fragment = f"#{url.fragment}" if url.fragment else ""
    start = f"{url.scheme}://{'***@' if at and user else ''}{host}{url.path}"
    return f"{start}{'?' + options if options else ''}{fragment}"


def identity(location: str) -> str:
    """What tells a location from every other one, for a key: ``shown`` leaves out what may tell two apart, as
    the container of ``abfs://CONTAINER@ACCOUNT/``, a user, or an option. It tells no password."""
    if "://" not in location:
        return location
    url = urlsplit(location)
    user, at, host = url.netloc.rpartition("@")
    known = url._replace(netloc=f"{user.partition(':')[0]}{at}{host}").geturl()
    told = hashlib.sha256(known.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{shown(location)} {told}"


def without_secrets(text: str, location: str) -> str:
    """``text``, an error's words, without what ``shown`` leaves out."""
    text = text.replace(location, shown(location))
    if "://" not in location:
        return text
    url = urlsplit(location)
    user, password = url.username or "", url.password or ""
    options = [value for name, value in parse_qsl(url.query, True) if name not in _OPEN_OPTIONS]
    for secret in (user, unquote(user), password, unquote(password), *options):
        text = text.replace(secret, "***") if secret else text
    return text


class Archive(NamedTuple):
    """A tar file that holds a store."""

    parent: str  # the location of the folder it lies in
    file: str
    codec: str  # empty: not compressed
    folder: str  # of the store, inside; empty: the only one there


def archive_of(location: str) -> Archive | None:
    """``PATH.tar``, ``.tar.gz``, ``.tgz``, ``.tar.zst``, ``.tar.bz2``, and ``#FOLDER`` behind it."""
    whole, _, folder = location.partition("#")
    path, mark, query = whole.partition("?") if "://" in whole else (whole, "", "")
    found = _ARCHIVE.search(path)
    if found is None or ("://" not in path and os.path.isdir(path)):
        return None
    parent, file = in_folder(path)
    codec = CODECS[(found[1] or "gz").lower()] if found[1] or found[2] else ""
    return Archive(parent + mark + query, file, codec, folder.strip("/"))


def in_folder(location: str) -> tuple[str, str]:
    """A file's location as that of its folder, and its name."""
    path, mark, query = location.partition("?") if "://" in location else (location, "", "")
    parent, _, file = path.rpartition("/")
    return (parent or ("/" if path.startswith("/") else ".")) + mark + query, file
