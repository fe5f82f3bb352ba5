"""Many kinds of damage in one group, each in a place of its own: what hides one behind another shows here.

One audit of Spark takes seconds, however small the group, so both engines look at damage in bundles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tests.audit.recall.damages import BENIGN, DAMAGES
from tests.audit.recall.group import MESSAGES, Group
from tests.audit.recall.judge import Done, do

SLOT: Final = 6
"""Messages that a damage has for itself: it reaches two further than its first, which is one of three."""
END: Final = 12
"""Messages at the log's end, which damages of it have for themselves."""
MANY: Final = 190

One = tuple[str, str]


class Bundle(NamedTuple):
    """What is done, in this order, and to which replicas: one of ``xyz``, which are three different ones, or
    any but those behind ``~``. ``gone``: which segments a replica lacks; no single message is damaged there.
    """

    ones: tuple[One, ...]
    gone: str = ""
    messages: int = MANY


def _any(*names: str, but: str = "") -> tuple[One, ...]:
    return tuple((name, f"~{but}") for name in names)


BUNDLES: Final = {
    "a segment gone and another end": Bundle(
        (
            *_any("body bit", "born time", "property name", "magic", "a record over its neighbour"),
            *_any(
                "neighbours swapped",
                "offset of an entry",
                "size of an entry",
                "a table cut",
                "a table removed",
            ),
            ("another end", "y"),
            ("an epoch of another number", "z"),
            ("a middle segment removed", "x"),
        ),
        "middle",
    ),
    "two logs too short": Bundle(
        (
            *_any("crc field", "store time", "topic name", "total size", "another body with a right crc"),
            *_any("a message that is another", "a consumer beyond the end"),
            *_any("tag of an entry", "an entry of no place", but="z"),
            ("epoch file changed", "z"),
            ("a file of entries removed", "z"),
            ("the end zeroed", "y"),
            ("the last segment removed", "x"),
        ),
        "last",
    ),
    "a log gone": Bundle(
        (
            *_any("body length", "physical offset", "one record zeroed", "some records zeroed", but="x"),
            *_any("properties not written to their end", but="x"),
            *_any("another body everywhere", "an acknowledgement of no message"),
            ("entry of another message", "y"),
            ("an entry zeroed", "y"),
            ("a queue removed", "z"),
            ("the log emptied", "x"),
        )
    ),
    "places, and a segment cut": Bundle(
        (
            *_any("flag", "property value", "queue id", "queue offset"),
            *_any("a message stored again", "places skipped", "a place taken again"),
            *_any("a change beside a table", "a note of known damage"),
            ("an epoch that begins elsewhere", "y"),
            ("a file of entries grown", "z"),
            ("all queues removed", "y"),
            ("a segment cut", "x"),
        ),
        "middle",
    ),
    "what is made of the log": Bundle(
        (
            *_any("an entry of a batch queue", "a unit of an extension", "a timers record"),
            *_any("a slot of the timer wheel", "a record behind the end"),
            ("an epoch line removed", "y"),
        ),
        messages=MESSAGES,
    ),
}
LAWFUL: Final = {
    "nothing": Bundle(_any("nothing"), messages=MESSAGES),
    "a stopped group": Bundle(
        (
            *_any("timers batches and extensions", "bytes behind the end", "an empty segment ahead"),
            *_any("retention on one", "a note of damage that was mended"),
        ),
        messages=MESSAGES,
    ),
    "a topic again": Bundle(_any("a topic that was created again"), messages=MESSAGES),
    "a running group": Bundle(
        _any("lag of a running replica", "changes of one table cut short by a crash"), messages=MESSAGES
    ),
}


def planted(root: Path, bundle: Bundle, replicas: int, seed: int) -> tuple[Group, list[Done]]:
    """A group with a bundle's damages, or with its lawful differences."""
    group = Group(root, replicas, seed, bundle.messages)
    order = group.chance.sample(range(replicas), replicas)
    roles = dict(zip("xyz", order, strict=False))
    slots = _slots(group, bundle)
    done = []
    for name, role in bundle.ones:
        able = [roles[role]] if role in roles else [at for at in order if at not in map(roles.get, role[1:])]
        group.aim(group.chance.choice(able), slots.pop())
        if name in DAMAGES:
            done.append(do(group, name, DAMAGES[name]))
        else:
            BENIGN[name](group)
    return group, done


def _slots(group: Group, bundle: Bundle) -> list[int]:
    """First messages of damages, far enough from each other, in an order of chance."""
    if len(bundle.ones) == 1:
        return [group.chance.randrange(8, group.messages - END)]
    bases = [int(path.name) for path in group.segments_of(group.stores[0])]
    last = len(bases) - 1
    spared = {"": set(), "middle": {group.segment, group.segment - 1}, "last": {last, last - 1}}[bundle.gone]
    found = []
    for begin in range(8, group.messages - END - SLOT, SLOT):
        n = begin + group.chance.randrange(3)
        offsets = [group.offset(n + k) for k in range(3)]
        inside = {next(at for at in reversed(range(len(bases))) if bases[at] <= offset) for offset in offsets}
        if len(inside) == 1 and not inside & spared:
            found.append(n)
    group.chance.shuffle(found)
    return found
