"""What is a pull told?"""

from __future__ import annotations

from typing import Final, NamedTuple

from model.codes import Response
from remoting.codec import Command
from remoting.headers import PullAnswer, PullHeader
from store.flow.reading import GetStatus, Got

MASTER: Final = 0
REMARKS: Final = {status: status.name for status in GetStatus}
FOUND: Final = REMARKS[GetStatus.FOUND]
"""What is remarked where the code is SUCCESS."""


class Told(NamedTuple):
    """What a pull is answered: offsets are where to read on, and the least and the greatest of its queue."""

    code: Response
    remark: str
    next_offset: int
    least: int
    most: int
    topic_sys_flag: int
    group_sys_flag: int
    body: bytes

    def reply(self, request: Command) -> Command:
        ext = PullAnswer(
            self.next_offset, self.least, self.most, MASTER, self.topic_sys_flag, self.group_sys_flag
        ).to_ext()
        return request.reply(self.code, remark=self.remark, ext=ext, body=self.body)


def code_of(got: Got, header: PullHeader) -> Response:
    """The original's table from what the queue said to what the consumer is told."""
    status = got.status
    if status is GetStatus.FOUND:
        return Response.SUCCESS
    if status in (GetStatus.NO_MATCHED, GetStatus.OFFSET_FOUND_NULL):
        return Response.PULL_RETRY_IMMEDIATELY
    if status is GetStatus.OFFSET_OVERFLOW_ONE:
        return Response.PULL_NOT_FOUND
    if status in (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_QUEUE):
        at_end = header.queue_offset in (0, got.max_offset)
        return Response.PULL_NOT_FOUND if at_end else Response.PULL_OFFSET_MOVED
    return Response.PULL_OFFSET_MOVED
