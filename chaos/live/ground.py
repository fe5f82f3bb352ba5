"""What is laid under a cluster before it starts, so that its faults can be carried out, and taken away after?

A network of namespaces, a file system of its own for each store, a clock of its own for each process: only
what the plan's faults need and the machine has. All that has to be undone stands in ``DIR/chaos.json`` before
it is done: ``heal`` needs nothing else.
"""

from __future__ import annotations

import asyncio
import random
import resource
import shlex
import shutil
import signal
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from admin.local import layout as layouts
from admin.local.cluster import LocalCluster
from admin.local.layout import Node
from chaos.faults import OwnFault
from chaos.links import detours
from chaos.links.detours import Detours
from chaos.live import clocks, folder, leftovers, loop_disk, network
from chaos.live.clocks import Clock
from chaos.live.loop_disk import LoopDisk
from chaos.live.network import Network
from chaos.live.noted import BOOT_ID, LEDGER, Noted, Process
from chaos.live.releases import NoRelease, Release, previous
from chaos.scenarios.live_only import LiveOnly
from model.errors import MqError

NAMED_BOOT: Final = 'mount --bind "$0" ' + BOOT_ID + ' && exec "$@"'
OWN_DISK: Final = (
    "cat /proc/self/mounts | while read -r device one rest; do "
    'case $device in /dev/loop*) one=$(printf %b "$one"); [ "$one" != {own} ] && '
    f'{{{{ [ -e "$one/../../{LEDGER}" ] || [ "${{{{one#*/{loop_disk.TRIAL}}}}}" != "$one" ]; }}}} && '
    'umount -l "$one" 2>/dev/null;; esac; done; '
)
"""Else the server would hold the file systems of the others, of a drill beside this one, too: they could not
be mounted anew."""
DISK_MB: Final = 512
CLOCKS: Final = "clock"
"""The folder with the offsets of the servers' clocks."""


def client_home(directory: Path) -> Path:
    """Where the official Java client of a drill keeps its logs."""
    return directory / "home" / "java-client"


class Short(NamedTuple):
    """A process without descriptors, and its limit before."""

    pid: int
    former: int


