"""Where do topics, groups and offsets of this broker come from, and where do their changes go?

Each table is a file in ``config/``, and is copied to the slaves (``broker/tables/copies``), but for the
expressions of consumers: they tell each broker.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial
from typing import Any, Final

from broker.context import BrokerContext
from broker.tables.files import ConfigFile, Source
from broker.tables.users import UserTable
from broker.timers.files import TimerCheckFile
from broker.timers.progress import TimerProgress
from broker.upkeep.delay import DelayOffsets
from model.errors import DiskError
from runtime.tasks import Tasks
from runtime.turns import Turns

log = logging.getLogger(__name__)

DELAY_OFFSETS_WRITE_S: Final = 5.0
FILTERS_WRITE_S: Final = 10.0


class TableFiles:
    """The files of all tables, by name. ``delays`` and ``timed``: how far delayed and timer messages were
    delivered."""

    def __init__(self, context: BrokerContext, delays: DelayOffsets, timed: TimerProgress) -> None:
        self.delays, self.timed = delays, timed
        self._context = context
        self._tasks = Tasks(f"broker {context.config.broker_name} files")
        self._loaded = False
        self._users = UserTable(context.trust.directory)
        env, config = context.env, context.config
        self.timercheck = TimerCheckFile(env, config, timed, self._tasks, self._log_first)
        topics, groups, offsets = context.topics, context.groups, context.offsets
        directory = f"{config.store_path}/config"
        writing = Turns(env.monotonic_ms)
        self.files = {
            "topics": ConfigFile(
                env,
                f"{directory}/topics.json",
                Source(
                    lambda: topics.to_text(indent=True),
                    lambda slice_: topics.prepare(slice_, indent=True),
                    lambda: topics.mark,
                    topics.since,
                    topics.prepare_since,
                ),
                self._tasks,
                turns=writing,
            ),
            "groups": ConfigFile(
                env,
                f"{directory}/subscriptionGroup.json",
                Source(
                    lambda: groups.to_text(indent=True),
                    lambda slice_: groups.prepare(slice_, indent=True),
                    lambda: groups.mark,
                    lambda mark: _part(groups.changed_since(mark)[0]),
                    groups.prepare_since,
                ),
                self._tasks,
                turns=writing,
            ),
            "offsets": ConfigFile(
                env,
                f"{directory}/consumerOffset.json",
                Source(
                    lambda: offsets.to_text(indent=True),
                    lambda slice_: offsets.prepare(slice_, indent=True),
                    lambda: offsets.mark,
                    offsets.since,
                    offsets.prepare_since,
                    before_write=self._log_first,
                ),
                self._tasks,
                delay_s=config.flush_offsets_ms / 1000,
                turns=writing,
            ),
            **self._others(directory),
        }

    def _others(self, directory: str) -> dict[str, ConfigFile]:
        """Tables whose text is not kept: they change seldom, or are small. They wait for no other's turn, and
        none for theirs: of a million entries it takes seconds."""
        env, users = self._context.env, self._users
        delays, modes = self.delays, self._context.groups.modes
        return {
            "delays": ConfigFile(
                env,
                f"{directory}/delayOffset.json",
                Source(delays.to_json, before_write=self._log_first),
                self._tasks,
                delay_s=DELAY_OFFSETS_WRITE_S,
            ),
            "filters": ConfigFile(
                env,
                f"{directory}/consumerFilter.json",
                Source(self._context.filters.shown),
                self._tasks,
                delay_s=FILTERS_WRITE_S,
            ),
            "modes": ConfigFile(
                env,
                f"{directory}/messageRequestMode.json",
                Source(modes.shown, mark=lambda: modes.revision, since=modes.since),
                self._tasks,
            ),
            "auth": ConfigFile(
                env,
                f"{directory}/auth.json",
                Source(users.shown, mark=lambda: users.mark, since=users.since),
                self._tasks,
            ),
        }

    async def _log_first(self) -> None:
        """See ``broker.timers.files.LogFirst``. What is noted is in the log of a member; a slave that is none
        may be behind."""
        store = self._context.store
        try:
            await store.synced(store.log.end)
        except DiskError as error:
            raise OSError(f"the log cannot be synced: {error}") from error

    def load(self) -> None:
        """Read all tables; from here on their changes are written, and copied to slaves. Raises DiskError,
        OSError."""
        context, files = self._context, self.files
        topics, groups, offsets, delays = context.topics, context.groups, context.offsets, self.delays
        try:
            fresh_topics = topics.boot(files["topics"].load())
            fresh_groups = groups.boot(files["groups"].load())
            offsets.load(files["offsets"].load())
            delays.load(files["delays"].load())
            self.timercheck.load()
            groups.modes.load(files["modes"].load())
            context.trust.directory.load(files["auth"].load() or {})
            deceased = context.filters.load(files["filters"].load(), context.env.now_ms())
            for name, apply in (
                ("topics", topics.apply),
                ("groups", groups.adopt),
                ("offsets", offsets.adopt),
                ("modes", groups.modes.adopt),
                ("auth", context.trust.directory.load_part),
            ):
                for change in files[name].later:
                    apply(change)
                files[name].loaded()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            path = f"{context.config.store_path}/config"
            raise DiskError(f"a table in {path} is not one: {error!r}") from error
        for file in files.values():
            file.hurry_at_first()
        self._need_all()
        self._loaded = True
        if files["filters"].lost is not None:
            log.warning("beginning without %s, as each heartbeat brings it again", files["filters"].lost)
            files["filters"].found()
        topics.on_change.append(lambda names: files["topics"].changed())
        groups.on_change.append(files["groups"].changed)
        offsets.on_change.append(files["offsets"].changed)
        delays.on_change.append(files["delays"].changed)
        groups.modes.on_change.append(files["modes"].changed)
        context.filters.on_change.append(files["filters"].changed)
        context.trust.directory.on_change.append(files["auth"].changed)
        if fresh_topics:
            files["topics"].write_anew()
        if fresh_groups:
            files["groups"].write_anew()
        if deceased:
            files["filters"].changed()
        self._copy()

    def _need_all(self) -> None:
        config = self._context.config
        lost = [file for name, file in self.files.items() if file.lost is not None and name != "filters"]
        if lost and config.start_with_damaged_tables:
            for file in lost:
                log.error("beginning without %s: %s", file.path, file.lost)
                file.found()
        elif lost and not config.enable_controller_mode and config.broker_role != "SLAVE":
            raise DiskError(
                f"{lost[0].lost}; nobody is there to copy it from: put a copy in its place, or begin without"
                " it by startWithDamagedTables=true"
            )

    def _copy(self) -> None:
        context, copies = self._context, self._context.copies
        offsets, delays = context.offsets, self.delays
        copies.write = self.write
        context.ha.conditions.eligible = copies.ready
        context.ha.on_connected.append(copies.on_connected)
        copies.add("topics", context.topics.changed_since, context.topics.prepare)
        copies.add("groups", context.groups.changed_since, context.groups.prepare)
        copies.add(
            "offsets",
            lambda known: (offsets.changed_since(known), offsets.mark),
            offsets.prepare,
            gathered=True,
        )
        copies.add("modes", lambda known: (context.groups.modes.shown(), 0), apart=True)
        copies.add("auth", lambda known: (self._users.shown(), 0), apart=True)
        copies.add("delays", lambda known: (delays.to_json(), 0), gathered=True)
        copies.add("timers", lambda known: (self.timed.to_json(), 0), gathered=True)
        self.timed.on_change.append(lambda: copies.changed("timers"))
        context.topics.on_change.append(lambda names: copies.changed("topics"))
        context.groups.on_change.append(lambda: copies.changed("groups"))
        offsets.on_change.append(partial(copies.changed, "offsets"))
        delays.on_change.append(lambda: copies.changed("delays"))
        context.groups.modes.on_change.append(lambda: copies.changed("modes"))
        context.trust.directory.on_change.append(lambda: copies.changed("auth"))

    async def write(self, names: Collection[str]) -> None:
        """Return when the changes of these tables are on the disk. Raises OSError; DiskError where the table
        itself is lost, and nothing is written."""
        for name in names:
            await self.files[name].write_now()

    def lost(self) -> list[str]:
        """Which tables could be read from no copy, and why."""
        return [file.lost for file in self.files.values() if file.lost is not None]

    def on_copied(self) -> None:
        """All tables are the master's: none is lost any more."""
        for file in self.files.values():
            file.found()

    async def stop(self) -> None:
        """Write what changed."""
        for file in self.files.values() if self._loaded else ():
            try:
                await file.merge()
            except OSError as error:
                log.error("cannot write %s at the stop: %s", file.path, error)
        try:
            await self.timercheck.flush()
        except OSError as error:
            log.error("cannot write %s at the stop: %s", self.timercheck.path, error)
        await self._tasks.cancel()


def _part(content: dict[str, Any]) -> dict[str, Any] | None:
    """None for a table as a whole."""
    return content if "part" in content else None
