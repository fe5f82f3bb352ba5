"""Does a Raft member keep up, and if not, with what?

``Watch`` notes when things happened, ``Progress`` is what status and metrics show of it, ``Vitals`` the
reason ``/healthz`` gives. Times are monotonic milliseconds given by the caller, indexes those of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

LATE_WINDOW_MS: Final = 60_000.0
STALLED_MS_MIN: Final = 3_000.0  # a tick comes at least every second, however little there is to do
UNMOVED_MS_MIN: Final = 10_000.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Beyond these a member is not healthy.

    ``stalled_ms``: age of its last tick. ``unmoved_ms``: for so long it applied nothing although it knows of
    more. ``lag_entries``: how much it knows of and has not applied.
    """

    stalled_ms: float
    unmoved_ms: float
    lag_entries: int

    @classmethod
    def of(cls, election_max_ms: float, compact_entries: int) -> Bounds:
        """Some election timeouts: nothing of this may be said of a member that only has slow peers. A member
        that lags by more than is kept between two compactions needs a snapshot."""
        return cls(
            stalled_ms=max(3 * election_max_ms, STALLED_MS_MIN),
            unmoved_ms=max(10 * election_max_ms, UNMOVED_MS_MIN),
            lag_entries=compact_entries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProgress:
    """Another member as its leader sees it. ``match_index``: up to here its log is known to be the leader's,
    0 = not known since the link is up. ``answer_age_ms``: None = it never answered this leader."""

    match_index: int
    lag_entries: int
    answer_age_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One member now. ``commit_index``: the highest it knows of, a follower from its leader's last word.
    ``unmoved_ms``: since when it is behind that and applied nothing, 0 = it is not behind.
    ``append_age_ms``: since a leader's last word; None on the leader, and where none was ever heard.
    ``peers``: on the leader. ``journal_bytes``: what is kept since the last snapshot.
    ``compaction_error``: why the last compaction did not happen; the member works on without."""

    applied_index: int
    commit_index: int
    unmoved_ms: float
    append_age_ms: float | None
    peers: dict[str, PeerProgress]
    journal_entries: int
    journal_bytes: int
    compaction_error: str | None

    @property
    def lag_entries(self) -> int:
        return max(self.commit_index - self.applied_index, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "appliedIndex": self.applied_index,
            "lagEntries": self.lag_entries,
            "unmovedMs": round(self.unmoved_ms),
            "appendAgeMs": _whole(self.append_age_ms),
            "peers": {
                name: {
                    "matchIndex": peer.match_index,
                    "lagEntries": peer.lag_entries,
                    "answerAgeMs": _whole(peer.answer_age_ms),
                }
                for name, peer in sorted(self.peers.items())
            },
            "journalEntries": self.journal_entries,
            "journalBytes": self.journal_bytes,
            "compactionError": self.compaction_error,
        }


@dataclass(slots=True)
class Watch:
    """When did what happen last?"""

    append_ms: float | None = None  # a leader's last word
    heard_ms: dict[str, float] = field(default_factory=dict)  # each peer's last answer, counted or not
    _applied: int = -1
    _moved_ms: float = 0.0

    def applied(self, now_ms: float, applied: int, known: int) -> None:
        """``applied`` entries are, ``known`` ones are committed: called whenever one of them may move."""
        if applied != self._applied or applied >= known:
            self._applied, self._moved_ms = applied, now_ms

    def unmoved_ms(self, now_ms: float, applied: int, known: int) -> float:
        return now_ms - self._moved_ms if applied < known and applied == self._applied else 0.0

    def answer_age_ms(self, peer: str, now_ms: float) -> float | None:
        at_ms = self.heard_ms.get(peer)
        return None if at_ms is None else now_ms - at_ms


@dataclass(slots=True)
class Pulse:
    """The ticks of one member: when was the last, and how late was the latest of them?"""

    _last_ms: float | None = None
    _worst_ms: float = 0.0
    _worst_before_ms: float = 0.0
    _window_ms: float | None = None

    def ticked(self, due_ms: float, now_ms: float) -> None:
        """A tick that was due at ``due_ms`` is done. What it took itself counts as well: a slow sync."""
        self._last_ms = now_ms
        if self._window_ms is None:
            self._window_ms = now_ms
        if now_ms - self._window_ms >= LATE_WINDOW_MS:
            stale = now_ms - self._window_ms >= 2 * LATE_WINDOW_MS
            self._worst_before_ms, self._worst_ms = (0.0 if stale else self._worst_ms), 0.0
            self._window_ms = now_ms
        self._worst_ms = max(self._worst_ms, now_ms - due_ms)

    def age_ms(self, now_ms: float) -> float | None:
        """Since the last tick; None before the first."""
        return None if self._last_ms is None else now_ms - self._last_ms

    @property
    def late_max_ms(self) -> float:
        """The latest tick of the last one to two ``LATE_WINDOW_MS``."""
        return max(self._worst_ms, self._worst_before_ms)


@dataclass(slots=True)
class Vitals:
    """The ticks of a member and the bounds it is measured by."""

    bounds: Bounds
    pulse: Pulse = field(default_factory=Pulse)

    def stalled(self, now_ms: float) -> str | None:
        return stalled(self.pulse.age_ms(now_ms), self.bounds)

    def behind(self, progress: Progress | None) -> str | None:
        return None if progress is None else behind(progress, self.bounds)

    def to_json(self, now_ms: float, progress: Progress | None) -> dict[str, Any]:
        """What ``/status`` shows in ``raft`` (docs/raft.md)."""
        return {
            "tickAgeMs": _whole(self.pulse.age_ms(now_ms)),
            "tickLateMaxMs": round(self.pulse.late_max_ms),
            **({} if progress is None else progress.to_json()),
        }


def stalled(tick_age_ms: float | None, bounds: Bounds) -> str | None:
    """Why this member can be in no agreement: nothing moves it."""
    if tick_age_ms is None or tick_age_ms <= bounds.stalled_ms:
        return None
    return f"Raft stands still: its last tick was {tick_age_ms:.0f} ms ago (at most {bounds.stalled_ms:.0f})"


def behind(progress: Progress, bounds: Bounds) -> str | None:
    """Why a member that has a leader does not have what its group decided."""
    lag = progress.lag_entries
    if lag > bounds.lag_entries:
        return f"{lag} decisions behind (at most {bounds.lag_entries})"
    if progress.unmoved_ms > bounds.unmoved_ms:
        return (
            f"{lag} decisions behind, and none was applied for {progress.unmoved_ms:.0f} ms "
            f"(at most {bounds.unmoved_ms:.0f})"
        )
    return None


def _whole(value_ms: float | None) -> int | None:
    return None if value_ms is None else round(value_ms)
