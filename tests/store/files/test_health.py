"""The promise of store.files.health: why no write is taken is said as long as it is so."""

from __future__ import annotations

import errno

from store.files.health import Health


def test_why_no_write_is_taken_follows_what_comes_and_goes() -> None:
    health = Health()
    assert health.why_not_writable is None
    health.full("ratio", "the disk is 95 % full")
    health.failed(OSError(errno.ENOSPC, "no space left"), "writing")
    assert health.why_not_writable == "the disk is 95 % full"
    health.room("ratio")
    assert health.why_not_writable == "writing failed: no space left"
    health.room("writing")
    assert health.why_not_writable is None
    health.failed(OSError(errno.ENOSPC, "no space left"), "a sync", sync=True)
    health.full("ratio", "the disk is 95 % full")
    health.room("ratio")
    assert health.why_not_writable == health.broken == "a sync failed: no space left"
