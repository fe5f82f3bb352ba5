"""How does a message that waited elsewhere come to its own topic?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from model.message import PROPERTIES_BYTES_MAX, REAL_QID, REAL_TOPIC, STORE_HOST_V6, property_of
from remoting.headers import INT_MAX
from store.files.consume_queue import is_queue_name
from store.files.record import NewMessage, Record, records_in


def moved(record: Record, queue: tuple[str, int], properties: str, store_host: bytes) -> NewMessage:
    """The message of ``record``, for another topic and queue."""
    return NewMessage(
        topic=queue[0],
        queue_id=queue[1],
        flag=record.flag,
        sys_flag=record.sys_flag & ~STORE_HOST_V6 | (STORE_HOST_V6 if len(store_host) == 20 else 0),
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        store_host=store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=0,
        body=record.body,
        properties=properties,
    )


def once_more(reconsume_times: int) -> int:
    """The count of a message that comes back, as far as its field holds it: a client may begin at its end."""
    return min(reconsume_times + 1, INT_MAX)


def fits(properties: str) -> bool:
    return len(properties.encode()) <= PROPERTIES_BYTES_MAX


def destination_of(record: Record) -> tuple[str, int] | None:
    """The topic and queue a message that waits is for; None when it names none, or an impossible one."""
    topic = property_of(record.properties, REAL_TOPIC)
    queue = property_of(record.properties, REAL_QID)
    if topic is None or queue is None or not (queue.isascii() and queue.isdigit()):
        return None
    return (topic, int(queue)) if is_queue_name(topic, int(queue)) and int(queue) <= INT_MAX else None


def records_of(chunks: Iterable[bytes]) -> Iterator[Record]:
    """The records of a ``Got``; a chunk may hold several that lie back to back."""
    for chunk in chunks:
        yield from records_in(chunk)
