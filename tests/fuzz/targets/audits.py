"""What an audit reads of stores that may hold anything: records by compiled code and by numpy, tables and
what changed in them, histories of a drill; and manifests of backups."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterable
from typing import Final

from admin.backup import manifest
from admin.backup.manifest import CannotBackUp, Manifest, Part
from audit.ledgers import history
from audit.reading.small import config_tables
from broker.tables import change_file
from model.errors import ConfigError
from store.files import record
from store.files.sealed import seal
from tests.audit.ways import WAYS, walked
from tests.fuzz.targets.disk import message
from tests.fuzz.targets.target import Target

LOG_BYTES: Final = 4000


def _scanned(data: bytes) -> None:
    """Both ways to columns find the records and the damage that the slow way finds, record by record. A log
    has its size whatever is written in it."""
    log = data[:LOG_BYTES].ljust(LOG_BYTES, b"\0")
    span = (0, LOG_BYTES)
    slow = walked(log, span=span, log_end=LOG_BYTES)
    for way in WAYS:
        assert walked(log, way, span=span, log_end=LOG_BYTES) == slow, f"{way} reads another log"


def _log_seeds() -> Iterable[bytes]:
    for texts in (
        ["TAGS\x01t\x02UNIQ_KEY\x01K\x02"],
        ["", "DELAY\x013\x02TAGS\x01longer than eight\x02"] * 9,
    ):
        for prop_crc in (False, True):
            out = b""
            for number, properties in enumerate(texts):
                one = message(b"x" * number, properties=properties)
                out += record.encode(one, number, len(out), 5, append_prop_crc=prop_crc)
            yield out
            yield out + record.blank(LOG_BYTES - len(out))


def _changes(data: bytes) -> None:
    """As it came, and each line under a checksum that is right."""
    config_tables.problem_of(data)
    changes = config_tables._read(data, 1)
    assert len(changes.later) <= data.count(b"\n")
    lines = [b" %d %b" % (number, line) for number, line in enumerate(data.split(b"\n"), 2)]
    right = b"".join(b"%08x%b\n" % (zlib.crc32(line), line) for line in lines)
    changes = config_tables._read(right, 1)
    assert len(changes.later) <= len(lines)


def _change_seeds() -> Iterable[bytes]:
    yield change_file.encode(2, {"part": ["T"]}) + change_file.encode(3, {"a": {"1": 2}})
    yield b'{"part": ["T"]}\n{"a": {1: 2}}'
    yield seal(b'{"dataVersion":{"counter":1},"topicConfigTable":{0:1}}')


def _history(data: bytes) -> None:
    """A drill's file, as an audit takes it for a ledger."""
    for number, line in enumerate(history.lines_of(io.BytesIO(data))):
        row = history.json_object(line, f"line {number}")
        assert isinstance(row, dict)


def _manifest(data: bytes) -> None:
    found = manifest.decode(data, "a")
    assert manifest.decode(manifest.encode(found), "a") == found
    assert 0 <= found.begin <= found.end
    for table in found.tables:
        assert ".." not in table.split("/"), "a name that leads elsewhere"


def _manifest_seeds() -> Iterable[bytes]:
    whole = Part("ab" * 32, 4096, 5)
    yield manifest.encode(
        Manifest(5, "h:/s", 4096, {0: whole, 4096: Part("0" * 64, 7)}, {"config/topics.json": whole})
    )


TARGETS: Final = (
    Target(name="audit_scan", run=_scanned, declared=(), seeds=_log_seeds, weight=1, bytes_max=LOG_BYTES),
    Target(name="audit_changes", run=_changes, declared=(), seeds=_change_seeds, weight=4),
    Target(
        name="audit_history",
        run=_history,
        declared=(ConfigError, OSError),  # a last line that is cut
        seeds=lambda: [json.dumps({"type": "ok", "key": "k", "queue": ["T", "b", 0]}).encode() + b"\n{}\n"],
        weight=3,
    ),
    Target(name="backup_manifest", run=_manifest, declared=(CannotBackUp,), seeds=_manifest_seeds, weight=3),
)
