"""Dataclasses made of what a file says: of their types, and within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def made(kind: type[T], values: Mapping[str, Any]) -> T:
    """Raises ValueError that says which field is none, or has a value of another type. Whole numbers may be
    written as 6e3. Types are those of the suite's own classes: another package's are its own affair."""
    types = {entry.name: str(entry.type) for entry in fields(kind)}  # type: ignore[arg-type]
    if unknown := values.keys() - types.keys():
        raise ValueError(f"{min(unknown)!r} is no field of {kind.__name__}")
    if not kind.__module__.startswith(f"{__name__.partition('.')[0]}."):
        try:
            return kind(**values)
        except TypeError as error:
            raise ValueError(str(error)) from None
    given = {
        name: _whole(value) if types[name].startswith("int") else value for name, value in values.items()
    }
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def within(name: str, value: float | None, least: float, most: float) -> None:
    """Raises ValueError."""
    if value is not None and not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} is {value}: from {least:g} to {most:g} is taken")
