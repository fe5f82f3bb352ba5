"""How does one process run one server, from its configuration to its orderly end?

It prints ``ready ROLE ADDRESS`` on stdout when the server answers, logs (admin.host.log_setup), and on
SIGTERM or SIGINT stops in order and exits with 0. A second signal ends it at once. A NameServer with
``enableControllerInNamesrv`` runs the Controller in the same process; one file then holds the keys of both.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from admin.credentials import open_to_others
from admin.exits import DONE, INTERRUPTED, UNFINISHED
from admin.host.collector import Collector
from admin.host.kept_file import keep
from admin.host.log_setup import LogOptions, on_signal, set_up
from admin.host.loop_delay import LoopDelay
from admin.host.otlp import Pusher, Target, target_of
from admin.host.tls import WithTls, env_with, tls_of
from model.config import BrokerConfig, ControllerConfig, NamesrvConfig, ServerConfig
from model.config.tls import split_tls
from model.errors import ConfigError, MqError
from model.foreign_keys import sort_out
from model.settings import Config, is_loopback, parse_file, peers, split_address
from runtime.descriptors import KEPT, REFILL_S, SPARE
from runtime.env import Env
from runtime.report.events import Event
from runtime.report.histogram import Histogram
from runtime.report.lasting import DEAD
from runtime.tasks import Tasks, every
from runtime.tls.places import Places
from runtime.tls.state import TlsState
from runtime.tls.watch import LOOK_S

if TYPE_CHECKING:
    from admin.host.endpoint import Endpoint
    from admin.host.metrics import Metrics
    from namesrv.service import Companion
    from remoting.operators.live_keys import Keep

log = logging.getLogger("keelmq")

SECOND_S: Final = 0.2
"""A signal so soon is the first one again: whoever tells a process and its group sends two."""
LOOP_VARIABLE: Final = "KEELMQ_LOOP"
BACKLOG: Final = 128
SECRET_FILES: Final = ("peerCredentialsFile", "haSecretFile", "raftSecretFile", "raftTlsKey")


class Server(Protocol):
    """What every server offers (docs/architecture.md)."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def status(self) -> dict[str, Any]: ...
    def health(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process is to run: the server's address as clients know it, how to make the server, and which
    keys of its file are RocketMQ's and mean nothing here, which are of TLS, and what is odd in them."""

    role: str
    address: str
    admin_address: str
    admin_port: int
    make: Callable[[Env], Server]
    places: Places = field(default_factory=Places)
    ports: tuple[tuple[str, str, int], ...] = ()
    ignored: tuple[str, ...] = ()
    tls: Mapping[str, str] = field(default_factory=dict)
    push: Target | None = None
    doubts: tuple[str, ...] = ()


class Host(Server, Protocol):
    """A server that shows others of its process in its own status and health."""

    companions: dict[str, Companion]


class NameServerWithController:
    """Both servers of one process as one: started together, shown and judged as one by the NameServer."""

    def __init__(self, nameserver: Host, controller: Server) -> None:
        self._nameserver = nameserver
        self._controller = controller
        nameserver.companions["controller"] = controller

    async def start(self) -> None:
        await self._nameserver.start()
        try:
            await self._controller.start()
        except BaseException:
            await self._nameserver.stop()
            raise

    async def stop(self) -> None:
        # The Controller goes first: while the NameServer answers, brokers can still find the other
        # Controllers.
        await self._controller.stop()
        await self._nameserver.stop()

    def status(self) -> dict[str, Any]:
        return self._nameserver.status()

    def health(self) -> str | None:
        return self._nameserver.health()


def read_values(file: str | None, settings: Sequence[str]) -> dict[str, str]:
    """The keys of ``file`` overlaid with ``key=value`` settings. Raises ConfigError."""
    values: dict[str, str] = {}
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {file}: {error}") from None
        values = parse_file(file, text)
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--set {setting!r}: expected key=value")
        values[name.strip()] = value.strip()
    return values


def _placed(text: str, file: str | None, settings: Sequence[str]) -> str:
    """``text`` with the file and the line of the key that it names; of one that --set gave, as it is."""
    if file is None:
        return text
    given = {setting.partition("=")[0].strip() for setting in settings}
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    for word in re.findall(r"[\w.]+", text):
        if word in given:
            return text
        for number, line in enumerate(lines, 1):
            if re.match(rf'\s*"?{re.escape(word)}"?\s*=', line):
                return f"{file}: line {number}: {text}"
    return f"{file}: {text}"


def plan(role: str, values: Mapping[str, str], file: str | None = None, settings: Sequence[str] = ()) -> Plan:
    """Check ``values`` for ``role``; ``file``: where they stand, but for ``settings``. Raises ConfigError."""
    tls, others = split_tls(values)
    own, ignored = sort_out(others, role)
    _need_own_keys(role, own)
    return replace(_plan(role, own, _kept_by(role, file, settings)), ignored=ignored, tls=tls)


_KEYS: Final = {
    "broker": frozenset(BrokerConfig.keys()),
    "controller": frozenset(ControllerConfig.keys()),
    "namesrv": frozenset(NamesrvConfig.keys()),
}
_ALSO: Final = {"namesrv": _KEYS["controller"]}


def _need_own_keys(role: str, values: Mapping[str, str]) -> None:
    """Raises ConfigError for the file of a server of another role, given to this one by mistake."""
    for name in values:
        of = next((other for other, names in _KEYS.items() if name in names), None)
        if of is not None and name not in _KEYS[role] | _ALSO.get(role, frozenset()):
            raise ConfigError(f"{name} is a key of a {of}: start this with keelmq {of}, or leave it out")


def _plan(role: str, values: Mapping[str, str], kept_by: Keep | None) -> Plan:
    if role == "broker":
        return _plan_broker(BrokerConfig.from_mapping(values), kept_by)
    if role == "controller":
        return _plan_controller(ControllerConfig.from_mapping(values), kept_by)
    own, others = split(values, NamesrvConfig, ControllerConfig)
    namesrv = NamesrvConfig.from_mapping(own)
    if namesrv.enable_controller_in_namesrv:
        return _plan_namesrv(namesrv, ControllerConfig.from_mapping(others), kept_by)
    foreign = [name for name in others if name not in own]
    if foreign:
        raise ConfigError(
            f"{foreign[0]} is a key of the Controller: set enableControllerInNamesrv=true, or leave it out"
        )
    return _plan_namesrv(namesrv, None, kept_by)


def split(
    values: Mapping[str, str], one: type[Config], other: type[Config]
) -> tuple[dict[str, str], dict[str, str]]:
    """Give each configuration the keys it knows; keys of both go to both, unknown ones to the first.

    The first one's check then names them, with the nearest key it knows.
    """
    known, known_other = one.keys(), other.keys()
    return (
        {k: v for k, v in values.items() if k in known or k not in known_other},
        {k: v for k, v in values.items() if k in known_other},
    )


def _kept_by(role: str, file: str | None, settings: Sequence[str]) -> Keep | None:
    if file is None:
        return None
    given = read_values(None, settings)
    return partial(keep, Path(file), need=partial(need_next_start, role, given))


def need_next_start(
    role: str, given: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    """Raises ConfigError when a server would not start with what its file says ``after`` and is ``given``, or
    not with the file alone, if it did ``before``."""
    plan(role, {**after, **given})
    try:
        plan(role, before)
    except ConfigError:
        return  # it needs what is given
    plan(role, after)


def _plan_broker(config: BrokerConfig, kept_by: Keep | None) -> Plan:
    def make(env: Env) -> Server:
        from broker.service import Broker

        broker = Broker(env, config)
        broker.processors.configuration.keep = kept_by
        return broker

    host, port = config.bind_address, config.listen_port
    ports = [("listenPort", host, port), ("haListenPort", host, config.ha_port)]
    if config.fast_port_enable and port > 2:
        ports.append(("listenPort, two below (enableFastPort)", host, port - 2))
    return Plan(
        "broker",
        config.address,
        config.admin_address,
        config.admin_port,
        make,
        _places(config),
        tuple(ports) if port else (),  # with 0 the system chooses
        push=target_of(config),
        doubts=tuple(config.doubts()),
    )


def _plan_controller(config: ControllerConfig, kept_by: Keep | None) -> Plan:
    def make(env: Env) -> Server:
        from controller.service import Controller

        controller = Controller(env, config)
        controller.live_keys.keep = kept_by
        return controller

    return Plan(
        "controller",
        peers(config.peers)[config.self_id],
        config.admin_address,
        config.admin_port,
        make,
        _places(config),
        _ports_of(config),
        push=target_of(config),
    )


def _ports_of(config: ControllerConfig) -> tuple[tuple[str, str, int], ...]:
    own, port = config.self_id, split_address(peers(config.peers)[config.self_id])[1]
    raft_host, raft_port = split_address(config.raft_addresses()[own])
    found = [("controllerDLegerPeers", config.bind_address, port)]
    if len(config.raft_addresses()) > 1:
        found.append(("raftPeers", raft_host, raft_port))
    return tuple(found)


def _plan_namesrv(
    config: NamesrvConfig, controller_config: ControllerConfig | None, kept_by: Keep | None
) -> Plan:
    controller = None if controller_config is None else _plan_controller(controller_config, kept_by)

    def make(env: Env) -> Server:
        from namesrv.service import NameServer

        nameserver = NameServer(env, config)
        nameserver.live_keys.keep = kept_by
        return (
            nameserver if controller is None else NameServerWithController(nameserver, controller.make(env))
        )

    return Plan(
        "namesrv",
        f"{config.bind_address}:{config.listen_port}",
        config.admin_address,
        config.admin_port,
        make,
        _places(config),
        (
            ("listenPort", config.bind_address, config.listen_port),
            *(() if controller is None else controller.ports),
        ),
        push=target_of(config),
    )


def _places(config: ServerConfig) -> Places:
    return Places(config.connections_max, config.connections_per_address)


def serve(role: str, file: str | None, settings: Sequence[str]) -> int:
    """Run a server until it is told to stop; returns the exit code. Raises ConfigError."""
    if not __debug__:
        raise ConfigError("python -O or PYTHONOPTIMIZE takes the checks out by which a server stays right")
    values = read_values(file, settings)
    try:
        chosen = plan(role, values, file, settings)
    except ConfigError as error:
        raise ConfigError(_placed(str(error), file, settings)) from None
    logs = set_up(f"{role}@{chosen.address}")
    if chosen.ignored:
        log.warning("RocketMQ's keys without a use here, ignored: %s", ", ".join(chosen.ignored))
    for doubt in chosen.doubts:
        log.warning("%s", doubt)
    for name in SECRET_FILES:
        if open_to_others(values.get(name, "")):
            log.warning("%s=%s can be read by others than its owner: chmod 600", name, values[name])
    accounts = f"{values.get('aclHome') or 'conf'}/plain_acl.yml"
    if values.get("aclEnable", "").lower() == "true" and open_to_others(accounts):
        log.warning("%s can be read by others than its owner: chmod 600", accounts)
    tls = tls_of(chosen.tls, told={values.get(name, "") for name in SECRET_FILES})
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(chosen, tls, logs))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed, unless ``KEELMQ_LOOP=asyncio``; None = asyncio's own."""
    if os.environ.get(LOOP_VARIABLE) == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class Told:
    """Signals to end, as they come. Must be made within a loop."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self._first_s = 0.0

    def heard(self, number: int) -> None:
        if not self.stopping.is_set():
            log.info("%s: stopping", signal.Signals(number).name)
            self._first_s = time.monotonic()
            self.stopping.set()
        elif time.monotonic() - self._first_s >= SECOND_S:
            log.warning("second signal: exiting at once")
            os._exit(INTERRUPTED)


async def _run(chosen: Plan, tls: TlsState | None = None, logs: LogOptions | None = None) -> int:
    told = Told()
    stopping = told.stopping
    _listen(told.heard, partial(on_signal, options=logs or LogOptions()))
    SPARE.keep(KEPT)
    env = env_with(tls, chosen.places, watch=_log_event)
    server = chosen.make(env)
    endpoint: Endpoint | None = None
    link: socket.socket | None = None
    collector, watching, delays = Collector(), Tasks("process"), LoopDelay(also=SPARE.refill)
    refilling = every(REFILL_S, SPARE.refill, what="looking for free descriptors")
    starting = watching.spawn(refilling, name="descriptors")
    try:
        if chosen.admin_port:
            # Before the start: with a taken port a broker would become master, and end, at each restart.
            link = _link_of(chosen)
        if tls is not None:
            server = WithTls(server, tls)
            watching.spawn(every(LOOK_S, partial(tls.look_off_loop, env), what="TLS: files"), name="look")
        need_free(chosen.ports)
        if not await _start(server, stopping):
            return DONE
        if link is not None:
            link.listen(BACKLOG)
        print(f"ready {chosen.role} {chosen.address}", flush=True)
        collector.begin()
        watching.spawn(collector.run(), name="collector")
        watching.spawn(delays.run(), name="delays")
        starting.cancel()  # from here on with each look at the delays
        if chosen.push is not None:
            watching.spawn(_push(chosen.push, chosen, server, delays.seen, env), name="push")
        if link is not None:
            # Clients of the server do not wait for the HTTP framework; who asks for the status does.
            endpoint = await env.offload(lambda: _endpoint(chosen.role, server, link, delays.seen))
            await endpoint.start()
        await stopping.wait()
        return DONE
    except (MqError, OSError) as error:
        if isinstance(error, ConfigError):
            raise
        log.error("%s cannot run: %s", chosen.role, error)
        return UNFINISHED
    finally:
        # The server first: a master hands over at once, and whoever reads its status sees it stop.
        try:
            await server.stop()
            await watching.cancel()
        finally:
            SPARE.keep(0)
            if endpoint is not None:
                await endpoint.stop()
            elif link is not None:
                link.close()


def _link_of(chosen: Plan) -> socket.socket:
    """For the status. Raises OSError that names the key."""
    if not is_loopback(chosen.admin_address):
        log.warning("adminAddress=%s: who reaches it reads the status", chosen.admin_address)
    need_free([("adminPort", chosen.admin_address, chosen.admin_port)])
    return bind(chosen.admin_port, chosen.admin_address)


def _listen(stop: Callable[[int], None], levels: Callable[[int], None]) -> None:
    """For signals: those that end the process, and those that change what it logs."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, levels, number)


def need_free(ports: Iterable[tuple[str, str, int]]) -> None:
    """``ports``: key, address and port of each that a server will listen on. Looked at before anything is
    made on the disk. Raises OSError that names the key."""
    for name, host, port in ports:
        try:
            bind(port, host).close()
        except OSError as error:
            text = (error.strerror or str(error)).lower()
            raise OSError(error.errno, f"{name}: {text}") from None


def bind(port: int, host: str = "127.0.0.1") -> socket.socket:
    """A socket at the port of the status, which nobody can connect to before it listens; port 0: a free one.
    Raises OSError with the address: also when somebody listens there."""
    bare = host.strip("[] ")
    found = socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET)
    try:
        if found.family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((bare, port))
    except OSError as error:
        found.close()
        # Not os.strerror: the numbers of a name that is none (gaierror) are not errno's.
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from error
    return found


