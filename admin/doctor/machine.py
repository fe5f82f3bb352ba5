"""What is seen of one server's file, and of the machine it is for? Nothing is changed by the look."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from admin.doctor.local_checks import Limits, Local, Port, SecretFile, Space, Tls
from admin.host.serve import SECRET_FILES, Plan, bind, plan
from controller.links.tls import TlsFiles, TlsNetwork
from model.config import BrokerConfig, ControllerConfig, NamesrvConfig
from model.config.tls import FILE_KEY, Mode
from model.errors import ConfigError
from model.settings import split_address
from remoting.acl.plain_files import PlainFiles
from remoting.keys import read_keys
from runtime.os_env import OsDisk, OsEnv
from runtime.secret import read_secret, read_secrets
from runtime.tls.rehearsal import rehearse
from runtime.tls.state import TlsState, wall_ms

ROLES: Final = ("broker", "namesrv", "controller")
_INLINE_SECRETS: Final = ("initAuthenticationUser", "innerClientAuthenticationCredentials")
LOOPBACK: Final = "127.0.0.1"
STATUS_S: Final = 2.0
STATUS_BYTES_MAX: Final = 64 << 20
HEALTH_BYTES_MAX: Final = 4096
_DIRECT: Final = build_opener(ProxyHandler({}))
"""A server here is asked without a proxy."""
_ANYWHERE: Final = ("0.0.0.0", "::", "")  # compared with, not bound to
_KNOWN: Final = {
    "broker": frozenset(BrokerConfig.keys()),
    "namesrv": frozenset(NamesrvConfig.keys()) | frozenset(ControllerConfig.keys()),
    "controller": frozenset(ControllerConfig.keys()),
}


def role_of(values: Mapping[str, str]) -> str | None:
    """Whose file it is: the role that knows most of its keys; None when several do."""
    scores = {role: sum(name in known for name in values) for role, known in _KNOWN.items()}
    best = max(scores.values())
    roles = [role for role, score in scores.items() if score == best]
    if roles == ["namesrv", "controller"]:  # a NameServer's file may have every key of a Controller
        return "controller" if "controllerDLegerSelfId" in values else None
    return roles[0] if len(roles) == 1 else None


def look(name: str, role: str, values: Mapping[str, str], *, pid: int | None = None) -> Local:
    """What there is to see of the server that ``values`` are for; ``pid``: its process, where it is known."""
    try:
        found = plan(role, values)
    except ConfigError as error:
        return Local(name, role, error=str(error))
    tls, keys = _tls(found)
    live_tls, health = _said(found)
    seen = Local(
        name,
        role,
        ignored=found.ignored,
        doubts=found.doubts,
        secrets=[_secret(key, path) for key, path in (*_secrets(values), *keys)],
        tls=tls,
        raft_tls=_raft_tls(values),
        risks=_risks(name, values),
        spaces=_spaces(role, values),
        live_tls=live_tls,
        health=health,
        ports=[_port(*one) for one in _ports(found)],
        limits=_limits(pid),
        connections_max=found.places.total,
    )
    if role != "broker":
        return seen
    config = BrokerConfig.from_mapping({k: v for k, v in values.items() if k in _KNOWN["broker"]})
    refuses = min(max(config.disk_warning_ratio, 35), 90)
    return replace(
        seen,
        segment_bytes=config.segment_bytes,
        disk_percent=(config.disk_max_used_ratio, refuses),
    )


def tls_state(values: Mapping[str, str]) -> TlsState | None:
    """The TLS of a server whose file has these ``tls.*`` keys, as its start reads it. Raises ConfigError."""
    return TlsState(values) if values else None


def _tls(found: Plan) -> tuple[Tls | None, list[tuple[str, str]]]:
    """What there is to say of it, and its keys' files."""
    where = f"{FILE_KEY}={found.tls[FILE_KEY]}" if found.tls.get(FILE_KEY) else "tls"
    try:
        state = tls_state(found.tls)
    except ConfigError as error:
        return Tls(str(error), where), []
    if state is None:
        return None, []
    config, own = state.now.config, state.now.own
    host = split_address(found.address)[0].strip("[]")
    played = config.dials and not config.test_mode and host not in _ANYWHERE
    seen = Tls(
        where=where,
        serves=own is not None,
        enforces=config.mode is Mode.ENFORCING,
        dials=config.dials,
        now_ms=wall_ms(),
        not_before_ms=0 if own is None else own.not_before_ms,
        not_after_ms=0 if own is None else own.not_after_ms,
        not_after="" if own is None else own.not_after,
        host=host,
        rehearsal=rehearse(state.now, host) if played else "",
    )
    named = {"tls.server.keyPath": config.server_key, "tls.client.keyPath": config.client_key}
    paths = {path: key for key, path in reversed(named.items()) if path and os.path.exists(path)}
    return seen, [(key, path) for path, key in paths.items()]


def _raft_tls(values: Mapping[str, str]) -> Tls | None:
    """What there is to say of a Controller's links; None where they have no TLS."""
    files = TlsFiles(*(values.get(key, "") for key in ("raftTlsCert", "raftTlsKey", "raftTlsCaFile")))
    if not files.cert:
        return None
    where = f"raftTlsCert={files.cert}"
    try:
        network = TlsNetwork(files)
    except ConfigError as error:
        return Tls(str(error), where)
    own = network.own
    return Tls(
        where=where,
        serves=True,
        now_ms=wall_ms(),
        not_before_ms=own.not_before_ms,
        not_after_ms=own.not_after_ms,
        not_after=own.not_after,
        rehearsal=network.doubt,
    )


