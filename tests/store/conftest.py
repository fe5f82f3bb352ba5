"""Every step of every store test leaves the store's promises whole."""

from __future__ import annotations

from typing import Any

import pytest

from store.flow.dispatching.dispatch import Dispatcher
from store.message_store import MessageStore

STEPS = (
    "append",
    "put",
    "append_raw",
    "confirm",
    "truncate",
    "truncate_partial_tail",
    "reset",
)


@pytest.fixture(autouse=True)
def _promises_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STEPS:
        _check_after(monkeypatch, MessageStore, name)
    _check_after(monkeypatch, Dispatcher, "step")


def _check_after(monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str) -> None:
    original = getattr(owner, name)

    def checked(self: Any, *args: Any, **named: Any) -> Any:
        result = original(self, *args, **named)
        self.check_invariants()
        if name in ("append", "put"):
            self.writer.offsets.check_none_given_twice()
        return result

    monkeypatch.setattr(owner, name, checked)
