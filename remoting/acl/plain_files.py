"""Where do the accounts of ACL 1.0 come from? ``plain_acl.yml`` and ``acl/*.yml``, read anew at a change.

``home`` is RocketMQ's ``conf`` directory. A file that cannot be read at the start ends the start; one that
cannot be read later, is empty, or is a ``plain_acl.yml`` that is gone, leaves what was known in force, with a
line in the log: an ordinary save empties a file before it writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import yaml

from model.acl.addresses import white
from model.acl.plain import PlainAcl, account_of, acl_of, check_perms, complaints
from model.errors import ConfigError
from runtime.env import Disk, Env, Stamp, read_file, stamp, write_file
from runtime.tasks import SerialCalls

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 4 << 20
LOOK_S: Final = 1.0
_SUFFIXES: Final = (".yml", ".yaml")
T = TypeVar("T")
_Seen = dict[str, Stamp]
_Contents = dict[str, dict[str, Any]]


class PlainFiles:
    """``acl`` is what the files say. ``look`` reads them again when one changed."""

    def __init__(self, env: Env, home: str) -> None:
        self._env = env
        self._calls = SerialCalls(env.offload)
        self.home = home.rstrip("/")
        self.default = f"{self.home}/plain_acl.yml"
        self.acl = PlainAcl()
        self.failed: str | None = None
        self._seen: _Seen = {}
        self.without_effect: list[str] = []
        self._spoke: set[str] = set()  # files that said something when they were last believed

    def load(self) -> None:
        """Raises ConfigError."""
        seen, contents = self._contents()
        self._use(_acl(contents), seen, contents)
        if not self.acl.accounts:
            log.warning(
                "no account in %s or %s/acl: all are denied but white addresses", self.default, self.home
            )

    async def look(self) -> None:
        if _stat(self._env.disk, self._paths()) == self._seen:
            return
        await self.aside(self._load_changed)

    def _load_changed(self) -> None:
        seen = _stat(self._env.disk, self._paths())
        if seen == self._seen:
            return  # a request changed them meanwhile
        self._seen = seen
        try:
            seen, contents = self._whole()
            self._use(_acl(contents), seen, contents)
        except ConfigError as error:
            self.failed = str(error)
            log.error("the ACL in force stays: %s", error)
            return
        log.warning("the ACL files changed: %d accounts are in force", len(self.acl.accounts))

    def _contents(self) -> tuple[_Seen, _Contents]:
        paths = self._paths()
        seen = _stat(self._env.disk, paths)
        return seen, {path: _read(self._env.disk, path) for path in paths}

    def _whole(self) -> tuple[_Seen, _Contents]:
        """``_contents``. Raises ConfigError, also for what may be half a save: it is neither used nor
        written to."""
        seen, contents = self._contents()
        if self.default in self._spoke and self.default not in contents:
            raise ConfigError(f"{self.default} is gone; the accounts in force stay until it is there again")
        for path, content in contents.items():
            if path in self._spoke and not content:
                raise ConfigError(f"{path} is empty; a file that takes all accounts away says accounts: []")
        return seen, contents

    def _use(self, acl: PlainAcl, seen: _Seen, contents: _Contents) -> None:
        self.acl, self._seen, self.failed = acl, seen, None
        self._spoke = {path for path, content in contents.items() if content}
        self.without_effect = [
            f"{path}: {text}" for path, content in contents.items() for text in complaints(content)
        ] + _repeated(contents)
        for text in self.without_effect:
            log.warning("%s", text)

    def _paths(self) -> list[str]:
        found = _files(self._env.disk, f"{self.home}/acl")
        if self._env.disk.exists(self.default):
            found.append(self.default)
        return found

    async def aside(self, work: Callable[[], T]) -> T:
        """``work`` on the files, off the event loop: 1,000 accounts take a second. One after the other."""
        return await self._calls.run(work)

    # Changes by request (50, 51, 53), and what they tell (52, 54)

    def all(self) -> _Contents:
        """Every file's content."""
        return self._contents()[1]

    def put_account(self, raw: Mapping[str, Any]) -> None:
        """Make or change an account, in the file that has it. Raises ConfigError, OSError."""
        account_of(raw)
        check_perms(raw.get("topicPerms") or [])
        check_perms(raw.get("groupPerms") or [])
        seen, contents = self._whole()
        path, at = self._find(contents, str(raw["accessKey"]))
        content = contents.setdefault(path, {})
        accounts = content.setdefault("accounts", [])
        new = {key: value for key, value in raw.items() if value is not None}
        if at is None:
            accounts.append(new)
        else:
            accounts[at] = {**accounts[at], **new}
        self._write(path, seen, contents)

    def delete_account(self, access_key: str) -> bool:
        """Whether there was one. Raises ConfigError, OSError."""
        seen, contents = self._whole()
        path, at = self._find(contents, access_key)
        if at is None:
            return False
        del contents[path]["accounts"][at]
        self._write(path, seen, contents)
        return True

    def set_white(self, entries: list[str], path: str) -> bool:
        """The global white list of a file, one of those in force. Raises ConfigError, OSError."""
        path = path or self.default
        seen, contents = self._whole()
        if path != self.default and path not in contents:
            return False
        for entry in entries:
            white(entry)
        contents.setdefault(path, {})["globalWhiteRemoteAddresses"] = entries
        self._write(path, seen, contents)
        return True

    def _find(self, contents: _Contents, access_key: str) -> tuple[str, int | None]:
        for path, content in contents.items():
            for at, account in enumerate(content.get("accounts") or []):
                if isinstance(account, dict) and str(account.get("accessKey")) == access_key:
                    return path, at
        return self.default, None

    def _write(self, path: str, seen: _Seen, contents: _Contents) -> None:
        """What would not be read again, or not with the other files, is not written."""
        content = contents[path]
        version = version_of(content)
        content["dataVersion"] = [{"counter": version["counter"] + 1, "timestamp": self._env.now_ms()}]
        data = yaml.safe_dump(content, allow_unicode=True, sort_keys=False).encode()
        contents[path] = _parsed(path, data)
        acl = _acl(contents)
        self._env.disk.makedirs(self.home)
        write_file(self._env.disk, path, data)
        self._use(acl, seen | _stat(self._env.disk, [path]), contents)


