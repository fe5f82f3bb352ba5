"""What is in a store directory, at a glance: sizes, ends, queues, epochs, known damage. No record is judged.

Reads headers and first records only, so that it takes no longer for a full store than for an empty one;
RocketMQ's directories and ours alike.
"""

from __future__ import annotations

from typing import Any

from model.errors import DiskError
from runtime.env import Disk, read_file
from store.files.consume_queue import ENTRY, ENTRY_BYTES
from store.files.index_file import HEADER, HEADER_BYTES
from store.files.record import HEAD, MAGIC_V1, MAGIC_V2, store_timestamp_of
from store.offline.directory import SegmentInfo, StoreDirectory


def inspect(disk: Disk, root: str) -> dict[str, Any]:
    """JSON-ready: ``stop commitLog queues index checkpoint epochs identity config damaged``.

    Raises DiskError when the directory cannot be read.
    """
    with StoreDirectory(disk, root) as store:
        return {
            "root": root,
            "stop": "clean" if store.stopped_cleanly else "unclean, or a broker runs",
            "commitLog": _commit_log(store),
            "queues": _queues(store),
            "index": [_index(store, path) for path in store.index_files()],
            "checkpoint": _checkpoint(store),
            "epochs": _epochs(store),
            "identity": _text(disk, f"{root}/brokerIdentity"),
            "config": [name for name in disk.listdir(f"{root}/config") if name.endswith(".json")],
            "damaged": [
                {"begin": r.begin, "until": r.until, "kind": r.kind, "lost": len(r.lost)}
                for r in store.damaged()
            ],
        }


def _commit_log(store: StoreDirectory) -> dict[str, Any]:
    segments = store.segments()
    times = [ms for ms in (_first_time(store, segment) for segment in segments) if ms is not None]
    return {
        "segments": len(segments),
        "segmentBytes": segments[-1].size if segments else 0,
        "minOffset": segments[0].start if segments else 0,
        "bytes": sum(segment.size for segment in segments),
        "firstStoreTimestamp": times[0] if times else None,
        "lastSegmentStoreTimestamp": times[-1] if times else None,
    }


def _first_time(store: StoreDirectory, segment: SegmentInfo) -> int | None:
    head = store.read(segment.path, 76, 0)
    if len(head) < 76 or HEAD.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2):
        return None
    return store_timestamp_of(head)


def _queues(store: StoreDirectory) -> dict[str, Any]:
    topics: dict[str, dict[str, int]] = {}
    for topic, queue_id in store.queues():
        begin, end = _queue_range(store, store.queue_files(topic, queue_id))
        row = topics.setdefault(topic, {"queues": 0, "messages": 0, "maxOffset": 0})
        row["queues"] += 1
        row["messages"] += end - begin
        row["maxOffset"] = max(row["maxOffset"], end)
    return {"topics": topics, "count": sum(row["queues"] for row in topics.values())}


def _queue_range(store: StoreDirectory, files: list[SegmentInfo]) -> tuple[int, int]:
    """First and next index of a queue; entries are written in order, so that halving finds the end."""
    for file in reversed(files):
        low, high = 0, file.size // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            raw = store.read(file.path, ENTRY_BYTES, middle * ENTRY_BYTES)
            if len(raw) == ENTRY_BYTES and ENTRY.unpack(raw)[1] > 0:
                low = middle + 1
            else:
                high = middle
        if low:
            return files[0].start // ENTRY_BYTES, file.start // ENTRY_BYTES + low
    return 0, 0


def _index(store: StoreDirectory, path: str) -> dict[str, Any]:
    raw = store.read(path, HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\0")
    begin_ms, end_ms, begin, end, slots_used, count = HEADER.unpack(raw)
    return {
        "file": path.rpartition("/")[2],
        "entries": max(count - 1, 0),
        "slotsUsed": slots_used,
        "beginTimestamp": begin_ms,
        "endTimestamp": end_ms,
        "beginOffset": begin,
        "endOffset": end,
    }


def _checkpoint(store: StoreDirectory) -> dict[str, Any]:
    now = store.checkpoint()
    return {
        "physicMsgTimestamp": now.physic_timestamp_ms,
        "logicsMsgTimestamp": now.logics_timestamp_ms,
        "indexMsgTimestamp": now.index_timestamp_ms,
        "masterFlushedOffset": now.master_flushed_offset,
        "confirmPhyOffset": now.confirm_offset,
        "writtenBy": ("keelmq" if now.trusted else "RocketMQ") if store.has_checkpoint else None,
    }


def _epochs(store: StoreDirectory) -> list[dict[str, int]] | str:
    try:
        return [{"epoch": entry.epoch, "start": entry.start} for entry in store.epochs()]
    except DiskError as error:
        return str(error)


def _text(disk: Disk, path: str) -> str | None:
    return read_file(disk, path).decode("utf-8", "replace").strip() if disk.exists(path) else None
