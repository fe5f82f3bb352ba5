"""The console in a real browser: at two widths, light and dark, with its own script and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.console.drills import Drills
from runtime.os_env import OsEnv
from tests.admin.console.served import MadeUp, served
from tests.browser import CONTRAST, WIDTHS, browser

PAGES = ("", "topics", "topic?name=orders", "consumers", "consumer?name=g", "messages?topic=orders")
MORE = ("message?topic=orders&queue=broker-a/0&offset=41", "handover?group=broker-a", "drills")


@pytest.mark.more
async def test_pages_fit_are_readable_and_run_only_the_consoles_script(tmp_path: Path) -> None:
    cluster = MadeUp()
    drills = Drills(OsEnv(), tmp_path)
    async with (
        served(cluster, every_s=0.5, reports=tmp_path, drills=drills) as url,
        browser(tmp_path) as page,
    ):
        for width in WIDTHS:
            for dark in (False, True):
                for path in (*PAGES, *MORE):
                    await page.show(url + path, width, dark)
                    where = f"{path} at {width}, {'dark' if dark else 'light'}"
                    assert await page.run("document.documentElement.scrollWidth <= innerWidth"), where
                    assert await page.run(CONTRAST) == [], where
                    assert "keelmq" in await page.run("document.title"), where
        assert page.complaints == []


@pytest.mark.more
async def test_the_map_is_drawn_again_and_keeps_the_focus(tmp_path: Path) -> None:
    cluster = MadeUp()
    async with served(cluster, every_s=0.5) as url, browser(tmp_path) as page:
        await page.show(url, 1280, False)
        await page.run(
            "document.getElementById('to-1').focus(), window.former = document.querySelector('time'), 1"
        )
        script = "new Promise((done) => { const look = () => former.isConnected ? setTimeout(look, 50) : "
        await page.run(script + "done(1); look(); })")
        assert await page.run("document.activeElement.id") == "to-1"
        assert cluster.looks >= 2
        assert page.complaints == []
