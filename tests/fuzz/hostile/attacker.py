"""The hostile client's own process: moves from a seed, so many a second, until it is told to stop.

    python -m tests.fuzz.hostile.attacker PLACES.json SEED MOVES_PER_SECOND OUT.json

A process of its own, so that its work is not in the way of the client that measures.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.fuzz.hostile import moves

AT_ONCE_MAX: Final = 40
BODY_BYTES_PER_S: Final = 200_000
"""Of all bodies, on the long run: the disk of the machine is not what is attacked."""
TELL_S: Final = 5.0


def to_json(tally: moves.Tally) -> dict[str, Any]:
    return {
        "moves": dict(tally.moves.most_common()),
        "requests": {str(code): count for code, count in sorted(tally.requests.items())},
        "answers": {str(code): count for code, count in sorted(tally.answers.items())},
        "connections": tally.connections,
        "ended": dict(tally.ended.most_common()),
        "bodyBytes": tally.body_bytes,
    }


async def attack(places: moves.Places, seed: int, pace: float, out: Path) -> None:
    chance = random.Random(seed)
    tally = moves.Tally()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    began = told = loop.time()
    running: set[asyncio.Task[None]] = set()
    broken: list[BaseException] = []

    def ended(task: asyncio.Task[None]) -> None:
        running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            broken.append(error)

    while not stopped.is_set():
        now = loop.time()
        if len(running) < AT_ONCE_MAX and tally.body_bytes <= (now - began + 10) * BODY_BYTES_PER_S:
            # A seed of its own: which move comes next does not hang on how the others go.
            task = asyncio.create_task(moves.one(random.Random(chance.getrandbits(64)), places, tally))
            running.add(task)
            task.add_done_callback(ended)
        if now - told > TELL_S:
            told = now
            _write(out, tally)
        await asyncio.sleep(chance.expovariate(pace))
        if broken:
            raise broken[0]
    for task in list(running):
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    _write(out, tally)


def _write(out: Path, tally: moves.Tally) -> None:
    beside = out.with_suffix(".tmp")
    beside.write_text(json.dumps(to_json(tally)))
    beside.replace(out)


def places_to_json(places: moves.Places) -> str:
    return json.dumps(asdict(places))


def main() -> None:
    found, seed, pace, out = sys.argv[1:]
    places = moves.Places(**json.loads(Path(found).read_text()))
    asyncio.run(attack(places, int(seed), float(pace), Path(out)))


if __name__ == "__main__":
    main()
