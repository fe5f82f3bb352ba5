"""What the master's bookkeeping of one message costs: ``SyncSet`` and its checks, without a network.

    python bench/sync_set.py [--messages 2000] [--rounds 100] [--batch 1] [--json FILE]

One message: the log grows, each slave acknowledges it, and after each of these three steps the invariants are
checked as ``HaService`` does (whenever a watermark moved). ``--batch 16``: the slaves acknowledge every 16th
message. Printed is the fastest round, in microseconds of CPU a message.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.provenance import machine
from ha.master.ack_policy import AckPolicy, Wait
from ha.master.sync_set import Leadership, LogEnds, SyncSet
from model.ids import BrokerId, Epoch, PhysicalOffset

MASTER, *SLAVES = BrokerId(1), BrokerId(2), BrokerId(3)
MODES = {
    "all": AckPolicy(),
    "all, SYNC_FLUSH": AckPolicy(synced=True),
    "counted, 2": AckPolicy(Wait.COUNT, acks_min=2),
    "majority of 3": AckPolicy(Wait.MAJORITY, replicas=3),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for name, policy in MODES.items():
        us = min(_round(policy, options.messages, options.batch) for _ in range(options.rounds))
        found[name] = round(us, 2)
        print(f"{name:16} {us:6.2f} us a message")
    if options.json is not None:
        shown = {"machine": machine(), "us_a_message": found}
        options.json.write_text(json.dumps(shown, indent=1) + "\n")


def _round(policy: AckPolicy, messages: int, batch: int) -> float:
    sync = _master(policy)
    confirmed = replicated = 0
    ends = [PhysicalOffset(100 + 1024 * count) for count in range(1, messages + 1)]
    begin = time.process_time()
    for at, end in enumerate(ends):
        sync.on_append(end)
        if policy.synced:
            sync.on_flush(end)
        if sync.confirmed > confirmed or sync.replicated > replicated:
            sync.check_invariants()
            confirmed, replicated = sync.confirmed, sync.replicated
        if at % batch:
            continue
        for slave in SLAVES:
            sync.on_ack(slave, end, at / 10)
            if sync.confirmed > confirmed or sync.replicated > replicated:
                sync.check_invariants()
                confirmed, replicated = sync.confirmed, sync.replicated
    took_s = time.process_time() - begin
    assert sync.confirmed > 0
    return took_s * 1e6 / messages


def _master(policy: AckPolicy) -> SyncSet:
    begin, end = PhysicalOffset(0), PhysicalOffset(100)
    leads = Leadership(Epoch(1), begin, frozenset({MASTER, *SLAVES}), 1)
    sync = SyncSet(MASTER, leads, LogEnds(end, begin, end), policy, not_catchup_ms=3000, now_ms=0.0)
    for slave in SLAVES:
        sync.on_connect(slave, 0)
        sync.on_ack(slave, end, 0)
        sync.on_ack(slave, end, 0)
    return sync


if __name__ == "__main__":
    main()
