"""Replicas hold different bytes for one record: whose are right?

What no CRC covers (queue, offsets, times, properties) can rot without a sign, but not on two disks alike. In
this order:

    1. copies whose CRCs are wrong do not count
    2. what more than half of the copies say is right
    3. what queue and index of the one who asks say as well is right, when it is said by one side only
    4. nothing is decided: another replica may come back
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


def decide(copies: Sequence[Copy]) -> bytes | None:
    """The bytes all replicas should have, or None while that cannot be known."""
    able = [copy for copy in copies if copy.whole]
    votes = Counter(copy.data for copy in able)
    if not votes:
        return None
    (data, count), *_ = votes.most_common(1)
    if count * 2 > len(able):
        return data
    named = {copy.data for copy in able if copy.named}
    return named.pop() if len(named) == 1 else None
