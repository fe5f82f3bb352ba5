"""What do the servers look like meanwhile: who leads, how much memory they hold, what their logs say?"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import psutil

from admin.local.cluster import LocalCluster

LOOK_S: Final = 5.0
BAD_LINE: Final = re.compile(r"^\d{4}-\d\d-\d\dT\S+ [EC] |^Traceback|^Fatal|Error: ")
WARN_LINE: Final = re.compile(r"^\d{4}-\d\d-\d\dT\S+ W ")
WARM_UP_SHARE: Final = 1 / 3
COURSE: Final = 60


class Memory(NamedTuple):
    """Of one server, bytes. ``anon``: its own, what a client could make grow; ``file``: pages of files that
    are mapped (the interpreter, libraries), which the system takes back when it needs them."""

    anon: int
    file: int


@dataclass(slots=True)
class Look:
    """One moment. ``memory`` by server; ``cpu_s``: CPU seconds by server so far."""

    at_s: float
    epoch: int | None
    master: int | None
    sync_state_set: list[int]
    leader: str | None
    memory: dict[str, Memory]
    cpu_s: dict[str, float]
    files: dict[str, int]
    load: float
    views: dict[str, dict[str, Any] | None]


class Watch:
    """Looks at a cluster every ``LOOK_S``."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._began = time.monotonic()
        self.looks: list[Look] = []

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> Look:
        views = await self._cluster.views()
        status = self._cluster.status_of(views)
        group = status["groups"][0]
        memory, cpu_s, files = {}, {}, {}
        for node in self._cluster.layout.nodes:
            if node.pid is None or not psutil.pid_exists(node.pid):
                continue
            process = psutil.Process(node.pid)
            memory[node.name] = memory_of(node.pid)
            times = process.cpu_times()
            cpu_s[node.name] = times.user + times.system
            files[node.name] = process.num_fds()
        found = Look(
            time.monotonic() - self._began,
            group["epoch"],
            group["master"],
            group["syncStateSet"],
            next((c["id"] for c in status["controllers"] if c["leader"]), None),
            memory,
            cpu_s,
            files,
            os.getloadavg()[0],
            views,
        )
        self.looks.append(found)
        if len(self.looks) > 2:
            self.looks[-2].views = {}  # only the first and the last are asked for them
        return found


def memory_of(pid: int) -> Memory:
    """What the system says of a process now; shared memory is counted with files."""
    status = Path(f"/proc/{pid}/status").read_text()
    anon, file, shared = (
        int(found[1]) << 10
        for found in (re.search(rf"^{name}:\s+(\d+) kB$", status, re.M) for name in _RSS)
        if found is not None
    )
    return Memory(anon, file + shared)


_RSS: Final = ("RssAnon", "RssFile", "RssShmem")


def growth(looks: list[Look]) -> dict[str, dict[str, dict[str, Any]]]:
    """By server, of its anonymous memory and of mapped files, MiB: at the start, after the warm-up, at the
    end, how much came after the warm-up, and at ``COURSE`` moments of the same distance."""
    return {
        name: {
            kind: _growth([getattr(look.memory[name], kind) for look in looks if name in look.memory])
            for kind in Memory._fields
        }
        for name in looks[0].memory
    }


def _growth(sizes: list[int]) -> dict[str, Any]:
    values = [size / 2**20 for size in sizes]
    part = max(1, len(values) // 10)
    warm = int(len(values) * WARM_UP_SHARE)
    after, last = median(values[warm : warm + part]), median(values[-part:])
    return {
        "start": round(values[0], 1),
        "afterWarmUp": round(after, 1),
        "end": round(last, 1),
        "highest": round(max(values), 1),
        "grown": round(last - after, 1),
        "course": [round(value, 1) for value in values[:: max(1, len(values) // COURSE)]],
    }


class Logs:
    """What the servers' logs say from now on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._from = {path: path.stat().st_size for path in self._paths()}

    def _paths(self) -> list[Path]:
        return sorted((self._directory / "log").glob("*.log"))

    def _lines(self) -> Iterator[tuple[str, str]]:
        for path in self._paths():
            with path.open("rb") as file:
                file.seek(self._from.get(path, 0))
                for line in file:
                    yield path.stem, line.decode(errors="replace").rstrip("\n")

    def bad(self) -> list[str]:
        """Errors and tracebacks, as NAME: line."""
        return [f"{name}: {line[:400]}" for name, line in self._lines() if BAD_LINE.search(line)]

    def warnings(self, kinds: int = 40) -> dict[str, int]:
        """How often which warning was said, numbers and quoted names left out."""
        count: Counter[str] = Counter()
        for _, line in self._lines():
            if WARN_LINE.match(line):
                count[re.sub(r"'[^']*'|\d+", "_", line[15:])[:160]] += 1
        return dict(count.most_common(kinds))