def _said(found: Plan) -> tuple[str, str]:
    """``error`` of a running server's TLS, and why it does not serve. Another program at that port says
    nothing of the kind."""
    if not found.admin_port:
        return "", ""
    host = LOOPBACK if found.admin_address in _ANYWHERE else found.admin_address
    url = f"http://{f'[{host}]' if ':' in host else host}:{found.admin_port}"
    try:
        with _DIRECT.open(f"{url}/status", timeout=STATUS_S) as answer:
            status = json.loads(answer.read(STATUS_BYTES_MAX))
        raft = (status.get("controller") or status).get("raft") or {}
        of_all = (status.get("tls") or {}, raft.get("tls") or {})
        live_tls = "; ".join(str(tls["error"]) for tls in of_all if tls.get("error"))
        return live_tls, _unhealthy(url) if "serverRole" in status else ""
    except (OSError, HTTPException, ValueError, AttributeError):
        return "", ""


def _unhealthy(url: str) -> str:
    """Why a server says that it does not serve; empty when it does, or says nothing. Raises OSError,
    HTTPException."""
    try:
        _DIRECT.open(f"{url}/healthz", timeout=STATUS_S).close()
    except HTTPError as error:
        with error:
            text = error.read(HEALTH_BYTES_MAX).decode(errors="replace").strip()
        return text if error.code == HTTPStatus.SERVICE_UNAVAILABLE else ""
    return ""


def _risks(name: str, values: Mapping[str, str]) -> list[str]:
    found = []
    proofs = [key for key in ("peerCredentialsFile", "haSecretFile", "raftSecretFile") if values.get(key)]
    if values.get("trustPeers", "").lower() == "true" and "peerCredentialsFile" in proofs:
        found.append(
            f"trustPeers=true beside {' and '.join(proofs)}: peers that prove nothing are believed where a"
            " proof is missing -> take trustPeers out once every server has the keys"
        )
    inside = [key for key in _INLINE_SECRETS if values.get(key)]
    if inside and os.path.isfile(name) and os.stat(name).st_mode & 0o077:
        mode = os.stat(name).st_mode & 0o777
        found.append(
            f"it has the secret of {inside[0]}, and others than its owner may read or change it (mode"
            f" {mode:o}) -> chmod 600 {name}"
        )
    return found


def _secrets(values: Mapping[str, str]) -> list[tuple[str, str]]:
    found = [(key, values[key]) for key in SECRET_FILES if values.get(key)]
    if values.get("aclEnable", "").lower() == "true":
        found.append(("aclHome", f"{values.get('aclHome') or 'conf'}/plain_acl.yml"))
    return found


def _secret(key: str, path: str) -> SecretFile:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
    except OSError as error:
        return SecretFile(key, path, (error.strerror or str(error)).lower())
    try:
        without_effect = _as_its_server_reads_it(key, path)
    except ConfigError as error:
        return SecretFile(key, path, str(error))
    return SecretFile(key, path, "", mode, without_effect)


def _as_its_server_reads_it(key: str, path: str) -> str:
    """What of the file has no effect. Raises ConfigError, as the server's start would."""
    env = OsEnv()
    if key == "peerCredentialsFile":
        read_keys(env, path)
    elif key == "haSecretFile":
        read_secret(env.disk, path, key)
    elif key == "raftSecretFile":
        read_secrets(env.disk, path, key)
    elif key == "aclHome":
        files = PlainFiles(env, os.path.dirname(path))
        files.load()
        return "; ".join(files.without_effect)
    return ""


def _spaces(role: str, values: Mapping[str, str]) -> list[Space]:
    keys = ["controllerStorePath"]
    if role == "broker":
        keys = ["storePathRootDir", "storePathCommitLog"]
    found = [_space(key, values[key]) for key in keys if values.get(key)]
    if role == "broker" and not values.get("storePathRootDir"):
        found.insert(0, _space("storePathRootDir", BrokerConfig().store_path))
    return found


def _space(key: str, path: str) -> Space:
    there = Path(path).absolute()
    while not there.exists():  # the server makes it
        there = there.parent
    usage, stat = OsDisk().usage(str(there)), os.statvfs(there)
    return Space(
        key,
        path,
        usage.total_bytes,
        usage.free_bytes,
        stat.f_favail,
        stat.f_files,
        os.access(there, os.W_OK | os.X_OK),
        is_store=key != "controllerStorePath",
    )


def _ports(found: Plan) -> list[tuple[str, str, int]]:
    admin = [("adminPort", found.admin_address, found.admin_port)] if found.admin_port else []
    return [*found.ports, *admin]


def _port(key: str, host: str, port: int) -> Port:
    state = "free"
    try:
        bind(port, host).close()
    except OSError as error:
        state = "taken" if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
    return Port(key, f"{host}:{port}", state)


def _limits(pid: int | None) -> Limits:
    if pid is not None:
        try:
            text = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
            row = next(line for line in text.splitlines() if line.startswith("Max open files"))
            return Limits(_most(row.split()[3]), len(os.listdir(f"/proc/{pid}/fd")), pid)
        except (OSError, StopIteration, IndexError, ValueError):
            pass  # another user's process, or no /proc: this shell's limit is the next best
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Limits(2**31 if soft == resource.RLIM_INFINITY else soft, None, None)


def _most(text: str) -> int:
    return 2**31 if text == "unlimited" else int(text)
