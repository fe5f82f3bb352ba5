"""A small ext4 on a loop device, whose power can fail: what no sync has put into its journal is gone."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

from chaos.live.noted import began, is_our_file, is_ours, is_seen, pid_namespace

IOC_SHUTDOWN: Final = 0x8004587D
"""_IOR('X', 125, __u32) of Linux: EXT4_IOC_SHUTDOWN, first of XFS, now of several file systems."""
NO_LOG_FLUSH: Final = 2
"""EXT4_GOING_FLAGS_NOLOGFLUSH: not even the journal's current transaction is written."""
MOUNTS: Final = Path("/proc/mounts")
TOOLS: Final = ("losetup", "mkfs.ext4", "mount", "umount")
UMOUNT_S: Final = 10.0
PROBE: Final = "probe"
TRIAL: Final = "keelmq-probe-"
"""How directories in which the machine is tried begin; a pid follows, and the PID namespace it is of."""
KEPT: Final = ".kept"
FILLER: Final = "filler"
"""A file at its root that takes what is left."""


class LoopDisk:
    """A file system of its own, mounted at ``mount`` while entered. Needs root; see ``unavailable``."""

    def __init__(self, mount: Path, image: Path, *, megabytes: int = 512) -> None:
        self.mount = mount
        self.image = image
        self._megabytes = megabytes
        self.device = ""

    def __enter__(self) -> Self:
        self.mount.mkdir(parents=True, exist_ok=True)
        if any(self.mount.iterdir()):
            raise OSError(f"{self.mount} is not empty")
        with self.image.open("wb") as file:
            file.truncate(self._megabytes << 20)
        try:
            _run("mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-J", "size=4", str(self.image))
            self.device = _run("losetup", "-f", "--show", str(self.image)).strip()
            self._mount()
            (self.mount / "lost+found").rmdir()
        except BaseException:
            # losetup may have ended after it attached the image, and before it said to what.
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unplug()
        self.image.unlink(missing_ok=True)

    def unplug(self) -> None:
        """What lies on it stays in its image. Raises OSError when it is still mounted."""
        done = subprocess.run(["umount", "-l", str(self.mount)], capture_output=True, text=True)
        if done.returncode != 0 and os.path.ismount(self.mount):
            raise OSError(f"{self.mount} is still mounted: {done.stderr.strip()}")
        detach(self.image)

    def keep(self) -> str | None:
        """As leaving it, but what lies on it is in the directory where it was mounted then; why that failed:
        the image stays. Raises OSError when it is still mounted: that is for ``heal`` to undo."""
        draft, why = kept(self.mount), None
        try:
            shutil.copytree(self.mount, draft)
        except (OSError, shutil.Error) as error:
            why = error
        finally:
            self.unplug()
        try:
            if why is None:
                self.mount.rmdir()
                draft.rename(self.mount)
        except OSError as error:
            why = error
        if why is not None:
            return f"{self.mount} could not be copied, its image {self.image} stays: {why}"
        self.image.unlink()
        return None

    @property
    def full(self) -> bool:
        """Whether ``fill`` has taken what was left."""
        return (self.mount / FILLER).exists()

    def fill(self, full: bool) -> None:
        """Take every block that is left, or give them back. Raises OSError."""
        filler = self.mount / FILLER
        if not full:
            filler.unlink(missing_ok=True)
            return
        space = os.statvfs(self.mount)
        with filler.open("wb") as file:
            left = space.f_bfree * space.f_frsize
            while left >= space.f_frsize:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), left)
                    file.seek(0, os.SEEK_END)
                except OSError:
                    left //= 2  # some blocks are needed to note where the others lie

    def abort(self) -> None:
        """From now on it takes no write, until it is mounted anew. Raises OSError."""
        _run("mount", "-o", "remount,abort", str(self.mount))

    @property
    def writable(self) -> bool:
        probe = self.mount / PROBE
        try:
            probe.touch()
            probe.unlink()
        except OSError:
            return False
        return True

    def power_off(self) -> None:
        """From now on nothing reaches the disk; every write and sync fails."""
        directory = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(directory)

    def power_on(self) -> None:
        """Mount again, the journal's replay included; nobody may have a file open any more.

        A process that just starts may hold the old mount in a namespace of its own: what is mounted then is
        still the one without power, and is tried again."""
        deadline = time.monotonic() + UMOUNT_S
        while not self._mounted_anew():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.mount} stays busy")
            time.sleep(0.02)

    def _mounted_anew(self) -> bool:
        if os.path.ismount(self.mount):
            done = subprocess.run(["umount", str(self.mount)], capture_output=True)
            if done.returncode != 0:
                return False
        self._mount()
        return self.writable

    def _mount(self) -> None:
        _run("mount", "-t", "ext4", "-o", "noatime", self.device, str(self.mount))


