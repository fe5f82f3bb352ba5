"""The promise of store.heal.scrub: it finds rot at its rate, ends, and holds nobody up."""

from __future__ import annotations

from store.files.record import Dispatch
from store.heal.scrub import LOOKUPS_MAX
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import fill, message, opened, records_of, scrub_all
from tests.waiting import until


async def test_a_scrub_holds_nobody_up_with_looking_keys_up() -> None:
    """One step is done in one go: acknowledgements and heartbeats wait for its end."""

    env = FaultyEnv()
    async with opened(env) as store:
        for number in range(200):
            store.put(message(b"x", uniq=f"U{number}", keys=f"k{number} all"))
        store.confirm(store.log.end)
        await store.caught_up()
        steps: list[int] = []
        looked_up = 0
        index = store.files.index
        assert index is not None
        missing = index.missing

        def counting(item: Dispatch) -> list[str]:
            nonlocal looked_up
            looked_up += 1 + len(item.keys.split())
            return missing(item)

        index.missing = counting  # type: ignore[method-assign]
        store.scrub.at = store.log.min_offset
        while store.scrub.at < store.log.end:
            before = looked_up
            store.scrub.step()
            steps.append(looked_up - before)
        assert sum(steps) == 600
        assert max(steps) <= LOOKUPS_MAX + 2  # the record that passes the limit is done with


async def test_a_pass_ends_though_the_log_grows_faster_than_it_reads() -> None:
    async with opened(FaultyEnv()) as store:
        await fill(store, 20)
        found_there = store.dispatched
        rests = 0

        async def pause(seconds: float) -> bool:
            nonlocal rests
            rests += 1
            assert rests < 50, "the pass follows the end of the log"
            await fill(store, 20)
            return store.scrub.passes == 0

        store.scrub._first_bytes_per_s = 1 << 30
        reached: list[int] = []
        step = store.scrub.step

        def stepped() -> None:
            step()
            reached.append(store.scrub.at)

        store.scrub.step = stepped  # type: ignore[method-assign]
        await store.scrub.run(pause)
        assert store.scrub.passes == 1
        assert max(reached) >= found_there


async def test_the_check_on_start_reads_what_was_there_and_nothing_this_process_wrote() -> None:
    async with opened(FaultyEnv()) as store:
        await fill(store, 20)
        found_there = store.log.end
        reached: list[int] = []
        step = store.scrub.step

        def stepped() -> None:
            reached.append(store.scrub.at)
            step()

        async def pause(seconds: float) -> bool:
            await fill(store, 20)
            return store.scrub.passes == 0

        store.scrub.step = stepped  # type: ignore[method-assign]
        store.scrub._first_bytes_per_s = 1 << 30
        await store.scrub.run(pause)
        assert reached[0] == 0
        assert max(reached) < found_there


async def test_a_scrub_finds_rot_at_its_rate_and_says_so_once() -> None:
    env = FaultyEnv()
    async with opened(env, scrub_megabytes_per_s=1000) as store:
        for number in range(40):
            store.put(message(f"{number}".rjust(200)))
        store.confirm(store.log.end)
        await store.caught_up()
        heard: list[int] = []
        store.damage.on_change.append(lambda: heard.append(1))
        record = records_of(store)[7]
        env.disk.nodes["/store/commitlog/" + "0" * 20].cache[record.physical_offset + 120] ^= 8
        await until(lambda: bool(heard))
        assert [(i.begin, i.until) for i in store.damage.ranges] == [
            (record.physical_offset, record.physical_offset + record.size)
        ]
        scrub_all(store)
        assert len(heard) == 1
