"""Which keys of its configuration does a server change while it serves, and where does it keep them?

Brokers, NameServers and Controllers answer UPDATE_BROKER_CONFIG, UPDATE_NAMESRV_CONFIG and
UPDATE_CONTROLLER_CONFIG by it, each with ``Rules`` of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model.codes import Response
from model.errors import ConfigError, Refused
from model.foreign_keys import sort_out
from model.settings import HIDDEN, Config, properties_of
from remoting.codec import Command
from remoting.service import Connection
from runtime.env import Env
from runtime.report.complaints import Complaints
from runtime.tasks import SerialCalls

log = logging.getLogger(__name__)

Keep = Callable[[Mapping[str, str]], None]
"""Write these keys where the next start reads them. Blocks; raises ConfigError where a key has no room there,
OSError, and ValueError of what is no text."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What servers of one role let operators change."""

    role: str
    live: frozenset[str]
    """Keys that take effect while it serves; another value of any other is refused, not silently ignored."""
    black_list: frozenset[str]
    """The original's, which it refuses whatever their value."""


class LiveKeys:
    """Changes ``config`` in place. ``on_change`` hears that live keys changed."""

    def __init__(self, env: Env, config: Config, rules: Rules) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.keep: Keep | None = None
        """None: what is changed holds until the server ends."""
        self._config = config
        self._rules = rules
        self._unkept: dict[str, str] = {}
        self._writes = SerialCalls(env.offload)
        self._told = Complaints(log, lambda: env.monotonic_ms() / 1000)

    async def update(self, connection: Connection, request: Command) -> Command:
        """Set live keys, all of them or none, also for the next start."""
        try:
            changed, ignored = self._changed(properties_of(request.body))
        except ConfigError as error:
            raise Refused(str(error), Response.INVALID_PARAMETER) from None
        role = self._rules.role
        if ignored:
            log.info("%s: keys of RocketMQ that keelmq has no use for, ignored: %s", role, ", ".join(ignored))
        if changed:
            self._told.warn("%s: configuration changed by %s: %.2000s", role, connection.remote, str(changed))
            for hook in self.on_change:
                hook()
        self._unkept |= changed
        return request.reply(remark=await self._keep_for_the_next_start())

    def _changed(self, wanted: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Set what has another value than before; (its keys and texts, names that mean nothing here). Raises
        ConfigError, and Refused for the black list and for keys that are not live, before anything is set."""
        if not self._rules.black_list.isdisjoint(wanted):
            raise Refused("Can not update config in black list.", Response.NO_PERMISSION)
        fields, held = self._config.keys(), self._config.to_mapping()
        known, ignored = sort_out(wanted, self._rules.role)
        for name in [n for n, v in known.items() if v == HIDDEN and n in fields]:
            if fields[name].metadata["secret"]:
                del known[name]  # a tool sends back what it was shown
        for name, text in known.items():
            if name in fields and name not in self._rules.live and not self._config.holds(name, text):
                raise Refused(
                    f"{name} cannot be changed while the {self._rules.role} serves: set it in its file and"
                    f" start it again; these can: {sorted(self._rules.live)}",
                    Response.NO_PERMISSION,
                )
        fresh = type(self._config).from_mapping({**held, **known})
        texts = fresh.to_mapping()
        changed = {name: texts[name] for name in known if texts[name] != held[name]}
        _need_printable(changed)
        for name in changed:
            setattr(self._config, fields[name].name, getattr(fresh, fields[name].name))
        return changed, ignored

    async def _keep_for_the_next_start(self) -> str | None:
        """What the next start will not know of, and why, or None."""
        keep, unkept = self.keep, dict(self._unkept)
        if keep is None or not unkept:
            return None
        try:
            try:
                await self._keep(keep, unkept)
            except ConfigError:
                if len(unkept) == 1:
                    raise
                await self._keep_each(keep, unkept)
        except (OSError, ValueError, ConfigError) as error:
            left = ", ".join(name for name in unkept if name in self._unkept)
            problem = f"{left}: changed until this {self._rules.role} ends only: {error}"
            log.warning("%s", problem)
            return problem
        return None

    async def _keep_each(self, keep: Keep, unkept: Mapping[str, str]) -> None:
        """One that its file has no room for keeps no other out of it. Raises the last one's ConfigError."""
        problem: ConfigError | None = None
        for name, text in unkept.items():
            try:
                await self._keep(keep, {name: text})
            except ConfigError as error:
                problem = error
        if problem is not None:
            raise problem

    async def _keep(self, keep: Keep, unkept: Mapping[str, str]) -> None:
        await self._writes.run(lambda: keep(unkept))
        for name, text in unkept.items():
            if self._unkept.get(name) == text:
                del self._unkept[name]


def _need_printable(values: Mapping[str, str]) -> None:
    """Raises ConfigError: not every file has room for it, and a log shows it wrongly."""
    for name, text in values.items():
        if not text.isprintable():
            raise ConfigError(f"{name}: a value has no control characters")
