"""Which keys do the peers and operators of a cluster have, and what do keelmq's own parts sign with them?

``peerCredentialsFile``, read anew within a second of a change, has one key for all, or several:

    {"accessKey": "...", "secretKey": "..."}
    {"keys": [{"accessKey": "...", "secretKey": "...", "for": "peers", "strict": true}, ...]}

``for``: peers, operators, or all (the default). One signs with the first that fits, and every one is taken:
so a new key is added behind the old one everywhere, then put before it, then the old one is taken out.

RocketMQ's signature (``remoting/auth``) says neither what is asked for nor when. keelmq's own parts sign once
more, and who gets it looks at that:

    ext kqTime       milliseconds since 1970, within ``SKEW_MS`` of the clock of who gets it
    ext kqNonce      never said before: a signature seen again within that time is a replay, and refused
    ext kqSignature  base64(HMAC-SHA256(secretKey, label, code, all other ext fields with lengths, body))

A ``strict`` key is good for this signature alone, and no other is made with it: what is overheard is worth
nothing, under no other name of a field either. RocketMQ's brokers and mqadmin need one that is not strict.
"""

from __future__ import annotations

import heapq
import json
import logging
import re
import struct
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from model.codes import Request, Response, name_of
from model.errors import ConfigError, Refused
from remoting.auth import (
    ACCESS_KEY,
    AMONG_PEERS,
    HOW,
    OF_OPERATORS,
    PEER_CODES,
    ROCKETMQ,
    SECURITY_TOKEN,
    SIGNATURE,
    Credentials,
    Scheme,
    is_signed,
    read_key,
)
from remoting.codec import Command
from runtime.env import Env, read_file, stamp
from runtime.secret import shown

log = logging.getLogger(__name__)

TIME: Final = "kqTime"
NONCE: Final = "kqNonce"
OWN_SIGNATURE: Final = "kqSignature"
OF_THE_DOOR: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, TIME, NONCE, OWN_SIGNATURE})
"""The fields by which a request proves who made it. They are for the server that it was sent to."""
SKEW_MS: Final = 300_000
SEEN_MAX: Final = 200_000
AHEAD_MS: Final = 1000
"""A time so far ahead of the clock is one of a clock that is wrong."""
PEERS: Final = "peers"
OPERATORS: Final = "operators"
ALL: Final = "all"
_FIELDS: Final = ("accessKey", "secretKey", "for", "strict")
_LABEL: Final = b"keelmq request\0"
_CODE: Final = struct.Struct(">i")
_LENGTHS: Final = struct.Struct(">II")

OF_PEERS: Final = AMONG_PEERS | {Request.CONTROLLER_ELECT_MASTER}
"""What a key for peers is good for: a broker also asks for an election. A change of users that a slave hands
on has the signature of who asked."""


