"""A headless Chromium for tests of pages: what a page looks like at a width, asked by a script within it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.browser import chromium

_TOLD: Final = re.compile(r'<pre id="told">(.*?)</pre>', re.DOTALL)
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
)


def ask(page: Path, script: str, *, width: int, scratch: Path) -> Any:
    """What ``script``, a function's body, returns at the end of the page, in a window so wide, in pixels."""
    told = f"(() => {{ {script} }})()"
    node = "const p = document.createElement('pre'); p.id = 'told'; document.body.append(p);"
    tail = f"<script>{{ const found = {told}; {node} p.textContent = JSON.stringify(found); }}</script>"
    copy = scratch / f"asked-{width}.html"
    copy.write_text(page.read_text().replace("</body>", f"{tail}</body>"))
    command = [chromium(), *_FLAGS, f"--user-data-dir={scratch / 'profile'}", f"--window-size={width},2000"]
    done = subprocess.run(
        [*command, "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    found = _TOLD.search(done.stdout)
    assert found is not None, done.stderr[-2000:]
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
