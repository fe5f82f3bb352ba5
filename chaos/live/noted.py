"""What did a drill note of itself, so that another process can undo what it left? And whose is it?"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from admin.local import layout as layouts
from model.errors import ConfigError

LEDGER: Final = layouts.DRILL_FILE
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
PID_NAMESPACE: Final = "/proc/{}/ns/pid"
PROC: Final = Path("/proc")
OURS: Final = "keelmq-"
"""How the names of all that drills make begin."""
DRILL: Final = f"{OURS}drill-"
"""How the names of the folders begin that drills make."""
CAMPAIGN_ENV: Final = "KEELMQ_CAMPAIGN"
"""The variable by which a drill is told whose run it is: the folder of a campaign."""


class Process(NamedTuple):
    """One process, and none that has its number since. ``began``: see there; None: an earlier release, which
    does not say it, noted the pid, or there was none."""

    pid: int
    began: int | None = None

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(pid, began(pid))

    @property
    def runs(self) -> bool:
        """A zombie does not."""
        return self.began is not None and began(self.pid) == self.began

    def send(self, number: int) -> bool:
        """A signal, to it alone; whether it was there."""
        if not self.runs:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:  # it has just ended
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What one drill has to undo, as its ``chaos.json`` says. ``began``, ``boot``: when its process began,
    and in which run of the machine, which an earlier release does not say. ``pid_namespace``: whose pids
    these are. ``client``: the official Java one. ``campaign``: the folder of the campaign that the drill is a
    run of. ``cleared``: nothing is to be undone but the drill's folder."""

    pid: int
    began: int | None = None
    boot: str | None = None
    pid_namespace: int | None = None
    keep: bool = False
    switch: Process | None = None
    namespaces: Sequence[str] = ()
    tracers: Sequence[Process] = ()
    proxies: Process | None = None
    client: Process | None = None
    campaign: str | None = None
    cleared: bool = False

    @classmethod
    def of_this_process(cls, **more: Any) -> Self:
        """``more``: what there is to undo."""
        pid, of = os.getpid(), os.environ.get(CAMPAIGN_ENV)
        return cls(pid=pid, began=began(pid), boot=boot(), pid_namespace=pid_namespace(), campaign=of, **more)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """None: there is nothing to undo. Raises ConfigError where that cannot be a drill's."""
        path = directory / LEDGER
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ConfigError(f"{path} is not whole: {error}") from None
        if not isinstance(found, dict) or not _is_number(found.get("pid")):
            raise ConfigError(f"{path} is no drill's: it names no pid")
        if not {"switch", "tracers"} <= found.keys():
            raise ConfigError(f"{path} is no drill's: tracers or switch are missing")
        known = {name: found[name] for name in cls.__dataclass_fields__ if found.get(name) is not None}
        for name, value in known.items():
            if not _FITS[name](value):
                raise ConfigError(f"{path} is no drill's: {name} is {value!r}")
        for name in {"switch", "proxies", "client"} & known.keys():
            known[name] = _process(known[name])
        known["tracers"] = [_process(one) for one in known.get("tracers", ())]
        return cls(**known)

    def write(self, directory: Path) -> None:
        """Whole, or not at all."""
        draft = directory / (LEDGER + ".new")
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        draft.replace(directory / LEDGER)

    @property
    def works(self) -> bool:
        """Whether the process that wrote it is there: it, and none that has its number since. One of another
        container cannot be seen from here: it counts as there."""
        if not self.of_this_boot:
            return False
        if not self.is_seen:
            return True
        if self.began is None:  # an earlier release wrote it
            return runs(self.pid, b"drill")
        return began(self.pid) == self.began

    @property
    def of_this_boot(self) -> bool:
        """Else what it names by number is another drill's, or nobody's."""
        return self.boot is None or self.boot == boot()

    @property
    def is_seen(self) -> bool:
        """Whether its process would be among those of /proc, if it were there."""
        return is_seen(self.pid_namespace)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_process(value: Any) -> bool:
    """A pid and when it began; of an earlier release a pid."""
    if not isinstance(value, list):
        return _is_number(value)
    return len(value) == 2 and _is_number(value[0]) and (value[1] is None or _is_number(value[1]))


def _process(value: Any) -> Process:
    return Process(*value) if isinstance(value, list) else Process(value)


def _are_processes(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_process, value))


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one.startswith(OURS) for one in value)


_FITS: Final = {
    **dict.fromkeys(("pid", "began", "pid_namespace"), _is_number),
    **dict.fromkeys(("switch", "proxies", "client"), _is_process),
    **dict.fromkeys(("boot", "campaign"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("keep", "cleared"), lambda value: isinstance(value, bool)),
    "namespaces": _are_names,
    "tracers": _are_processes,
}


def keeps(directory: Path) -> bool:
    """Whether what a drill left in ``directory`` is to stay, as its ledger says."""
    try:
        found = Noted.read(directory)
    except ConfigError:
        return True  # nobody knows: nothing of it is taken away
    return found is not None and found.keep


def is_ours(place: Path) -> bool:
    """Anybody may make a folder of that name: what it says is not to be done by another user."""
    return _is_ours(place, stat.S_ISDIR)


def is_our_file(path: Path) -> bool:
    return _is_ours(path, stat.S_ISREG)


def _is_ours(path: Path, is_kind: Any) -> bool:
    try:
        info = path.lstat()
    except OSError:
        return False
    return bool(is_kind(info.st_mode)) and info.st_uid == os.geteuid()


def boot() -> str | None:
    """Of which run this machine is; None: it does not say."""
    try:
        return Path(BOOT_ID).read_text(encoding="ascii").strip()
    except OSError:
        return None


def pid_namespace(pid: int | str = "self") -> int | None:
    """Of which PID namespace a process is: containers that share a folder, and the machine's run, do not
    share their pids. None: it cannot be told."""
    try:
        return os.stat(PID_NAMESPACE.format(pid)).st_ino
    except OSError:
        return None


def is_seen(namespace: int | None) -> bool:
    """Whether pids of ``namespace`` mean the same here. None: an earlier release noted them."""
    return namespace is None or namespace == pid_namespace()


def began(pid: int) -> int | None:
    """When a process began, in ticks since the machine's start: another one of its number began later. None:
    there is none, or it has ended and nobody asked how."""
    try:
        words = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return None if words[0] in (b"Z", b"X") else int(words[19])
    except (OSError, ValueError, IndexError):
        return None


def runs(pid: int, word: bytes) -> bool:
    """Whether a process has this on its command line."""
    try:
        return word in (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
