"""How is a timer message taken back before its time?"""

from __future__ import annotations

from abc import ABC
from typing import Final

from client.lifecycle import Lifecycle
from client.message import NoMaster
from client.session import Session
from model.codes import Request, Response
from model.errors import MqError
from model.recall import RecallHandle

TRIES: Final = 3
CHANGED_S: Final = 2.0


class Recalling(Lifecycle, ABC):
    """The part of a producer that recalls."""

    group: str
    session: Session

    async def recall(self, topic: str, handle: str) -> str:
        """Take back the message that ``SendResult.recall_handle`` names; returns its id. Asking twice does no
        harm. Raises Refused (its time has come, or the broker allows none), NoMaster, Unknown, OSError."""
        routes = self.session.routes
        broker_name = RecallHandle.decode(handle, Response.ILLEGAL_OPERATION).broker_name
        ext = {"topic": topic, "recallHandle": handle, "producerGroup": self.group}
        for last in (False,) * (TRIES - 1) + (True,):
            address = (await routes.get(topic)).master(broker_name)
            if address is None and last:
                raise NoMaster(f"{broker_name} has no master now")
            if address is not None:
                try:
                    answer = await self.session.call(address, Request.RECALL_MESSAGE, ext)
                    return answer.ext.get("msgId", "")
                except (MqError, OSError) as error:
                    if last or getattr(error, "code", None) not in _ELSEWHERE:
                        raise
                    routes.suspect(address)
            await routes.changed(topic, CHANGED_S)
        raise AssertionError("the last try ends it")


_ELSEWHERE: Final = (
    None,  # no answer
    Response.SLAVE_NOT_AVAILABLE,
    Response.SERVICE_NOT_AVAILABLE,
    Response.SYSTEM_BUSY,
)
"""Answers after which the master may be another one by now."""
