"""May a master that lives and cannot serve be replaced, and how often?

It asks for that itself (decision 14). The election goes on as if it were dead, or as if an operator had named
its successor, and is held only if the one chosen can do better. Two that cannot serve would otherwise hand
the group to each other for ever, so there is a pause between two, and it grows.

Pure: times are monotonic milliseconds, given by the caller.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from controller.elections.preview import ElectionRequest
from controller.groups.group import Group

PAUSE_MS: Final = 2_000.0
"""Short: a second fault that soon is mostly another one, not a group that hands itself around."""

PAUSE_MAX_MS: Final = 300_000.0
QUIET: Final = 4
"""After so many pauses without a step down the next pause is the first one again. A refused master asks
again by doubling times, up to twice the pause: that still counts as going on."""


class StepDowns:
    """When masters of each group stepped down last, as far as this leader of the Controllers knows."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}  # group -> (when, pause after it), ms

    def why_not_now(self, group: str, now_ms: float) -> str | None:
        """Why no master of this group may step down now, or None."""
        at_ms, pause_ms = self._last.get(group, (now_ms, 0.0))
        left_ms = at_ms + pause_ms - now_ms
        text = f"a master of {group} stepped down lately; not again for {left_ms:.0f} ms"
        return text if left_ms > 0 else None

    def note(self, group: str, now_ms: float) -> None:
        """One is replaced now. The pause doubles unless the group was quiet for ``QUIET`` pauses."""
        at_ms, pause_ms = self._last.get(group, (now_ms, 0.0))
        again = pause_ms > 0 and now_ms < at_ms + QUIET * pause_ms
        self._last[group] = now_ms, min(2 * pause_ms, PAUSE_MAX_MS) if again else PAUSE_MS


def why_not_for(
    group: Group,
    request: ElectionRequest,
    chosen: int | None,
    answered: Collection[int],
    full: Collection[int],
) -> str | None:
    """Why the living master is not replaced by ``chosen``; None = it is. ``answered``: said how far their
    logs are. ``full``: take no messages either."""
    able = [i for i in answered if i != group.master and i not in full]
    if chosen not in able:
        return (
            f"broker {chosen} would be elected and {'takes no messages' if chosen in full else 'is silent'}"
        )
    if len(able) < request.needed:
        return f"{len(able)} other brokers answer, and an acknowledgement needs {request.needed} copies"
    silent = [i for i in group.members if i != group.master and i not in answered]
    if silent and not group.majority_of and not (group.rule is not None and group.rule.all_ack):
        return f"broker {silent[0]} does not say how far its log is, and may have what others lack"
    return None
