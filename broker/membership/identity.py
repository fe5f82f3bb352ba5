"""Which broker of its group does this store belong to?

    brokerIdentity        CLUSTER#GROUP#ID                 the id the Controller gave
    brokerIdentity-temp   CLUSTER#GROUP#ID#ADDRESS;MILLIS  an id applied for, with its check code
    brokerIdentity.crc    keelmq's own: the first file's text three times, each line after its CRC-32 in hex

One good line of the third file says what the first should hold. The temporary file is written before the
application. A broker that crashes in between applies again with the same check code, and the Controller gives
the same id instead of a second one. Source of the format: Apache RocketMQ 5.x,
``broker/controller/ReplicasManager``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from zlib import crc32

from model.config import BrokerConfig
from model.errors import ConfigError, DiskError
from model.ids import BrokerId
from runtime.env import Disk, read_file, write_file
from store.files.sealed import turn_back

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Application:
    """An id asked for, and the code that makes asking twice harmless."""

    broker_id: BrokerId
    check_code: str


class Identity:
    """The identity files of one store. A change is on disk when its call returns; calls block on syncs."""

    def __init__(self, disk: Disk, config: BrokerConfig) -> None:
        self._disk = disk
        self._cluster = config.cluster_name
        self._group = config.broker_name
        self._path = config.broker_identity_path or f"{config.store_path}/brokerIdentity"
        self._temporary = self._path + "-temp"
        self._copies = self._path + ".crc"

    def broker_id(self) -> BrokerId | None:
        """The id of this store, or None while it has none.

        Raises ConfigError when the store belongs to another group, DiskError when the file is damaged.
        """
        if not self._disk.exists(self._path):
            return None
        self._mend()
        context = self._read(self._path, 3)
        return None if context is None else self._id(self._path, context[2])

    def _mend(self) -> None:
        """Repair both files from one good line; without any, the first file is taken as it is."""
        try:
            text = read_file(self._disk, self._path).strip()
            lines = read_file(self._disk, self._copies) if self._disk.exists(self._copies) else b""
            good = {line for line in map(_checked, lines.split(b"\n")) if line is not None}
            if len(good) > 1:
                raise DiskError(f"{self._copies} holds different ids: {sorted(good)}")
            right = good.pop() if good else text
            if right != text:
                log.error("%s is corrupt: restored from %s", self._path, self._copies)
                write_file(self._disk, self._path, right)
            if lines != _lines(right) and right.startswith(f"{self._cluster}#{self._group}#".encode()):
                write_file(self._disk, self._copies, _lines(right))
        except OSError as error:
            raise DiskError(f"{self._path} cannot be read: {error}") from None

    def application(self) -> Application | None:
        """The open application, or None. Raises ConfigError and DiskError as ``broker_id``."""
        context = self._read(self._temporary, 4)
        return None if context is None else Application(self._id(self._temporary, context[2]), context[3])

    def apply_for(self, application: Application) -> None:
        """Note an application before it is sent. Raises OSError."""
        text = f"{self._cluster}#{self._group}#{application.broker_id}#{application.check_code}"
        self._write(self._temporary, text)

    def keep(self, broker_id: BrokerId) -> None:
        """The Controller gave ``broker_id``. Raises OSError."""
        text = f"{self._cluster}#{self._group}#{broker_id}"
        # The copies first: alone they mean nothing, but the file alone has no protection.
        self._write(self._copies, _lines(text.encode()).decode())
        self._write(self._path, text)
        self.give_up()

    def give_up(self) -> None:
        """Forget the open application. Raises OSError."""
        if self._disk.exists(self._temporary):
            self._disk.remove(self._temporary)
            self._disk.sync_dir(self._path.rpartition("/")[0] or ".")

    def _write(self, path: str, text: str) -> None:
        self._disk.makedirs(path.rpartition("/")[0] or ".")
        write_file(self._disk, path, text.encode())

    def _read(self, path: str, count: int) -> list[str] | None:
        try:
            text = read_file(self._disk, path).decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise DiskError(f"{path} cannot be read: {error}") from None
        context = text.strip().split("#", count - 1)
        if len(context) != count:
            raise DiskError(f"{path} holds {text[:80]!r}, expected {count} parts separated by #")
        if (context[0], context[1]) != (self._cluster, self._group):
            raise ConfigError(
                f"{path} belongs to group {context[1]} of cluster {context[0]}, the configuration says "
                f"brokerName={self._group}, brokerClusterName={self._cluster}"
            )
        return context

    @staticmethod
    def _id(path: str, text: str) -> BrokerId:
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise DiskError(f"{path} holds broker id {text[:40]!r}")
        return BrokerId(int(text))


def _lines(text: bytes) -> bytes:
    return b"%08x %b\n" % (crc32(text), text) * 3


def _checked(line: bytes) -> bytes | None:
    """The text of one line of the copies; None when more than one bit of it is wrong."""
    if len(line) < 10:
        return None
    digits, text = line[:8], line[9:]
    computed = b"%08x" % crc32(text)
    if (int.from_bytes(digits) ^ int.from_bytes(computed)).bit_count() <= 1:
        return text
    try:
        return turn_back(text, int(digits, 16))
    except ValueError:
        return None
