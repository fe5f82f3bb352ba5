"""A local cluster whose processes are names: for what sends them signals and looks at them."""

from __future__ import annotations

import signal
from pathlib import Path

from admin.local.cluster import LocalCluster
from admin.local.layout import Layout, Node


class FakeCluster(LocalCluster):
    """Every server runs, and obeys its signals at once but those that end it: ``stops_after`` looks later."""

    def __init__(self, directory: Path, stops_after: int = 0) -> None:
        super().__init__(directory, Layout.make(base_port=20_000))
        self.running = {node.name: 10**9 for node in self.layout.nodes}
        self.sent: list[tuple[str, int]] = []
        self.started: list[str] = []
        self._stops_after = stops_after

    def is_running(self, node: Node) -> bool:
        self.running[node.name] = max(0, self.running[node.name] - 1)
        return self.running[node.name] > 0

    def send_signal(self, node: Node, number: int) -> bool:
        if not self.running[node.name]:
            return False
        self.sent.append((node.name, number))
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.running[node.name] = self._stops_after
        return True

    def start(self, node: Node) -> None:
        assert not self.running[node.name], "a port and a lock are free only when the process is gone"
        self.running[node.name] = 10**9
        self.started.append(node.name)
