"""A staging cluster as a drill by plan sees it: servers on hosts of their own, reached by ssh."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

import aiohttp

from admin.local.cluster import POLL_S, UP_TIMEOUT_S, ClusterNotReady, LocalCluster
from admin.local.layout import Layout, Node
from chaos.remote.hosts import UNDONE_BY, Host, Hosts

SIGNALS: Final = {
    signal.SIGKILL: "kill",
    signal.SIGTERM: "stop",
    signal.SIGSTOP: "pause",
    signal.SIGCONT: "resume",
}
SSH_S: Final = 30.0
HOSTS_AT_ONCE: Final = 16


class RemoteCluster(LocalCluster):
    """``directory`` holds what the drill notes; nothing of the cluster. ``failed``: commands that did not
    work, in words."""

    def __init__(self, hosts: Hosts, directory: Path) -> None:
        brokers = [host for host in hosts.servers if host.role == "broker"]
        others = [host for host in hosts.servers if host.role == "namesrv"]
        nodes = [Node(one.name, "namesrv", at, one.port, host=one.ip) for at, one in enumerate(others)]
        nodes += [Node(host.name, "broker", at, 0, hosts.group) for at, host in enumerate(brokers)]
        super().__init__(directory, Layout(nodes, 0, len(others), 1, len(brokers)))
        self.hosts = hosts
        self.failed: list[str] = []
        self._of = {host.name: host for host in hosts.servers}
        self._ended: set[str] = set()
        self._hands = {host.name: ThreadPoolExecutor(1, host.name) for host in hosts.servers}
        """Commands for one host come one after the other, and nobody waits for them meanwhile."""
        self._asked: list[Future[None]] = []
        self.struck = False
        """Whether a host was told to break something: what it did of that is not known."""

    def is_running(self, node: Node) -> bool:
        """As far as this drill is concerned: it was not told to end."""
        return node.name not in self._ended

    def send_signal(self, node: Node, number: int) -> bool:
        """Ask its host, and do not wait: ssh takes longer than a fault may."""
        what = SIGNALS[signal.Signals(number)]
        self.struck |= what in UNDONE_BY
        if what in ("kill", "stop"):
            if node.name in self._ended:
                return False
            self._ended.add(node.name)
        self._ask(self._of[node.name], what)
        return True

    def start(self, node: Node) -> None:
        self._ended.discard(node.name)
        self._ask(self._of[node.name], "start")

    def _ask(self, host: Host, what: str) -> None:
        self._asked.append(self._hands[host.name].submit(self._tell, host, what))

    def _tell(self, host: Host, what: str) -> None:
        command, quiet = self.hosts.command(host, what), subprocess.DEVNULL
        try:
            asked = subprocess.run(
                command,
                stdin=quiet,
                stdout=quiet,
                stderr=subprocess.PIPE,
                start_new_session=True,
                timeout=SSH_S,
            )
        except subprocess.TimeoutExpired:
            self.failed.append(f"{what} {host.name}: no answer within {SSH_S:.0f} s")
        except OSError as error:
            self.failed.append(f"{what} {host.name}: {error}")
        else:
            if asked.returncode:
                said = asked.stderr.decode(errors="replace").strip()
                self.failed.append(f"{what} {host.name}: {said or asked.returncode}")

    def _reap(self) -> None:
        """Until every command has ended."""
        wait(self._asked)
        self._asked.clear()

    def unreached(self) -> list[str]:
        """Hosts that do nothing when they are told to, and why. Changes nothing there."""
        return self._tell_all(self.hosts.reach, lambda text: None)

    def mend(self, tell: Callable[[str], object] = lambda text: None) -> list[str]:
        """Have every server run; what did not work, in words. A host that hangs is one of those."""
        self._reap()
        wrong = self._tell_all(self.hosts.mend, tell)
        self._ended.clear()
        return wrong

    def _tell_all(self, command: Callable[[Host], Sequence[str]], tell: Callable[[str], object]) -> list[str]:
        """Hosts hear it at the same time, the servers of one host one after the other."""
        places: dict[str, list[Host]] = {}
        for host in self.hosts.servers:
            places.setdefault(host.ssh, []).append(host)

        def each(hosts: Sequence[Host]) -> list[str]:
            return [why for host in hosts if (why := _told(host, command(host), tell)) is not None]

        with ThreadPoolExecutor(min(HOSTS_AT_ONCE, len(places))) as hands:
            return [why for told in hands.map(each, places.values()) for why in told]

    def down(self, grace_s: float = 0) -> list[str]:
        """It is others' cluster: it is left running."""
        return self.mend()

    async def look(self, http: aiohttp.ClientSession, node: Node) -> dict[str, Any] | None:
        """/status of one server; None when it gives none."""
        try:
            async with http.get(self._of[node.name].status) as response:
                found = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    async def wait_ready(self, *, timeout_s: float = UP_TIMEOUT_S, tell: Any = None) -> dict[str, Any]:
        """Wait until nothing is ``missing``. Raises ClusterNotReady."""
        deadline = time.monotonic() + timeout_s
        while missing := self.missing(await self.views()):
            if time.monotonic() > deadline:
                raise ClusterNotReady(f"not ready after {timeout_s:.0f} s: {missing}")
            await asyncio.sleep(POLL_S)
        return {}


def _told(host: Host, command: Sequence[str], tell: Callable[[str], object]) -> str | None:
    """Why a host did not do it; None: it did."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SSH_S)
    except subprocess.TimeoutExpired:
        why = f"no answer within {2 * SSH_S:.0f} s"
    except OSError as error:
        why = str(error)
    else:
        why = (done.stderr.strip() or str(done.returncode)) if done.returncode else ""
    tell(f"{host.name}: {why or 'done'}")
    return f"{host.name}: {why}" if why else None
