"""A network of its own for the servers of a drill: each in a namespace, a switch of ours between them.

    namespace of a server ── TUN ── chaos.live.switch ── TUN ── the machine, where the clients are

Each machine has two addresses: the one that its peers and clients use, whose packets the faults befall, and
one for its status, which is always heard: whoever watches a partition is no part of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from chaos.live.noted import Process, began, is_seen, pid_namespace
from chaos.live.switch import TUN, Rule
from model.errors import MqError
from model.installed import IMPORTED_FROM, module_name

CLIENTS: Final = "clients"
"""The name of the machine that all clients of a drill are on."""
NETWORK: Final = "198.18.{}.{}"
"""RFC 2544: for tests of networks, so nobody's route."""
PREFIX: Final = 24
CLIENT_HOST: Final = 250
CONTROL_FROM: Final = 100
MACHINES_MAX: Final = 99
TOOLS: Final = ("ip", "nsenter", "ss")
NETNS: Final = Path("/run/netns")
PROBE: Final = "keelmq-probe-"
OWN_NAME: Final = re.compile(r"keelmq-\d+-[0-9a-f]{8}-.")
"""Of a namespace that no other drill, before or since, can have. An earlier release numbered them only, by
one of 254 numbers."""
TRIES: Final = 20
ANSWER_S: Final = 10.0


class Cutter(Protocol):
    """What cuts in the place of the switch (``chaos.links.detours``)."""

    @property
    def cutting(self) -> bool: ...
    @property
    def means(self) -> str: ...
    @property
    def process(self) -> Process: ...
    async def cut(self, pairs: Iterable[Sequence[str]], direction: str) -> None: ...
    async def spoil(self, name: str, kind: str, attributes: Mapping[str, int]) -> None: ...
    async def heal(self) -> None: ...
    def stop(self) -> None: ...


class NoNetwork(MqError):
    """There is no network to break; the text says why."""


class NotRemoved(MqError):
    """Something of a network is still there; the text says what and why."""


