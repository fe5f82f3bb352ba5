"""Which pages does the console have? Each handler asks the cluster, and fills a template."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from aiohttp import web

from admin.commands.messaging.consumer import moment_ms, rows_of
from admin.console import html, reports
from admin.console.asking import MESSAGES_EACH, QUEUES_MAX, Cluster, NotThere
from admin.console.drills import KINDS, REPEAT_MAX, CannotDrill, Drills
from admin.console.guard import Guard, Handler
from admin.console.poll import Poll
from admin.handover import CannotHandOver, best_target
from admin.numbers import whole
from client.finding import Found
from client.message import NoRoute
from model.errors import MqError
from model.topic import topic_name_error

log = logging.getLogger(__name__)

ANSWER_S: Final = 12.0
LATE: Final = f"the cluster did not answer within {ANSWER_S:g} s"
HANDOVER_LATE: Final = (
    f"{LATE}: whether the group is handed over is not known. Look at the map before you ask again"
)
CONSUMERS_SHOWN: Final = 15
NUMBER_MAX: Final = 2**62


class Wrong(MqError):
    """The page was asked for with something that cannot be; the text says what."""


class Pages:
    """``reports_in``: the directory of reports, or None. ``read_only``: nobody hands over here. ``drills``:
    those started here; None: none are."""

    def __init__(
        self,
        cluster: Cluster,
        guard: Guard,
        poll: Poll,
        reports_in: Path | None,
        read_only: bool,
        drills: Drills | None = None,
    ) -> None:
        self._cluster = cluster
        self._guard = guard
        self._poll = poll
        self._reports_in = reports_in
        self._read_only = read_only
        self._drills = drills
        self._pages = html.environment()

    def add_to(self, app: web.Application) -> None:
        for path, handler in {
            "/": self._map,
            "/live": self._live,
            "/topics": self._topics,
            "/topic": self._topic,
            "/consumers": self._consumers,
            "/consumer": self._consumer,
            "/messages": self._messages,
            "/message": self._message,
            "/handover": self._ask_handover,
            "/drills": self._drill_page,
        }.items():
            app.router.add_get(path, self._guarded(handler))
        app.router.add_post("/handover", self._guarded(self._hand_over, HANDOVER_LATE))
        app.router.add_post("/drills", self._guarded(self._start_drill))
        app.router.add_post("/drills/stop", self._guarded(self._stop_drill))
        app.router.add_get("/reports", self._reports)
        app.router.add_get("/report", self._report)
        app.router.add_get("/login", self._ask_login)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        app.router.add_static("/static", Path(__file__).with_name("static"))

    # --- how

    def _guarded(self, handler: Handler, late: str = LATE) -> Handler:
        """``handler`` with a place among those that ask; what goes wrong is a page. ``late``: what it says of
        no answer."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                async with self._guard.turn(), asyncio.timeout(ANSWER_S):
                    return await handler(request)
            except TimeoutError:
                return self._problem(request, 504, late)
            except (NotThere, NoRoute) as error:
                return self._problem(request, 404, str(error))
            except Wrong as error:
                return self._problem(request, 400, str(error))
            except click.UsageError as error:
                return self._problem(request, 400, error.message)
            except (MqError, OSError) as error:
                return self._problem(request, 502, str(error) or type(error).__name__)

        return handle

    def _page(
        self, request: web.Request, template: str, values: Mapping[str, Any], status: int = 200
    ) -> web.Response:
        shared = {
            "path": request.path,
            "user": self._guard.user,
            "csrf": self._guard.csrf,
            "every_ms": int(self._poll.every_ms),
            "has_reports": self._reports_in is not None,
            "has_drills": self._drills is not None,
            "can_hand_over": not self._read_only and bool(self._cluster.controllers),
        }
        text = html.render(self._pages, template, {**shared, **values})
        return web.Response(text=text, content_type="text/html", status=status)

    def _problem(self, request: web.Request, status: int, text: str) -> web.Response:
        return self._page(request, "problem.html", {"problem": text}, status)

    # --- the map

    async def _map(self, request: web.Request) -> web.Response:
        return self._page(request, "map.html", await self._seen())

    async def _live(self, request: web.Request) -> web.Response:
        return self._page(request, "live.html", await self._seen())

    async def _seen(self) -> dict[str, Any]:
        view = await self._poll.now(self._cluster.env.monotonic_ms())
        rest = view.consumers[CONSUMERS_SHOWN:]
        return {
            "view": view,
            "consumers": view.consumers[:CONSUMERS_SHOWN],
            "rest": len(rest),
            "rest_lag": sum(row.lag for row in rest),
        }

    # --- topics, groups

    async def _topics(self, request: web.Request) -> web.Response:
        wanted, whole = request.query.get("name", "")[:255], request.query.get("all") == "1"
        names = await self._cluster.topics(_number(request, "page", 1), wanted, whole)
        return self._page(request, "topics.html", {"names": names, "wanted": wanted, "whole": whole})

    async def _topic(self, request: web.Request) -> web.Response:
        name = _topic(request)
        seen = await self._cluster.topic(name)
        now_ms = self._cluster.env.now_ms()
        values = {"name": name, "seen": seen, "now_ms": now_ms, "queues": seen.queues[:QUEUES_MAX]}
        return self._page(request, "topic.html", values)

    async def _consumers(self, request: web.Request) -> web.Response:
        wanted = request.query.get("name", "")[:255]
        names, rows = await self._cluster.groups(_number(request, "page", 1), wanted)
        return self._page(request, "consumers.html", {"names": names, "rows": rows, "wanted": wanted})

    async def _consumer(self, request: web.Request) -> web.Response:
        name = request.query.get("name", "")[:255]
        seen = await self._cluster.group(name)
        rows = rows_of(list(seen.lag[:QUEUES_MAX]), seen.readers, self._cluster.env.now_ms())
        values = {"name": name, "seen": seen, "rows": rows, "lag": sum(stats.lag for stats in seen.lag)}
        return self._page(request, "consumer.html", values)

    # --- messages

    async def _messages(self, request: web.Request) -> web.Response:
        asked = {name: request.query.get(name, "").strip()[:1024] for name in ("key", "id", "since", "queue")}
        values: dict[str, Any] = {"asked": asked, "found": None, "browsed": None, "each": MESSAGES_EACH}
        if not request.query.get("topic"):
            return self._page(request, "messages.html", {**values, "topic": ""})
        topic = _topic(request, "topic")
        if found := await self._found(topic, asked):
            values["found"] = found
        else:
            offset = _number(request, "offset", None)
            values["browsed"] = await self._cluster.browse(topic, asked["queue"], offset)
        return self._page(request, "messages.html", {**values, "topic": topic})

    async def _found(self, topic: str, asked: Mapping[str, str]) -> Found | None:
        """Raises Wrong when two ways to look are asked for; None: none is."""
        given = [name for name in ("key", "id", "since") if asked[name]]
        if len(given) > 1:
            raise Wrong("look for a key, an id or a time: one of them at a time")
        if asked["key"]:
            return await self._cluster.by_key(topic, asked["key"])
        if asked["id"]:
            return await self._cluster.by_id(topic, asked["id"])
        if asked["since"]:
            return await self._cluster.since(topic, moment_ms(asked["since"]))
        return None

    async def _message(self, request: web.Request) -> web.Response:
        topic, place = _topic(request, "topic"), request.query.get("queue", "")[:300]
        offset = _number(request, "offset", 0) or 0
        found = await self._cluster.message(topic, place, offset)
        return self._page(request, "message.html", {"topic": topic, "place": place, "message": found})

    # --- a handover

    async def _ask_handover(self, request: web.Request) -> web.Response:
        group = self._may_hand_over(request.query.get("group", ""))
        return await self._handover_page(request, group, {})

    async def _handover_page(
        self, request: web.Request, group: str, more: dict[str, Any], status: int = 200
    ) -> web.Response:
        state = await self._cluster.state(group)
        try:
            best, problem = best_target(state), ""
        except CannotHandOver as error:
            best, problem = None, str(error)
        targets = [number for number in sorted(state.in_sync) if number != state.master]
        values = {"group": group, "state": state, "best": best, "targets": targets, "problem": problem}
        return self._page(request, "handover.html", {**values, "done": None, **more}, status)

    async def _hand_over(self, request: web.Request) -> web.Response:
        form = await request.post()
        group = self._may_hand_over(str(form.get("group", "")))
        if form.get("sure") != "yes":
            raise Wrong("a handover is confirmed by its check box")
        # What the page showed: sent twice, or after an election, the form asks for something else.
        target, master, epoch = (_whole(form.get(name), name) for name in ("target", "master", "epoch"))
        try:
            done = await self._cluster.hand_over(group, target, (master, epoch))
        except CannotHandOver as error:
            return await self._handover_page(request, group, {"problem": str(error)}, 409)
        log.info(
            "group=%s broker=%d handed over by %s", group, done.master, self._guard.user or "the console"
        )
        # Its slaves may not be in the SyncStateSet of the new epoch yet: nothing to warn of.
        return await self._handover_page(request, group, {"done": done, "problem": ""})

    def _may_hand_over(self, group: str) -> str:
        if self._read_only:
            raise Wrong("this console only shows: it was started with --read-only")
        return group[:255]

    # --- drills

    async def _drill_page(self, request: web.Request) -> web.Response:
        values = {"drills": self._may_drill(), "kinds": KINDS, "repeat_max": REPEAT_MAX}
        return self._page(request, "drills.html", {**values, "now_ms": self._cluster.env.now_ms()})

    async def _start_drill(self, request: web.Request) -> web.Response:
        drills, form = self._may_drill(), await request.post()
        kind, repeat = str(form.get("kind", "")), str(form.get("repeat", "1"))
        if form.get("sure") != "yes":
            raise Wrong("a drill is confirmed by its check box")
        times = whole(repeat)
        if times is None:
            raise Wrong(f"{repeat[:20]} is no number of times")
        try:
            drills.start(kind, times, self._guard.user)
        except CannotDrill as error:
            return self._problem(request, 409, str(error))
        log.info("drill=%s repeat=%s started by %s", kind, repeat, self._guard.user or "the console")
        return web.Response(status=303, headers={"Location": "/drills"})

    async def _stop_drill(self, request: web.Request) -> web.Response:
        self._may_drill().interrupt()
        log.info("drill stopped by %s", self._guard.user or "the console")
        return web.Response(status=303, headers={"Location": "/drills"})

    def _may_drill(self) -> Drills:
        if self._drills is None:
            raise NotThere("the console was started without --drills")
        return self._drills

    # --- reports

    async def _reports(self, request: web.Request) -> web.Response:
        directory = self._reports_in
        if directory is None:
            return self._problem(request, 404, "the console was started without --reports")
        try:
            found = await asyncio.to_thread(reports.listed, directory)
        except OSError as error:
            return self._problem(request, 502, str(error))
        return self._page(request, "reports.html", {"found": found, "directory": str(directory)})

    async def _report(self, request: web.Request) -> web.Response:
        name, directory = request.query.get("name", ""), self._reports_in
        try:
            body = None if directory is None else await asyncio.to_thread(reports.read, directory, name)
        except OSError as error:
            return self._problem(request, 502, str(error))
        if body is None:
            return self._problem(request, 404, "there is no such report")
        headers = {"Content-Security-Policy": reports.SANDBOX}
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)

    # --- log in and out

    async def _ask_login(self, request: web.Request) -> web.StreamResponse:
        if not self._guard.asks or self._guard.user:
            raise web.HTTPSeeOther("/")
        return self._page(request, "login.html", {"problem": ""})

    async def _login(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        then = web.Response(status=303, headers={"Location": "/"})
        problem = self._guard.log_in(request, str(form.get("name", "")), str(form.get("password", "")), then)
        if problem:
            log.warning("log-in refused: address=%s", self._guard.address(request))
            return self._page(request, "login.html", {"problem": problem}, 401)
        return then

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        then = web.Response(status=303, headers={"Location": "/login"})
        self._guard.log_out(then)
        return then


def _topic(request: web.Request, member: str = "name") -> str:
    name = request.query.get(member, "").strip()
    problem = topic_name_error(name)
    if problem is not None:
        raise Wrong(problem)
    return name


def _number(request: web.Request, member: str, default: int | None) -> Any:
    """A number of the query, or ``default``; Any: the default is one of the caller's. Raises Wrong."""
    said = request.query.get(member, "").strip()
    if not said:
        return default
    return _whole(said, member)


def _whole(said: object, member: str) -> int:
    """Raises Wrong."""
    text = said if isinstance(said, str) else ""
    found = whole(text, NUMBER_MAX)
    if found is None:
        raise Wrong(f"{member}: {text[:20]} is no number that can be")
    return found
