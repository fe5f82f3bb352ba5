"""What carries out each fault, in the simulated world and on real processes?

``python -m chaos.live.means`` prints the table of docs/chaos.md; a test compares them.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos import faults
from chaos.faults import Fault, OwnFault, kind_of
from chaos.live import clocks, loop_disk, network
from chaos.scenarios.live_only import LiveOnly


def _no_strace() -> str | None:
    if shutil.which("strace") is None:
        return "needs strace"
    return None if os.geteuid() == 0 else "needs root, to attach strace"


def _no_prlimit() -> str | None:
    return None if hasattr(resource, "prlimit") else "needs Linux, for prlimit"


LACKS: Final[Mapping[str, Callable[[], str | None]]] = {
    "namespaces": network.unavailable,
    "loop disk": loop_disk.unavailable,
    "strace": _no_strace,
    "libfaketime": clocks.unavailable,
    "prlimit": _no_prlimit,
}
"""What a fault may need of the machine, and what to ask whether it is there: a reason, or None."""
LOUD: Final = frozenset(
    {
        "disk_full",
        "no_descriptors",
        "sync_error",
        "write_error",
        "read_error",
        "flip_bit",
        "lying_sync",
        "memory_limit",
        "read_only_disk",
    }
)
"""A server that one of these hit since the group was full may end by itself. So may one that a fault of
another package hit: nobody here knows what that does."""


@dataclass(frozen=True, slots=True)
class Means:
    """``needs``: keys of ``LACKS``."""

    simulated: str
    live: str
    needs: tuple[str, ...] = ()


_LINKS: Final = ("namespaces",)
MEANS: Final[Mapping[type[Fault], Means]] = {
    faults.Look: Means("nothing", "nothing"),
    faults.Kill: Means("the process's tasks and memory are gone", "SIGKILL"),
    faults.Restart: Means(
        "a new process on the same disk", "the server's command; waits for the old process"
    ),
    faults.Stop: Means("an orderly stop", "SIGTERM"),
    faults.Pause: Means("no task of the process runs", "SIGSTOP"),
    faults.Resume: Means("its tasks go on", "SIGCONT"),
    faults.PowerFail: Means(
        "pages, sizes and names not synced are lost; peers hear nothing",
        "packets are dropped, ext4 is shut down without its journal, SIGKILL, another boot id",
        ("namespaces", "loop disk"),
    ),
    faults.Isolate: Means("packets to all others are dropped", "the switch drops them", _LINKS),
    faults.Cut: Means("packets of one pair are dropped", "the switch drops them", _LINKS),
    faults.Heal: Means("every packet arrives", "the switch has no rule left", _LINKS),
    faults.SlowNetwork: Means("each packet is late", "the switch holds each packet", _LINKS),
    faults.LosePackets: Means("lost bytes are late: they are sent again", "the switch drops some", _LINKS),
    faults.DoublePackets: Means("nothing: kernels drop the second", "the switch sends some twice", _LINKS),
    faults.ReorderPackets: Means(
        "late by chance, in order: TCP waits", "the switch holds each for a time of its own", _LINKS
    ),
    faults.NarrowLinks: Means(
        "each waits for those before it", "the same, in the switch; after 0.5 s it is lost", _LINKS
    ),
    faults.ResetLinks: Means("its connections end with RST", "ss -K in its namespace", _LINKS),
    faults.SlowDisk: Means("syncs and blocking calls are late", "strace: syncs begin late", ("strace",)),
    faults.DiskFull: Means("no new block", "a file takes what is left of its file system", ("loop disk",)),
    faults.NoDescriptors: Means("no file can be opened", "RLIMIT_NOFILE is what is open", ("prlimit",)),
    faults.SyncError: Means(
        "syncs fail, their pages are lost", "strace: syncs fail with EIO; pages stay", ("strace",)
    ),
    faults.WriteError: Means("writes fail, nothing is written", "strace: pwrite fails with EIO", ("strace",)),
    faults.ReadError: Means("reads fail", "strace: pread fails with EIO", ("strace",)),
    faults.FlipBit: Means("a bit on the disk and in the cache", "a bit in the file, so in the page cache"),
    faults.ClockJump: Means("the node's wall clock", "libfaketime; monotonic clocks stay", ("libfaketime",)),
    faults.Partition: Means("links of a shape are cut", "the switch drops their packets", _LINKS),
    faults.LyingSync: Means("syncs do nothing", "strace: syncs return 0 without being made", ("strace",)),
    faults.Wipe: Means("an empty disk", "its store's, or journal's, directory is emptied"),
    faults.Snapshot: Means("a copy of its files", "a copy of that directory"),
    faults.PutBack: Means("that copy in its place", "the same"),
    faults.Reconfigure: Means("other keys from the next start on", "other keys in its file"),
    faults.RollingChange: Means("an operator's restarts", "the same, of processes"),
    faults.Upgrade: Means(
        "an operator's restarts: there is one release", "each server is replaced by one of another release"
    ),
    faults.HandOver: Means("an operator asks the Controllers", "what keelmq group handover does"),
}


def needs_of(kind: type[Fault]) -> Sequence[str]:
    """What a fault of this kind needs of the machine, whether it has it or not: keys of ``LACKS``."""
    return kind.needs if issubclass(kind, OwnFault) else MEANS[kind].needs


def needed(kinds: Iterable[type[Fault]]) -> set[str]:
    """The same of several kinds."""
    return {need for kind in kinds for need in needs_of(kind)}


def refusal(kind: type[Fault]) -> str | None:
    """Why a fault of this kind cannot be carried out on this machine; None: it can."""
    return next((reason for need in needs_of(kind) if (reason := _lack(need))), None)


def _lack(need: str) -> str | None:
    if need not in LACKS:
        return f"needs {need}, which is none of {', '.join(LACKS)}"
    return LACKS[need]()


def makes_end(name: str) -> bool:
    """Whether a server that was hit so may end by itself."""
    kind = kind_of(name)
    foreign = kind is not None and issubclass(kind, OwnFault) and not issubclass(kind, LiveOnly)
    return name in LOUD or foreign


def table() -> str:
    """Fault by means, as it stands in docs/chaos.md."""
    lines = ["| fault | simulated | real processes | needs |", "|---|---|---|---|"]
    for kind, means in MEANS.items():
        needs = ", ".join(means.needs)
        lines.append(f"| `{kind.name}` | {means.simulated} | {means.live} | {needs} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
