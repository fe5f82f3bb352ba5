"""May this store's log lack the end of what it once acknowledged?

A killed process loses nothing: what it wrote is in the page cache. A machine that lost power, or was reset,
loses what no sync had reached, and with ASYNC_FLUSH that was acknowledged. So may a sync that failed: the
kernel drops the pages when it likes. A disk that was replaced or not
mounted takes the log and leaves the rest of the store. Such a broker is *suspect*: evidence on its disk says
so, at every start and in every mode. ``bootId.json`` in the store keeps it, a JSON object:

    bootId    the machine's boot (Linux tells it) that the log was last written on
    doubtful  the log is suspect, and no master has taken the broker into its set since
    synced    the last run acknowledged nothing before its sync (SYNC_FLUSH)
    written   the log had bytes once; absent in files of older versions
    starts    how often the store was opened
    processes the last starts that went to register, by names that no other start has, this one at the end
    registered  the last one whose registration was answered; it stays among them
    old       the disk was put back to an older state of itself, and no master has taken the broker in since

A disk that was put back (a snapshot, a backup) says nothing of that. But the Controllers know the last start
that registered. A disk that does not know that one is older than it: ``on_old_disk``. Numbers would not do:
starts that reached no Controller count the disk's up, past the one that they know. So a start is noted here
before it registers. One that cannot be registers all the same, or a full disk would take a voter from its
group: its name is known to the Controllers alone then, and the next start is suspect, without need perhaps.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from model.errors import DiskError
from runtime.env import Env, read_file, write_file

log = logging.getLogger(__name__)

FILE: Final = "bootId.json"
PROCESSES_MAX: Final = 64
"""So many are noted. What the Controllers answered last stays among them, however many found none."""


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says; None for what an older version did not write."""

    boot_id: str = msgspec.field(name="bootId", default="")
    suspect: bool = msgspec.field(name="doubtful", default=False)
    synced: bool | None = None
    written: bool | None = None
    starts: int = 0
    old: bool = False
    processes: tuple[str, ...] = ()
    registered: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a start finds. ``clean``: the last stop was an orderly one; ``synced``: nothing is acknowledged
    before its sync; ``named``: the broker has an identity from before; ``end``: of its log, bytes;
    ``sync_failed``: in the last run; ``was_longer``: where other files of the store say the log ended once,
    if that is further."""

    clean: bool
    synced: bool
    named: bool = True
    end: int = 1
    sync_failed: bool = False
    was_longer: int | None = None


def suspicion(noted: Noted | None, found: Found, boot_id: str) -> str | None:
    """Why the log may lack its end, or None.

    ``noted`` None: this program never opened the store, or the file is gone with its disk. ``boot_id`` empty:
    the machine does not tell its boot, so it may have been reset.
    """
    if noted is not None and noted.suspect:
        return "no master has taken it into its SyncStateSet since it became suspect"
    if found.was_longer is not None:
        return f"the log ends at {found.end}, other files of the store say it reached {found.was_longer}"
    had_bytes = noted is None or bool(noted.written)
    if found.end == 0 and found.named and had_bytes:
        return "the log is empty, but the broker has its identity from before"
    rebooted = not boot_id or noted is None or noted.boot_id != boot_id
    at_risk = not (found.synced if noted is None or noted.synced is None else noted.synced)
    return _loss_of_memory(found, rebooted=rebooted) if at_risk and not found.clean else None


def _loss_of_memory(found: Found, *, rebooted: bool) -> str | None:
    """Why what was acknowledged in memory alone may be gone, or None."""
    if rebooted:
        return "the machine was reset since the log was written, and not all of it was synced"
    return "a sync failed, and what it was to write may be gone" if found.sync_failed else None


class UncleanRebootDetector:
    """Whether this broker is suspect.

    In: ``begin`` once at the start, ``on_bytes`` when the log has some, ``on_loss`` before it is put aside or
    cut, ``on_whole`` when it is known to be whole; one call at a time. Holds: a suspicion ends by
    ``on_whole`` only, however often the process or the machine dies. ``process``: the name of this start.
    """

    def __init__(self, env: Env, directory: str, process: str = "") -> None:
        self.suspect = False
        self._failed = False  # what is noted is not on the disk
        self._noted = Noted()
        self._process = process
        self._env = env
        self._path = f"{directory}/{FILE}"

    def begin(self, found: Found) -> None:
        """Decide from the evidence, and note it with the boot this process runs on. Blocks on syncs.

        Raises DiskError when the file cannot be read, and when it cannot be written and what it says would
        make the next start suspect less: a suspicion, or that this run acknowledges before its sync.
        """
        boot_id = self._env.boot_id()
        noted = self._read()
        reason = suspicion(noted, found, boot_id)
        self.suspect = reason is not None
        if reason is not None:
            log.warning("this broker is suspect, its log may lack its end: %s", reason)
        known = noted or Noted()
        written = found.end > 0 or known.written or self.suspect
        note = Noted(
            boot_id=boot_id,
            suspect=self.suspect,
            synced=found.synced,
            written=written or None,
            starts=1 + known.starts,
            old=known.old and self.suspect,
            processes=known.processes,
            registered=known.registered,
        )
        try:
            self._write(note)
        except OSError as error:
            says_synced = noted is None or noted.synced is not False
            if self.suspect or (says_synced and not found.synced):
                raise DiskError(f"{self._path} cannot be written: {error}") from error
            log.warning("%s cannot be written: %s", self._path, error)
            self._noted, self._failed = note, True

    @property
    def owes_bytes(self) -> bool:
        """Whether the log had no bytes yet when this was last noted, or the note could not be written."""
        return not self._noted.written or self._failed

    def on_bytes(self) -> None:
        """The log has bytes: from now on an empty one is evidence of a loss. Blocks on syncs."""
        if self.owes_bytes:
            self._note(
                msgspec.structs.replace(self._noted, written=True), "an empty log would not be noticed"
            )

    def on_loss(self) -> None:
        """The log is about to go, and what it acknowledged with it. Blocks on syncs. Raises OSError."""
        self.suspect = True
        if self._noted.suspect and not self._failed:
            return  # the disk says so: ``suspect`` alone may only be meant to
        self._write(msgspec.structs.replace(self._noted, suspect=True, written=True))

    @property
    def starts(self) -> int:
        """How often the store was opened, this time included, or more where others know of more."""
        return self._noted.starts

    @property
    def before(self) -> tuple[str, ...]:
        """The starts that this disk knows of, but this one."""
        return tuple(process for process in self._noted.processes if process != self._process)

    @property
    def counted(self) -> bool:
        """Whether this start is on the disk, as far as is known."""
        return not self._failed and self._process in self._noted.processes

    def count(self) -> None:
        """Have this start on the disk, if that can be: it is about to register. Blocks on syncs."""
        if not self.counted:
            noted = msgspec.structs.replace(self._noted, processes=self._with_own(self._noted.processes))
            self._note(noted, "the next start is suspect, without need perhaps")

    @property
    def owes_registered(self) -> bool:
        """Whether it is not noted yet that the Controllers know of this start."""
        return self._noted.registered != self._process and self._process in self._noted.processes

    def on_registered(self) -> None:
        """The Controllers know of this start. Blocks on syncs."""
        if self.owes_registered:
            self._note(msgspec.structs.replace(self._noted, registered=self._process), "it is noted again")

    def _with_own(self, processes: tuple[str, ...]) -> tuple[str, ...]:
        if not self._process:
            return processes
        others = tuple(process for process in processes if process != self._process)
        answered = self._noted.registered
        kept = others[1 - PROCESSES_MAX :]
        if answered in others and answered not in kept:
            kept = (answered, *kept[1:])
        return (*kept, self._process)

    @property
    def old(self) -> bool:
        """The disk is older than what this broker had once."""
        return self._noted.old

    def on_old_disk(self, known_starts: int, process: str = "") -> None:
        """The store was opened ``known_starts`` times, ``process`` was the last: the disk is as it was before
        that. Blocks on syncs. What cannot be written now, the next start hears from the Controllers as well.
        """
        self.suspect = True
        starts = max(self._noted.starts, known_starts) + 1
        noted = msgspec.structs.replace(
            self._noted,
            suspect=True,
            written=True,
            starts=starts,
            old=True,
            processes=self._with_own((process,) if process else ()),
            registered=process,
        )
        self._note(noted, "the next start hears it from the Controllers as well")

    def on_whole(self) -> None:
        """The log has all that it acknowledged, or its group goes on without that. Blocks on syncs."""
        if self.suspect:
            noted = msgspec.structs.replace(self._noted, suspect=False, old=False)
            self._note(noted, "the next start is suspect again")
            self.suspect = False  # not before: a disk may hang, and until then this broker says that it is

    def _note(self, noted: Noted, otherwise: str) -> None:
        try:
            self._write(noted)
        except OSError as error:
            self._noted, self._failed = noted, True
            log.warning("%s cannot be written, %s: %s", self._path, otherwise, error)

    def _read(self) -> Noted | None:
        try:
            return msgspec.json.decode(read_file(self._env.disk, self._path), type=Noted)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DiskError(f"{self._path} cannot be read: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Whatever damaged it, the log may be short as well.
            log.warning("%s is corrupt: this broker is suspect", self._path)
            return Noted(suspect=True, written=True)

    def _write(self, noted: Noted) -> None:
        write_file(self._env.disk, self._path, msgspec.json.encode(noted))
        self._noted, self._failed = noted, False