def _endpoint(role: str, server: Server, link: socket.socket, delays: Histogram) -> Endpoint:
    from admin.host.endpoint import Endpoint

    return Endpoint(role, server, link, delays, DEAD)


async def _push(target: Target, chosen: Plan, server: Server, delays: Histogram, env: Env) -> None:
    metrics = await env.offload(lambda: _metrics(chosen.role, server, delays))
    about = {"service.name": f"keelmq-{chosen.role}", "service.instance.id": chosen.address}
    await Pusher(target, metrics.families, about, env.now_ms).run()


def _metrics(role: str, server: Server, delays: Histogram) -> Metrics:
    from admin.host.metrics import Metrics

    return Metrics(role, server, delays, DEAD)


async def _start(server: Server, stopping: asyncio.Event) -> bool:
    """Start, unless told to stop first: a start may wait (recovery of a long log)."""
    errors: list[BaseException] = []
    tasks = Tasks("serve", on_error=errors.append)
    starting = tasks.spawn(server.start(), name="start")
    told = tasks.spawn(stopping.wait(), name="stop")
    try:
        await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
        started = starting.done()
    finally:
        await tasks.cancel()
    if errors:
        raise errors[0]
    return started


def _log_event(event: Event) -> None:
    fields = " ".join(f"{name}={value}" for name, value in event.fields.items())
    log.info("event %s %s", event.name, fields, extra={"event": event.name, "fields": event.fields})
