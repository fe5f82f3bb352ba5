"""What does a consumer want of a topic now, if it says that the broker knows less?

An official client renews the version of its subscriptions when its queues change, and leaves out the
heartbeat that would tell if another one is just on its way. The original then refuses its pulls
(SUBSCRIPTION_NOT_LATEST) until a heartbeat 20 to 30 s later. keelmq asks the client (code 307).
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from typing import Any, Final

from broker.context import BrokerContext
from broker.state.clients import Subscription
from model.codes import Request, Response
from model.errors import Refused, Unknown
from remoting.codec import Command
from remoting.service import Connection
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

ANSWER_S: Final = 3.0
ASKED_MAX: Final = 1000
"""Clients that are asked at once; the pulls of others are refused as the original's are."""
TOLD_BYTES_MAX: Final = 64 << 10
"""Of the subscriptions in an answer; its other parts, with a place for each queue, are not read."""
_SUBSCRIPTIONS: Final = b'"subscriptionSet":'
_READER: Final = json.JSONDecoder()


class Asking:
    """Asks consumers for their subscriptions; each for one group at a time."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._tasks = Tasks("asked consumers")
        self._asked: dict[tuple[Connection, str], asyncio.Task[list[Subscription]]] = {}

    async def renew(self, connection: Connection, group: str, topic: str) -> None:
        """Take over what the consumer on ``connection`` wants of ``topic``, if it is newer than what is
        known. Of a group it is a member of, and a topic the group has subscribed to: the heartbeat alone
        brings new ones."""
        clients = self._context.clients
        found = clients.consumers.get(group)
        member = found.members.get(connection) if found is not None else None
        if member is None:
            return
        key = (connection, group)
        if key not in self._asked:
            if len(self._asked) >= ASKED_MAX:
                return
            self._asked[key] = self._tasks.spawn(self._ask(connection, group, member.client_id), name="ask")
        # Pulls of all its queues wait for one answer; one of them that ends takes it from no other.
        wanted = await asyncio.shield(self._asked[key])
        for one in wanted:
            # As a heartbeat, which is what is made up for here.
            if one.topic == topic:
                with suppress(Refused):
                    clients.renew(group, one, bytes_max=self._context.config.client_bytes_max)

    async def _ask(self, connection: Connection, group: str, client_id: str) -> list[Subscription]:
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        try:
            connection.need_room(0)
            answer = await connection.call(Command(int(Request.GET_CONSUMER_RUNNING_INFO), ext), ANSWER_S)
            told = _told(answer.body) if answer.code == Response.SUCCESS else []
            for raw in told:
                Subscription.need_short(raw, self._context.config.subscription_bytes_max)
            return [Subscription.from_json(raw) for raw in told]
        except (Refused, Unknown, ConnectionError) as error:
            log.debug("consumer %s of %s was asked what it wants: %s", client_id, group, error)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            log.debug("consumer %s of %s said what is no subscription: %r", client_id, group, error)
        finally:
            del self._asked[connection, group]
        return []


def _told(body: bytes | bytearray | memoryview) -> list[Any]:
    """The subscriptions in ConsumerRunningInfo. Strict JSON, though the whole has objects as keys. Raises
    ValueError, or RecursionError."""
    text = bytes(body)
    at = text.find(_SUBSCRIPTIONS)
    if at < 0:
        return []
    at += len(_SUBSCRIPTIONS)
    found, _ = _READER.raw_decode(text[at : at + TOLD_BYTES_MAX].decode(errors="replace").lstrip())
    if not isinstance(found, list):
        raise ValueError("subscriptionSet is no list")
    return found
