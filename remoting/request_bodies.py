"""What does the body of a request say that is JSON, and how long may it be?

One rule for every server: the gate and each handler read a body with ``request_object`` or ``request_value``,
which look at the bound of its code first. A code that is not listed has the bound of ``bodies.REQUEST``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from model.codes import Request
from remoting.bodies import REQUEST, Bound, loads, loads_object
from remoting.codec import FRAME_BYTES_MAX, Command
from runtime.turns import Slice

LOCKS: Final = Bound(2 << 20)  # maxQueuesInLock of 512 bytes
HEARTBEAT: Final = Bound(2 << 20)  # the broker's maxHeartbeatBytes is looked at beside it
TABLE: Final = Bound(4 << 20)
"""What operators change at once: topics, groups, policies."""
REGISTRATION: Final = Bound(FRAME_BYTES_MAX, tokens=None, odd=FRAME_BYTES_MAX, slow=0)
"""A broker's whole table of topics: 20,000 take 3 MB and 400,000 tokens. It has no object keys. The
NameServer reads it in slices (``long_objects``), not by this bound."""

BOUNDS: Final[Mapping[int, Bound]] = {
    Request.HEART_BEAT: HEARTBEAT,
    Request.LOCK_BATCH_MQ: LOCKS,
    Request.UNLOCK_BATCH_MQ: LOCKS,
    Request.BATCH_ACK_MESSAGE: Bound(1 << 20),
    Request.UPDATE_AND_CREATE_TOPIC_LIST: TABLE,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: TABLE,
    Request.AUTH_CREATE_ACL: TABLE,
    Request.AUTH_UPDATE_ACL: TABLE,
    Request.CONTROLLER_GET_SYNC_STATE_DATA: Bound(1 << 20),
    Request.REGISTER_BROKER: REGISTRATION,
}


def bound_of(code: int) -> Bound:
    return BOUNDS.get(code, REQUEST)


def request_value(request: Command) -> Any:
    """Raises PeerError."""
    return loads(request.body, bound_of(request.code))


def request_object(request: Command) -> dict[str, Any]:
    """Raises PeerError."""
    return loads_object(request.body, bound_of(request.code))


async def long_request_object(request: Command, slice_: Slice) -> dict[str, Any]:
    """As ``request_object``, looked at and parsed in slices of their own: 1 MiB takes 4 ms each. Raises as
    ``slice_``, too."""
    bound = bound_of(request.code)
    bound.check(request.body)
    await slice_.breathe()
    found = loads_object(request.body, bound.checked())
    await slice_.breathe()
    return found
