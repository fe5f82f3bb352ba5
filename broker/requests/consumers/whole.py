"""How are the pulls of a consumer that comes again answered by compiled code, from queue to frame?

As ``PullProcessor.tell_again`` answers each, whose rules these are: what is not plain is left to that. A
test holds the two together (``tests/broker/requests/consumers/test_pull_both_paths.py``).

The pulls of one read are answered in one call, and what they leave behind is noted once: each of them needs
few calls of Python then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

    def __init__(self, context: BrokerContext, heads: PullHeads, known: Known, frame_bytes_max: int) -> None:
        self._context = context
        self.to: Callable[[bytes | bytearray, int, int, int, int], Answers | None] = partial(
            heads.answers, frame_bytes_max, known, self._rules
        )
        """``to(buffer, start, end, most, room)``: the frames that answer the pulls ``buffer[start:end]``
        begins with, ``most`` at most and none once they have more than ``room`` bytes. The caller ``note``s
        them. None, or OverflowError as of ``answers``: nothing was done.

        Whoever asks may see the topic: see ``Trust.need_seen``."""

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
        _, _, header, _, (_, commits, reached, beyond, records, records_bytes, stored_ms) = answers
        context, standing, group, topic = self._context, header.standing, header.group, header.topic
        if now_ms - began_ms > context.stats.get_longest_ms:
            context.stats.took(now_ms - began_ms)
        if isinstance(standing, Standing) and standing.commits:
            note_offsets(context, group, topic, commits, beyond=beyond)
        context.gave_all(group, topic, reached, records, records_bytes, stored_ms, now_ms)
