"""Which topics does this broker serve, with how many queues, and who created them?

``config/topics.json``: ``{"dataVersion": .., "topicConfigTable": {name: TopicConfig}}``. The version's
stateVersion is the master's epoch, so NameServers and slaves can tell whose table is newer. Ours beside them,
when a topic was deleted: ``"keelmqDeletedTopics": {name: {queue: where it ended}}``. What was confirmed up to
there stays in log and queues, but brings no topic back, and is not read when the name is given again. And of
queues whose messages have all expired: ``"keelmqExpiredQueues": {name: {queue: where it ended}}``. A replica
that began empty after that has neither records nor a file of it, and must give no offset again when it leads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from broker.tables.moved import Moved, changed_since, differing, note_replaced
from broker.tables.quota import Quota
from broker.tables.table_text import TableText
from model.config import BrokerConfig
from model.errors import Refused
from model.message import SCHEDULE_TOPIC, TIMER_TOPIC, reply_topic
from model.topic import (
    AUTO_CREATE_TOPIC,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicConfig,
    topic_name_error,
)
from remoting.bodies import Entries
from runtime.turns import Slice

TOPIC_NOT_EXIST: Final = 17
SYSTEM_BUSY: Final = 2
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
QUEUES_MAX: Final = 65535
UNIT_FLAG: Final = 1  # a bit of topicSysFlag
DELETED: Final = "keelmqDeletedTopics"
EXPIRED: Final = "keelmqExpiredQueues"
_SYSTEM: Final = frozenset(
    {AUTO_CREATE_TOPIC, "RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "CHECKPOINT_TOPIC"}
)
"""The original's besides those of the start, whether they are there or not: nobody makes or deletes them."""
DELETED_MAX: Final = 10_000
EXPIRED_MAX: Final = 100_000
"""Names. Beyond, none is noted: such a queue gives offsets again where nobody has a file of it."""


