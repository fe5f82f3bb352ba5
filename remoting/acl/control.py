"""Which parts does the access control of one server have, and where do its rules come from?

A broker keeps users and policies as one of its tables (``broker/acl``); a NameServer and a Controller in
``auth.json`` of ``authConfigPath``, each its own: written by AUTH_* requests to it, or by hand, or copied
from a broker's store, and read anew when it changes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Final

from model.acl.directory import Directory
from model.acl.policies import acl_to_json
from model.config.server import ServerConfig, credentials_in
from model.errors import ConfigError, PeerError
from remoting import bodies
from remoting.acl.admin import Answer, DirectoryRequests, PlainRequests
from remoting.acl.gate import Gate
from remoting.acl.plain_files import LOOK_S, PlainFiles
from remoting.auth import Credentials
from remoting.codec import Command
from remoting.guard import Guard
from remoting.keys import Signer, read_keys
from remoting.slices import joined
from runtime.env import Env, Stamp, read_file, stamp, write_file
from runtime.tasks import SerialCalls, Tasks, every
from runtime.turns import Slice

log = logging.getLogger(__name__)

AUTH_FILE: Final = "auth.json"


def own_credentials(env: Env, config: ServerConfig) -> tuple[Signer | None, Signer | None]:
    """The key by which a server knows its peers, and the one it signs with itself.

    With ACL on, ``innerClientAuthenticationCredentials`` stands for an absent ``peerCredentialsFile``; with
    ACL off a server only signs with it, as a RocketMQ broker does. Raises ConfigError.
    """
    key: Signer | None = read_keys(env, config.peer_credentials_file)
    found = credentials_in(config.inner_client_credentials, "accessKey", "secretKey")
    inner = None if found is None else Credentials(*found)
    on = config.acl_enable or config.authentication_enabled or config.authorization_enabled
    return key or (inner if on else None), key or inner


class AccessControl:
    """``answers``: the requests that look at the rules or change them."""

    def __init__(
        self,
        env: Env,
        config: ServerConfig,
        guard: Guard,
        credentials: Signer | None,
        where: dict[str, str] | None = None,
    ) -> None:
        where = where or {}
        self._config = config
        self.plain = PlainFiles(env, config.acl_home) if config.acl_enable else None
        cluster = where.get("clusterName", "DefaultCluster")
        self.gate = Gate.of(config, guard.audit, self.plain, cluster)
        self.requests = DirectoryRequests(self.gate, credentials)
        self.answers: dict[int, Answer] = self.requests.handlers()
        if self.plain is not None:
            self.answers |= PlainRequests(self.plain, where).handlers()
        if self.gate.on:
            guard.gate = self.gate

    @property
    def directory(self) -> Directory:
        return self.gate.directory

    def load(self, tasks: Tasks) -> None:
        """Read the files, and go on looking at them. Raises ConfigError."""
        if self.plain is not None:
            self.plain.load()
            tasks.spawn(every(LOOK_S, self.plain.look, what="looking at the ACL files"), name="acl")

    def add_configured(self) -> bool:
        """The super users of the configuration; whether one was made. The servers' own when it is not there;
        the first one where there is no other: RocketMQ makes one anew whom somebody deleted."""
        first = credentials_in(self._config.init_authentication_user, "username", "password")
        inner = credentials_in(self._config.inner_client_credentials, "accessKey", "secretKey")
        others = self.directory.users.keys() - ({inner[0]} if inner is not None else set())
        made = False
        if first is not None and not others and self.directory.add_unless_there(*first):
            self.gate.audit.on_configured_user(first[0], "initAuthenticationUser")
            made = True
        elif first is not None and first[0] not in self.directory.users:
            log.warning(
                "initAuthenticationUser names %s, who is not there: not made, there are other users."
                " Take it out of the configuration",
                first[0],
            )
        if inner is not None and self.directory.add_unless_there(*inner):
            self.gate.audit.on_configured_user(inner[0], "innerClientAuthenticationCredentials")
            made = True
        return made


class StandaloneAccess:
    """Access control of a server that has no tables: its users and policies are in a file of their own."""

    def __init__(self, env: Env, config: ServerConfig, guard: Guard, credentials: Signer | None) -> None:
        self._env = env
        self._control = AccessControl(env, config, guard, credentials)
        self._control.requests.keep = self._keep
        self._tasks = Tasks("access")
        directory = config.auth_config_path.rstrip("/")
        self._path = f"{directory}/{AUTH_FILE}" if directory else ""
        self._seen: Stamp | None = None
        self._writing = asyncio.Lock()
        self._saves = SerialCalls(env.offload)
        self._asked = 0  # changes that were to be written
        self._safe = 0  # of them, those on disk
        self._waiting = 0
        self.answers = self._control.answers

    def hold_to(self, clusters_of: Callable[[Command], Iterable[str]]) -> None:
        """See ``Gate.clusters_of``."""
        self._control.gate.clusters_of = clusters_of

    async def start(self) -> None:
        """Raises ConfigError, OSError."""
        self._control.load(self._tasks)
        if not (self._control.gate.authenticates or self._control.gate.authorizes):
            return
        if not self._path:
            raise ConfigError("authenticationEnabled needs authConfigPath, the directory of auth.json")
        if self._env.disk.exists(self._path):
            self._seen = stamp(self._env.disk, self._path)
            self._take()
        if self._control.add_configured():
            await self._write()
        self._tasks.spawn(every(LOOK_S, self._look, what=f"looking at {self._path}"), name="users")

    async def stop(self) -> None:
        await self._tasks.cancel()

    def _take(self) -> None:
        data = read_file(self._env.disk, self._path)
        try:
            self._control.directory.load(bodies.believed_object(data))
        except PeerError:
            raise ConfigError(f"{self._path} is no JSON object{_line_of(data)}") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self._path}: {error}") from None

    async def _look(self) -> None:
        if self._waiting:
            return  # the file has not yet what is in force: read now, it would undo a change
        seen = stamp(self._env.disk, self._path)
        if seen is None or seen == self._seen:
            return
        self._seen = seen
        try:
            self._take()
        except (ConfigError, OSError) as error:
            log.error("the users in force stay: %s", error)

    async def _keep(self, request: Command) -> None:
        await self._write()

    async def _write(self) -> None:
        """Returns once all changes made before the call are on disk. One write at a time: two would share
        their temporary file, and the older content could be the last. Raises OSError."""
        self._asked += 1
        asked = self._asked
        self._waiting += 1
        try:
            async with self._writing:
                if self._safe < asked:  # else a write that began later had this change, too
                    await self._write_now()
        finally:
            self._waiting -= 1

    async def _write_now(self) -> None:
        asked = self._asked
        data = await _written(self._control.directory, Slice(self._env.monotonic_ms))
        self._env.disk.makedirs(self._path.rpartition("/")[0])

        await self._saves.run(partial(write_file, self._env.disk, self._path, data))
        self._safe = asked
        self._seen = stamp(self._env.disk, self._path)


async def _written(directory: Directory, slice_: Slice) -> bytes:
    """``Directory.to_json`` as of this moment, an entry after the other: at its limits half a second."""
    users = sorted(directory.users.items(), key=itemgetter(0))
    acls = sorted(directory.acls.items(), key=itemgetter(0))
    content = {
        "revision": directory.revision,
        "users": bodies.Members((name, user.to_json()) for name, user in users),
        "acls": bodies.Members((name, acl_to_json(name, policies)) for name, policies in acls),
    }
    return await joined(bodies.pieces(content, strict=False, line="\n"), slice_)


def _line_of(data: bytes) -> str:
    """Where JSON breaks, without a text of it: it has secrets."""
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return f": line {error.lineno}, column {error.colno}"
    except ValueError:
        return ": it is no text"
    return ""
