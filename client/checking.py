"""What may a program hand to a client? A mistake is a ValueError that names it, when a client is made or
called: no broker is asked first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from model.message import RETRY_PREFIX
from model.topic import group_name_error, topic_name_error


def need_env(env: object) -> None:
    """The world comes first: easily forgotten."""
    if not hasattr(env, "monotonic_ms"):
        raise ValueError(f"env comes first, as OsEnv() is one, not {env!r}")


def need_group(group: object) -> None:
    problem = group_name_error(group) if isinstance(group, str) else f"a group is a text, not {group!r}"
    if problem is not None:
        raise ValueError(problem)


def need_topic(topic: object) -> None:
    if not isinstance(topic, str):
        raise ValueError(f"a topic is a text, not {topic!r}")
    problem = topic_name_error(topic)
    if problem is not None and not topic.startswith(RETRY_PREFIX):
        raise ValueError(problem)  # a broker would refuse it, or the NameServers never know it


def need_subscriptions(subscriptions: object) -> None:
    if not isinstance(subscriptions, Mapping) or not subscriptions:
        raise ValueError(
            f"subscriptions name one topic at least, as {{'Orders': '*'}}, not {subscriptions!r}"
        )
    for topic, expression in subscriptions.items():
        need_topic(topic)
        if not isinstance(expression, str):
            raise ValueError(
                f"the subscription of {topic} is '*', tags as 'A||B' or Sql(...), not {expression!r}"
            )


def need_consumer(env: object, group: object, subscriptions: object) -> None:
    need_env(env)
    need_group(group)
    need_subscriptions(subscriptions)


def need_async(what: str, function: object) -> None:
    """``what`` is awaited: a plain function would be called, and its result not understood."""
    if not _is_async(function):
        raise ValueError(f"{what} is to be an async def function, not {function!r}")


def need_plain(what: str, function: object) -> None:
    """``what`` is called on a thread: nobody would await it there."""
    if not callable(function) or _is_async(function):
        raise ValueError(f"{what} is to be a plain function, not {function!r}")


def need_least(least: float, **numbers: Any) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise ValueError(f"{name} is at least {least}, not {value!r}")


def need_counts(options: Any) -> None:
    """What every consumer's options have."""
    for name in ("concurrency", "batch_max", "held_max", "held_bytes_max", "poll_ms"):
        need_least(1, **{name: getattr(options, name)})


def need_positive(**numbers: Any) -> None:
    """Of durations: 0 is none."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{name} is more than 0, not {value!r}")


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    if not callable(function):
        return False
    called = type(function).__call__
    return any(map(inspect.iscoroutinefunction, (function, inspect.unwrap(function), called)))
