"""Does the compiled path know the layouts of this store?

``runtime/native`` has them as numbers of its own; here they are held to the structs of ``store/files`` once,
when a process starts. One that knows others is not taken.
"""

from __future__ import annotations

import functools
import re
import struct
from types import ModuleType
from typing import Any, Final

from model.message import BORN_HOST_V6, INNER_BATCH, STORE_HOST_V6, TRANSACTION_PREPARED
from runtime import native
from store.files import consume_queue, index_file
from store.files.record import FIXED_V4, MAGIC_V1


def layouts() -> dict[str, Any]:
    """What the compiled path must know, by our structs."""
    return {
        "record": _places(FIXED_V4),
        "queue": _places(consume_queue.ENTRY),
        "blank": consume_queue.PRE_BLANK_SIZE,
        "index": _places(index_file.ENTRY),
        "magic": MAGIC_V1,
        "flags": (TRANSACTION_PREPARED, BORN_HOST_V6 | STORE_HOST_V6, INNER_BATCH),
        "overhead": FIXED_V4.size + 2,
    }


def _places(layout: struct.Struct) -> tuple[int, ...]:
    """Where each field begins, and the size of all."""
    fields = re.findall(r"\d*[a-zA-Z]", layout.format)
    return tuple(struct.calcsize(">" + "".join(fields[:count])) for count in range(len(fields) + 1))


@functools.cache
def compiled() -> ModuleType | None:
    """The compiled path; None: there is none to take."""
    found = native.module()
    if found is not None and found.layouts() != layouts():
        native.refuse("compiled for other layouts")
        return None
    return found


def _packed() -> tuple[type[Any], ...]:
    module = compiled()
    return (module.Block,) if module is not None else ()


PACKED: Final = _packed()
"""For ``isinstance``: dispatches that the compiled path packed. (Any list of dispatches may be one.)"""