def mounts() -> Iterator[tuple[str, Path]]:
    """Device and place of all that is mounted. A space in a path stands there as ``\\040``."""
    for line in MOUNTS.read_bytes().splitlines():
        device, mount = (
            re.sub(rb"\\([0-7]{3})", lambda one: bytes([int(one[1], 8)]), word) for word in line.split()[:2]
        )
        yield os.fsdecode(device), Path(os.fsdecode(mount))


def kept(mount: Path) -> Path:
    """Where what lies on a disk is copied to, before it stands in the place where that is mounted."""
    return mount.with_name(mount.name + KEPT)


def finish(draft: Path) -> str:
    """Bring a whole copy, whose image is gone, to its place: what was done, in words."""
    mount = draft.with_name(draft.name.removesuffix(KEPT))
    try:
        if mount.exists():
            mount.rmdir()
        draft.rename(mount)
    except OSError as error:
        return f"left {draft}, the only copy of {mount.name}: {error}"
    return f"kept {mount}"


def copy_out(device: str, mount: Path) -> str | None:
    """Bring what lies on a loop device into the directory where it was mounted, which is empty; why that
    failed, or None. It is mounted anew: it may have lost its power. What an attempt that was cut short has
    copied is taken away first."""
    draft = kept(mount)
    try:
        if draft.exists():
            shutil.rmtree(draft)
        _run("mount", "-t", "ext4", "-o", "noatime", device, str(mount))
        try:
            shutil.copytree(mount, draft)
        finally:
            _run("umount", "-l", str(mount))
        mount.rmdir()
        draft.rename(mount)
    except (OSError, shutil.Error) as error:
        return str(error)
    return None


def sweep(directory: Path) -> list[str]:
    """Take away the disks on which processes that are gone tried the machine, in ``directory``: of this user,
    and none that a link leads to."""
    done = []
    for place in sorted(directory.glob(f"{TRIAL}*")):
        pid, *more = place.name.removeprefix(TRIAL).split("-")
        of = int(more[0]) if len(more) > 1 and more[0].isdigit() else None
        if pid.isdigit() and is_seen(of) and began(int(pid)) is None and is_ours(place):
            if is_ours(place / "disk"):
                subprocess.run(["umount", "-l", str(place / "disk")], capture_output=True)
            if is_our_file(place / "image"):
                try:
                    detach(place / "image")
                except OSError:
                    continue  # its image is what the device is found by
            shutil.rmtree(place, ignore_errors=True)
            done.append(str(place))
    return done


def detach(image: Path) -> None:
    """Every loop device of a file; one that is busy goes when it is not. Raises OSError."""
    for device in _devices(image):
        done = subprocess.run(["losetup", "-d", device], capture_output=True, text=True)
        if done.returncode != 0 and device in _devices(image):
            raise OSError(f"{device} of {image} cannot be detached: {done.stderr.strip()}")


def _devices(image: Path) -> list[str]:
    listed = subprocess.run(["losetup", "-j", str(image)], capture_output=True, text=True)
    return [line.partition(":")[0] for line in listed.stdout.splitlines()]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr.strip() or done.returncode}")
    return done.stdout


@cache
def unavailable() -> str | None:
    """What this machine lacks for a ``LoopDisk``, or None. Tries one, with a write that must be lost."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root, for a loop device"
    with TemporaryDirectory(prefix=f"{TRIAL}{os.getpid()}-{pid_namespace()}-") as name:
        base = Path(name)
        try:
            with LoopDisk(base / "disk", base / "image", megabytes=16) as disk:
                file = disk.mount / "file"
                with file.open("wb") as out:
                    out.write(b"durable")
                    out.flush()
                    os.fsync(out.fileno())
                    out.write(b" and not")
                disk.power_off()
                disk.power_on()
                kept = file.read_bytes()
        except OSError as error:
            return f"no loop device with ext4 here: {error}"
        return None if kept == b"durable" else f"a write without a sync survives: {kept!r}"
