"""Which servers does a staging cluster have, and what may a drill do to them? A file of hosts (TOML).

    group = "broker-a"
    allowed = ["kill", "pause", "stop"]
    undo_s = 60

    [[server]]
    name = "broker-a-0"
    role = "broker"                                 # or namesrv, with its Controller: it has an address, too
    ssh = "ops@10.0.0.11"
    status = "http://10.0.0.11:10915/status"
    unit = "keelmq-broker"                          # of systemd; else kill, stop, start, pause and resume

``unit``: the user of ssh has to be allowed to ``sudo -n systemctl`` it, without a password.

Each command that breaks something leaves one on the host that mends it ``undo_s`` later: also a drill whose
machine burns down leaves a whole cluster.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from model.errors import ConfigError
from model.settings import split_address

UNIT: Final = {
    "kill": "sudo -n systemctl kill --signal=KILL {unit}",
    "stop": "sudo -n systemctl stop {unit}",
    "start": "sudo -n systemctl start {unit}",
    "pause": "sudo -n systemctl kill --signal=STOP {unit}",
    "resume": "sudo -n systemctl kill --signal=CONT {unit}",
}
UNDONE_BY: Final = {"kill": "start", "stop": "start", "pause": "resume"}
"""What a drill may do there, and what mends it."""
ROLES: Final = ("broker", "namesrv")
SSH: Final = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
UNDO_S: Final = 60
UNDO_S_MIN: Final = 10


@dataclass(frozen=True, slots=True)
class Host:
    """One server: where it is, and the commands of its host by what they do."""

    name: str
    role: str
    ssh: str
    status: str
    commands: Mapping[str, str]
    address: str = ""
    """Of a NameServer: where clients begin."""

    @property
    def ip(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Hosts:
    """A staging cluster of one group."""

    group: str
    servers: Sequence[Host]
    allowed: Sequence[str]
    undo_s: int
    ssh: Sequence[str]

    def command(self, host: Host, what: str) -> list[str]:
        """What does ``what`` to a server, and on its host, later, what mends it."""
        script = host.commands[what]
        if (undo := UNDONE_BY.get(what)) is not None:
            later = shlex.quote(f"sleep {self.undo_s}; {host.commands[undo]}")
            script += f"; done=$?; nohup sh -c {later} >/dev/null 2>&1 </dev/null & exit $done"
        return [*self.ssh, host.ssh, script]

    def mend(self, host: Host) -> list[str]:
        """What makes it run, whatever a drill did to it."""
        return [*self.ssh, host.ssh, f"{host.commands['resume']}; {host.commands['start']}"]


def read(path: Path) -> Hosts:
    """Raises ConfigError that says what is wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        return _hosts(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is no file of hosts: {error!r}") from None


def _hosts(data: Mapping[str, Any]) -> Hosts:
    servers = [_host(one) for one in data["server"]]
    names = [one.name for one in servers]
    if len(set(names)) < len(names):
        raise ConfigError("two servers have the same name")
    if {one.role for one in servers} != set(ROLES):
        raise ConfigError("name the brokers of the group, and the NameServers with their Controllers")
    allowed = list(data.get("allowed", UNDONE_BY))
    if wrong := set(allowed) - UNDONE_BY.keys():
        raise ConfigError(f"allowed: {', '.join(sorted(wrong))} is none of {', '.join(UNDONE_BY)}")
    undo_s = int(data.get("undo_s", UNDO_S))
    if undo_s < UNDO_S_MIN:
        raise ConfigError(f"undo_s is {undo_s}: a fault lasts up to 5 s, give it at least {UNDO_S_MIN}")
    ssh = [str(word) for word in data.get("ssh", SSH)]
    return Hosts(str(data["group"]), servers, allowed, undo_s, ssh)


def _host(data: Mapping[str, Any]) -> Host:
    if data["role"] not in ROLES:
        raise ConfigError(f"role {data['role']!r} is neither broker nor namesrv")
    commands = {}
    for what, text in UNIT.items():
        if what in data:
            commands[what] = str(data[what])
        elif "unit" in data:
            commands[what] = text.format(unit=shlex.quote(str(data["unit"])))
        else:
            raise ConfigError(f"{data['name']} has no unit, and no command {what}")
    if data["role"] == "namesrv":
        split_address(str(data["address"]))
    name, role, ssh, status = (str(data[key]) for key in ("name", "role", "ssh", "status"))
    return Host(name, role, ssh, status, commands, str(data.get("address", "")))
