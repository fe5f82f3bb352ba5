"""How does a call of the program's listener end? Handled, or not; only we break it off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from client.message import Received
from client.trace import Listener

log = logging.getLogger(__name__)

FAILURES: Final = (Exception, asyncio.CancelledError)
"""How a listener fails: by the program's own error, whatever it is. What it awaits may have been cancelled
elsewhere; for a cancellation that we asked for, see ``raise_if_asked``."""


def raise_if_asked(error: BaseException) -> None:
    """Raise ``error`` when it is a cancellation of this very task: then it is no failure of the listener."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


async def is_taken(listener: Listener, messages: Sequence[Received]) -> bool:
    """Whether ``listener`` handled them. Its failures are logged: the messages come again."""
    try:
        return await listener(list(messages)) is not False
    except FAILURES as error:
        raise_if_asked(error)
        log.exception("listener failed on %s", [message.msg_id for message in messages])
        return False
