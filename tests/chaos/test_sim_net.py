"""The promise of the simulated network: it acts like TCP under asyncio, and fails like it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from chaos.sim.disk import Machine
from chaos.sim.env import EPOCH_MS, SimEnv
from chaos.sim.loop import Life, Shuffle, SimLoop
from chaos.sim.net import AGAIN_S, Fabric, NetProfile

PORT = 9000


class Peer(asyncio.Protocol):
    """Remembers all that happens to one end."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.data = bytearray()
        self.reads = 0
        self.eof = False
        self.lost: list[BaseException | None] = []
        self.paused: list[bool] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.reads += 1

    def eof_received(self) -> bool | None:
        self.eof = True
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused.append(True)

    def resume_writing(self) -> None:
        self.paused.append(False)


class Pair:
    """Two hosts, a server on the second, a connection from the first."""

    def __init__(self, seed: int = 1, profile: NetProfile | None = None, shuffle: Shuffle = "nodes") -> None:
        self.loop = SimLoop(seed, shuffle=shuffle)
        self.fabric = Fabric(self.loop, seed, profile)
        self.lives = {host: self.loop.new_life(host) for host in ("a", "b")}
        self.envs = {host: self.env(host, life) for host, life in self.lives.items()}
        self.accepted: list[Peer] = []
        self.client = Peer()

    def env(self, host: str, life: Life) -> SimEnv:
        return SimEnv(self.loop, life, self.fabric, Machine(host, 1, lambda: 0), host, seed=1)

    def accept(self) -> Peer:
        self.accepted.append(Peer())
        return self.accepted[-1]

    async def inside(self, host: str, work: Awaitable[object]) -> object:
        async def run() -> object:
            return await work

        return await self.loop.spawn(self.lives[host], run(), name="test")

    async def connect(self, timeout_s: float = 3.0) -> None:
        await self.inside(
            "a", self.envs["a"].network.connect(lambda: self.client, "b", PORT, timeout_s=timeout_s)
        )

    async def open(self) -> None:
        await self.inside("b", self.envs["b"].network.listen(self.accept, "b", PORT))
        await self.connect()
        await asyncio.sleep(0.1)

    @property
    def server(self) -> Peer:
        return self.accepted[-1]

    def cut(self) -> None:
        self.fabric.cut("a", "b")
        self.fabric.cut("b", "a")

    def run(self, main: Callable[["Pair"], Awaitable[None]]) -> None:
        async def both() -> None:
            await main(self)

        try:
            self.loop.run_until_complete(both())
            assert self.loop.errors == []
        finally:
            self.loop.close()


def test_bytes_arrive_in_order_whatever_the_latency_and_the_slicing() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        sent = bytearray()
        for number in range(300):
            data = bytes([number % 251]) * (number % 40 + 1)
            pair.client.transport.write(data)
            sent += data
            await asyncio.sleep(0.0003)
        await asyncio.sleep(1)
        assert pair.server.data == sent
        assert pair.server.reads > 50

    Pair(profile=NetProfile(jitter_s=0.01, slice_share=0.5)).run(main)


def test_names_of_both_ends_agree() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        client, server = pair.client.transport, pair.server.transport
        assert client.get_extra_info("peername") == server.get_extra_info("sockname") == ("b", PORT)
        assert client.get_extra_info("sockname") == server.get_extra_info("peername")

    Pair().run(main)


def test_a_dead_port_refuses() -> None:
    async def main(pair: Pair) -> None:
        with pytest.raises(ConnectionRefusedError):
            await pair.connect()

    Pair().run(main)


def test_a_close_is_seen_behind_the_bytes_before_it() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.client.transport.write(b"last words")
        pair.client.transport.close()
        await asyncio.sleep(1)
        assert pair.server.data == b"last words"
        assert pair.server.eof
        assert pair.server.lost == [None]
        assert pair.client.lost == [None]

    Pair().run(main)


def test_an_abort_is_a_reset_for_the_peer() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.client.transport.abort()
        await asyncio.sleep(1)
        assert isinstance(pair.server.lost[0], ConnectionResetError)
        assert pair.client.lost == [None]

    Pair().run(main)


