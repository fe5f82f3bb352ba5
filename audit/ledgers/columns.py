"""What may stand in the columns of a ledger? The same in JSON lines and in Parquet (docs/audit.md).

Texts are texts. Whole numbers may be written as a float or a decimal that is one. Times are finite numbers of
ms. What cannot be is named, with its line or its column and row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from audit.ledgers.history import CRC_MASK
from model.errors import ConfigError

LEDGER: Final = pa.schema(
    [
        ("line", pa.int64()),
        ("uniq_key", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("phys_offset", pa.int64()),  # -1 when the ledger does not say
        ("body_crc", pa.int64()),
        ("begun_ms", pa.float64()),  # -1 when the ledger does not say
        ("acked_ms", pa.float64()),
    ]
)
NEEDED: Final = ("uniq_key", "topic", "queue_id", "queue_offset", "body_crc")
OPTIONAL: Final = ("phys_offset", "begun_ms", "acked_ms")
WAITING_TOPIC: Final = r"^(SCHEDULE_TOPIC_XXXX$|TRANS_CHECK_MAX_TIME_TOPIC$|rmq_sys_|RMQ_SYS_)"
"""Topics in which a message may stand instead of where its sender was told: delayed, in a transaction, or in
one that was given up."""
_TEXTS: Final = ("uniq_key", "topic")
_WHOLE: Final = {
    "queue_id": (0, (1 << 31) - 1),
    "queue_offset": (0, (1 << 63) - 1),
    "phys_offset": (-1, (1 << 63) - 1),
    "body_crc": (-(1 << 31), (1 << 32) - 1),  # Java's are signed
}
"""The least and the largest that can be."""
_EXACT_MAX: Final = 1 << 53
"""A larger float may be another whole number than was meant."""
_UNTOLD: Final = -1


def from_rows(rows: Iterable[tuple[str, dict[str, Any]]], first: int = 0) -> pa.Table:
    """Build the table from (where, row) pairs; ``where`` names the row in errors, ``first`` is the number of
    the first. Raises ConfigError."""
    columns: dict[str, list[Any]] = {name: [] for name in LEDGER.names}
    for line, (where, row) in enumerate(rows, first):
        columns["line"].append(line)
        for name in LEDGER.names[1:]:
            value = row.get(name)
            if value is None and name in NEEDED:
                raise ConfigError(f"{where}: {name} is missing")
            try:
                columns[name].append(_UNTOLD if value is None else _value(name, value))
            except (ValueError, OverflowError) as error:
                raise ConfigError(f"{where}: {name}: {error}") from None
    return pa.table(columns, schema=LEDGER)


def _value(name: str, value: Any) -> Any:
    """Raises ValueError, OverflowError."""
    if name in _TEXTS:
        if not isinstance(value, str):
            raise ValueError(f"expected text, found {value!r}")
        value.encode()  # half of a surrogate pair is no text: a UnicodeEncodeError is a ValueError
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name not in _WHOLE:
        if not number or not math.isfinite(value):
            raise ValueError(f"expected a time in ms, found {value!r}")
        return float(value)
    if isinstance(value, float) and (abs(value) > _EXACT_MAX or not value.is_integer()):
        number = False
    if not number:
        raise ValueError(f"expected a whole number, found {value!r}")
    low, high = _WHOLE[name]
    if not low <= value <= high:
        raise ValueError(f"expected {low} to {high}, found {int(value)}")
    return int(value) & CRC_MASK if name == "body_crc" else int(value)


def of_column(path: str, name: str, column: pa.Array, first_row: int) -> pa.Array:
    """A column of a Parquet file as LEDGER has it; ``first_row`` is the number of its first row in the file,
    from 1 on. Raises ConfigError."""
    try:
        made = _column(name, column)
        made.validate(full=True)  # text may hold bytes that are none
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise ConfigError(f"{path}: column {name}: {error}") from None
    if made.null_count and name in NEEDED:
        raise ConfigError(f"{path}: column {name} has empty values")
    if name in _WHOLE:
        low, high = _WHOLE[name]
        wrong = pc.fill_null(pc.or_(pc.less(made, low), pc.greater(made, high)), False)
        at = pc.index(wrong, True).as_py()
        if at >= 0:
            raise ConfigError(
                f"{path}: column {name}: row {first_row + at}: expected {low} to {high}, found {made[at]}"
            )
    elif name not in _TEXTS and not pc.all(pc.is_finite(made), skip_nulls=True, min_count=0).as_py():
        raise ConfigError(f"{path}: column {name} has times that are no number")
    if name == "body_crc":
        made = pc.bit_wise_and(made, CRC_MASK)
    return (made.fill_null(_UNTOLD) if name in OPTIONAL else made).cast(LEDGER.field(name).type)


def untold(name: str, rows: int) -> pa.Array:
    """A column that a file does not have."""
    return pa.array([_UNTOLD] * rows, LEDGER.field(name).type)


def _column(name: str, column: pa.Array) -> pa.Array:
    """Texts, int64 or doubles. Raises ValueError on another type, ArrowInvalid on what is no such number."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    of = column.type
    if pa.types.is_null(of):
        return column.cast(LEDGER.field(name).type)
    if name in _TEXTS:
        text = pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of)
        if not (text or pa.types.is_binary(of) or pa.types.is_large_binary(of)):
            raise ValueError(f"expected text, found {of}")
        return column.cast(pa.string())
    return _numbers(name, column)


def _numbers(name: str, column: pa.Array) -> pa.Array:
    """Raises as ``_column``."""
    of = column.type
    if not (pa.types.is_integer(of) or pa.types.is_floating(of) or pa.types.is_decimal(of)):
        wanted = "whole numbers" if name in _WHOLE else "numbers of ms"
        raise ValueError(f"expected {wanted}, found {of}")
    if name not in _WHOLE:
        return column.cast(pa.float64(), safe=False)
    if pa.types.is_floating(of):
        column = column.cast(pa.float64())
        exact = pc.and_(pc.less_equal(pc.abs(column), float(_EXACT_MAX)), pc.equal(pc.floor(column), column))
        if not pc.all(exact, skip_nulls=True, min_count=0).as_py():
            raise ValueError("expected whole numbers, found others")
    return column.cast(pa.int64())
