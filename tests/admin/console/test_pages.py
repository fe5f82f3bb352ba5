"""The promises of the console's pages: escaped, hardened, bounded, and changed by their own forms alone."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from admin.console import guard, html, reports
from admin.console.access import SESSIONS_MAX, WAIT_MS
from admin.console.asking import NAMES_EACH, Names, page_of
from admin.handover import CannotHandOver, HandedOver
from tests.admin.console.served import ADDRESSES, HOSTILE, STATE, MadeUp, served, visiting

PAGES = [
    *("", "live", "topics", "topics?name=img&all=1", "topic?name=orders", "consumers"),
    *("consumer?name=billing", "messages", "messages?topic=orders", "messages?topic=orders&key=k"),
    *("message?topic=orders&queue=broker-a/0&offset=41", "handover?group=broker-a"),
]
WRONG = [
    *("topics?page=x", "topics?page=-1", "topics?page=99999999999999999999", "topic?name=a b", "topic"),
    *("messages?topic=<", "messages?topic=t&offset=1e3", "messages?topic=t&key=k&id=i"),
    *("messages?topic=t&since=soon", "message?topic=t&queue=a/0&offset=\u0664"),
]
FORM = {"group": "broker-a", "target": "2", "master": "1", "epoch": "7", "sure": "yes"}
LONG = "a rather long password"


async def test_every_page_escapes_what_the_cluster_says_and_has_no_code_of_its_own() -> None:
    async with served(MadeUp()) as url, visiting(url) as visitor:
        for path in PAGES:
            status, text = await visitor.get(path)
            assert status == 200, (path, text)
            assert "<img" not in text, path
            assert not re.search(
                r"\son\w+=[^&]|<style|javascript:|\sstyle=", re.sub(r'"[^"]*"', '""', text)
            ), path
            assert re.findall(r"<script[^>]*>", text) in ([], ["<script src=/static/console.js defer>"]), path
            assert not re.search(r"(?:src|href)=\"?(?:https?:)?//", text), path


async def test_every_answer_has_the_headers_errors_and_files_too() -> None:
    async with served(MadeUp()) as url, visiting(url) as visitor:
        for path in ("", "nowhere", "static/console.js", "static/../pages.py", "topic"):
            async with visitor.session.get(url + path) as answer:
                assert answer.headers["Content-Security-Policy"] == guard.POLICY, path
                assert answer.headers["X-Content-Type-Options"] == "nosniff", path
                assert answer.headers["Cache-Control"] == "no-store", path
                assert "Server" not in answer.headers
        assert "unsafe" not in guard.POLICY


@pytest.mark.parametrize("path", WRONG)
async def test_what_cannot_be_asked_for_is_said(path: str) -> None:
    async with served(MadeUp()) as url, visiting(url) as visitor:
        status, text = await visitor.get(path)
        assert status == 400, text
        assert "That did not work" in text


async def test_on_loopback_a_strange_name_is_refused() -> None:
    """Somebody else's page whose DNS name points to 127.0.0.1 is of another origin for nobody else."""
    async with served(MadeUp()) as url, visiting(url) as visitor:
        assert (await visitor.get("", Host="evil.example:9880"))[0] == 403
        assert (await visitor.get("", Host="127.0.0.1.evil.example"))[0] == 403
        assert (await visitor.get("", Host="localhost:1"))[0] == 200
        assert (await visitor.get("", Host="127.0.0.1:x["))[0] == 403