def test_a_killed_process_is_noticed_by_its_peer_and_its_port_refuses() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.server.transport.write(b"sent before")
        pair.loop.kill(pair.lives["b"])
        pair.fabric.process_died(pair.lives["b"])
        await asyncio.sleep(1)
        assert pair.client.data == b"sent before"
        assert pair.client.eof
        assert pair.client.lost == [None]
        assert pair.server.lost == []
        with pytest.raises(ConnectionRefusedError):
            await pair.connect()

    Pair().run(main)


def test_a_cut_link_holds_bytes_and_the_same_connection_goes_on_after_the_heal() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.cut()
        pair.client.transport.write(b"held")
        pair.server.transport.write(b"too")
        with pytest.raises(TimeoutError):
            await pair.connect(timeout_s=2)
        await asyncio.sleep(10)
        assert pair.server.data == b""
        pair.fabric.heal_all()
        await asyncio.sleep(1)
        assert bytes(pair.server.data + b"/" + pair.client.data) == b"held/too"
        pair.client.transport.write(b" on")
        await asyncio.sleep(1)
        assert pair.server.data == b"held on"
        assert pair.client.lost == pair.server.lost == []

    Pair().run(main)


@pytest.mark.parametrize(
    ("values", "least_s", "most_s"),
    [
        ({"lost_share": 1.0}, 6.2, 6.3),
        ({"late_s": 0.5}, 0.1, 0.6),
        ({"bytes_per_s": 100.0}, 2.0, 2.1),
    ],
)
def test_a_bad_link_is_late_and_keeps_the_order_until_the_heal(
    values: dict[str, float], least_s: float, most_s: float
) -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.fabric.spoil("a", "b", **values)
        assert pair.fabric.broken
        sent = bytes(range(200))
        for at in range(0, 200, 10):
            pair.client.transport.write(sent[at : at + 10])
        await asyncio.sleep(least_s)
        assert len(pair.server.data) < len(sent)
        await asyncio.sleep(most_s - least_s)
        assert pair.server.data == sent
        pair.fabric.heal_all()
        pair.client.transport.write(b"quick")
        await asyncio.sleep(0.1)
        assert pair.server.data == sent + b"quick"
        assert not pair.fabric.broken

    Pair().run(main)


def test_a_one_way_cut_stops_one_direction_only() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.fabric.cut("b", "a")
        pair.client.transport.write(b"there")
        pair.server.transport.write(b"back")
        await asyncio.sleep(5)
        assert bytes(pair.server.data + b"/" + pair.client.data) == b"there/"

    Pair().run(main)


def test_the_death_of_a_process_behind_a_cut_is_heard_only_after_the_heal() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.cut()
        pair.loop.kill(pair.lives["b"])
        pair.fabric.process_died(pair.lives["b"])
        await asyncio.sleep(5)
        assert not pair.client.lost
        pair.fabric.heal_all()
        await asyncio.sleep(1)
        assert pair.client.lost == [None]

    Pair().run(main)


def test_a_power_failure_is_silent_until_the_machine_is_up_and_the_peer_writes() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.loop.kill(pair.lives["b"])
        pair.fabric.power_off("b")
        await asyncio.sleep(5)
        assert pair.client.lost == []
        pair.client.transport.write(b"anyone?")
        with pytest.raises(TimeoutError):
            await pair.connect(timeout_s=1)
        assert pair.client.lost == []
        pair.fabric.power_on("b")
        await asyncio.sleep(1)
        assert isinstance(pair.client.lost[0], ConnectionResetError)

    Pair().run(main)


def test_a_paused_process_accepts_and_reads_after_its_resume() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.loop.pause(pair.lives["b"])
        pair.client.transport.write(b"one")
        await pair.connect()
        assert len(pair.accepted) == 1
        await asyncio.sleep(3)
        assert pair.accepted[0].data == b""
        pair.loop.resume(pair.lives["b"])
        await asyncio.sleep(0.1)
        assert len(pair.accepted) == 2
        assert pair.accepted[0].data == b"one"

    Pair().run(main)


def test_a_receiver_that_does_not_read_pauses_the_writer() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.server.transport.pause_reading()
        for _ in range(20):
            pair.client.transport.write(bytes(50_000))
            await asyncio.sleep(0.01)
        assert pair.client.paused == [True]
        assert pair.client.transport.get_write_buffer_size() > 64 * 1024
        pair.server.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(pair.server.data) == 20 * 50_000
        assert pair.client.paused == [True, False]

    Pair().run(main)


