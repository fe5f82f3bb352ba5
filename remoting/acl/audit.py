"""Who was refused, and who changed what? One line each in the log ``keelmq.audit``, and figures.

Of what a proven operator changed, or may have changed, no line is left out. Refusals have a rate for each
address, other acts one for each kind and user: a noisy one hides no other, what is left out is counted, and
the count is a line, too. No line shows a secret: it has those fields of a request that are listed here, of a
change of settings the keys, of one of a user what may be known of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from model.acl.addresses import host_of
from model.codes import Request, Response, label_of, name_of
from model.errors import PeerError
from remoting.auth import ACCESS_KEY, OF_OPERATORS
from remoting.codec import Command
from remoting.request_bodies import request_object
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
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Request.UPDATE_AND_CREATE_TOPIC_LIST,
        Request.SET_MESSAGE_REQUEST_MODE,
        Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        Request.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    }
)
"""What these change stands in their bodies, which hold no secret."""
_OF_SETTINGS: Final = frozenset(
    {
        Request.UPDATE_BROKER_CONFIG,
        Request.UPDATE_NAMESRV_CONFIG,
        Request.UPDATE_CONTROLLER_CONFIG,
    }
)
"""Their bodies are lines of key=value; a value may be a secret."""
_OF_USERS: Final = frozenset({Request.AUTH_CREATE_USER, Request.AUTH_UPDATE_USER})
_NAMES: Final = (
    "topic",
    "perm",
    "readQueueNums",
    "writeQueueNums",
    "queueId",
    "group",
    "groupName",
    "consumerGroup",
    "srcGroup",
    "destGroup",
    "timestamp",
    "offset",
    "readable",
    "msgId",
    "clientId",
    "brokerName",
    "brokerId",
    "brokerControllerIdsToClean",
    "isCleanLivingBroker",
    "maintenance",
    "controllerId",
    "toControllerId",
    "address",
    "raftAddress",
    "lost",
    "username",
    "subject",
    "policyType",
    "resource",
    "accessKey",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
    "whiteRemoteAddress",
    "globalWhiteAddrs",
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
        names = ", ".join((*_fields(request), *_of_body(request)))
        done = "done" if outcome == 0 else f"answered {outcome}"
        text = "%s: act: %s from %s: %s%s: %s"
        values = (self._name, user, remote, name_of(request.code), f" ({names})" if names else "", done)
        if proven and outcome not in _CHANGED_NOTHING:
            log.warning(text, *values)
            return
        asking = user if proven else host_of(remote)
        about = f"{self._name}: act: {_short(asking)}: {name_of(request.code)}"
        self._acts.warn((request.code, asking), about, text, *values)

    def on_configured_user(self, name: str, key: str) -> None:
        """A super user was made that nobody asked for at a port."""
        log.warning("%s: act: its configuration: made the super user %s (%s)", self._name, _short(name), key)

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


def _fields(request: Command) -> list[str]:
    return [f"{name}={_short(request.ext[name])}" for name in _NAMES if name in request.ext]


def _of_body(request: Command) -> list[str]:
    """What its body changes, without a secret."""
    if not request.body:
        return []
    if request.code in _OF_USERS:
        return _of_user(request)
    if request.code not in _TOLD_WHOLE | _OF_SETTINGS:
        return []
    begin = request.body[: 4 * BODY_CHARS_MAX + 4].decode(errors="replace")
    if request.code in _TOLD_WHOLE:
        return [_short(begin, BODY_CHARS_MAX)]
    # Of a long body the last line may be cut, in its key.
    lines = begin.splitlines()[: -1 if len(begin) < len(request.body) else None]
    keys = [line.partition("=")[0].strip() for line in lines if "=" in line and line[0] not in "#!"]
    return ["keys=" + _short(" ".join(keys), BODY_CHARS_MAX)]


def _of_user(request: Command) -> list[str]:
    """Its kind and status, and whether it is given a password."""
    if len(request.body) > BODY_CHARS_MAX:
        return []
    try:
        said = request_object(request)
    except PeerError:
        return []
    found = [f"{key}={_short(str(said[key]))}" for key in ("userType", "userStatus") if said.get(key)]
    return [*found, "password=***"] if said.get("password") else found


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
