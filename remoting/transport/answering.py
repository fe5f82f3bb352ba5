"""What is a request answered with? May its sender ask, what does the handler say, and what if it raises?

Whatever a handler raises is an answer: a connection goes on after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from model.codes import Response, name_of
from model.errors import PeerError, Refused
from remoting.acl.audit import ACTS
from remoting.acl.gate import Admission
from remoting.codec import Command
from remoting.guard import Guard, Weighed
from remoting.keys import Signer
from remoting.long_bodies import LOOKED_AT_BYTES
from remoting.transport.calls import unsupported
from remoting.transport.order import Place
from runtime.turns import PeerLeft

GO_AWAY_VERSION: Final = 475  # clients up to this one (5.3.1) do not know GO_AWAY


class Asking(Weighed, Protocol):
    """The connection a request came on. ``address``: where this side dialled; empty: the other side did."""

    address: str


C = TypeVar("C", bound=Asking)
Handler = Callable[[C, Command], Awaitable[Command | None]]


class Answering(Protocol[C]):
    """The server or client that is asked."""

    name: str
    guard: Guard
    handler: Handler[C] | None
    credentials: Signer | None
    going_away: bool


async def answer_to(
    asked: Answering[C], connection: C, request: Command, place: Place | None = None
) -> Command | None:
    """None: there is none, or the handler sends it itself. ``place``: of a send. Raises PeerLeft."""
    if asked.going_away and request.version > GO_AWAY_VERSION and not request.is_oneway:
        return request.reply(Response.GO_AWAY, remark="this server is going away: connect elsewhere")
    if asked.handler is None:
        return request.reply(Response.REQUEST_CODE_NOT_SUPPORTED, remark=unsupported(request).remark)
    try:
        if len(request.body) > LOOKED_AT_BYTES:
            await asked.guard.weigh(connection, request, asked.credentials)
        if place is not None and not place.is_first:
            await place.comes_first()
            if connection.closed:
                raise PeerLeft  # the ones before it were perhaps not stored, and will be sent anew
        _admit(asked, connection, request)
    except Refused as refused:
        return _refusal(request, refused)
    if place is not None:
        place.passes()
    answer = await _handled(asked, asked.handler, connection, request)
    if request.code in ACTS:
        asked.guard.on_act(request, connection.remote, answer, asked.credentials)
    return answer


async def _handled(
    asked: Answering[C], handler: Handler[C], connection: C, request: Command
) -> Command | None:
    try:
        return await handler(connection, request)
    except Refused as refused:
        return _refusal(request, refused)
    except PeerError as error:
        # A body that is not what the request needs; the frames are whole, so the peer may go on.
        what, remote = name_of(request.code), connection.remote
        asked.guard.complaints.warn("%s: %s from %s: %s", asked.name, what, remote, error)
        return request.reply(Response.SYSTEM_ERROR, remark=str(error))
    except Exception as error:
        what, remote = name_of(request.code), connection.remote
        asked.guard.complaints.log_of_mistakes.exception("%s: %s from %s failed", asked.name, what, remote)
        return request.reply(Response.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def _refusal(request: Command, refused: Refused) -> Command:
    """Where a function raises what it has in a name, the two hold each other, and the request, until Python
    looks for garbage."""
    refused.__traceback__ = None
    return request.reply(refused.code, remark=refused.remark)


def _admit(asked: Answering[C], connection: C, request: Command) -> None:
    """Raises Refused, when the request is not for its sender."""
    guard, credentials = asked.guard, asked.credentials
    admission = Admission.CLIENT
    # On a connection of this side's own making, it chose who asks.
    if guard.gate is not None and not connection.address:
        admission = guard.gate.check(request, connection.remote, credentials)
    if credentials is not None and admission is not Admission.RIGHT:
        guard.need_signature(connection, request, credentials)
    guard.on_request(connection, request, credentials)
