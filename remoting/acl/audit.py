"""Who was refused, and who changed what? One line each in the log ``keelmq.audit``, and figures.

Of what a proven operator changed, or may have changed, no line is left out. Refusals have a rate for each
address, other acts one for each kind and user: a noisy one hides no other, what is left out is counted, and
the count is a line, too. No line shows a secret: of a request it has the names of topics, groups, brokers and
users, no values.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from model.acl.addresses import host_of
from model.codes import Request, Response, label_of, name_of
from remoting.auth import ACCESS_KEY, OF_OPERATORS
from remoting.codec import Command
from runtime.report.complaints import ComplaintsByKey

log = logging.getLogger("keelmq.audit")

_READS: Final = frozenset(
    {
        Request.AUTH_GET_USER,
        Request.AUTH_LIST_USER,
        Request.AUTH_GET_ACL,
        Request.AUTH_LIST_ACL,
        Request.GET_BROKER_CLUSTER_ACL_CONFIG,
        Request.GET_BROKER_CLUSTER_ACL_INFO,
    }
)
ACTS: Final = OF_OPERATORS - _READS
"""What an operator changes: topics, groups, offsets, settings, users, masters."""
_TOLD_WHOLE: Final = frozenset(
    {
        Request.AUTH_CREATE_ACL,
        Request.AUTH_UPDATE_ACL,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    }
)
"""What these change stands in their bodies, which hold no secret."""
_NAMES: Final = (
    "topic",
    "group",
    "groupName",
    "consumerGroup",
    "destGroup",
    "brokerName",
    "brokerId",
    "username",
    "subject",
    "resource",
    "accessKey",
    "key",
    "namespace",
    "clusterName",
)
_CHANGED_NOTHING: Final = frozenset(
    {
        Response.REQUEST_CODE_NOT_SUPPORTED,
        Response.INVALID_PARAMETER,
        Response.SUBSCRIPTION_GROUP_NOT_EXIST,
        Response.TOPIC_NOT_EXIST,
    }
)
"""Answered before anything is changed. After any other answer something may be: an act whose copies did not
come in time is SYSTEM_ERROR, one whose lease ended between its parts SERVICE_NOT_AVAILABLE."""
NAME_CHARS_MAX: Final = 128
WHY_CHARS_MAX: Final = 512
BODY_CHARS_MAX: Final = 1024
UNSIGNED: Final = "an unsigned request"


class Audit:
    """Of one server, all its ports."""

    def __init__(self, name: str, now_s: Callable[[], float]) -> None:
        self._name = name
        self._denials = ComplaintsByKey(log, now_s)
        self._acts = ComplaintsByKey(log, now_s)
        self.denied: Counter[str] = Counter()
        self.acts: Counter[str] = Counter()

    def on_denied(self, request: Command, remote: str, why: str, lacks: str = "") -> None:
        """``lacks``: the rights one of which would have been enough; no answer says it."""
        what, host = name_of(request.code), host_of(remote)
        self.denied[label_of(request.code)] += 1
        self._denials.warn(
            host,
            f"{self._name}: denied: requests from {_short(host)}",
            "%s: denied: %s from %s asked for %s: %s%s",
            self._name,
            who(request),
            remote,
            what,
            _short(why, WHY_CHARS_MAX),
            f" (needs {lacks})" if lacks else "",
        )

    def on_act(self, request: Command, remote: str, outcome: int, *, proven: bool = True) -> None:
        """An operator's request was answered with ``outcome`` (0: done). ``proven``: this server has a
        key of the peers or ACL on, and so nobody acts unproven, but by a white list of codes."""
        if request.code not in ACTS or not _by_operator(request):
            return
        what, user = label_of(request.code), who(request)
        self.acts[what] += 1
        names = ", ".join(f"{name}={_short(request.ext[name])}" for name in _NAMES if name in request.ext)
        if request.code in _TOLD_WHOLE and request.body:
            begin = request.body[: 4 * BODY_CHARS_MAX + 4].decode(errors="replace")
            names += (", " if names else "") + _short(begin, BODY_CHARS_MAX)
        done = "done" if outcome == 0 else f"answered {outcome}"
        text = "%s: act: %s from %s: %s%s: %s"
        values = (self._name, user, remote, name_of(request.code), f" ({names})" if names else "", done)
        if proven and outcome not in _CHANGED_NOTHING:
            log.warning(text, *values)
            return
        asking = user if proven else host_of(remote)
        about = f"{self._name}: act: {_short(asking)}: {name_of(request.code)}"
        self._acts.warn((request.code, asking), about, text, *values)

    def tell_left_out(self) -> None:
        """Called now and then: nothing may follow what was left out."""
        self._denials.tell_left_out()
        self._acts.tell_left_out()

    def status(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"denied": dict(sorted(self.denied.items())), "acts": dict(sorted(self.acts.items()))}


def who(request: Command) -> str:
    key = request.ext.get(ACCESS_KEY)
    return UNSIGNED if key is None else _short(key)


def _by_operator(request: Command) -> bool:
    """Brokers ask for an election, too; an operator names the one to elect."""
    if request.code != Request.CONTROLLER_ELECT_MASTER:
        return True
    return request.ext.get("designateElect", "").lower() == "true"


def _short(text: str, most: int = NAME_CHARS_MAX) -> str:
    """For a line in a log: no control characters, and not endless. Nothing behind its end is looked at: texts
    and bodies have megabytes."""
    begin = text[: most + 1]
    shown = begin if begin.isprintable() else repr(begin)
    return shown if len(shown) <= most else shown[:most] + "..."