class Signer(Protocol):
    """What signs requests, and knows those of others by it."""

    @property
    def access_key(self) -> str: ...
    def signed(self, command: Command) -> Command: ...
    def check(self, command: Command) -> None: ...
    def check_signed(self, command: Command) -> object:
        """The key that signed it. Raises Refused."""

    def has(self, key: object) -> bool:
        """Whether it is a key still, as it was."""

    def is_named(self, command: Command, key: object) -> bool:
        """Whether a command says that it is signed with that key, and may be with no other."""

    def knows(self, access_key: str) -> bool: ...
    def secrets(self, command: Command) -> list[tuple[Scheme, str]]:
        """With what a command that names a key of this one may be signed."""

    def look(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file."""

    access_key: str
    secret_key: str = field(repr=False)
    role: str = ALL
    strict: bool = False

    def fits(self, role: str) -> bool:
        return self.role in (role, ALL)

    def may(self, code: int) -> bool:
        """Whether the key is good for a request that only peers or operators make."""
        return (self.fits(PEERS) and code in OF_PEERS) or (self.fits(OPERATORS) and code in OF_OPERATORS)


class Replays:
    """Which signatures were seen; pure. Holds: of what is forgotten no time is taken any more. Full, the
    earliest time is forgotten, whenever it came: what says that time or an earlier one is refused. Those
    ahead of the clock by more than ``AHEAD_MS`` are a quarter at most, and none is forgotten: present times
    are not pushed out by them."""

    def __init__(self, skew_ms: int = SKEW_MS, most: int = SEEN_MAX) -> None:
        self._skew_ms = skew_ms
        self._most = most
        self._seen: set[str] = set()
        self._order: list[tuple[int, str]] = []  # a heap by the time they say
        self._ahead: list[tuple[int, str]] = []  # another, of those that are not due yet
        self._floor_ms = 0  # what says an earlier time may have been forgotten

    def take(self, time_ms: int, signature: str, now_ms: int) -> str | None:
        """Why it is refused, or None; then it is remembered."""
        if abs(now_ms - time_ms) > self._skew_ms:
            way = "behind" if time_ms < now_ms else "ahead of"
            return f"its time is {abs(now_ms - time_ms) // 1000} s {way} this server's clock"
        while self._ahead and self._ahead[0][0] <= now_ms + AHEAD_MS:
            heapq.heappush(self._order, heapq.heappop(self._ahead))
        while self._order and self._order[0][0] < now_ms - self._skew_ms:
            self._forget()
        if signature in self._seen or time_ms < self._floor_ms:
            return "it was sent before"
        is_ahead = time_ms > now_ms + AHEAD_MS
        if is_ahead and len(self._ahead) >= self._most // 4:
            return f"its time is ahead of this server's clock, and so are those of {len(self._ahead)} others"
        self._seen.add(signature)
        heapq.heappush(self._ahead if is_ahead else self._order, (time_ms, signature))
        if len(self._seen) > self._most:
            self._forget()
        return None

    def _forget(self) -> None:
        time_ms, signature = heapq.heappop(self._order)
        self._seen.discard(signature)
        self._floor_ms = max(self._floor_ms, time_ms + 1)

    def check_invariants(self) -> None:
        known = [*self._order, *self._ahead]
        assert len(self._seen) == len(known) <= self._most, "each that was seen has its place"
        assert all(time_ms >= self._floor_ms - 1 for time_ms, _ in known), "what may come again is known"


class _UnreadError(ConfigError):
    """What the file says is not known: it is looked at again, changed or not."""


class Keyring:
    """The keys of a file, for one ``role``; see ``Signer``."""

    def __init__(self, env: Env, path: str, role: str = PEERS, name: str = "peerCredentialsFile") -> None:
        """Raises ConfigError."""
        self._env = env
        self._path = path
        self._name = name
        self._role = role
        self._replays: defaultdict[str, Replays] = defaultdict(Replays)
        """By key: one pushes out nothing of another."""
        self._seen_as = self._told_as = stamp(self._env.disk, self._path)
        self.keys = self._read()

    @property
    def access_key(self) -> str:
        return self._own().access_key

    def knows(self, access_key: str) -> bool:
        return any(key.access_key == access_key for key in self.keys)

    def secrets(self, command: Command) -> list[tuple[Scheme, str]]:
        scheme = OWN if OWN_SIGNATURE in command.ext else ROCKETMQ
        name = command.ext.get(ACCESS_KEY)
        return [(scheme, key.secret_key) for key in self.keys if key.access_key == name]

    def look(self) -> None:
        """Read the file again if it changed; one that cannot be read leaves the keys as they are."""
        found = stamp(self._env.disk, self._path)
        told, self._told_as = self._told_as, found
        if found is None:
            if told is not None:
                log.error("the keys in force stay: %s=%s cannot be read any more", self._name, self._path)
            return
        if found == self._seen_as:
            return
        former = self.keys
        try:
            self.keys = self._read()
            self._seen_as = found
        except ConfigError as error:
            if not isinstance(error, _UnreadError):
                self._seen_as = found  # it says nothing else until it changes
            elif told == found:
                return
            log.error("the keys in force stay: %s", error)
            return
        if self.keys == former:
            return
        log.warning(
            "%s=%s changed: keys of %s", self._name, self._path, ", ".join(k.access_key for k in self.keys)
        )

    def signed(self, command: Command) -> Command:
        """A copy of ``command``, signed. Its ``opaque`` and ``flag`` may still change."""
        key = self._own()
        signed = replace(command, ext={**command.ext, ACCESS_KEY: key.access_key})
        signed.ext[TIME] = str(self._env.now_ms())
        signed.ext[NONCE] = f"{self._env.random.getrandbits(128):032x}"
        signed.ext[OWN_SIGNATURE] = own_signature(signed, key.secret_key)
        return signed if key.strict else Credentials(key.access_key, key.secret_key).signed(signed)

    def check(self, command: Command) -> None:
        """Raises Refused (NO_PERMISSION) unless a peer request is signed with a key that is good for it."""
        if command.code not in PEER_CODES:
            return
        key = self._proven(command)
        if not key.may(command.code):
            text = f"{name_of(command.code)} is not for the key {key.access_key}, which is one for {key.role}"
            raise Refused(text, Response.NO_PERMISSION)

    def check_signed(self, command: Command) -> Key:
        """Raises Refused unless it is signed with a key of the file, whatever is asked for."""
        return self._proven(command)

    def has(self, key: object) -> bool:
        return key in self.keys

    def is_named(self, command: Command, key: object) -> bool:
        name = command.ext.get(ACCESS_KEY)
        return [one for one in self.keys if one.access_key == name] == [key]

    def _proven(self, command: Command) -> Key:
        ext, what = command.ext, name_of(command.code)
        if ACCESS_KEY not in ext or not (SIGNATURE in ext or OWN_SIGNATURE in ext):
            raise Refused(f"{what} must be signed here: {HOW}", Response.NO_PERMISSION)
        own = OWN_SIGNATURE in ext
        for key in self.keys:
            if key.access_key == ext[ACCESS_KEY] and (own or not key.strict) and _is_right(command, key, own):
                break
        else:
            if not own and any(key.access_key == ext[ACCESS_KEY] and key.strict for key in self.keys):
                raise Refused(
                    f"{what} has RocketMQ's signature alone, and the key {ext[ACCESS_KEY]} is strict here: it"
                    " takes keelmq's own",
                    Response.NO_PERMISSION,
                )
            raise Refused(
                f"{what} is signed with another key than this server's peerCredentialsFile: {HOW}",
                Response.NO_PERMISSION,
            )
        if own:
            self._need_fresh(command, self._replays[key.access_key])
        return key

    def _need_fresh(self, command: Command, replays: Replays) -> None:
        if command.proven:
            return  # looked at before, here: that is no replay
        try:
            time_ms = int(command.ext.get(TIME, ""))
        except ValueError:
            time_ms = 0
        why = replays.take(time_ms, command.ext[OWN_SIGNATURE], self._env.now_ms())
        if why is not None:
            raise Refused(f"{name_of(command.code)} is refused: {why}", Response.NO_PERMISSION)
        command.proven = True

    def _own(self) -> Key:
        return next((key for key in self.keys if key.fits(self._role)), self.keys[0])

    def _read(self) -> list[Key]:
        where = f"{self._name}={self._path}"
        form = 'expected {"accessKey": "...", "secretKey": "..."}, or {"keys": [...]} of such'
        try:
            found = json.loads(read_file(self._env.disk, self._path))
        except OSError as error:
            told = shown(self._env.disk, self._name, self._path)
            raise _UnreadError(f"{told}: {error.strerror}") from None
        except ValueError:
            # The error's own text may show a piece of the secret.
            raise ConfigError(f"{where}: not JSON, {form}") from None
        listed = found.get("keys") if isinstance(found, dict) and set(found) == {"keys"} else [found]
        if not isinstance(listed, list) or not listed:
            raise ConfigError(f"{where}: {form} and nothing else")
        return [_key(raw, where, form) for raw in listed]


_CLOCK: Final = re.compile(r"its time is (\d{1,12}) s (behind|ahead of) this server's clock")


def clock_of(remark: str) -> int | None:
    """How far the server's clock is before ours, in ms, by its refusal of what we signed; None: it refused
    for another reason."""
    found = _CLOCK.search(remark)
    if found is None:
        return None
    return int(found[1]) * (1000 if found[2] == "behind" else -1000)


def to_client(request: Command) -> Command:
    """``request`` as a server passes it on to a client: without its flag, and what proves who made it.
    A client with somebody's signature could send it again under another code (see ``remoting.auth``)."""
    ext = {name: value for name, value in request.ext.items() if name not in OF_THE_DOOR}
    return replace(request, ext=ext, flag=0)


def own_signature(command: Command, secret: str) -> str:
    """keelmq's signature of a request with its time and nonce."""
    return OWN.signature(command, secret)


def _own_fields(command: Command) -> bytes:
    parts = [_LABEL, _CODE.pack(command.code)]
    for name in sorted(command.ext):
        if name not in (SIGNATURE, OWN_SIGNATURE):
            key, value = name.encode(), command.ext[name].encode()
            parts += [_LENGTHS.pack(len(key), len(value)), key, value]
    parts.append(_LENGTHS.pack(0, len(command.body)))
    return b"".join(parts)


OWN: Final = Scheme("sha256", _own_fields)


def _is_right(command: Command, key: Key, own: bool) -> bool:
    given = command.ext[OWN_SIGNATURE if own else SIGNATURE]
    return is_signed(command, OWN if own else ROCKETMQ, key.secret_key, given)


def _key(raw: Any, where: str, form: str) -> Key:
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: {form}")
    role, strict = raw.get("for", ALL), raw.get("strict", False)
    if role not in (PEERS, OPERATORS, ALL) or not isinstance(strict, bool):
        raise ConfigError(f'{where}: "for" is peers, operators or all, and "strict" true or false')
    if "accessKey" in raw and raw.keys() - set(_FIELDS):
        # No name of one is shown: where a secret stands in the wrong place it is one.
        raise ConfigError(f"{where}: a key has {', '.join(_FIELDS)} and nothing else")
    plain = {name: value for name, value in raw.items() if name not in ("for", "strict")}
    access, secret = read_key(plain, where, form)
    return Key(access, secret, role, strict)


def read_keys(env: Env, path: str, role: str = PEERS, name: str = "peerCredentialsFile") -> Keyring | None:
    """The keys in ``path``; None without a path. Raises ConfigError; ``name`` is what it calls the file."""
    return Keyring(env, path, role, name) if path else None
