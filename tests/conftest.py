"""Which tests share a worker: those that share a cluster, the real RocketMQ or a Spark session.

A test that failed while the machine stood still is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.stand_still import Plugin

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# How long an example takes says how busy the machine is, and nothing about the promise.
settings.register_profile("keelmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("keelmq")

STAND_STILL = "stand-still"
ONE_WORKER = ("tests/interop/", "tests/live/", "tests/audit/test_spark", "tests/cli/test_demo")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        """Every test goes wherever a worker is free, except the folders that start something costly."""

        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in ONE_WORKER if nodeid.startswith(folder)), nodeid)

    return ByFolder(config, log)


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(STAND_STILL):
        config.pluginmanager.register(Plugin(), STAND_STILL)