async def test_a_group_is_handed_over_by_the_consoles_own_form_alone() -> None:
    cluster = MadeUp()
    async with served(cluster) as url, visiting(url) as visitor, visiting(url) as other:
        form = {**FORM, "csrf": await visitor.token("handover?group=broker-a")}
        foreign = {**FORM, "csrf": await other.token("handover?group=broker-a")}
        for bad, origin in (
            (form, "http://evil.example"),
            (form, "null"),
            (form, None),
            (form, url.rstrip("/") + "1"),
            (form, "http://["),
            (FORM, ""),
            (foreign, ""),
        ):
            assert (await visitor.post("handover", bad, origin))[0] == 403
        assert (await visitor.get("handover?group=broker-a&sure=yes&csrf=" + form["csrf"]))[0] == 200
        for wrong in (
            *({"sure": ""}, {"target": "two"}, {"target": "\u0664"}, {"target": "9" * 5000}),
            *({"target": ""}, {"master": ""}, {"epoch": "x"}),
        ):
            assert (await visitor.post("handover", {**form, **wrong}))[0] == 400
        assert cluster.handed == []
        page = (await visitor.get("handover?group=broker-a"))[1]
        for name in ("master", "epoch"):
            assert f'name={name} value="{FORM[name]}"' in page, "what is confirmed is what was shown"
        assert '<option value="2" selected>broker 2 (127.0.0.1:21222), the preferred one' in page
        cluster.now = replace(STATE, in_sync={2: ADDRESSES[2]}, master=2)  # for a moment after it
        status, text, _ = await visitor.post("handover", form)
        assert status == 200
        assert "no slave" not in text
        assert "Broker 2 is master of epoch 8, after broker 1 (80 ms)" in text
        assert cluster.handed == [(2, (1, 7))]


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "application/x-www-form-urlencoded; charset=no-such"]
)
async def test_what_is_no_form_is_told_so(kind: str) -> None:
    async with served(MadeUp()) as url, aiohttp.ClientSession() as session:
        sent = {"Origin": url.rstrip("/"), "Content-Type": kind}
        async with session.post(url + "login", data=b"name=x", headers=sent) as answer:
            assert answer.status == 400


async def test_a_handover_that_is_refused_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MadeUp()

    async def refuse(group: str, target: int, seen: tuple[int, int]) -> HandedOver:
        raise CannotHandOver(f"{group}: {HOSTILE}")

    monkeypatch.setattr(cluster, "hand_over", refuse)
    async with served(cluster) as url, visiting(url) as visitor:
        form = {**FORM, "csrf": await visitor.token("handover?group=broker-a")}
        status, text, _ = await visitor.post("handover", form)
        assert status == 409
        assert "broker-a: &lt;img" in text


async def test_a_handover_without_an_answer_is_not_said_to_have_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = MadeUp()

    async def late(*_: object) -> HandedOver:
        raise TimeoutError  # as the page's own time does

    monkeypatch.setattr(cluster, "hand_over", late)
    async with served(cluster) as url, visiting(url) as visitor:
        form = {**FORM, "csrf": await visitor.token("handover?group=broker-a")}
        status, text, _ = await visitor.post("handover", form)
        assert status == 504
        assert "whether the group is handed over is not known" in text


async def test_a_console_that_only_shows_hands_nothing_over() -> None:
    cluster = MadeUp()
    async with served(cluster, read_only=True) as url, visiting(url) as visitor:
        assert "Hand over" not in (await visitor.get(""))[1]
        status, text = await visitor.get("handover?group=broker-a")
        assert (status, "--read-only" in text) == (400, True)
    assert cluster.handed == []


async def test_nobody_sees_anything_before_the_log_in() -> None:
    cluster = MadeUp()
    async with served(cluster, pairs={"ann": LONG}.items) as url, visiting(url) as visitor:
        for path in ("", "topics", "reports", "report?name=x", "nowhere"):
            async with visitor.session.get(url + path, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, "/login"), path
        assert (await visitor.get("live"))[0] == 401
        form = {"csrf": await visitor.token("login"), **FORM}
        assert (await visitor.post("handover", form))[0] == 401
        assert (cluster.looks, cluster.handed) == (0, [])
        assert (await visitor.get("static/console.css"))[0] == 200