class Ground:
    """What lies under one cluster. ``lay`` before its start, ``clear`` when its processes have ended."""

    def __init__(self, cluster: LocalCluster, *, keep: bool = False) -> None:
        """``keep``: what lies on the disks stays."""
        self._cluster, self._keep = cluster, keep
        self.network: Network | None = None
        self.disks: dict[str, LoopDisk] = {}
        self.lacks: dict[str, str] = {}
        """Of what was needed: why it is not there."""
        self.tracers: dict[str, Process] = {}
        """Of strace, by the server that each is attached to."""
        self.short: dict[str, Short] = {}
        """Servers without descriptors, by name."""
        self.client: Process | None = None
        """The official Java client, where that sends and reads."""
        self.own: list[tuple[Node, OwnFault]] = []
        """Faults of other packages that struck, and whom: to be mended."""
        self.previous: Release | None = None
        self.unkept: list[str] = []
        """Disks that were to stay and could not be copied: why, and where their images are."""
        self.left: list[str] = []
        """What could not be taken away, and why."""

    @property
    def cluster(self) -> LocalCluster:
        return self._cluster

    async def lay(self, needs: Collection[str], chance: random.Random, *, proxied: bool = False) -> None:
        """What of ``needs`` this machine has. ``lacks`` says what it has not. ``proxied``: cuts are made by
        Toxiproxy. Raises NoLinks without it."""
        nodes = self._cluster.layout.nodes
        self.note()
        if "namespaces" in needs:
            try:
                names = [*(node.name for node in nodes), *([detours.MACHINE] if proxied else [])]
                self.network = await Network.lay(names, chance, self._planned)
            except network.NoNetwork as error:
                self.network = None
                self.lacks["namespaces"] = str(error)
        self.note()
        if "loop disk" in needs:
            # Tried now and off the loop: at the first fault it would keep the clients waiting.
            if (lack := await asyncio.to_thread(loop_disk.unavailable)) is not None:
                self.lacks["loop disk"] = lack
            else:
                self._lay_disks(nodes)
        if "libfaketime" in needs and (lack := clocks.unavailable()) is not None:
            self.lacks["libfaketime"] = lack
        for node in nodes:
            self._wrap(node, clock="libfaketime" in needs and "libfaketime" not in self.lacks)
        if proxied and self.network is not None:
            log = self._cluster.directory / "links.log"
            self.network.detours = await Detours.lay(self.network, nodes, log)
            self.note()
        self._cluster.save()

    def begin_with(self, given: Path | None) -> None:
        """Every server is started from an earlier release, until an upgrade replaces it."""
        try:
            self.previous = previous(given, self._cluster.directory / "previous")
        except NoRelease as error:
            self.lacks["previous release"] = str(error)
            return
        for node in self._cluster.layout.nodes:
            node.code = str(self.previous.path)

    def disk_path(self, node: Node) -> Path:
        """What a node keeps: a broker its store, a NameServer its Controller's journal."""
        kept = "store" if node.role == "broker" else "raft"
        return self._cluster.directory / kept / node.name

    def new_boot(self, name: str) -> None:
        """The machine was switched on: it has another boot id."""
        self._boot_path(name).write_text(f"{uuid.uuid4()}\n", encoding="ascii")

    def jump(self, name: str, by_ms: int) -> None:
        """Move a node's wall clock, by what it already is off and ``by_ms``. Its process reads it at once."""
        self._clock(name).jump(by_ms)

    def drift(self, name: str, rate: float) -> bool:
        """Let a node's wall clock go so many times as fast; whether that is another rate."""
        return self._clock(name).drift(rate)

    async def strike_own(self, node: Node, fault: OwnFault) -> bool:
        """Whether a fault that only real processes have, or of another package, struck anything."""
        if isinstance(fault, LiveOnly):
            struck = await fault.strike(self, node)
        else:
            struck = await fault.live(self._cluster, node)
        if struck:
            self.own.append((node, fault))
        return struck

    async def mend_own(self, node: Node, fault: OwnFault) -> str | None:
        """Undo one of those; why that failed."""
        try:
            if isinstance(fault, LiveOnly):
                await fault.restore(self, node)
            else:
                await fault.mend(self._cluster, node)
        except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises
            return f"{fault.name} of {node.name} could not be mended: {error!r}"
        return None

    def limit(self, name: str, pid: int | None) -> bool:
        """Leave a process no descriptor that it has not; None: give it back all. Whether that changed
        something. Raises OSError."""
        if pid is None:
            short = self.short.pop(name, None)
            return short is not None and _limit_descriptors(short.pid, short.former) is not None
        known = self.short.get(name)
        former = _limit_descriptors(pid, _first_free(pid))
        if former is None:
            return False
        self.short[name] = known if known is not None and known.pid == pid else Short(pid, former)
        return True

    def note_client(self, pid: int) -> None:
        self.client = Process.of(pid)
        self.note()

    def note(self) -> None:
        """Write down what there is to undo."""
        noted = Noted.of_this_process(
            keep=self._keep,
            switch=self.network.switch if self.network else None,
            namespaces=self.network.namespaces() if self.network else [],
            tracers=sorted(self.tracers.values()),
            proxies=self.network.detours.process if self.network and self.network.detours else None,
            client=self.client,
        )
        noted.write(self._cluster.directory)

    def take_down(self) -> None:
        """End the servers. ``left`` says when that failed."""
        try:
            self._cluster.down()
        except Exception as error:  # noqa: BLE001 - whatever it is, their folder has to stay
            self.left.append(f"the servers: {str(error) or repr(error)}")

    async def clear(self) -> None:
        """Take everything away again, each item whatever becomes of the others; a signal meanwhile is heard
        after. What lies on the disks and is kept is on the machine's own then. Where something stays, as
        ``left`` says, its ledger does, for ``heal``."""
        await folder.whole(self._clear())

    async def _clear(self) -> None:
        for name, tracer in list(self.tracers.items()):
            if await self._undone(
                f"strace of {name}", partial(asyncio.to_thread, tracer.send, signal.SIGTERM)
            ):
                del self.tracers[name]
        for name, disk in list(self.disks.items()):
            if await self._undone(f"the disk of {name}", partial(self._without, disk)):
                del self.disks[name]
        if self.network is not None and await self._undone("the network", self.network.stop):
            self.network = None
        for node in self._cluster.layout.nodes:
            node.wrap, node.host, node.admin_host = [], layouts.HOST, layouts.HOST
        clocks.sweep(clocks.noted(self._cluster.directory / CLOCKS))
        if self.left:
            with suppress(OSError):  # what was noted before stays then
                self.note()
        elif self._keep:
            (self._cluster.directory / LEDGER).unlink(missing_ok=True)
        else:
            folder.clear(self._cluster.directory)

    async def _undone(self, what: str, work: Callable[[], Awaitable[object]]) -> bool:
        """Whether one item was taken away."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other items are to go
            self.left.append(f"{what}: {str(error) or repr(error)}")
            return False
        return True

    async def _without(self, disk: LoopDisk) -> None:
        if not self._keep:
            await asyncio.to_thread(disk.__exit__, None, None, None)
        elif (why := await asyncio.to_thread(disk.keep)) is not None:
            self.unkept.append(why)

    def _planned(self, planned: Network) -> None:
        self.network = planned
        self.note()

    def _lay_disks(self, nodes: Collection[Node]) -> None:
        images = self._cluster.directory / "disks"
        images.mkdir(exist_ok=True)
        for node in nodes:
            disk = LoopDisk(self.disk_path(node), images / f"{node.name}.img", megabytes=DISK_MB)
            try:
                self.disks[node.name] = disk.__enter__()
            except OSError as error:
                self.lacks["loop disk"] = f"not for every server: {error}"
                return
            finally:
                self.note()

    def _wrap(self, node: Node, *, clock: bool) -> None:
        """The command that brings a server onto its machine."""
        if self.network is not None:
            node.wrap += self.network.enter(node.name)
            node.host, node.admin_host = self.network.host(node.name), self.network.control_host(node.name)
            node.own["trustPeers"] = "true"  # nobody else is on this network
        if node.name in self.disks:
            self._boot_path(node.name).parent.mkdir(exist_ok=True)
            self.new_boot(node.name)
            boot = str(self._boot_path(node.name))
            own = shlex.quote(str(self.disks[node.name].mount.resolve()))
            script = OWN_DISK.format(own=own) + NAMED_BOOT
            node.wrap += ["unshare", "-m", "--propagation", "private", "sh", "-c", script, boot]
        if clock:
            node.wrap += self._clock(node.name).command()

    def _boot_path(self, name: str) -> Path:
        return self._cluster.directory / "boot" / name

    def _clock(self, name: str) -> Clock:
        return Clock(self._cluster.directory / CLOCKS / name)


def _first_free(pid: int) -> int:
    """The number that the next file of a process gets."""
    used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(used) + 1) if number not in used)


def _limit_descriptors(pid: int, first: int) -> int | None:
    """No number from ``first`` on: the former limit. None: it has ended. Raises OSError."""
    try:
        former, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (first, hard))
    except ProcessLookupError:
        return None
    return former


def is_mended(fault: OwnFault) -> bool:
    """Whether it has something to undo; else a later step, or nothing, ends it."""
    if isinstance(fault, LiveOnly):
        return type(fault).restore is not LiveOnly.restore
    return type(fault).mend is not OwnFault.mend


class NotHealed(MqError):
    """Something that a drill left is still there; the text says what and why. Its ledger is, too."""


def heal(directory: Path, *, removes: bool = False) -> list[str]:
    """Undo what a drill that died left in ``directory``: what was done, in words. ``removes``: that folder
    goes, too. A drill that still runs is left alone, and one of another container, which nobody sees from
    here: raises RuntimeError. Raises ConfigError when what the drill noted cannot be read, NotHealed when all
    was tried."""
    found = Noted.read(directory)
    if found is None:
        return []
    if found.works and not found.is_seen:
        raise RuntimeError(
            f"the drill of {directory} began in another container: heal it there, or remove "
            f"{directory / LEDGER} when that container is gone"
        )
    if found.works:
        raise RuntimeError(f"the drill of {directory} still runs (pid {found.pid}): end it instead")
    done, wrong = list[str](), list[str]()
    for undo in (
        partial(_end_tracers, found),
        partial(_end_client, found),
        partial(_end_servers, directory),
        partial(_end_forgotten, directory),
        partial(_take_disks, directory, keep=found.keep),
        partial(_sweep_clocks, directory),
        partial(_end_network, found),
        partial(_check_gone, directory),
    ):
        try:
            done += undo()
        except (MqError, OSError) as error:
            wrong.append(str(error))
    if wrong:
        raise NotHealed(f"{directory}: {'; '.join(wrong)} (done: {', '.join(done) or 'nothing'})")
    if removes:
        folder.remove(directory)
        return [*done, "removed its directory"]
    (directory / LEDGER).unlink()
    return done


def _end_tracers(found: Noted) -> list[str]:
    """strace lets go of the process when it ends."""
    tracers = found.tracers if found.of_this_boot else ()
    said = [leftovers.end_noted(tracer, signal.SIGTERM, b"strace") for tracer in tracers]
    return [why for why in said if why is not None]


def _end_client(found: Noted) -> list[str]:
    """The Java client ends with its drill by itself, but where it stands still."""
    if found.client is None or not found.of_this_boot or not found.client.send(signal.SIGKILL):
        return []
    return ["ended the Java client"]


def _end_network(found: Noted) -> list[str]:
    """Proxies, switch and namespaces. Raises NotRemoved."""
    if not found.of_this_boot:
        return []
    said = []
    if found.proxies is not None:
        words = (b"toxiproxy", b"chaos.links.relay")
        said.append(leftovers.end_noted(found.proxies, signal.SIGKILL, *words))
    if found.switch is not None:
        said.append(leftovers.end_noted(found.switch, signal.SIGKILL, b"chaos.live.switch"))
    others = [name for name in found.namespaces if network.is_anothers(name)]
    said += [f"left namespace {name} alone: a process is in it, so it is another drill's" for name in others]
    own = [name for name in found.namespaces if name not in others]
    if wrong := network.remove(own):
        raise network.NotRemoved("; ".join(wrong))
    done = [why for why in said if why is not None]
    return [*done, f"removed {len(own)} namespaces"] if found.switch is not None else done


def _end_servers(directory: Path) -> list[str]:
    """Those of its cluster, if it has come to one. Raises ConfigError when its state cannot be read."""
    if not (directory / layouts.STATE_FILE).exists():
        return []
    cluster = LocalCluster.open(directory)
    running = [node for node in cluster.layout.nodes if cluster.is_running(node)]
    for node in running:
        # Its network and its disk end with this command: nobody may find it half alive.
        cluster.send_signal(node, signal.SIGKILL)
    if not running:
        return []
    cluster.end(running)
    return [f"ended {', '.join(node.name for node in running)}"]


def _end_forgotten(directory: Path) -> list[str]:
    """Servers that no state file names: of RocketMQ, and one that was started in the moment in which the
    drill was killed."""
    others = leftovers.of(directory)
    leftovers.end(others)
    return [f"ended {len(others)} servers that no drill looked after"] if others else []


def _sweep_clocks(directory: Path) -> list[str]:
    clocks.sweep(clocks.noted(directory / CLOCKS))
    return []


def _check_gone(directory: Path) -> list[str]:
    """Raises NotHealed for what is still there that its ledger has to speak of."""
    own = directory.resolve()
    mounts = [mount for _, mount in loop_disk.mounts() if mount.is_relative_to(own)]
    wrong = [f"{mount} is still mounted" for mount in mounts if mount.is_mount()]
    wrong += [f"server {server.pid} still runs" for server in leftovers.of(directory) if server.runs]
    if wrong:
        raise NotHealed("; ".join(wrong))
    return []


def _take_image(image: Path, *, keep: bool) -> list[str]:
    """Raises OSError."""
    loop_disk.detach(image)
    if keep:
        return [f"left {image}, which may hold the only copy of {image.stem}"]
    image.unlink(missing_ok=True)
    return []


def _take_disks(directory: Path, *, keep: bool) -> list[str]:
    """Every mount and loop device of a drill's directory, whether it was noted or not. ``keep``: what lies on
    them stays there; only a disk that was copied out now has its image taken away. Raises NotHealed when all
    was tried."""
    done = []
    copied: set[str] = set()
    failed: set[str] = set()
    wrong: list[str] = []
    for device, mount in loop_disk.mounts():
        if mount.is_relative_to(directory.resolve()):
            subprocess.run(["umount", "-l", str(mount)], capture_output=True)
            done.append(f"unmounted {mount}")
            if keep:
                why = loop_disk.copy_out(device, mount)
                (failed if why else copied).add(mount.name)
                done.append(f"could not copy it: {why}" if why else f"kept {mount}")
    for image in sorted((directory / "disks").glob("*.img")):
        try:
            done += _take_image(image, keep=keep and image.stem not in copied)
        except OSError as error:
            wrong.append(str(error))
    for draft in sorted(directory.glob(f"*/*{loop_disk.KEPT}")) if keep else ():
        name = draft.name.removesuffix(loop_disk.KEPT)
        image = directory / "disks" / f"{name}.img"
        if name not in failed and not image.exists():  # it went when the copy was whole
            done.append(loop_disk.finish(draft))
    if not any((directory / "disks").glob("*.img")):
        shutil.rmtree(directory / "disks", ignore_errors=True)
    if wrong:
        raise NotHealed("; ".join(wrong))
    return done


def flip_bit(where: Path, chance: random.Random) -> tuple[Path, int] | None:
    """Flip one bit of what was written under ``where``: the file and the byte; None: nothing was."""
    files = [path for path in sorted(where.rglob("*")) if path.is_file()]
    chance.shuffle(files)
    for path in files:
        written = len(path.read_bytes().rstrip(b"\0"))
        if written:
            at = chance.randrange(written)
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0] ^ 1 << chance.randrange(8)
                file.seek(at)
                file.write(bytes([byte]))
            return path, at
    return None


__all__ = ["Ground", "heal", "loop_disk"]
