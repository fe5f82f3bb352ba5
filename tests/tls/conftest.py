"""One site for the tests that change nothing of it."""

from __future__ import annotations

import pytest

from tests.tls.site import LOOPS, Site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Of another authority."""
    return Site(tmp_path_factory.mktemp("strangers"), "strangers")


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    """Both loops a server runs on."""
    name: str = request.param
    return name
