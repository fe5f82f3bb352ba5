"""The server and the client that RocketMQ's commands travel between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, KeysView
from typing import Final

from model.settings import split_address
from remoting.codec import Command
from remoting.guard import Guard, Limits
from remoting.keys import Signer
from remoting.transport.calls import unsupported
from remoting.transport.connection import BufferHandler, Connection, Handler
from remoting.transport.endpoint import Endpoint
from remoting.transport.sweeps import SWEEP_S, Sweeps
from runtime.env import Env, Listener
from runtime.tasks import Tasks, every

__all__ = [
    "Connection",
    "BufferHandler",
    "Guard",
    "Handler",
    "Limits",
    "RemotingClient",
    "RemotingServer",
    "unsupported",
]

CALL_S: Final = 3.0


class RemotingServer:
    """Accepts connections and hands their requests to ``handler``.

    Each request is a task of its own: those of one connection begin in the order they came, run side by side
    and are answered in any order. With ``credentials``, requests of ``remoting.auth.PEER_CODES`` reach it
    only when they are signed; ``fast`` must handle none of these. ``guard``: of all ports of one server.
    """

    def __init__(
        self,
        env: Env,
        name: str,
        handler: Handler,
        *,
        fast: BufferHandler | None = None,
        on_open: Callable[[Connection], object] | None = None,
        on_close: Callable[[Connection], object] | None = None,
        credentials: Signer | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._env = env
        self._endpoint = Endpoint[Connection](
            name,
            handler,
            guard or Guard(name, Limits(), env.monotonic_ms),
            fast=fast,
            on_open=on_open,
            on_close=on_close,
            credentials=credentials,
        )
        self._listeners: list[Listener] = []
        self._timers = Tasks(name)
        self._sweeping = False

    @property
    def connections(self) -> KeysView[Connection]:
        """Those open now, in the order they came."""
        return self._endpoint.connections.keys()

    @property
    def guard(self) -> Guard:
        """Of this port, and of all others of its server."""
        return self._endpoint.guard

    def sign_calls(self) -> None:
        """Sign what is sent to the connected from now on; none of them may be a client."""
        self._endpoint.signs = True

    async def start(self, host: str, port: int, *, shared: bool = False) -> int:
        """Listen and return the port (0 picks one). May be called again for one more port. Raises OSError.

        ``shared``: as ``runtime.env.Network.listen``.
        """
        listener = await self._env.network.listen(
            lambda: Connection(self._endpoint), host, port, shared=shared
        )
        if not self._sweeping:
            self._sweeping = True
            self._timers.spawn(_sweep(self._endpoint), name="sweep")
        self._listeners.append(listener)
        return listener.port

    def go_away(self) -> None:
        """From now on answer requests of clients that know it with GO_AWAY: they connect elsewhere."""
        self._endpoint.going_away = True

    def hold(self, held: bool) -> None:
        """While ``held`` read nothing more from any connection; answers leave as ever."""
        self._endpoint.hold(held)

    async def dismiss(self, quiet_s: float, at_most_s: float) -> bool:
        """End every connection on which nothing came or left for ``quiet_s`` and all is answered; whether
        none was left within ``at_most_s``.

        After ``stop_accepting`` and ``go_away``: clients leave by themselves when they are told to, so that
        no request is on its way when its connection ends. One that is would have no known outcome.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + at_most_s
        while (again := self._endpoint.dismiss(quiet_s)) is not None:
            now = loop.time()
            if now >= until:
                return False
            await asyncio.sleep(min(again, until) - now)
            for _ in range(2):
                await asyncio.sleep(0)  # what came while this process was held up is read before it is judged
        return True

    def stop_accepting(self) -> None:
        """Stop listening; connections already made go on."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def stop(self) -> None:
        """Stop listening, send what is written, end all connections and requests. May be called again."""
        self.stop_accepting()
        self._sweeping = False
        await self._timers.cancel()
        await self._endpoint.stop()


class RemotingClient:
    """Calls servers by address (``host:port``) over one connection each, made when first needed.

    Nothing is retried here: the caller knows whether a second try is harmless. With ``credentials`` every
    request is signed, and requests of ``remoting.auth.PEER_CODES`` from the servers must be.
    """

    def __init__(
        self,
        env: Env,
        name: str,
        *,
        handler: Handler | None = None,
        on_close: Callable[[Connection], object] | None = None,
        credentials: Signer | None = None,
        limits: Limits | None = None,
        connect_timeout_s: float = CALL_S,
    ) -> None:
        self._env = env
        self._on_close = on_close
        self._connect_timeout_s = connect_timeout_s
        guard = Guard(name, limits or Limits(), env.monotonic_ms)
        self._endpoint = Endpoint[Connection](
            name, handler, guard, on_close=self._lost, credentials=credentials
        )
        self._endpoint.signs = True
        self.guard = guard
        self._timers = Tasks(name)
        self._sweeping = False
        self._closed = False
        self._open: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection | ConnectionError]] = {}

    async def call(self, address: str, command: Command, timeout_s: float = CALL_S) -> Command:
        """Send a request to ``address`` and return its answer, whatever its code.

        Raises ConnectionError when nothing was sent, Unknown when no answer came within ``timeout_s``
        (connecting included) or the connection ended after sending.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        connection = await self.connection(address, timeout_s)
        left_s = until - loop.time()
        if left_s <= 0:
            raise ConnectionError(f"connecting to {address} took {timeout_s:.3g} s, all the time of the call")
        return await connection.call(command, left_s)

    async def oneway(self, address: str, command: Command, timeout_s: float = CALL_S) -> None:
        """Send a request nobody answers. Raises ConnectionError when nothing was sent."""
        (await self.connection(address, timeout_s)).oneway(command)

    def open_to(self, address: str) -> Connection | None:
        """The connection that the next call to ``address`` goes over, if there is one."""
        connection = self._open.get(address)
        return None if connection is None or connection.closed else connection

    def drop(self, address: str) -> None:
        """Close the connection to ``address``, if any: the next call makes a new one."""
        connection = self._forget(address)
        if connection is not None:
            connection.close()

    def reset(self, address: str) -> None:
        """End the connection to ``address``, if any, so that no request sent on it arrives later: a call that
        timed out shall not be carried out any more. The next call makes a new one."""
        connection = self._forget(address)
        if connection is not None:
            connection.reset()

    def _forget(self, address: str) -> Connection | None:
        connecting = self._connecting.pop(address, None)
        if connecting is not None:
            connecting.cancel()
        return self._open.pop(address, None)

    def retire(self, address: str, grace_s: float) -> None:
        """Make a new connection for the next call to ``address``; the present one ends when the calls under
        way have their answers, at the latest after ``grace_s``."""
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.finish(grace_s)

    async def close(self) -> None:
        """End all connections; calls under way end with Unknown. May be called again."""
        self._closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        self._open.clear()
        await self._timers.cancel()
        await self._endpoint.stop()

    async def connection(self, address: str, timeout_s: float = CALL_S) -> Connection:
        """The connection to ``address``, made if there is none. Raises ConnectionError."""
        connection = self._open.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._closed:
            raise ConnectionError(f"{self._endpoint.name} is closed")
        task = self._connecting.get(address)
        if task is None:
            task = self._endpoint.tasks.spawn(self._connect(address), name=f"connect.{address}")
            self._connecting[address] = task
        # asyncio.wait leaves the task alone when this caller is cancelled or late: others wait for it too.
        done, _ = await asyncio.wait((task,), timeout=timeout_s)
        if not done:
            raise ConnectionError(f"cannot connect to {address} within {timeout_s:.3g} s")
        if task.cancelled():
            raise ConnectionError(f"the connection to {address} was dropped")
        result = task.result()
        if isinstance(result, ConnectionError):
            raise ConnectionError(str(result))
        return result

    async def _connect(self, address: str) -> Connection | ConnectionError:
        """The connection, or why there is none: several callers may want to raise it."""
        made: list[Connection] = []

        def make() -> Connection:
            made.append(Connection(self._endpoint, address))
            return made[-1]

        try:
            host, port = split_address(address)
            _, connection = await self._env.network.connect(
                make, host, port, timeout_s=self._connect_timeout_s
            )
            made.clear()
        except TimeoutError:
            return ConnectionError(f"cannot connect to {address} within {self._connect_timeout_s:.3g} s")
        except (OSError, ValueError) as error:
            return ConnectionError(f"cannot connect to {address}: {error}")
        finally:
            for given_up in made:
                given_up.give_up()
            if self._connecting.get(address) is asyncio.current_task():
                del self._connecting[address]
        if not connection.closed:
            self._open[address] = connection
        if not self._sweeping:
            self._sweeping = True
            self._timers.spawn(_sweep(self._endpoint), name="sweep")
        return connection

    def _lost(self, connection: Connection) -> None:
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
        if self._on_close is not None:
            self._on_close(connection)


async def _sweep(endpoint: Endpoint[Connection]) -> None:
    await every(SWEEP_S, Sweeps(endpoint).look, what=f"{endpoint.name}: closing silent connections")
