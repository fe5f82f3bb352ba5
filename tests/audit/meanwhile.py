"""An engine during whose work something happens to the files."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from audit.engines.local import LocalEngine
from audit.engines.relate import LocalLog
from audit.reading.derived.index_files import IndexTask
from audit.tables import Task


class Meanwhile(LocalEngine):
    """Does ``act`` before each of the calls ``at``: digests, scan, index; or once, behind a scan."""

    def __init__(self, at: str, act: Callable[[], object]) -> None:
        super().__init__()
        self.at, self.act = at, act

    def _now(self, step: str) -> None:
        if step == self.at:
            self.act()

    def digests(self, tasks: list[Task]) -> pa.Table:
        self._now("digests")
        return super().digests(tasks)

    def scan(self, tasks: list[Task]) -> LocalLog:
        self._now("scan")
        scanned = super().scan(tasks)
        self._now("scanned")
        return scanned

    def index(self, tasks: list[IndexTask]) -> pa.Table:
        self._now("index")
        return super().index(tasks)