def boot_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Topics every broker has from its first start (names and counts: the original's)."""
    levels = len(config.delay_levels.split())
    queues = config.default_topic_queues
    made = [
        TopicConfig("SELF_TEST_TOPIC", 1, 1),
        TopicConfig("BenchmarkTest", 1024, 1024),
        TopicConfig(config.cluster_name, 16, 16, PERM_READ | PERM_WRITE | PERM_INHERIT),
        TopicConfig(config.broker_name, 1, 1, PERM_READ | PERM_WRITE | PERM_INHERIT),
        TopicConfig("OFFSET_MOVED_EVENT", 1, 1),
        TopicConfig(SCHEDULE_TOPIC, levels, levels),
        TopicConfig(reply_topic(config.cluster_name), 1, 1),
        TopicConfig(f"rmq_sys_REVIVE_LOG_{config.cluster_name}", 8, 8),
        TopicConfig(f"rmq_sys_SYNC_BROKER_MEMBER_{config.broker_name}", 1, 1, PERM_INHERIT),
        TopicConfig(HALF_TOPIC, 1, 1),
        TopicConfig(OP_HALF_TOPIC, 1, 1),
        TopicConfig(TIMER_TOPIC, 1, 1),
    ]
    if config.trace_topic_enable:
        made.append(TopicConfig(config.trace_topic, 1, 1))
    if config.auto_create_topic:
        made.append(TopicConfig(AUTO_CREATE_TOPIC, queues, queues, PERM_READ | PERM_WRITE | PERM_INHERIT))
    return made


class Topics:
    """The topic table. Every change raises the version and calls ``on_change`` with the names concerned.

    Holds: a table that came from a master (``adopt``) replaces ours as a whole, with its version.
    """

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._quota = Quota(config.auto_topics_rate, config.auto_topics_max, now_ms)
        self.table: dict[str, TopicConfig] = {}
        self.text = TableText(lambda: list(self.table), lambda name: self.table[name].to_json())
        self._moved = Moved[str]()
        self._deleted = _Ends()
        self._expired = _Ends()
        self.starts: dict[str, dict[int, int]] = {}
        """By topic and queue id, the first offset that was never given: of what was deleted, or expired."""
        # Where they ended as soon as all of it is confirmed; a failover may take the rest back.
        self._unconfirmed: dict[str, dict[int, int]] = {}
        self.version = DataVersion()
        self.epoch = 0
        self.on_change: list[Callable[[frozenset[str]], None]] = []
        self.system = _SYSTEM | {topic.name for topic in boot_topics(config)}

    def boot(self, stored: dict[str, Any] | None) -> bool:
        """Take the stored table and add what every broker has; True when something was added.

        Raises DiskError-worthy ValueError/KeyError on a table that is not one.
        """
        if stored is not None:
            self.version = DataVersion.from_json(stored.get("dataVersion"))
            self.table = _parse(stored.get("topicConfigTable") or {})
            self._deleted.table = _parse_ends(stored, DELETED)
            self._expired.table = _parse_ends(stored, EXPIRED)
            self._set_all_starts()
        missing = [topic for topic in boot_topics(self._config) if topic.name not in self.table]
        for topic in missing:
            self.table[topic.name] = topic
        self.text.clear()
        self._deleted.text.clear()
        self._expired.text.clear()
        if missing:
            self.version = self.version.next(self._now_ms())
        return bool(missing)

    def get(self, name: str) -> TopicConfig | None:
        return self.table.get(name)

    def queues_of(self, name: str) -> int:
        """How many queues a topic has, of those that are read and those that are written the more; 0: it is
        not known."""
        topic = self.table.get(name)
        return 0 if topic is None else max(topic.read_queues, topic.write_queues)

    def put(self, *topics: TopicConfig) -> None:
        for topic in topics:
            self.table[topic.name] = topic
        self._changed(topic.name for topic in topics)

    def delete(self, name: str, ends: Mapping[int, int], unconfirmed: Mapping[int, int]) -> bool:
        """Forget a topic whose queues end at ``ends``, and soon at ``unconfirmed``."""
        if self.table.pop(name, None) is None:
            return False
        self._deleted.table.pop(name, None)  # to the end
        self._deleted.table[name] = dict(ends)
        self._unconfirmed.pop(name, None)  # to the end, too
        self._unconfirmed[name] = dict(unconfirmed)
        self._deleted.text.changed(name, True)
        self._expired.table.pop(name, None)
        self._expired.text.changed(name, False)
        self._set_starts(name)
        while len(self._unconfirmed) > DELETED_MAX:
            del self._unconfirmed[next(iter(self._unconfirmed))]
        changed = [name]
        while len(self._deleted.table) > DELETED_MAX:
            changed.append(next(iter(self._deleted.table)))
            self._forget_deleted(changed[-1])
        self._changed(changed)
        return True

    def _forget_deleted(self, name: str) -> None:
        """That it was deleted; where its queues ended stays known, as of those that expired."""
        ends = self._deleted.table.pop(name)
        self._deleted.text.changed(name, False)
        known = self._expired.table.get(name, {})
        if known or (ends and len(self._expired.table) < EXPIRED_MAX // 2):
            ends = {queue_id: max(end, known.get(queue_id, 0)) for queue_id, end in ends.items()}
            self._set_ends(self._expired, name, {**known, **ends})
        else:
            self._set_starts(name)

    def note_expired(self, ends: Mapping[str, Mapping[int, int]]) -> None:
        """Messages of these queues are, or will be in a moment, all gone; they ended there."""
        changed = []
        for name, found in ends.items():
            known, noted = self.starts.get(name, {}), self._expired.table
            news = {queue_id: end for queue_id, end in found.items() if end > known.get(queue_id, 0)}
            if news and (name in noted or len(noted) < EXPIRED_MAX):
                self._set_ends(self._expired, name, {**noted.get(name, {}), **news})
                changed.append(name)
        if changed:
            self._changed(changed)

    async def clamp_ends(self, end: Callable[[str, int], int], slice_: Slice) -> None:
        """Cut where queues ended that go on before that back to ``end(topic, queue)``: it was noted, and the
        log was lost. See ``OffsetTable.clamp``. Raises as ``slice_``."""
        changed = []
        for name, starts in list(self.starts.items()):
            cut = {queue_id: end(name, queue_id) for queue_id in starts}
            if any(cut[queue_id] < start for queue_id, start in starts.items()):
                for known in (self._deleted, self._expired):
                    ends = known.table.get(name)
                    if ends is not None:
                        self._set_ends(known, name, {q: min(last, cut[q]) for q, last in ends.items()})
                changed.append(name)
            await slice_.breathe()
        if changed:
            self._changed(changed)

    def was_deleted(self, name: str, queue_id: int, end: int, *, own: bool = False) -> bool:
        """Whether all of a queue, confirmed up to ``end``, was sent before its topic was deleted. ``own``:
        this master stored the last of it itself, or it is known to be a copy of what was delayed. While there
        is no such topic, that is a message from before: one that was delayed, or that had begun."""
        if end <= self._deleted.table.get(name, {}).get(queue_id, -1):
            return True
        if not (own and self.is_gone(name)) and end > self._unconfirmed.get(name, {}).get(queue_id, -1):
            return False
        self._deleted.table.setdefault(name, {})[queue_id] = end
        self._deleted.text.changed(name, True)
        self._set_starts(name)
        self._changed([name])
        return True

    def is_gone(self, name: str) -> bool:
        """Whether a topic was deleted, and not made again."""
        return name in self._deleted.table and name not in self.table

    def need_kept(self, name: str) -> str:
        """The name. Raises Refused 17 for a topic that was deleted and not made again: what comes to it is
        for no reader, also later."""
        if self.is_gone(name):
            raise Refused(f"topic[{name}] was deleted, make it again first", TOPIC_NOT_EXIST)
        return name

    def first_offset(self, name: str, queue_id: int) -> int:
        """Where a queue begins for readers: what its name held before it was deleted is not for them."""
        return self._deleted.table.get(name, {}).get(queue_id, 0)

    def ensure(self, name: str, queues: int, perm: int = PERM_READ | PERM_WRITE) -> TopicConfig:
        """The topic, created with ``queues`` queues when it is not there."""
        found = self.table.get(name)
        if found is None:
            found = TopicConfig(name, queues, queues, perm)
            self.put(found)
        return found

    def widen(self, found: Iterable[tuple[str, int]]) -> None:
        """Make the table cover the (topic, queue) pairs the log holds.

        A master may have died between creating a topic and handing its table on; its successor holds the
        records and must not answer that their topic does not exist.
        """
        need: dict[str, int] = {}
        for name, queue_id in found:
            need[name] = max(need.get(name, 0), queue_id + 1)
        changed = []
        for name, queues in need.items():
            topic = self.table.get(name)
            if topic is None:
                least = 1 if name.startswith("%") else self._config.default_topic_queues
                changed.append(TopicConfig(name, max(queues, least), max(queues, least)))
            elif queues > max(topic.read_queues, topic.write_queues):
                changed.append(dataclasses.replace(topic, read_queues=queues))
        if changed:
            self.put(*changed)

    def create_for_send(self, name: str, default_topic: str, client_queues: int) -> TopicConfig:
        """Create ``name`` as a producer's first send asks for, from the settings of ``default_topic``.

        Raises Refused 17 when the default topic does not allow it or there are too many topics, 2 (the
        producer tries again) when too many came to be at once.
        """
        default = self._default(default_topic)
        if default is None or topic_name_error(name) is not None:
            raise Refused(
                f"topic[{name}] not exist, apply first please!"
                " see https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.",
                TOPIC_NOT_EXIST,
            )
        if not self._quota.take(len(self.table)):
            if len(self.table) >= self._quota.most:
                raise Refused(
                    f"topic[{name}] not exist, and is not made: there are {len(self.table)} topics"
                    " (autoCreateTopicMax)",
                    TOPIC_NOT_EXIST,
                )
            raise Refused(f"too many new topics at once: {name} is not made yet", SYSTEM_BUSY)
        queues = max(0, min(client_queues, default.write_queues))
        topic = TopicConfig(
            name, queues, queues, default.perm & ~PERM_INHERIT, filter_type=default.filter_type
        )
        self.put(topic)
        return topic

    def inherited_queues(self, default_topic: str, client_queues: int) -> int | None:
        """So many queues a topic has that a producer's first send makes, or None where it makes none."""
        default = self._default(default_topic)
        return None if default is None else max(0, min(client_queues, default.write_queues))

    def _default(self, name: str) -> TopicConfig | None:
        """The topic whose settings a first send takes over, if it lets them be."""
        found = self.table.get(name)
        if found is None or (name == AUTO_CREATE_TOPIC and not self._config.auto_create_topic):
            return None
        return found if found.perm & PERM_INHERIT else None

    def set_epoch(self, epoch: int) -> None:
        """A new master's table is newer than any its predecessor made, whatever the counters say."""
        self.epoch = epoch
        self._changed([])

    def taken_over(self, life: str, epoch: int) -> None:
        """All that was answered before ``epoch`` is in it, and on the disk: see ``DataVersion``."""
        self.version = dataclasses.replace(self.version, life=life, taken_epoch=epoch)
        self.set_epoch(epoch)

    def adopt(self, wrapper: dict[str, Any]) -> bool:
        """Replace the table by a master's (answer of 21) if its version differs, or change what
        ``changed_since`` named; True when it did."""
        version = DataVersion.from_json(wrapper.get("dataVersion"))
        table = _parse(wrapper.get("topicConfigTable") or {})
        if "part" in wrapper:
            return self._adopt_part(wrapper, table, version)
        if version.order() == self.version.order() and table == self.table:
            return False
        deleted, expired = _parse_ends(wrapper, DELETED), _parse_ends(wrapper, EXPIRED)
        if EXPIRED not in wrapper:  # that master knows no such thing: what one that does told stays true
            expired = self._expired.table
            if DELETED not in wrapper:  # a RocketMQ broker's
                deleted = self._deleted.table
        names = (
            differing(self.table, table)
            | differing(self._deleted.table, deleted)
            | differing(self._expired.table, expired)
        )
        self.table = table
        note_replaced(names, table, self._moved, self.text)
        self._deleted.table, self._unconfirmed, self._expired.table = deleted, {}, expired
        self._deleted.text.clear()
        self._expired.text.clear()
        self._set_all_starts()
        self.version = version
        for hook in self.on_change:
            hook(names)
        return True

    def _adopt_part(
        self, wrapper: dict[str, Any], table: dict[str, TopicConfig], version: DataVersion
    ) -> bool:
        """What ``changed_since`` gave: a name without an entry was deleted."""
        names = frozenset(str(name) for name in wrapper["part"])
        for name in sorted(names):
            if name in table:
                self.table[name] = table[name]
            else:
                self.table.pop(name, None)
            self.text.changed(name, name in table)
        self._moved.add(names)
        if EXPIRED in wrapper:
            expired = _parse_ends(wrapper, EXPIRED)
            for name in names:
                self._expired.table.pop(name, None)
                self._expired.text.changed(name, name in expired)
            self._expired.table |= expired
        deleted = _parse_ends(wrapper, DELETED)
        others = differing(self._deleted.table, deleted)
        self._deleted.table, self._unconfirmed = deleted, {}
        self._deleted.text.clear()
        for name in names | others:
            self._set_starts(name)
        self.version = version
        for hook in self.on_change:
            hook(names)
        return True

    def check_invariants(self) -> None:
        self.text.check_invariants()
        self._deleted.text.check_invariants()
        self._expired.text.check_invariants()
        assert self.starts.keys() == self._deleted.table.keys() | self._expired.table.keys(), (
            "each end is a start"
        )

    async def prepare(self, slice_: Slice, indent: bool = False) -> None:
        """Write in slices what ``to_text`` would have to. Raises as ``slice_``."""
        await self.text.prepare(slice_, indent)
        await self._deleted.text.prepare(slice_, indent)
        await self._expired.text.prepare(slice_, indent)

    def to_json(self) -> dict[str, Any]:
        """The file's content and the core of the answer to GET_ALL_TOPIC_CONFIG."""
        deleted, expired = (
            {name: _ends(ends) for name, ends in known.items()}
            for known in (self._deleted.table, self._expired.table)
        )
        return self._wrapped({name: topic.to_json() for name, topic in self.table.items()}, deleted, expired)

    def to_text(self, indent: bool = False) -> dict[str, Any]:
        """``to_json`` with the table already written."""
        texts = (self._deleted.text.whole(indent), self._expired.text.whole(indent))
        return self._wrapped(self.text.whole(indent), *texts)

    def changed_since(self, mark: int | None) -> tuple[dict[str, Any], int]:
        """What ``adopt`` of a table as of ``mark`` needs to become this one (None: the whole table), and the
        mark of now."""
        names = self._moved.since(mark)
        deleted = self._deleted.text.whole()
        expired = self._expired.text.whole() if names is None else self._expired_part(names)
        # That one too that has no entry: without the member a slave keeps what it knew.
        wrapped = lambda table: {**self._wrapped(table, deleted, expired), EXPIRED: expired}  # noqa: E731
        return changed_since(mark, self._moved, self.text, self.table, wrapped)

    async def prepare_since(self, mark: int, slice_: Slice) -> None:
        """Write in slices what ``since`` would have to. Raises as ``slice_``."""
        await self.text.prepare_part(self._moved.since(mark) or (), slice_)

    @property
    def mark(self) -> int:
        """Counts the changes; ``since`` and ``changed_since`` take one of its values."""
        return self._moved.mark

    def since(self, mark: int) -> dict[str, Any] | None:
        """What ``apply`` to a table as of ``mark`` needs to make it this one; None when that cannot be told.
        Of the deleted topics it has those that changed."""
        names = self._moved.since(mark)
        if names is None:
            return None
        return {
            "dataVersion": self.version.to_json(),
            "topicConfigTable": self.text.part(name for name in names if name in self.table),
            "part": sorted(names),
            DELETED: {
                name: _ends(self._deleted.table[name]) for name in names if name in self._deleted.table
            },
            EXPIRED: self._expired_part(names),
        }

    def apply(self, change: dict[str, Any]) -> None:
        """Take a change that ``since`` gave. Raises KeyError, TypeError, ValueError for one that is none."""
        deleted = dict(self._deleted.table)
        for name in map(str, change["part"]):
            deleted.pop(name, None)
        deleted |= _parse_ends(change, DELETED)
        while len(deleted) > DELETED_MAX:
            del deleted[next(iter(deleted))]
        self.adopt({**change, DELETED: {name: _ends(ends) for name, ends in deleted.items()}})

    def _wrapped(self, table: Any, deleted: Any, expired: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"dataVersion": self.version.to_json(), "topicConfigTable": table}
        if self._deleted.table:
            found[DELETED] = deleted
        if self._expired.table:
            found[EXPIRED] = expired
        return found

    def _expired_part(self, names: Iterable[str]) -> Entries:
        return self._expired.text.part(name for name in names if name in self._expired.table)

    def _set_ends(self, known: _Ends, name: str, ends: dict[int, int]) -> None:
        if ends:
            known.table[name] = ends
        else:
            del known.table[name]
        known.text.changed(name, bool(ends))
        self._set_starts(name)

    def _set_starts(self, name: str) -> None:
        starts = dict(self._deleted.table.get(name, {}))
        for queue_id, end in self._expired.table.get(name, {}).items():
            starts[queue_id] = max(starts.get(queue_id, 0), end)
        if name in self._deleted.table or name in self._expired.table:
            self.starts[name] = starts
        else:
            self.starts.pop(name, None)

    def _set_all_starts(self) -> None:
        self.starts.clear()
        for name in self._deleted.table.keys() | self._expired.table.keys():
            self._set_starts(name)

    def _changed(self, names: Iterable[str]) -> None:
        self.version = self.version.next(self._now_ms(), max(self.epoch, self.version.state_version))
        changed = frozenset(names)
        for name in sorted(changed):
            self.text.changed(name, name in self.table)
        self._moved.add(changed)
        for hook in self.on_change:
            hook(changed)


def parse_topic(name: str, raw: Any) -> TopicConfig:
    """One entry; one that was parsed before stays. Raises KeyError, TypeError, ValueError."""
    return raw if isinstance(raw, TopicConfig) else TopicConfig.from_json({"topicName": name, **raw})


def _parse(table: dict[str, Any]) -> dict[str, TopicConfig]:
    return {name: parse_topic(name, raw) for name, raw in table.items()}


def _ends(ends: Mapping[int, int]) -> dict[str, int]:
    return {str(queue_id): end for queue_id, end in ends.items()}


class _Ends:
    """By name and queue id, where queues ended; and the text of that."""

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self.text = TableText(lambda: list(self.table), lambda name: _ends(self.table[name]))


def _parse_ends(stored: dict[str, Any], key: str) -> dict[str, dict[int, int]]:
    return {n: {int(q): int(end) for q, end in ends.items()} for n, ends in stored.get(key, {}).items()}
