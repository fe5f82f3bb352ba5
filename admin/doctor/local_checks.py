"""Is what was seen of one server's file and machine in order? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from admin.doctor.findings import Finding, failed, ok, warning

NAMES: Final = {"broker": "broker", "namesrv": "NameServer", "controller": "Controller"}
FREE_BYTES_MIN: Final = 256 << 20
"""Of a server without a CommitLog: a journal, tables and logs fit."""
DAY_MS: Final = 24 * 3600 * 1000
SOON_MS: Final = 14 * DAY_MS
"""So long before its end the server itself begins to complain about its certificate."""
FILES_EACH: Final = 1000
"""Queues, segments and links of peers, besides the connections of clients."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file that only its owner may read. ``problem``: why this user cannot; empty when it can."""

    key: str
    path: str
    problem: str
    mode: int = 0
    without_effect: str = ""
    """What stands there and means nothing."""


@dataclass(frozen=True, slots=True)
class Space:
    """A directory of a server, or the nearest one above it that is there."""

    key: str
    path: str
    total_bytes: int
    free_bytes: int
    free_inodes: int
    total_inodes: int
    writable: bool
    is_store: bool = False


@dataclass(frozen=True, slots=True)
class Port:
    """``state``: free, taken, or what the system says against it."""

    key: str
    address: str
    state: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Most open files of the process, or of this shell where none is known; and how many are open."""

    most: int
    open: int | None
    pid: int | None


@dataclass(frozen=True, slots=True)
class Tls:
    """What a server's start finds in its TLS files. ``error``: why it would not start; nothing else is known
    then. ``rehearsal``: why one with the same files could not dial it as ``host``."""

    error: str = ""
    where: str = "tls"
    serves: bool = False
    enforces: bool = False
    dials: bool = False
    now_ms: int = 0
    not_before_ms: int = 0
    not_after_ms: int = 0
    not_after: str = ""
    host: str = ""
    rehearsal: str = ""


@dataclass(frozen=True, slots=True)
class Local:
    """What was seen of one server here. ``error``: why its file is none; nothing else is known then."""

    name: str
    role: str
    error: str = ""
    ignored: Sequence[str] = ()
    secrets: Sequence[SecretFile] = ()
    spaces: Sequence[Space] = ()
    ports: Sequence[Port] = ()
    limits: Limits | None = None
    tls: Tls | None = None
    raft_tls: Tls | None = None
    live_tls: str = ""
    """Why the running server does not use the TLS files that are there now, as it says at adminPort."""
    health: str = ""
    """Why the running server does not serve, as its /healthz says."""
    doubts: Sequence[str] = ()
    """What the file says that is right in few places only, as the start warns of it: "...: set ..."."""
    risks: Sequence[str] = ()
    """What the file allows and nobody needs, as a text and what to do, with " -> " between."""
    running: bool | None = None
    start_with: str = ""
    connections_max: int = 0
    segment_bytes: int = 0
    disk_percent: tuple[int, int] = field(default=(75, 90))
    """From where on a broker deletes old segments at any hour, and from where on it refuses messages."""


def judge(seen: Local) -> list[Finding]:
    """Everything about one server, in the order in which it would fail."""
    if seen.error:
        todo = "mend the file; every key: docs/defaults.md"
        return [failed("configuration", seen.name, seen.error, todo)]
    found = [_configuration(seen)]
    for doubt in seen.doubts:
        text, _, todo = doubt.partition(": set ")
        found.append(warning("configuration", seen.name, text, f"set {todo}"))
    if seen.running is False:
        found.append(failed("process", seen.name, "it is not running", f"start it: {seen.start_with}"))
    if seen.health:
        todo = "its log says since when; docs/operations.md, What to look at"
        found.append(failed("health", seen.name, f"it does not serve: {seen.health}", todo))
    found += [_secret(seen.name, one) for one in seen.secrets]
    found += [warning("secrets", seen.name, *risk.split(" -> ")) for risk in seen.risks]
    found += [_tls(seen.name, one) for one in (seen.tls, seen.raft_tls) if one is not None]
    if seen.live_tls:
        todo = "mend the files: it reads them anew within 2 s; until then it goes on with the former ones"
        found.append(failed("tls", seen.name, f"the running server says: {seen.live_tls}", todo))
    found += [_space(seen, one) for one in seen.spaces]
    found += _ports(seen)
    if seen.limits is not None:
        found.append(_limits(seen, seen.limits))
    return found


def _configuration(seen: Local) -> Finding:
    text = f"a {NAMES.get(seen.role, seen.role)}'s, without a mistake"
    if seen.ignored:
        text += f"; RocketMQ's keys without a use here: {', '.join(seen.ignored)}"
    return ok("configuration", seen.name, text)


def _secret(name: str, one: SecretFile) -> Finding:
    where = f"{name}: {one.key}={one.path}"
    if one.problem:
        return failed(
            "secrets", where, one.problem, f"mend it, and let the server's user read it: {one.path}"
        )
    if one.without_effect:
        todo = "mend the file: docs/security.md, Access control of clients"
        return warning("secrets", where, one.without_effect, todo)
    if one.mode & 0o077:
        text = f"others than its owner may read or change it (mode {one.mode & 0o777:o})"
        return warning("secrets", where, text, f"chmod 600 {one.path}")
    return ok("secrets", where, "only its owner reads it")


def _tls(name: str, tls: Tls) -> Finding:
    where = f"{name}: {tls.where}"
    if tls.error:
        return failed("tls", where, tls.error, "mend the files: docs/security.md, TLS")
    if tls.enforces and not tls.dials:
        text = "tls.server.mode=enforcing, and without tls.enable=true it dials the other servers without TLS"
        return failed("tls", where, text, "set tls.enable=true, and tls.client.trustCertPath")
    if tls.serves and tls.not_before_ms > tls.now_ms:
        return failed(
            "tls", where, "its certificate is not good yet", "look at this machine's clock, or renew it"
        )
    if tls.rehearsal:
        text = f"a server with the same files cannot dial it{tls.host and f' as {tls.host}'}: {tls.rehearsal}"
        todo = "make its certificates, keys and trust files fit: docs/security.md, TLS"
        return failed("tls", where, text, todo)
    left_ms = tls.not_after_ms - tls.now_ms
    if tls.serves and left_ms < SOON_MS:
        text = f"its certificate ends at {tls.not_after}, in {left_ms // DAY_MS} days"
        return warning("tls", where, text, "renew it: keelmq certs renew")
    return ok(
        "tls", where, f"its files fit; certificate until {tls.not_after}" if tls.serves else "its files fit"
    )


def _space(seen: Local, one: Space) -> Finding:
    where = f"{seen.name}: {one.key}={one.path}"
    if not one.writable:
        return failed("disk", where, "this user cannot write there", f"chown or chmod {one.path}")
    used = 100 - 100 * one.free_bytes // max(1, one.total_bytes)
    text = f"{used} % used, {gigabytes(one.free_bytes)} free"
    deletes, refuses = seen.disk_percent
    if one.total_inodes and one.free_inodes * 20 < one.total_inodes:
        todo = "remove files, or use a file system with more inodes"
        return failed("disk", where, f"{text}, but {one.free_inodes} inodes", todo)
    if one.is_store:
        if used > refuses:
            todo = "add space, or lower fileReservedTime: docs/operations.md, Disk full"
            return failed("disk", where, f"{text}: messages are refused above {refuses} %", todo)
        if one.free_bytes < 2 * seen.segment_bytes:
            todo = "add space, or make mappedFileSizeCommitLog smaller"
            need = gigabytes(2 * seen.segment_bytes)
            return failed("disk", where, f"{text}: two segments of the CommitLog need {need}", todo)
        if used > deletes:
            todo = "add space, lower fileReservedTime, or set commitLogMegabytesMax"
            return warning("disk", where, f"{text}: old segments go at any hour above {deletes} %", todo)
    elif one.free_bytes < FREE_BYTES_MIN:
        return failed("disk", where, text, f"free at least {gigabytes(FREE_BYTES_MIN)}")
    return ok("disk", where, text)


def _ports(seen: Local) -> list[Finding]:
    taken = [port for port in seen.ports if port.state == "taken"]
    # A server takes all of its ports: one that is free says that the others are somebody else's.
    strangers = not seen.running and (seen.running is False or len(taken) < len(seen.ports))
    found = []
    for port in seen.ports:
        where = f"{seen.name}: {port.key}={port.address}"
        if port.state not in ("free", "taken"):
            todo = "give an address of this host, or a port this user may have"
            found.append(failed("ports", where, port.state, todo))
        elif port.state == "free" and (seen.running or taken):
            todo = "does another program have the other ports? See ss -ltnp"
            text = "nobody listens here, though at others of its ports"
            found.append(warning("ports", where, text, todo))
        elif port.state == "taken" and strangers:
            todo = "end the program that has it (ss -ltnp), or choose another port"
            found.append(failed("ports", where, "another program listens here", todo))
        else:
            found.append(ok("ports", where, "a server listens" if port.state == "taken" else "free"))
    return found


def _limits(seen: Local, limits: Limits) -> Finding:
    where = f"{seen.name}: open files"
    whose = "this shell's limit" if limits.pid is None else f"limit of process {limits.pid}"
    text = f"{whose} {limits.most:,}" + ("" if limits.open is None else f", {limits.open:,} open")
    if limits.open is not None and limits.open * 10 > limits.most * 8:
        return failed("limits", where, text, "raise it now: LimitNOFILE=1048576 in the unit, or ulimit -n")
    need = seen.connections_max + FILES_EACH
    if limits.most < need:
        why = f"maxConnections={seen.connections_max:,} and its files may need {need:,}"
        return warning(
            "limits",
            where,
            f"{text}: {why}",
            "LimitNOFILE=1048576 in the unit (deploy/systemd), ulimit -n, or a smaller maxConnections",
        )
    return ok("limits", where, text)


def gigabytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
