"""Who was refused, and who changed what? One line each in the log ``keelmq.audit``, and figures.

A flood of refusals is lines at a bounded rate, and counted whole. No line shows a secret: of a request it has
the names of topics, groups, brokers and users, no values.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from model.codes import Request, label_of, name_of
from remoting.auth import ACCESS_KEY, OF_OPERATORS
from remoting.codec import Command
from runtime.complaints import Complaints

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
NAME_CHARS_MAX: Final = 128
UNSIGNED: Final = "an unsigned request"


class Audit:
    """Of one server, all its ports."""

    def __init__(self, name: str, now_s: Callable[[], float]) -> None:
        self._name = name
        self._denials = Complaints(log, now_s)
        self._acts = Complaints(log, now_s)
        self.denied: Counter[str] = Counter()
        self.acts: Counter[str] = Counter()

    def on_denied(self, request: Command, remote: str, why: str) -> None:
        what = name_of(request.code)
        self.denied[label_of(request.code)] += 1
        self._denials.warn(
            "%s: denied: %s from %s asked for %s: %s", self._name, who(request), remote, what, _short(why)
        )

    def on_act(self, request: Command, remote: str, outcome: int) -> None:
        """An operator's request was answered with ``outcome`` (0: done)."""
        if request.code not in ACTS or not _by_operator(request):
            return
        what = name_of(request.code)
        self.acts[label_of(request.code)] += 1
        names = ", ".join(f"{name}={_short(request.ext[name])}" for name in _NAMES if name in request.ext)
        done = "done" if outcome == 0 else f"answered {outcome}"
        self._acts.warn(
            "%s: act: %s from %s: %s%s: %s",
            self._name,
            who(request),
            remote,
            what,
            f" ({names})" if names else "",
            done,
        )

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


def _short(text: str) -> str:
    """For a line in a log: no control characters, and not endless."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= NAME_CHARS_MAX else text[:NAME_CHARS_MAX] + "..."