def test_a_close_with_a_full_window_still_delivers_everything() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        pair.server.transport.pause_reading()
        pair.client.transport.write(bytes(200_000))
        pair.client.transport.write(bytes(200_000))
        pair.client.transport.close()
        await asyncio.sleep(1)
        assert pair.client.lost == []
        pair.server.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(pair.server.data) == 400_000
        assert pair.client.lost == [None]

    Pair().run(main)


class Buffered(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.buffer = bytearray(64)
        self.data = bytearray()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]


def test_a_buffered_protocol_is_fed_through_its_own_buffer() -> None:
    async def main(pair: Pair) -> None:
        made: list[Buffered] = []

        def accept() -> Buffered:
            made.append(Buffered())
            return made[-1]

        await pair.inside("b", pair.envs["b"].network.listen(accept, "0.0.0.0", PORT))
        await pair.connect()
        pair.client.transport.write(bytes(range(200)))
        await asyncio.sleep(1)
        assert made[0].data == bytes(range(200))

    Pair().run(main)


def test_a_protocol_that_raises_loses_its_connection_and_is_heard() -> None:
    class Broken(Peer):
        def data_received(self, data: bytes) -> None:
            raise ValueError("cannot be")

    pair = Pair()

    async def main() -> None:
        await pair.inside("b", pair.envs["b"].network.listen(Broken, "b", PORT))
        await pair.connect()
        pair.client.transport.write(b"x")
        await asyncio.sleep(1)
        assert isinstance(pair.client.lost[0], ConnectionResetError)

    pair.loop.run_until_complete(main())
    assert "cannot be" in pair.loop.errors[0]
    pair.loop.close()


def test_a_port_can_be_bound_once() -> None:
    async def main(pair: Pair) -> None:
        await pair.open()
        network = pair.envs["b"].network
        with pytest.raises(OSError, match="in use"):
            await pair.inside("b", network.listen(Peer, "b", PORT))
        listener = await network.listen(Peer, "b", 0)
        assert listener.port != PORT
        listener.close()
        await network.listen(Peer, "b", listener.port)

    Pair().run(main)


def test_the_clocks_of_an_env_follow_virtual_time_and_the_skew() -> None:
    async def main(pair: Pair) -> None:
        env = pair.envs["a"]
        before = env.now_ms()
        await asyncio.sleep(2)
        assert env.now_ms() - before == 2000
        env.skew_ms = -3_600_000
        assert env.now_ms() < before
        assert env.monotonic_ms() == pair.loop.time() * 1000
        assert before >= EPOCH_MS

    Pair().run(main)


def test_an_offloaded_call_takes_time_and_happens_even_when_its_waiter_is_cancelled() -> None:
    async def main(pair: Pair) -> None:
        env = pair.envs["a"]
        done: list[int] = []
        begin = pair.loop.time()
        assert await env.offload(lambda: 7) == 7
        assert pair.loop.time() > begin
        with pytest.raises(ZeroDivisionError):
            await env.offload(lambda: 1 // 0)
        task = pair.loop.create_task(env.offload(lambda: done.append(1)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(1)
        assert done == [1]

    Pair().run(main)


def test_two_faults_of_one_link_both_hold() -> None:
    pair = Pair()
    try:
        pair.fabric.spoil("a", "b", lost_share=1.0)
        pair.fabric.spoil("a", "b", bytes_per_s=100.0)
        again_s = sum(AGAIN_S)
        assert again_s + 2.0 < pair.fabric.latency_s("a", "b", size=200) < again_s + 3.0
    finally:
        pair.loop.close()


def test_one_seed_gives_one_trace_on_the_wire() -> None:
    def trace(seed: int) -> int:
        async def main(pair: Pair) -> None:
            await pair.open()
            for number in range(100):
                pair.client.transport.write(bytes([number]) * 10)
                pair.server.transport.write(bytes([number]) * 5)
                await asyncio.sleep(0.001)

        pair = Pair(seed)
        pair.run(main)
        return pair.loop.trace

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)
