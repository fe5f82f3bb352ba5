"""The console in a real browser: at two widths, light and dark, with its own script and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.console.drills import Drills
from runtime.os_env import OsEnv
from tests.admin.console.served import MadeUp, served
from tests.browser import browser

WIDTHS = (1280, 390)
PAGES = ("", "topics", "topic?name=orders", "consumers", "consumer?name=g", "messages?topic=orders")
MORE = ("message?topic=orders&queue=broker-a/0&offset=41", "handover?group=broker-a", "drills")
CONTRAST = """
(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((v) => {
      const part = v / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  for (const one of document.querySelectorAll("body *")) {
    const says = [...one.childNodes].some((part) => part.nodeType === 3 && part.data.trim());
    if (!says || !one.checkVisibility()) continue;
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(one.outerHTML.slice(0, 80));
  }
  return poor;
})()
"""


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
