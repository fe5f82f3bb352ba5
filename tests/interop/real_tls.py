"""A real NameServer and broker that speak TLS."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from admin.local.layout import free_base_port
from chaos.worlds import rocketmq


@contextmanager
def java_options(options: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(rocketmq.JAVA_OPTIONS, options)
        yield


@contextmanager
def real_servers(directory: Path, options: str) -> Iterator[str]:
    """A real NameServer and broker; yields the NameServer's address. ``options`` are theirs, no client's."""
    port = free_base_port(30)
    namesrv = f"127.0.0.1:{port}"
    servers = [
        rocketmq.namesrv_node(directory / "ns", port),
        rocketmq.broker_node(
            directory / "b", port + 10, namesrv, mappedFileSizeCommitLog=1 << 20, **rocketmq.QUICK_BROKER
        ),
    ]
    try:
        for server in servers:
            with java_options(options):
                server.start()
            rocketmq.wait_until(server.name, partial(booted, server), 120)
        yield namesrv
    finally:
        for server in reversed(servers):
            server.stop(signal.SIGKILL)


def booted(server: rocketmq.Node) -> bool:
    return "boot success" in server.tail()