async def test_a_log_in_gives_a_new_cookie_and_a_log_out_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MadeUp()
    now_ms = 0.0
    monkeypatch.setattr(cluster.env, "monotonic_ms", lambda: now_ms)
    async with served(cluster, pairs={"ann": LONG}.items) as url, visiting(url) as visitor:
        form = {"csrf": await visitor.token("login"), "name": "ann", "password": LONG}
        before = {cookie.value for cookie in visitor.session.cookie_jar}
        assert (await visitor.post("login", form, "http://evil.example"))[0] == 403
        status, text, _ = await visitor.post("login", {**form, "password": "a wrong password"})
        assert (status, "do not go together" in text) == (401, True)
        assert "wait a second" in (await visitor.post("login", form))[1]
        now_ms += WAIT_MS
        status, _, headers = await visitor.post("login", form)
        assert (status, headers["Location"]) == (303, "/")
        for word in ("HttpOnly", "SameSite=Lax", "Path=/"):
            assert word in headers["Set-Cookie"]
        held = {cookie.value for cookie in visitor.session.cookie_jar}
        assert held.isdisjoint(before)
        status, text = await visitor.get("")
        assert (status, "Log out" in text) == (200, True)
        stolen = {cookie.key: cookie.value for cookie in visitor.session.cookie_jar}
        assert (await visitor.post("logout", {"csrf": await visitor.token("")}))[0] == 303
        visitor.session.cookie_jar.update_cookies(stolen)
        assert (await visitor.get(""))[0] == 303
        assert SESSIONS_MAX < 1000


async def test_behind_its_proxy_one_strangers_wrong_passwords_hold_nobody_else_up() -> None:
    def form(token: str, password: str = LONG) -> dict[str, str]:
        return {"csrf": token, "name": "ann", "password": password}

    async with served(MadeUp(), pairs={"ann": LONG}.items, proxy="127.0.0.1") as url, visiting(url) as one:
        https = "https" + url.rstrip("/").removeprefix("http")
        strange, anns = ({"X-Forwarded-For": f"10.0.0.1, 192.0.2.{n}"} for n in (1, 2))
        async with one.session.get(url + "login") as page:
            token = (await page.text()).partition('name=csrf value="')[2].partition('"')[0]
            one.session.headers["Cookie"] = page.headers["Set-Cookie"].partition(";")[0]  # as over HTTPS
        one.session.headers.update(strange)
        assert (await one.post("login", form(token, "a wrong password"), https))[0] == 401
        assert "wait a second" in (await one.post("login", form(token), https))[1]
        one.session.headers.update(anns)
        status, why, _ = await one.post("login", form(token), url.rstrip("/"))
        assert status == 403, "a page over HTTP is another"
        assert "ask by https://" in why
        status, _, headers = await one.post("login", form(token), https)
        assert (status, "; Secure" in headers["Set-Cookie"]) == (303, True)


async def test_a_proxy_that_says_no_address_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with served(MadeUp(), pairs={"ann": LONG}.items, proxy="127.0.0.1") as url, visiting(url) as one:
        https = "https" + url.rstrip("/").removeprefix("http")
        async with one.session.get(url + "login") as page:
            token = (await page.text()).partition('name=csrf value="')[2].partition('"')[0]
            one.session.headers["Cookie"] = page.headers["Set-Cookie"].partition(";")[0]  # as over HTTPS
        one.session.headers["X-Forwarded-For"] = "unknown"
        form = {"csrf": token, "name": "ann", "password": "a wrong password"}
        for wanted in ("do not go together", "wait a second"):
            assert wanted in (await one.post("login", form, https))[1]
    told = [one.getMessage() for one in caplog.records if "X-Forwarded-For" in one.getMessage()]
    assert told == ["proxy 127.0.0.1: no address in X-Forwarded-For 'unknown'"]


