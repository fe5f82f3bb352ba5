"""Which objects of a simulated process hold invariants, and are checked while it runs?

Every class of our servers that has ``check_invariants``: an instance made inside a simulated process is
checked after each instant in which that process ran. The first broken invariant stops the world, at its
virtual time; a check of the whole history at the end would only know that it came to grief somewhere.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from chaos.sim.loop import current_life
from model.installed import PREFIX

PACKAGES: Final = frozenset({"store", "ha", "controller", "broker", "namesrv", "client", "remoting"})
METHOD: Final = "check_invariants"
_WATCHED: Final = "_checked_in_simulation"


def watch_servers() -> None:
    """Watch every class with invariants that is imported by now. May be called again."""
    for name, module in list(sys.modules.items()):
        if name.removeprefix(PREFIX).partition(".")[0] not in PACKAGES:
            continue
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == name and hasattr(value, METHOD):
                watch(value)


def watch(kind: type) -> None:
    """Have instances of exactly this class checked when they are made inside a simulated process."""
    if _WATCHED in vars(kind) or getattr(kind, "_is_protocol", False):
        return
    init: Any = kind.__init__  # type: ignore[misc]  # of this class or one below: it is called as it would be

    @functools.wraps(init)
    def made(self: Any, *arguments: Any, **keywords: Any) -> None:
        init(self, *arguments, **keywords)
        life = current_life()
        if life is not None and type(self) is kind and hasattr(self, METHOD):
            life.watch(self)

    setattr(kind, "__init__", made)  # noqa: B010  # mypy forbids the assignment
    setattr(kind, _WATCHED, True)
