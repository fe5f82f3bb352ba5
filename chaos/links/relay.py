"""The stand-in for Toxiproxy where its binary is missing: the same HTTP API, paths, bodies and codes (v2.12).

    python -m chaos.links.relay --port 8474

It prints ``listening on HOST:PORT`` when it serves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from chaos.links.proxy import Proxy
from chaos.links.toxics import BadToxic, Toxic
from model.errors import MqError

VERSION: Final = "keelmq relay"
BODY_BYTES_MAX: Final = 1 << 20
PROXIES_MAX: Final = 1000


class Refused(MqError):
    """A request the API answers with an error: its text and HTTP status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class RelayApi:
    """The relay's proxies, by name, and the HTTP server that changes them."""

    def __init__(self, chance: random.Random) -> None:
        self.proxies: dict[str, Proxy] = {}
        self._chance = chance
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_errors])
        app.add_routes(
            [
                web.get("/version", self._version),
                web.post("/reset", self._reset),
                web.post("/populate", self._populate),
                web.get("/proxies", self._list),
                web.post("/proxies", self._create),
                web.get("/proxies/{proxy}", self._show),
                web.post("/proxies/{proxy}", self._update),
                web.patch("/proxies/{proxy}", self._update),
                web.delete("/proxies/{proxy}", self._delete),
                web.get("/proxies/{proxy}/toxics", self._toxics),
                web.post("/proxies/{proxy}/toxics", self._add_toxic),
                web.get("/proxies/{proxy}/toxics/{toxic}", self._show_toxic),
                web.post("/proxies/{proxy}/toxics/{toxic}", self._change_toxic),
                web.patch("/proxies/{proxy}/toxics/{toxic}", self._change_toxic),
                web.delete("/proxies/{proxy}/toxics/{toxic}", self._drop_toxic),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> str:
        """Serve; returns ``HOST:PORT``. Raises OSError."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return "{}:{}".format(*self._runner.addresses[0][:2])

    async def stop(self) -> None:
        for proxy in self.proxies.values():
            await proxy.stop()
        await self._runner.cleanup()

    def _proxy(self, request: web.Request) -> Proxy:
        found = self.proxies.get(request.match_info["proxy"])
        if found is None:
            raise Refused("proxy not found", 404)
        return found

    def _toxic(self, request: web.Request) -> tuple[Proxy, Toxic]:
        proxy = self._proxy(request)
        found = proxy.toxics.get(request.match_info["toxic"])
        if found is None:
            raise Refused("toxic not found", 404)
        return proxy, found

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _reset(self, request: web.Request) -> web.Response:
        for proxy in self.proxies.values():
            for name in list(proxy.toxics):
                proxy.drop(name)
            await proxy.start()
        return web.Response(status=204)

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({name: proxy.to_json() for name, proxy in self.proxies.items()})

    async def _create(self, request: web.Request) -> web.Response:
        made = await self._make(await _body(request, dict), "")
        return web.json_response(made.to_json(), status=201)

    async def _populate(self, request: web.Request) -> web.Response:
        wanted = await _body(request, list)
        for at, data in enumerate(wanted, 1):
            _need(data if isinstance(data, dict) else {}, f" at proxy {at}")
        made = []
        for data in wanted:
            old = self.proxies.get(data["name"])
            if old is not None and (old.listen, old.upstream) == (data.get("listen"), data["upstream"]):
                made.append(old)
                continue
            if old is not None:
                await old.stop()
                del self.proxies[old.name]
            made.append(await self._make(data, ""))
        return web.json_response({"proxies": [proxy.to_json() for proxy in made]}, status=201)

    async def _make(self, data: Mapping[str, Any], where: str) -> Proxy:
        _need(data, where)
        name = str(data["name"])
        if name in self.proxies:
            raise Refused("proxy already exists", 409)
        if len(self.proxies) >= PROXIES_MAX:
            raise Refused(f"more than {PROXIES_MAX} proxies", 500)
        listen = _address(data.get("listen") or "127.0.0.1:0")
        proxy = Proxy(name, listen, _address(data["upstream"]), self._chance)
        if data.get("enabled", True):
            await _listening(proxy)
        self.proxies[name] = proxy
        return proxy

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response(self._proxy(request).to_json())

    async def _update(self, request: web.Request) -> web.Response:
        proxy = self._proxy(request)
        data = await _body(request, dict)
        listen = _address(data.get("listen") or proxy.listen)
        upstream = _address(data.get("upstream") or proxy.upstream)
        enabled = bool(data.get("enabled", proxy.enabled))
        if (listen, upstream) != (proxy.listen, proxy.upstream) or not enabled:
            await proxy.stop()
            proxy.listen, proxy.upstream = listen, upstream
        if enabled:
            await _listening(proxy)
        return web.json_response(proxy.to_json())

    async def _delete(self, request: web.Request) -> web.Response:
        proxy = self._proxy(request)
        del self.proxies[proxy.name]
        await proxy.stop()
        return web.Response(status=204)

    async def _toxics(self, request: web.Request) -> web.Response:
        return web.json_response([toxic.to_json() for toxic in self._proxy(request).toxics.values()])

    async def _add_toxic(self, request: web.Request) -> web.Response:
        proxy = self._proxy(request)
        toxic = Toxic.from_json(await _body(request, dict))
        if toxic.name in proxy.toxics:
            raise Refused("toxic already exists", 409)
        proxy.put(toxic)
        return web.json_response(toxic.to_json())

    async def _show_toxic(self, request: web.Request) -> web.Response:
        return web.json_response(self._toxic(request)[1].to_json())

    async def _change_toxic(self, request: web.Request) -> web.Response:
        proxy, toxic = self._toxic(request)
        toxic.change(await _body(request, dict))
        proxy.changed()
        return web.json_response(toxic.to_json())

    async def _drop_toxic(self, request: web.Request) -> web.Response:
        proxy, toxic = self._toxic(request)
        proxy.drop(toxic.name)
        return web.Response(status=204)


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Errors as Toxiproxy words them; a browser's page may not reach in."""
    if request.headers.get("User-Agent", "").startswith("Mozilla/"):
        return web.Response(status=403, text="User agent not allowed\n")
    try:
        answer: web.StreamResponse = await handler(request)
    except BadToxic as error:
        return web.json_response({"error": str(error), "status": 400}, status=400)
    except Refused as error:
        return web.json_response({"error": str(error), "status": error.status}, status=error.status)
    return answer


async def _body(request: web.Request, kind: type) -> Any:
    try:
        data = json.loads(await request.text() or "null")
    except ValueError as error:
        raise Refused(f"bad request body: {error}", 400) from None
    if not isinstance(data, kind):
        raise Refused(f"bad request body: not a JSON {'object' if kind is dict else 'array'}", 400)
    return data


def _need(data: Mapping[str, Any], where: str) -> None:
    for name in ("name", "upstream"):
        if not data.get(name):
            raise Refused(f"missing required field: {name}{where}", 400)


def _address(text: Any) -> str:
    host, colon, port = str(text).rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise Refused(f"address {text}: expected HOST:PORT", 500)
    return f"{host}:{port}"


async def _listening(proxy: Proxy) -> None:
    try:
        await proxy.start()
    except OSError as error:
        raise Refused(f"listen tcp {proxy.listen}: {error.strerror or error}", 500) from None


async def _main(host: str, port: int) -> None:
    api = RelayApi(random.Random())
    where = await api.start(host, port)
    print(f"listening on {where}", flush=True)
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    await over.wait()
    await api.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for Toxiproxy.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8474)
    asked = parser.parse_args()
    asyncio.run(_main(asked.host, asked.port))


if __name__ == "__main__":
    main()
