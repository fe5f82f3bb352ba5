"""Replicas hold different bytes for one record: whose are right?

What no CRC covers (queue, offsets, times, properties) can rot without a sign. In this order:

    1. copies whose CRCs are wrong do not count
    2. what queue and index of the one who asks say as well is right. Where its own copy is that one, and more
       than half of the copies say something else, nothing is decided but by an operator who named the copies
    3. where these tell no copies apart, what more than half of the copies say is right
    4. nothing is decided: another replica may come back

Evidence goes before votes: a replica that was copied anew has its bytes from another's disk, with all that
rotted there before. Two such voices would overwrite the last good copy. Where the evidence is silent (a flag,
a time, a property that is neither tag nor key) they still do, without ``enabledAppendPropCRC``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica's bytes of a record.

    ``whole``: magic, place, lengths and CRCs are right. ``named``: the queue entry and the index of the
    replica that decides fit these bytes.
    """

    data: bytes
    whole: bool
    named: bool


def decide(copies: Sequence[Copy], *, by_operator: bool = False) -> bytes | None:
    """The bytes all replicas should have, or None while that cannot be known. ``copies``: the first is that
    of the one who asks. ``by_operator``: they were named for this, and queue and index may be made anew."""
    able = [copy for copy in copies if copy.whole]
    named = [copy for copy in able if copy.named]
    most = _most(able, len(able))
    if not named or len(named) == len(able):
        return most
    if any(copy.data != named[0].data for copy in named):
        return _most(named, len(able))
    outvoted = most not in (None, named[0].data) and copies[0] in named
    if outvoted:
        return most if by_operator else None
    return named[0].data


def _most(copies: Sequence[Copy], of: int) -> bytes | None:
    """What more than half ``of`` so many say."""
    votes = Counter(copy.data for copy in copies).most_common(1)
    return next((data for data, count in votes if count * 2 > of), None)
