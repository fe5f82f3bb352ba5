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

Each command that breaks something first leaves one on the host that mends it ``undo_s`` later: also a drill
whose machine burns down leaves a whole cluster. That one acts only while its file lies in /tmp there, and
what mends the server takes the file away: whoever stops a server after a drill finds it stopped.
"""

from __future__ import annotations

import hashlib
import secrets
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
ARMED: Final = "/tmp/keelmq-undo"
ROLES: Final = ("broker", "namesrv")
SSH: Final = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
UNDO_S: Final = 60
FORM: Final = "its form: docs/chaos.md, Your own staging cluster"
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
        """What does ``what`` to a server: with what mends it later, or with the end of that."""
        script, undo = host.commands[what], UNDONE_BY.get(what)
        if undo is not None:
            script = self._armed(host, what, undo)
        elif what == "start":  # a new process: whatever was done to the former is over
            script = f"({script}) && {self._disarm(host)}"
        elif what == "resume":
            script = f"({script}) && {self._disarm(host, 'pause')}"
        return [*self.ssh, host.ssh, script]

    def mend(self, host: Host) -> list[str]:
        """What makes it run, whatever a drill did to it, and ends what would do so later."""
        script = f"({host.commands['resume']}); ({host.commands['start']}) && {self._disarm(host)}"
        return [*self.ssh, host.ssh, script]

    def reach(self, host: Host) -> list[str]:
        """What shows that its host does what it is told, and changes nothing."""
        return [*self.ssh, host.ssh, "true"]

    def _armed(self, host: Host, what: str, undo: str) -> str:
        """Without the file nothing is struck; it is looked at every second, so the wait ends with it."""
        file = f"{self._file(host)}-{what}-{secrets.token_hex(8)}"
        make = shlex.quote(f"set -C; : > {file}")
        later = shlex.quote(
            f"n=0; while [ -e {file} ] && [ $n -lt {self.undo_s} ]; do sleep 1; n=$((n+1)); done; "
            f"rm {file} && {{ {host.commands[undo]}; }}"
        )
        wait = f"nohup sh -c {later} >/dev/null 2>&1 </dev/null"
        return f"sh -c {make} || exit 1; {wait} & {host.commands[what]}"

    def _disarm(self, host: Host, what: str = "") -> str:
        # sh: other shells take it for an error when there is no such file.
        return "sh -c " + shlex.quote(f"rm -f {self._file(host)}-{what}*")

    def _file(self, host: Host) -> str:
        """How its files begin: of this server of this cluster, whoever drills it."""
        own = "\0".join((self.group, host.name, host.ssh, host.commands["start"]))
        return f"{ARMED}-{hashlib.sha256(own.encode()).hexdigest()[:12]}"


def read(path: Path) -> Hosts:
    """Raises ConfigError that says what is wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        return _hosts(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; {FORM}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{path} is no file of hosts: {why}; {FORM}") from None


def _hosts(data: Mapping[str, Any]) -> Hosts:
    missing = [key for key in ("group", "server") if key not in data]
    if missing:
        raise ConfigError(f"it has no {missing[0]}")
    servers = [_host(one, number) for number, one in enumerate(data["server"], 1)]
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


def _host(data: Mapping[str, Any], number: int) -> Host:
    needed = ["name", "role", "ssh", "status", *(["address"] if data.get("role") == "namesrv" else [])]
    if missing := [key for key in needed if key not in data]:
        raise ConfigError(f"server {data.get('name', number)} has no {', '.join(missing)}")
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
