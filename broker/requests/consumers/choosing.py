"""Which messages of a queue does a SQL92 expression let through, and how far was looked for them?

Queues hold tag codes only, so each record is read. A look ends when enough was found, or when this turn of
the loop has no room for more (``broker/state/effort``): the consumer goes on where it ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.state.clients import TAG, Subscription
from broker.state.effort import Effort
from model.codes import Response
from model.config import BrokerConfig
from model.errors import Refused
from model.sql92 import Filter
from store.files.record import decode
from store.flow.reading import GetStatus, Got

STEP: Final = 32
"""Records read at once."""


def look(
    get: Callable[[int, int], Got],
    chooses: Filter,
    offset: int,
    count_max: int,
    bytes_max: int,
    effort: Effort,
) -> Got:
    """Up to ``count_max`` messages from queue offset ``offset`` on that ``chooses`` takes, of ``bytes_max``
    or a little more. ``get(offset, count_max)`` reads the queue. NO_MATCHED: none of those looked at; none
    was looked at to its end where ``is_stalled``."""
    found: list[bytes] = []
    at = offset
    got = last = get(at, min(count_max, STEP))
    while got.status is GetStatus.FOUND:
        records = [raw for chunk in got.chunks for raw in split(chunk)]
        done = _choose(records, chooses, effort, found)
        if done < len(records):
            # The offset behind a part is the queue's to say: not every entry has a record.
            at = get(at, done).next_offset if done else at
            break
        last, at = got, got.next_offset
        if len(found) >= count_max or sum(map(len, found)) >= bytes_max or effort.is_over:
            break
        got = get(at, min(count_max - len(found), STEP))
    if at == offset and got.status is not GetStatus.FOUND:
        return got
    status = GetStatus.FOUND if found else GetStatus.NO_MATCHED
    return Got(status, at, last.min_offset, last.max_offset, found, len(found))


def _choose(records: list[bytes], chooses: Filter, effort: Effort, found: list[bytes]) -> int:
    """Add those that are chosen to ``found``; how many were looked at in this turn."""
    for done, raw in enumerate(records):
        takes = effort.chooses(chooses, len(raw), decode(raw, check_crc=False).properties)
        if takes is None:
            return done
        if takes:
            found.append(raw)
        if effort.is_over:
            return done + 1
    return len(records)


def is_stalled(got: Got, offset: int) -> bool:
    """Whether a look from ``offset`` came to the end of no record: it goes on in a later turn."""
    return got.status is GetStatus.NO_MATCHED and got.next_offset == offset


def split(chunk: bytes) -> list[bytes]:
    """The whole records one after the other."""
    view, at, found = memoryview(chunk), 0, []
    while at < len(chunk):
        size = int.from_bytes(view[at : at + 4], "big")
        found.append(bytes(view[at : at + size]))
        at += size
    return found


def need_filter(config: BrokerConfig, subscription: Subscription) -> None:
    """Raises Refused where messages cannot be chosen as ``subscription`` asks."""
    kind = subscription.expression_type
    if subscription.class_filter or (kind != TAG and not config.enable_property_filter):
        raise Refused(
            f"The broker does not support consumer to filter message by {kind}", Response.SYSTEM_ERROR
        )
    if kind != TAG and subscription.chooses is None:
        raise Refused(
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
            Response.FILTER_DATA_NOT_EXIST,
        )