class Network:
    """The machines by name, and what befalls the packets between them. Make it by ``lay``."""

    def __init__(self, switch: asyncio.subprocess.Process, number: int) -> None:
        self._switch = switch
        self._noted = Process.of(switch.pid)
        self.number = number
        self._own = secrets.token_hex(4)
        self.machines: dict[str, int] = {CLIENTS: CLIENT_HOST}
        self._rules: dict[tuple[str, str], Rule] = {}
        self._dark: set[str] = set()
        self.cut_last: list[list[str]] = []
        """The pairs that were cut last: what a shape came to."""
        self.detours: Cutter | None = None
        self._asking = asyncio.Lock()

    @classmethod
    async def lay(
        cls,
        names: Iterable[str],
        chance: random.Random,
        note: Callable[[Network], None] = lambda network: None,
    ) -> Network:
        """Start the switch and plug the machines in. ``note`` hears of it before a namespace is made. Raises
        NoNetwork; nothing is left then. Raises NotRemoved when something is."""
        reason = unavailable()
        if reason is not None:
            raise NoNetwork(reason)
        path = os.pathsep.join(filter(None, [str(IMPORTED_FROM), os.environ.get("PYTHONPATH", "")]))
        switch = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module_name("chaos.live.switch")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        network = cls(switch, 0)
        try:
            await network._choose_number(chance)
            network.machines |= {name: place for place, name in enumerate(names, 1)}
            note(network)
            for name in network.machines:
                if name != CLIENTS:
                    await network._plug(name)
        except BaseException:
            await network.stop()
            raise
        return network

    @property
    def harmed(self) -> bool:
        """Whether some packet is dropped or late."""
        if self.detours is not None and self.detours.cutting:
            return True
        return bool(self._dark) or any(rule != Rule() for rule in self._rules.values())

    @property
    def switch(self) -> Process:
        """As a ledger notes it."""
        return self._noted

    def namespace(self, name: str) -> str:
        return f"keelmq-{self.number}-{self._own}-{name}"

    def namespaces(self) -> list[str]:
        return [self.namespace(name) for name in self.machines if name != CLIENTS]

    def host(self, name: str) -> str:
        """Where its peers and clients find a machine."""
        return NETWORK.format(self.number, self.machines[name])

    def control_host(self, name: str) -> str:
        """Where it is always heard."""
        return NETWORK.format(self.number, CONTROL_FROM + self.machines[name])

    def enter(self, name: str) -> list[str]:
        """The command that runs what is put behind it on that machine."""
        return ["nsenter", f"--net={NETNS / self.namespace(name)}"]

    async def cut(self, one: str, other: str, direction: str = "both") -> None:
        """No packet from ``one`` to ``other`` (``out``), from it (``in``), or both. Raises NoNetwork."""
        await self.cut_all([(one, other)], direction)

    async def cut_all(self, pairs: Iterable[tuple[str, str]], direction: str = "both") -> None:
        """All at the same moment."""
        self.cut_last = [list(pair) for pair in pairs]
        if self.detours is not None:
            await self.detours.cut(self.cut_last, direction)
            return
        for one, other in self.cut_last:
            if direction in ("both", "out"):
                self._change(one, other, cut=True)
            if direction in ("both", "in"):
                self._change(other, one, cut=True)
        await self._tell()

    async def spoil(self, name: str, **values: float) -> None:
        """What befalls each packet from and to a machine: members of a ``Rule``; their defaults end it."""
        for other in self.machines:
            if other != name:
                self._change(name, other, **values)
                self._change(other, name, **values)
        await self._tell()

    async def darken(self, name: str, dark: bool) -> None:
        """A machine without power: it is heard nowhere, its status neither."""
        (self._dark.add if dark else self._dark.discard)(name)
        await self._tell()

    async def heal(self) -> None:
        """Every packet arrives at once, but for machines without power."""
        self._rules.clear()
        if self.detours is not None:
            await self.detours.heal()
        await self._tell()

    async def detour(self, ways: Iterable[tuple[str, str, int, str, int]]) -> None:
        """Connections from a machine to a port of another one go to a proxy. Raises NoNetwork."""
        await self._ask(detours=list(ways))

    async def reset(self, name: str) -> int:
        """End every connection of a machine by RST; how many."""
        ss = await asyncio.create_subprocess_exec(
            *self.enter(name),
            "ss",
            "-K",
            "-t",
            "-H",
            "state",
            "established",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        out, _ = await ss.communicate()
        return len(out.splitlines())

    async def stop(self) -> None:
        """End the switch; the namespaces go with their last process. Raises NotRemoved when all was tried."""
        wrong = []
        if self.detours is not None:
            try:
                self.detours.stop()
                self.detours = None
            except (OSError, subprocess.SubprocessError) as error:
                wrong.append(f"the proxies: {error}")
        if self._switch.returncode is None:
            assert self._switch.stdin is not None
            self._switch.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._switch.wait(), ANSWER_S)
        self.switch.send(signal.SIGKILL)
        if wrong := wrong + remove(self.namespaces()):
            raise NotRemoved("; ".join(wrong))

    async def _choose_number(self, chance: random.Random) -> None:
        """The third number of all addresses: one that no other drill on this machine has."""
        last = ""
        for _ in range(TRIES):
            self.number = chance.randrange(1, 255)
            if any(NETNS.glob(f"keelmq-{self.number}-*")):
                last = f"network {self.number} is another drill's, or was: keelmq drill heal"
                continue
            device = f"kq{self.number}"
            try:
                await self._ask(join=self._wire(device, "", [self.host(CLIENTS)]))
            except NoNetwork as error:
                last = str(error)
            else:
                return
        raise NoNetwork(f"no network could be made: {last}")

    async def _plug(self, name: str) -> None:
        place = self.machines[name]
        if place > MACHINES_MAX:
            raise NoNetwork(f"more than {MACHINES_MAX} machines")
        added = await asyncio.create_subprocess_exec(
            *("ip", "netns", "add", self.namespace(name)), stderr=asyncio.subprocess.PIPE
        )
        _, said = await added.communicate()
        if added.returncode != 0:
            raise NoNetwork(said.decode(errors="replace").strip())
        device = f"kq{self.number}-{place}"
        await self._ask(
            join=self._wire(device, self.namespace(name), [self.host(name), self.control_host(name)])
        )

    @staticmethod
    def _wire(device: str, namespace: str, addresses: list[str]) -> dict[str, Any]:
        return {"device": device, "namespace": namespace, "addresses": addresses, "prefix": PREFIX}

    def _change(self, source: str, target: str, **values: Any) -> None:
        self._rules[source, target] = replace(self._rules.get((source, target), Rule()), **values)

    async def _tell(self) -> None:
        """All rules, as they are now."""
        rules = [(self.host(a), self.host(b), asdict(rule)) for (a, b), rule in self._rules.items()]
        for name in self._dark:
            for other in self.machines:
                for address in (self.host(name), self.control_host(name)):
                    rules.append((address, self.host(other), {"cut": True}))
                    rules.append((self.host(other), address, {"cut": True}))
        await self._ask(rules=rules)

    async def _ask(self, **command: Any) -> None:
        """One command, answered: what it changes has changed. Raises NoNetwork."""
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        try:
            async with self._asking:
                self._switch.stdin.write(json.dumps(command).encode() + b"\n")
                line = await asyncio.wait_for(self._switch.stdout.readline(), ANSWER_S)
        except (OSError, TimeoutError) as error:
            raise NoNetwork(f"the switch does not answer: {error!r}") from None
        answer = json.loads(line or b'{"error": "the switch has ended"}')
        if "error" in answer:
            raise NoNetwork(answer["error"])


def remove(namespaces: Iterable[str]) -> list[str]:
    """Take namespaces away: why some are still there."""
    wrong = []
    for name in namespaces:
        done = subprocess.run(["ip", "netns", "del", name], capture_output=True, text=True)
        if done.returncode != 0 and (NETNS / name).exists():
            wrong.append(f"namespace {name} is still there: {done.stderr.strip()}")
    return wrong


def is_anothers(namespace: str) -> bool:
    """Whether a drill that is gone, and whose processes have ended, noted a name that is another one's since:
    an earlier release's, in which some process is."""
    if OWN_NAME.match(namespace):
        return False
    inside = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True)
    return bool(inside.stdout.strip())


def sweep(netns: Path = NETNS) -> list[str]:
    """Take away the namespaces in which a process that is gone tried the machine: names of those that are
    gone now."""
    names = [path.name for path in sorted(netns.glob(f"{PROBE}*"))]
    return [name for name in names if _is_left(name) and _deleted(name)]


def _is_left(name: str) -> bool:
    """Whether who made it is gone: it has its pid, and the PID namespace that this is of."""
    pid, _, of = name.removeprefix(PROBE).partition("-")
    return pid.isdigit() and is_seen(int(of) if of.isdigit() else None) and began(int(pid)) is None


def _deleted(namespace: str) -> bool:
    return subprocess.run(["ip", "netns", "del", namespace], capture_output=True).returncode == 0


@cache
def unavailable() -> str | None:
    """What this machine lacks for a network of namespaces, or None."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if not Path(TUN).exists():
        return f"needs {TUN}"
    tried = f"{PROBE}{os.getpid()}-{pid_namespace()}"
    made = subprocess.run(["ip", "netns", "add", tried], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", tried], capture_output=True)
    return f"no network namespace here: {made.stderr.strip()}" if made.returncode else None
