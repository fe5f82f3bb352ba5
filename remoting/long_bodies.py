"""How is a signature over megabytes looked at, when anybody may name a key and so ask for it?

Whoever names a key makes the server compute a MAC over the whole body, before anything is proven. So a body
that is longer than any request of its code is refused first, and the MAC over more than ``SLICED_BYTES`` is
computed in slices, one body after the other: those of connections that proved a key before wait for each
other alone. What is found is kept with the request (``auth.is_signed``): who asks again has it for nothing.

A message that is too long is refused here, too, signed or not: it is to wait for nothing, and nobody for it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterable
from typing import Final

from model.codes import Request, Response, name_of
from model.errors import Refused
from remoting.auth import Scheme, kept_as
from remoting.codec import Command
from remoting.request_bodies import bound_of
from remoting.slices import loop_slice
from runtime.turns import Peer, PeerLeft

LOOKED_AT_BYTES: Final = 64 << 10
"""Shorter bodies take no look."""
SLICED_BYTES: Final = 4 << 20
"""A MAC of so much takes 3 ms, 10 ms without a processor's help, and requests up to it begin in order."""
STEP_BYTES: Final = 256 << 10
_MESSAGES: Final = frozenset(
    {
        Request.SEND_MESSAGE,
        Request.SEND_MESSAGE_V2,
        Request.SEND_BATCH_MESSAGE,
        Request.SEND_REPLY_MESSAGE,
        Request.SEND_REPLY_MESSAGE_V2,
    }
)
"""Their bodies are messages: maxMessageSize bounds them (``need_message``)."""


class LongBodies:
    """Of one server. ``need_message``: raises Refused for a message with a body of so many bytes."""

    def __init__(self) -> None:
        self.need_message: Callable[[int], None] = lambda size: None
        self._busy = {proven: asyncio.Lock() for proven in (False, True)}

    async def weigh(
        self, peer: Peer, request: Command, secrets: list[tuple[Scheme, str]], *, proven: bool
    ) -> None:
        """Look at a long body before its signature is: ``secrets`` are those it may be signed with. Raises
        Refused, and PeerLeft."""
        if request.code in _MESSAGES:
            self.need_message(len(request.body))
        if secrets:
            self.need_bounded(request)
            await self.prepare(peer, request, secrets, proven=proven)

    def need_bounded(self, request: Command) -> None:
        """Raises Refused (SYSTEM_ERROR) when no request of this code has so long a body."""
        if request.code in _MESSAGES:
            return
        most = bound_of(request.code).size
        if most is not None and len(request.body) > most:
            text = (
                f"{name_of(request.code)}: the body has {len(request.body)} bytes, at most {most} are taken"
            )
            raise Refused(text, Response.SYSTEM_ERROR)

    async def prepare(
        self, peer: Peer, request: Command, wanted: Iterable[tuple[Scheme, str]], *, proven: bool
    ) -> None:
        """Compute what the signatures of a long body have to be, for these secrets. Raises PeerLeft."""
        if len(request.body) <= SLICED_BYTES:
            return
        async with self._busy[proven]:
            slice_ = loop_slice()
            for scheme, secret in dict.fromkeys(wanted):
                mac = hmac.new(secret.encode(), scheme.before_body(request), scheme.digest)
                with memoryview(request.body) as view:
                    for at in range(0, len(view), STEP_BYTES):
                        if peer.closed:
                            raise PeerLeft
                        mac.update(view[at : at + STEP_BYTES])
                        await slice_.breathe()
                kept_as(request, scheme, secret, mac.digest())
