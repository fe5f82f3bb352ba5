"""How is the pull of a consumer that comes again answered by compiled code, from queue to frame?

As ``PullProcessor.tell_again`` answers it, whose rules these are: what is not plain is left to that. A test
holds the two together (``tests/broker/requests/consumers/test_pull_both_paths.py``).
"""

from __future__ import annotations

from broker.context import BrokerContext
from broker.requests.consumers.offsets import note_offset
from broker.requests.consumers.pull_heads import PullHeads
from broker.requests.consumers.standing import Standing
from remoting import codec
from remoting.codec import Command
from remoting.headers import PullHeader
from store.files.record import TIMED_BYTES, store_timestamp_of


class WholeAnswers:
    """Makes them of one broker's queues."""

    def __init__(self, context: BrokerContext, heads: PullHeads) -> None:
        self._context = context
        self._make = heads.answer

    def to(self, request: Command, header: PullHeader, began_ms: float) -> bytes | None:
        """The frame that answers a pull whose topic anybody may see (``Trust.need_seen``); None: nothing was
        done, and ``tell_again`` is to. ``began_ms``: the monotonic clock. Raises Refused."""
        standing, context = header.standing, self._context
        if not isinstance(standing, Standing) or header.queue_offset < standing.first:
            return None
        found = standing.found(context, header)
        files = context.store.reader.plain(header.topic, header.queue_id)
        if found is None or files is None or context.offsets.resets.count:
            return None
        subscription, topic, group = found
        try:
            made = self._make(
                files,
                header.queue_offset,
                standing.most,
                subscription.codes or None,
                request.serialize == codec.ROCKETMQ,
                request.opaque,
                standing.first,
                topic.sys_flag,
                group.group_sys_flag,
            )
        except OverflowError:
            return None  # a flag may be any number that was once in a table's file
        if made is None:
            return None
        frame, head_bytes, count, next_offset = made
        now_ms = context.env.monotonic_ms()
        context.stats.took(now_ms - began_ms)
        if standing.commits and header.commit_offset >= 0 and context.role_state.keeps_offsets:
            note_offset(context, header.group, header.topic, header.queue_id, header.commit_offset)
        stored_ms = store_timestamp_of(frame[head_bytes : head_bytes + TIMED_BYTES])
        place = header.group, header.topic, header.queue_id
        context.gave(place, next_offset, count, len(frame) - head_bytes, stored_ms, now_ms)
        return frame
