"""Which lines did a test's servers log, but for those that tell how fast the machine is?

On a busy machine any turn of an event loop may be slow, and that is logged wherever it happens. A test that
counts lines is not about it.
"""

from __future__ import annotations

from logging import LogRecord
from typing import Final

import pytest

OF_THE_MACHINE: Final = ("runtime.report.slow_turns", "runtime.report.slow_requests", "admin.host.loop_delay")


def lines_of(caplog: pytest.LogCaptureFixture) -> list[LogRecord]:
    """What was logged so far, without the lines of a slow machine."""
    return [record for record in caplog.records if record.name not in OF_THE_MACHINE]
