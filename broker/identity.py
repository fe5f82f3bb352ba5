"""Which broker of its group is this store, for ever?

    brokerIdentity        CLUSTER#GROUP#ID                 the id the Controller gave
    brokerIdentity-temp   CLUSTER#GROUP#ID#ADDRESS;MILLIS  an id applied for; the part after the last # is
    the check code

The temporary file is written before the application: a broker that crashes in between applies again with
the same check code, and the Controller gives the same id instead of a second one. Source of the format:
Apache RocketMQ 5.x, ``broker/controller/ReplicasManager``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from model.config import BrokerConfig
from model.errors import ConfigError, DiskError
from runtime.env import Disk, read_file, write_file

NO_ID: Final = -1


@dataclass(frozen=True, slots=True)
class Application:
    """An id asked for, and the code that makes asking twice harmless."""

    broker_id: int
    check_code: str


class Identity:
    """The two files of one store. All changes are on disk when a call returns; it blocks on syncs."""

    def __init__(self, disk: Disk, config: BrokerConfig) -> None:
        self._disk = disk
        self._cluster = config.cluster_name
        self._group = config.broker_name
        self._path = config.broker_identity_path or f"{config.store_path}/brokerIdentity"
        self._temporary = self._path + "-temp"

    def broker_id(self) -> int | None:
        """The id of this store, or None while it has none.

        Raises ConfigError when the store belongs to another group, DiskError when the file is damaged.
        """
        parts = self._read(self._path, 3)
        return None if parts is None else self._id(self._path, parts[2])

    def application(self) -> Application | None:
        """The application under way, or None. Raises ConfigError and DiskError as ``broker_id``."""
        parts = self._read(self._temporary, 4)
        return None if parts is None else Application(self._id(self._temporary, parts[2]), parts[3])

    def apply_for(self, application: Application) -> None:
        """Note an application before it is sent. Raises OSError."""
        text = f"{self._cluster}#{self._group}#{application.broker_id}#{application.check_code}"
        self._write(self._temporary, text)

    def keep(self, broker_id: int) -> None:
        """The Controller gave ``broker_id``. Raises OSError."""
        self._write(self._path, f"{self._cluster}#{self._group}#{broker_id}")
        self.give_up()

    def give_up(self) -> None:
        """Forget the application under way. Raises OSError."""
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
        parts = text.strip().split("#", count - 1)
        if len(parts) != count:
            raise DiskError(f"{path} holds {text[:80]!r}, expected {count} parts separated by #")
        if (parts[0], parts[1]) != (self._cluster, self._group):
            raise ConfigError(
                f"{path} belongs to group {parts[1]} of cluster {parts[0]}, the configuration says "
                f"brokerName={self._group}, brokerClusterName={self._cluster}"
            )
        return parts

    @staticmethod
    def _id(path: str, text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise DiskError(f"{path} holds broker id {text[:40]!r}")
        return int(text)
