"""The promise of docs/client/index.md: each block runs as it stands, and prints what it says."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import re
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.client.servers import Pair, run

PAGE = ROOT / "docs/client/index.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


async def printed(block: str, names: dict[str, Any]) -> list[str]:
    code = compile(block, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        done = await asyncio.to_thread(eval, code, names)  # the servers are on this loop
        if asyncio.iscoroutine(done):
            await done
    return out.getvalue().splitlines()


def test_each_block_prints_what_it_says(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) >= 6

    async def work(servers: Pair) -> None:
        names: dict[str, Any] = {"namesrv": servers.namesrv}
        for block in blocks:
            said = [line.removeprefix("# -> ") for line in block.splitlines() if line.startswith("# -> ")]
            assert said, block
            assert await printed(block, names) == said, block

    run(tmp_path, work, recall_message_enable=True)
