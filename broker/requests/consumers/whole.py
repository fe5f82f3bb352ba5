"""How are the pulls of a consumer that comes again answered by compiled code, from queue to frame?

As ``PullProcessor.tell_again`` answers each, whose rules these are: what is not plain is left to that. A
test holds the two together (``tests/broker/requests/consumers/test_pull_both_paths.py``).

The pulls of one read are answered in one call, and what they leave behind is noted once: each of them needs
few calls of Python then.
"""

from __future__ import annotations

from typing import Any

from broker.context import BrokerContext
from broker.requests.consumers.offsets import note_offsets
from broker.requests.consumers.pull_heads import Answers, PullHeads
from broker.requests.consumers.standing import Standing
from remoting.codec import Command
from remoting.headers import PullHeader

Known = tuple[dict[Any, Any], tuple[bytes, ...]]
"""Pulls that are known, and the marks of their numbers."""


class WholeAnswers:
    """Makes them of one broker's queues."""

    def __init__(self, context: BrokerContext, heads: PullHeads) -> None:
        self._context = context
        self._make = heads.answers

    def to(
        self,
        buffer: bytes | bytearray,
        start: int,
        end: int,
        known: Known,
        frame_bytes_max: int,
        most: int,
        room: int,
    ) -> Answers | None:
        """The frames that answer the pulls ``buffer[start:end]`` begins with, ``most`` at most and none once
        they have more than ``room`` bytes. The caller ``note``s them. None: nothing was done.

        Whoever asks may see the topic: see ``Trust.need_seen``."""
        try:
            return self._make(buffer, start, end, frame_bytes_max, known, self._rules, most, room)
        except OverflowError:
            return None  # a flag may be any number that was once in a table's file

    def _rules(self, request: Command, header: PullHeader) -> tuple[Any, ...] | None:
        """See ``answers`` of the module."""
        standing, context = header.standing, self._context
        if not isinstance(standing, Standing) or context.offsets.resets.count:
            return None
        found = standing.found(context, header)
        files = context.store.reader.plain(header.topic)
        if found is None or files is None:
            return None
        if standing.commits and not context.offsets.has(header.group, header.topic):
            return None  # there may be no room for one more pair
        subscription, topic, group = found
        return subscription.codes or None, topic.sys_flag, group.group_sys_flag, *files

    def note(self, answers: Answers, began_ms: float, now_ms: float) -> None:
        """What pulls leave behind. Of the monotonic clock: when the first of them began, and now."""
        _, _, header, _, notes = answers
        context, standing = self._context, header.standing
        context.stats.took(now_ms - began_ms)
        if isinstance(standing, Standing) and standing.commits:
            note_offsets(context, header.group, header.topic, notes)
        context.gave_all(header.group, header.topic, notes, now_ms)
