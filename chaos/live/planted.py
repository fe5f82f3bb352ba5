"""A server with a mistake planted into it: would the checks of live runs notice?

python -P -m chaos.live.planted BUG COMMAND...    COMMAND: what starts a server, ``python -P -m MODULE ...``
"""

from __future__ import annotations

import runpy
import sys

from chaos.bugs import planted
from model.installed import module_name


def wrap(bug: str) -> list[str]:
    """The command that is put before a server's own."""
    return [sys.executable, "-P", "-m", module_name("chaos.live.planted"), bug]


def main() -> None:
    bug, *command = sys.argv[1:]
    at = command.index("-m") + 1
    sys.argv = command[at:]
    with planted(bug):
        runpy.run_module(command[at], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
