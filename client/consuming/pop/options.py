"""What an application may choose of a consumer that pops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from client.checking import need_counts, need_least
from client.session import POLL_MS
from client.spans import NO_SPANS, Spans
from remoting.keys import Signer


@dataclass(frozen=True, slots=True, kw_only=True)
class PopOptions:
    """``invisible_s``: a message that is not acknowledged for so long comes to another member. While it is
    here it is kept for longer, ``keep_s`` at most. ``concurrency`` calls at once, ``batch_max`` messages per
    call. In hand are ``held_max`` messages at most, and about ``held_bytes_max`` bytes (and an answer of 4
    MiB for each topic and group of brokers). ``from_first``: where a new group begins.

    A message that was not handled comes again after ``retry_after_s``: the first value after its first
    failure, the last one after all others. ``retry_max``: after so many returns it goes to the dead letters.
    ``poll_s``: a pop waits so long for messages. ``grace_s``: ``stop`` waits so long for calls under way.
    ``trace``, ``spans``, ``credentials`` and ``poll_ms`` are as in ``ConsumeOptions``.
    """

    invisible_s: float = 60.0
    keep_s: float = 3600.0
    concurrency: int = 16
    batch_max: int = 1
    held_max: int = 128
    held_bytes_max: int = 32 << 20
    from_first: bool = False
    retry_after_s: Sequence[float] = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200)
    retry_max: int = 16
    poll_s: float = 15.0
    grace_s: float = 3.0
    poll_ms: int = POLL_MS
    trace: bool = False
    spans: Spans = NO_SPANS
    credentials: Signer | None = None

    def __post_init__(self) -> None:
        need_counts(self)
        need_least(1, invisible_s=self.invisible_s)
        need_least(0, retry_max=self.retry_max, keep_s=self.keep_s, poll_s=self.poll_s, grace_s=self.grace_s)
        if not self.retry_after_s:
            raise ValueError("retry_after_s has one value at least")
        for after_s in self.retry_after_s:
            need_least(0, retry_after_s=after_s)

    def retry_after_ms(self, failures: int) -> int:
        """How long after its ``failures``-th failure (from 1) a message stays hidden."""
        return int(self.retry_after_s[min(failures, len(self.retry_after_s)) - 1] * 1000)
