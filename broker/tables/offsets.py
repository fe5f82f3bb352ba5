"""How far has each consumer group read each queue?

``config/consumerOffset.json``: ``{"dataVersion", "groupTopicMap", "offsetTable": {"topic@group": {queue:
offset}}}``, and while resets stand ``"resetOffsetTable"`` of the same form, which RocketMQ passes over, as it
does ``"popsUpTo"``: up to which place of the log each pop is in the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from broker.tables.moved import Moved
from broker.tables.pairs import PairCount
from broker.tables.resets import SEPARATOR, Resets, name_of, pair_of
from broker.tables.table_text import TableText
from model.topic import DataVersion
from runtime.turns import Slice

_RESETS: Final = "resetOffsetTable"
_POPS_TO: Final = "popsUpTo"
PART_MAX: Final = 8192
"""More entries than these are written with the whole table, which takes slices: 20,000 took 47 ms in one."""


@dataclass
class _Names:
    """Who has offsets where."""

    topics: dict[str, dict[str, None]] = field(default_factory=dict)  # of each group
    groups: dict[str, dict[str, None]] = field(default_factory=dict)  # of each topic


class OffsetTable:
    """Offsets by (topic, group), in messages; pure but for the hook that asks for a write.

    Holds: an entry changes only through ``commit``, ``reset``, ``clamp``, ``drop_*``,
    ``take_held`` and ``adopt``. A commit moves ``mark`` and ``version``, and calls the hooks, unless the pair
    did so since anybody asked for one of the two, or had its text written: who was called and did not look
    yet sees this one, too. ``pairs`` bounds what clients may make: they ask ``has_room`` first, and
    what the broker itself does or copies is always taken.
    """

    def __init__(self, now_ms: Callable[[], int], pairs: PairCount | None = None) -> None:
        self._now_ms = now_ms
        self._pairs = pairs or PairCount()
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._kept: dict[tuple[str, str], dict[int, int]] = {}
        self._names = _Names()
        self.text = TableText(lambda: map(name_of, list(self._table)), self._written)
        self._topics_text = TableText(
            lambda: list(self._names.topics), lambda group: list(self._names.topics[group])
        )
        self._moved = Moved[tuple[str, str]]()
        self._noted: set[tuple[str, str]] = set()  # these moved since anybody looked, and have no text
        self._version = DataVersion()
        self.pops_to: int | None = None
        """What was popped by checkpoints that end at or below this place of the log is in the offsets, unless
        somebody said otherwise since; None: nobody knows."""
        self.resets = Resets()
        self.on_change: list[Callable[[], None]] = []
        self.on_reset: list[Callable[[str, str, int | None], None]] = []
        """Group, topic, queue: an operator says where it goes on; None: in all queues, or nowhere."""

    @property
    def mark(self) -> int:
        """Counts the changes since this process began, those as one that nobody looked between;
        ``changed_since`` takes one of its values."""
        self._noted.clear()
        return self._moved.mark

    @property
    def version(self) -> DataVersion:
        """Of the table as it is; its time is that of the first change since somebody looked."""
        self._noted.clear()
        return self._version

    def _written(self, name: str) -> dict[int, int]:
        """An entry, of which a text is made."""
        pair = pair_of(name)
        self._noted.discard(pair)
        return self._table[pair]

    def load(self, stored: dict[str, Any] | None) -> None:
        if stored is not None:
            self._replace(_parse(stored.get("offsetTable") or {}))
            self._take_resets(_parse(stored.get(_RESETS) or {}), None)
            self._version = DataVersion.from_json(stored.get("dataVersion"))
            self.pops_to = _place(stored)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        offset = self._table.get((topic, group), {}).get(queue_id)
        kept = self._kept.get((topic, group), {}).get(queue_id)
        return offset if kept is None else max(kept, offset or 0)

    @property
    def pairs_used(self) -> int:
        """How many pairs there are, as ``maxConsumerOffsetPairs`` counts them."""
        return self._pairs.used

    def has(self, group: str, topic: str) -> bool:
        """Whether the group has offsets in the topic, or one is on its way."""
        return (topic, group) in self._table or self._pairs.is_reserved((topic, group))

    def has_room(self, group: str, topic: str) -> bool:
        """Whether a client may give the group an offset in the topic: it has one, or there may be one more
        pair."""
        return self.has(group, topic) or self._pairs.has_room(topic)

    def reserve(self, group: str, topic: str) -> None:
        """An offset is on its way: its pair counts by now, until ``commit`` or ``release``."""
        if (topic, group) not in self._table:
            self._pairs.reserve((topic, group))

    def release(self, group: str, topic: str) -> None:
        self._pairs.release((topic, group))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """What a consumer reports; an offset may go back (a reset is one)."""
        pair = (topic, group)
        queues = self._table.get(pair)
        if queues is None:
            self._table[pair] = {queue_id: offset}
            self._note(pair)
            self._moved.add((pair,))
            self._is_newer()
        elif queues.get(queue_id) != offset:
            queues[queue_id] = offset
            if pair not in self._noted:
                self._is_moved(pair)

    def commit_all(self, group: str, topic: str, told: list[tuple[int, int]]) -> None:
        """``commit`` of several queues at once."""
        pair = (topic, group)
        queues = self._table.get(pair)
        if queues is None:
            for queue_id, offset in told:
                self.commit(group, topic, queue_id, offset)
            return
        for queue_id, offset in told:
            if queues.get(queue_id) != offset:
                queues.update(told)
                if pair not in self._noted:
                    self._is_moved(pair)
                break

    def _is_moved(self, pair: tuple[str, str]) -> None:
        """An offset of a pair that was there is another one: ``_note``, as most pulls commit. Until somebody
        looks, the next ones of the pair are noted with it."""
        self._noted.add(pair)
        self.text.touched(SEPARATOR.join(pair))
        self._moved.add((pair,))
        self._is_newer()

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """An operator has the group go on elsewhere: ``resets`` says so until it does."""
        self.commit(group, topic, queue_id, offset)
        self.resets.add((topic, group), queue_id, offset)
        self._changed((topic, group))
        self._said((topic, group), queue_id)

    def touch(self) -> None:
        """``pops_to`` is to be copied and written as it is now."""
        self._changed()

    def _said(self, pair: tuple[str, str], queue_id: int | None = None) -> None:
        topic, group = pair
        for hook in self.on_reset:
            hook(group, topic, queue_id)

    def reset_stands(self, group: str, topic: str, queue_id: int, now_ms: float) -> int | None:
        """Where the group is to go on by an operator's word, and does not yet."""
        offset = self.resets.get((topic, group), queue_id)
        if offset is not None and self.resets.is_over((topic, group), queue_id, now_ms):
            self.end_reset(group, topic, queue_id)
            return None
        return offset

    def end_reset(self, group: str, topic: str, queue_id: int) -> None:
        """The group reads from there."""
        if self.resets.end((topic, group), queue_id) and (topic, group) in self._table:
            self._changed((topic, group))

    # What consumers commit while there is no master: a table copied from the next one does not replace it.

    def hold_for_master(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note, for a master to come, how far a group is; in memory, and forwards only."""
        self.reserve(group, topic)
        queues = self._kept.setdefault((topic, group), {})
        queues[queue_id] = max(offset, queues.get(queue_id, 0))

    def held_for_master(self) -> list[tuple[str, str, int, int]]:
        """(topic, group, queue, offset) of what ``hold_for_master`` noted and no master took yet."""
        return [(t, g, q, offset) for (t, g), queues in self._kept.items() for q, offset in queues.items()]

    def handed_over(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """A master knows ``offset`` or more. What was noted since stays."""
        queues = self._kept.get((topic, group), {})
        if queues.get(queue_id, -1) <= offset:
            queues.pop(queue_id, None)
        if not queues:
            self._forget_kept((topic, group))

    def take_held(self, end: Callable[[str, int], int]) -> None:
        """This broker is master now: what it kept is its own, up to ``end(topic, queue)``."""
        for topic, group, queue_id, kept in self.held_for_master():
            offset = min(kept, end(topic, queue_id))
            if offset > self._table.get((topic, group), {}).get(queue_id, -1):
                self.commit(group, topic, queue_id, offset)
        for pair in list(self._kept):
            self._forget_kept(pair)

    def _forget_kept(self, pair: tuple[str, str]) -> None:
        self._kept.pop(pair, None)
        self._pairs.release(pair)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._table.get((topic, group), {}))

    def read_by(self, group: str) -> list[str]:
        """As ``topics_of``, in no order: sorting 20,000 takes 5 ms."""
        return list(self._names.topics.get(group, ()))

    def topics_of(self, group: str) -> list[str]:
        return sorted(self._names.topics.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        return sorted(self._names.groups.get(topic, ()))

    def entries(self) -> list[tuple[str, str, int, int]]:
        """(topic, group, queue, offset) of every entry, in order of creation."""
        return [(t, g, q, offset) for (t, g), queues in self._table.items() for q, offset in queues.items()]

    def drop(self, group: str, topic: str) -> None:
        """Forget one entry, if it is there."""
        if (topic, group) in self._table:
            self._drop([(topic, group)])

    def drop_group(self, group: str) -> None:
        self._drop([(topic, group) for topic in self._names.topics.get(group, ())])

    def drop_topic(self, topic: str) -> None:
        self._drop([(topic, group) for group in self._names.groups.get(topic, ())])

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._table[key]
            self._noted.discard(key)
            self.resets.drop(key)
            self._said(key)
        if keys:
            self._changed(*keys)

    async def clamp(self, end: Callable[[str, int], int], slice_: Slice) -> int:
        """Cut offsets beyond ``end(topic, queue)`` back to it, and where an operator told groups to go on;
        returns how many offsets were. Raises as ``slice_``.

        After an election the log may be shorter than what consumers committed at the old master: an offset
        beyond the end would skip every message written in between.
        """
        cut = []
        for key, queues in list(self._table.items()):
            for queue_id, offset in list(queues.items()):
                last = end(key[0], queue_id)
                if offset > last:
                    queues[queue_id] = last
                    cut.append(key)
                await slice_.breathe()
        count = len(cut)
        for key in self.resets.pairs():
            for queue_id, offset in self.resets.of(key).items():
                last = end(key[0], queue_id)
                if offset > last:  # who was told goes on there, too
                    self.resets.add(key, queue_id, last)
                    cut.append(key)
            await slice_.breathe()
        if cut:
            self._changed(*cut)
        return count

    def clamp_pops(self, log_end: int) -> None:
        """Behind ``log_end`` there will be other pops than those the offsets know of."""
        if self.pops_to is not None:
            self.pops_to = min(self.pops_to, log_end)

    def clone_group(self, source: str, target: str, topic: str) -> None:
        queues = self._table.get((topic, source))
        if queues:
            self._table.setdefault((topic, target), {}).update(queues)
            self.resets.drop((topic, target))  # the last word counts
            self._changed((topic, target))
            self._said((topic, target))

    def adopt(self, wrapper: dict[str, Any]) -> bool:
        """Replace the table by a master's (answer of 43), or with ``part`` only the entries it names; True
        when that changed anything. An entry without queues was dropped at the master."""
        table = _parse(wrapper.get("offsetTable") or {})
        part = bool(wrapper.get("part"))
        pops_to, self.pops_to = self.pops_to, _place(wrapper)
        others = self._take_resets(_parse(wrapper.get(_RESETS) or {}), table if part else None)
        if not part and table == self._table:
            table, part = {}, True
        if part:
            table = {key: queues for key, queues in table.items() if queues != self._table.get(key, {})}
            for key in others:  # a reset changes the table also where the offset is what it was
                table.setdefault(key, self._table.get(key, {}))
            if not table and self.pops_to == pops_to:
                return False
        self._noted.clear()
        if part:
            self._replace_part(table)
        else:
            self._replace(table)
        self._version = DataVersion.from_json(wrapper.get("dataVersion"))
        for hook in self.on_change:
            hook()
        return True

    def changed_since(self, mark: int | None) -> dict[str, Any]:
        """What ``adopt`` of a table as of ``mark`` needs to become this one; None: the whole table."""
        keys = self._moved.since(mark)
        if keys is None:
            return self.to_text()
        changed = {name_of(key): dict(self._table.get(key, {})) for key in keys}
        return {
            "dataVersion": self.version.to_json(),
            "offsetTable": changed,
            "part": True,
            **self._resets_of(keys),
            **self._pops_to(),
        }

    def since(self, mark: int) -> dict[str, Any] | None:
        """As ``changed_since`` a mark, of texts that ``prepare_since`` made; None for the whole table, also
        where more than ``PART_MAX`` entries changed."""
        keys = self._few_since(mark)
        if keys is None:
            return None
        here: list[str] = []
        gone: list[str] = []
        for key in keys:
            (here if key in self._table else gone).append(name_of(key))
        changed = self.text.part(here, gone)
        return {
            "dataVersion": self.version.to_json(),
            "offsetTable": changed,
            "part": True,
            **self._resets_text(keys),
            **self._pops_to(),
        }

    def _few_since(self, mark: int) -> list[tuple[str, str]] | None:
        """What changed after ``mark``; None when that is not known, or too much."""
        keys = self._moved.since(mark, PART_MAX + 1)
        return keys if keys is not None and len(keys) <= PART_MAX else None

    async def prepare_since(self, mark: int, slice_: Slice) -> None:
        """Write in slices what ``since`` would have to. Raises as ``slice_``."""
        keys = self._few_since(mark) or ()
        await self.text.prepare_part(map(name_of, keys), slice_)
        await self.resets.text.prepare_part(map(name_of, keys), slice_)

    async def prepare(self, slice_: Slice, indent: bool = False) -> None:
        """Write in slices what ``to_text`` would have to. Raises as ``slice_``."""
        await self.text.prepare(slice_, indent)
        await self._topics_text.prepare(slice_, indent)
        await self.resets.text.prepare(slice_, indent)

    def to_text(self, indent: bool = False) -> dict[str, Any]:
        """``to_json`` with its tables already written."""
        return {
            "dataVersion": self.version.to_json(),
            "groupTopicMap": self._topics_text.whole(indent),
            "offsetTable": self.text.whole(indent),
            **({_RESETS: self.resets.text.whole(indent)} if self.resets.count else {}),
            **self._pops_to(),
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            "groupTopicMap": {group: list(topics) for group, topics in self._names.topics.items()},
            "offsetTable": {
                f"{topic}{SEPARATOR}{group}": dict(q) for (topic, group), q in self._table.items()
            },
            **self._resets_of(self.resets.pairs()),
            **self._pops_to(),
        }

    def _pops_to(self) -> dict[str, Any]:
        return {} if self.pops_to is None else {_POPS_TO: self.pops_to}

    def _resets_of(self, keys: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """The member of those that stand, if there are any."""
        found = {name_of(key): queues for key in keys if (queues := self.resets.of(key))}
        return {_RESETS: found} if found else {}

    def _resets_text(self, keys: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """``_resets_of``, already written."""
        found = [name_of(key) for key in keys if self.resets.has(key)]
        return {_RESETS: self.resets.text.part(found)} if found else {}

    def _take_resets(
        self, told: dict[tuple[str, str], dict[int, int]], only: Iterable[tuple[str, str]] | None
    ) -> list[tuple[str, str]]:
        """Those a master, or the file, has; ``only`` of these pairs, or of all. Of which pairs they are
        others."""
        pairs = dict.fromkeys(self.resets.pairs() if only is None else only) | dict.fromkeys(told)
        return [pair for pair in pairs if self.resets.replace(pair, told.get(pair, {}))]

    def _replace(self, table: dict[tuple[str, str], dict[int, int]]) -> None:
        self._table = table
        self._noted.clear()
        self._pairs.replace(table)
        self._moved.forget()
        self._names = _Names()
        for topic, group in table:
            self._names.topics.setdefault(group, {})[topic] = None
            self._names.groups.setdefault(topic, {})[group] = None
        self.text.clear()
        self._topics_text.clear()

    def _replace_part(self, table: dict[tuple[str, str], dict[int, int]]) -> None:
        for key, queues in table.items():
            if queues:
                self._table[key] = queues
            else:
                self._table.pop(key, None)
            self._note(key)
        self._moved.add(table)

    def _note(self, key: tuple[str, str]) -> None:
        """An entry is new, another one, or gone: what is made of the table follows."""
        topic, group = key
        here = key in self._table
        topics = self._names.topics.setdefault(group, {})
        if here and topic in topics:
            self.text.touched(name_of(key))
            return
        groups = self._names.groups.setdefault(topic, {})
        if here:
            topics[topic] = groups[group] = None
            self._pairs.add(key)
        else:
            if topic in topics:
                self._pairs.remove(key)
            topics.pop(topic, None)
            groups.pop(group, None)
            if not topics:
                del self._names.topics[group]
            if not groups:
                del self._names.groups[topic]
        self.text.changed(name_of(key), here)
        self._topics_text.changed(group, group in self._names.topics)

    def check_invariants(self) -> None:
        pairs = {(topic, group) for group, topics in self._names.topics.items() for topic in topics}
        assert pairs == set(self._table), "the topics of each group are those it has offsets of"
        turned = {(topic, group) for topic, groups in self._names.groups.items() for group in groups}
        assert turned == pairs, "the groups of each topic are those that have offsets of it"
        assert self._noted <= pairs, "what was noted is there"
        assert all(self._kept.values()), "a pair of which nothing is kept is forgotten"
        self._moved.check_invariants()
        self._pairs.check_against(pairs)
        self.resets.check_invariants()
        self.text.check_invariants()
        self._topics_text.check_invariants()

    def _changed(self, *keys: tuple[str, str]) -> None:
        for key in keys:
            self._note(key)
        self._moved.add(keys)
        self._is_newer()

    def _is_newer(self) -> None:
        self._version = self._version.next(self._now_ms())
        for hook in self.on_change:
            hook()


def _place(wrapper: dict[str, Any]) -> int | None:
    """``pops_to`` of a table; None: an older keelmq or a RocketMQ broker wrote it."""
    found = wrapper.get(_POPS_TO)
    return None if found is None else int(found)


def _parse(table: dict[str, Any]) -> dict[tuple[str, str], dict[int, int]]:
    found: dict[tuple[str, str], dict[int, int]] = {}
    for name, queues in table.items():
        topic, separator, group = name.partition(SEPARATOR)
        if separator and topic and group:
            found[topic, group] = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
    return found
