"""The promise of flow/dispatching/arrivals: a hook hears while it listens, and may end that."""

from __future__ import annotations

from collections.abc import Sequence

from store.flow.dispatching.arrivals import Arrival, Listening, OnArrive


def test_a_hook_hears_from_begin_to_end_only() -> None:
    hooks: list[OnArrive] = []
    heard: list[Arrival] = []

    def hear(arrived: Sequence[Arrival]) -> None:
        heard.extend(arrived)
        listening.end()

    listening = Listening(hooks, hear)
    listening.end()
    assert not hooks
    listening.begin()
    listening.begin()
    assert hooks == [hear]
    hooks[0]([("T", 0, 1, 0)])
    assert heard == [("T", 0, 1, 0)]
    assert not hooks
    listening.begin()
    assert hooks == [hear]