def version_of(content: Mapping[str, Any]) -> dict[str, int]:
    """Of a file, as its answers have it."""
    versions = content.get("dataVersion") or []
    first = versions[0] if versions and isinstance(versions[0], dict) else {}
    return {"counter": _number(first.get("counter")), "timestamp": _number(first.get("timestamp"))}


def _number(value: Any) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _files(disk: Disk, directory: str) -> list[str]:
    found = []
    for name in disk.listdir(directory):
        path = f"{directory}/{name}"
        if disk.is_dir(path):
            found += _files(disk, path)
        elif name.endswith(_SUFFIXES):
            found.append(path)
    return found


def _repeated(contents: _Contents) -> list[str]:
    """Accounts whose AccessKey stands in another place, too: the first one counts, as in RocketMQ."""
    first: dict[str, str] = {}
    found = []
    for path, content in contents.items():
        for account in content.get("accounts") or []:
            key = str(account.get("accessKey"))
            if key in first:
                where = "" if first[key] == path else f" in {first[key]}"
                found.append(f"{path}: account {key} stands{where} before: this one has no effect")
            first.setdefault(key, path)
    return found


def _stat(disk: Disk, paths: list[str]) -> _Seen:
    found = {path: stamp(disk, path) for path in paths}
    return {path: seen for path, seen in found.items() if seen is not None}


def _acl(contents: _Contents) -> PlainAcl:
    """Raises ConfigError, which names the file."""
    for path, content in contents.items():
        try:
            acl_of([content])
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return acl_of(contents.values())


def _read(disk: Disk, path: str) -> dict[str, Any]:
    try:
        data = read_file(disk, path)
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from None
    return _parsed(path, data)


def _parsed(path: str, data: bytes) -> dict[str, Any]:
    """Raises ConfigError. No text of the file is shown: it has secrets."""
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: longer than {FILE_BYTES_MAX} bytes")
    try:
        # BaseLoader: a key 12345678 stays text, as the original's typed reader has it.
        found = yaml.load(data, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(f"{path}: not YAML{f', line {mark.line + 1}' if mark else ''}") from None
    if found is None or found == "":
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected globalWhiteRemoteAddresses and accounts")
    for key in ("globalWhiteRemoteAddresses", "accounts", "dataVersion"):
        if found.get(key) in ("", None):
            found.pop(key, None)
        elif not isinstance(found[key], list):
            raise ConfigError(f"{path}: {key} is no list")
    return found
