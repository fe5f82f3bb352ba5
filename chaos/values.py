"""Dataclasses made of what a file says: of their types, and within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def made(kind: type[T], values: Mapping[str, Any]) -> T:
    """Raises ValueError that says which field is none, or has a value of another type."""
    if unknown := values.keys() - {entry.name for entry in fields(kind)}:  # type: ignore[arg-type]
        raise ValueError(f"{min(unknown)!r} is no field of {kind.__name__}")
    try:
        return msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def within(name: str, value: float | None, least: float, most: float) -> None:
    """Raises ValueError."""
    if value is not None and not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} is {value}: from {least:g} to {most:g} is taken")
