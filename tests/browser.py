"""A headless Chromium, driven over its DevTools port, for tests that look at pages; where there is none they
are skipped."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
VARIABLE: Final = "KEELMQ_CHROMIUM"
START_S: Final = 60.0
SWITCHES: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


WIDTHS: Final = (1280, 390)
CONTRAST: Final = """
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
"""What on a page has less than 4.5 : 1 between its text and what is behind it."""


class Page:
    """One tab. ``complaints``: what scripts threw and what the Content-Security-Policy refused."""

    def __init__(self, link: aiohttp.ClientWebSocketResponse) -> None:
        self._link = link
        self._asked = 0
        self.complaints: list[str] = []
        self._loaded: set[str] = set()

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Its answer; events that come meanwhile are noted. Raises AssertionError for an error."""
        self._asked += 1
        await self._link.send_str(json.dumps({"id": self._asked, "method": method, "params": params}))
        while True:
            said = await self._hear()
            if said.get("id") == self._asked:
                assert "error" not in said, said
                found = said["result"]
                assert isinstance(found, dict)
                return found

    async def _hear(self) -> dict[str, Any]:
        said = json.loads(await self._link.receive_str())
        assert isinstance(said, dict)
        params = said.get("params", {})
        if said.get("method") == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
        entry = params.get("entry", {})
        if said.get("method") == "Runtime.exceptionThrown" or entry.get("level") == "error":
            self.complaints.append(json.dumps(params)[:500])
        return said

    async def show(self, url: str, width: int, dark: bool) -> None:
        """Load a page at a width in CSS pixels; returns when it is there."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])
        loader = (await self.ask("Page.navigate", url=url))["loaderId"]
        while loader not in self._loaded:
            await self._hear()

    async def run(self, script: str) -> Any:
        """The value of an expression; a promise is waited for."""
        found = await self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def shot(self, path: Path) -> None:
        """The whole page as a PNG."""
        found = await self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


def chromium() -> str:
    """Where it is; skips the test when there is none."""
    found = os.environ.get(VARIABLE) or next((p for n in NAMES if (p := shutil.which(n))), "")
    if not found:
        pytest.skip(f"no Chromium here: install one, or name it in {VARIABLE}")
    return found


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Page]:
    """A tab of a Chromium of its own, whose profile is in ``profile``."""
    where = chromium()
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        where, *SWITCHES, f"--user-data-dir={profile}", "about:blank", stdout=quiet, stderr=quiet
    )
    try:
        async with asyncio.timeout(START_S):
            while not (told := _told(profile / "DevToolsActivePort")):
                assert process.returncode is None, f"{where} ended with {process.returncode}"
                await asyncio.sleep(0.05)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{told}/json/list") as answer:
                tabs = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as link:
                page = Page(link)
                for domain in ("Page", "Runtime", "Log"):
                    await page.ask(f"{domain}.enable")
                await page.ask("Page.setLifecycleEventsEnabled", enabled=True)
                yield page
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _told(path: Path) -> str:
    """The port that it chose, once it has."""
    try:
        port, _, rest = path.read_text().partition("\n")
    except OSError:
        return ""
    return port if rest.strip() else ""