async def test_who_is_not_the_proxy_cannot_say_from_where_it_comes() -> None:
    async with served(MadeUp(), pairs={"ann": LONG}.items, proxy="192.0.2.9") as url, visiting(url) as one:
        form = {"csrf": await one.token("login"), "name": "ann", "password": "a wrong password"}
        one.session.headers.update({"X-Forwarded-For": "192.0.2.1"})
        assert (await one.post("login", form))[0] == 401
        one.session.headers.update({"X-Forwarded-For": "192.0.2.2"})
        assert "wait a second" in (await one.post("login", form))[1]


async def test_a_cookie_goes_over_https_alone_where_a_proxy_says_that_it_is() -> None:
    async with served(MadeUp()) as url, visiting(url) as visitor:
        for said, secure in (("https", True), ("http", False), ("", False)):
            visitor.session.cookie_jar.clear()
            headers = {"X-Forwarded-Proto": said} if said else {}
            async with visitor.session.get(url, headers=headers) as answer:
                assert ("; Secure" in answer.headers["Set-Cookie"]) is secure


async def test_pages_that_wait_for_the_cluster_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "WAITING_MAX", 3)
    cluster, go, asked = MadeUp(), asyncio.Event(), 0

    async def slow(page: int, wanted: str, whole: bool) -> Names:
        nonlocal asked
        asked += 1
        await go.wait()
        return page_of([], 1)

    monkeypatch.setattr(cluster, "topics", slow)
    async with served(cluster) as url, visiting(url) as visitor:
        room = guard.AT_ONCE + 3
        waiting = [asyncio.ensure_future(visitor.get("topics")) for _ in range(room + 2)]
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        while len(done) < 2:
            more, rest = await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED, timeout=30)
            done |= more
        assert [one.result()[0] for one in done] == [503, 503]
        assert asked <= guard.AT_ONCE
        go.set()
        assert {status for status, _ in await asyncio.gather(*rest)} == {200}


async def test_reports_are_those_of_the_directory_and_run_nothing(tmp_path: Path) -> None:
    inside = tmp_path / "reports"
    (inside / "run1" / "deep").mkdir(parents=True)
    (inside / "run1" / "index.html").write_text("<script>1</script>drill")
    (inside / "run1" / "deep" / "x.html").write_text("too deep")
    (inside / f"{'a' * 9}<b>.html").write_text("named")
    (tmp_path / "secret.html").write_text("secret")
    (inside / "out.html").symlink_to(tmp_path / "secret.html")
    assert {one.name for one in reports.listed(inside)} == {"run1/index.html", "aaaaaaaaa<b>.html"}
    async with served(MadeUp(), reports=inside) as url, visiting(url) as visitor:
        status, text = await visitor.get("reports")
        assert status == 200
        assert "<b>" not in text
        async with visitor.session.get(f"{url}report?name=run1/index.html") as answer:
            assert answer.headers["Content-Security-Policy"] == reports.SANDBOX
            assert "allow" not in reports.SANDBOX
            assert "drill" in await answer.text()
        for name in ("../secret.html", "out.html", "run1/deep/x.html", str(tmp_path / "secret.html"), ""):
            assert (await visitor.get(f"report?name={name}"))[0] == 404, name
    async with served(MadeUp()) as url, visiting(url) as visitor:
        assert (await visitor.get("reports"))[0] == 404


def test_names_come_a_page_at_a_time() -> None:
    every = [f"t{number:03}" for number in range(2 * NAMES_EACH + 1)]
    assert page_of(every, 1).names == every[:NAMES_EACH]
    last = page_of(every, 99)
    assert (last.names, last.page, last.pages, last.total) == (every[-1:], 3, 3, len(every))
    assert page_of(every, 1, "T00").total == 10
    assert page_of([], 5) == Names([], 1, 1, 0)


def test_a_long_body_is_cut_and_control_characters_are_named() -> None:
    assert html.text(b"a\n\tb\x1b\xff") == "a\n\tb\\x1b\\xff"
    assert html.short(b"a\nb" * 100).endswith("...")
    cut = html.text(b"x" * (html.BODY_CHARS_MAX + 7))
    assert cut.endswith("\n... 7 characters more")
