"""A change of ACL 1.0 by request takes nothing else away, and is in force or nowhere."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from model.errors import Refused
from remoting.acl import plain_files
from remoting.acl.admin import PlainRequests
from remoting.acl.plain_files import PlainFiles
from remoting.codec import Command
from runtime.env import Disk
from runtime.os_env import OsEnv

PLAIN = """\
accounts:
- {accessKey: admin-key, secretKey: admin-secret, admin: 'true'}
- {accessKey: shop-key1, secretKey: shop-secret}
"""
PUT = Command(50, {"accessKey": "newcomer1", "secretKey": "newcomer-secret"})
DELETE = Command(51, {"accessKey": "shop-key1"})
WHITE = Command(53, {"globalWhiteAddrs": "*"})


@pytest.fixture
def files(tmp_path: Path) -> PlainFiles:
    (tmp_path / "plain_acl.yml").write_text(PLAIN)
    files = PlainFiles(OsEnv(seed=1), str(tmp_path))
    files.load()
    return files


async def ask(files: PlainFiles, request: Command) -> None:
    await PlainRequests(files, {}).handlers()[request.code](request)


@pytest.mark.parametrize("request_", [PUT, DELETE, WHITE], ids=["put", "delete", "white"])
@pytest.mark.parametrize("how", ["is gone", "is empty"])
async def test_a_change_of_a_file_that_is_being_saved_is_refused(
    files: PlainFiles, how: str, request_: Command
) -> None:
    default = Path(files.default)
    if how == "is gone":
        default.unlink()
    else:
        default.write_text("")
    await files.look()
    with pytest.raises(Refused, match=rf"plain_acl\.yml {how}"):
        await ask(files, request_)
    assert set(files.acl.accounts) == {"admin-key", "shop-key1"}
    assert (default.read_text() if default.exists() else "") == ""
    default.write_text(PLAIN)
    await ask(files, PUT)
    assert files.failed is None
    assert set(files.acl.accounts) == {"admin-key", "shop-key1", "newcomer1"}


async def test_the_first_account_makes_the_file(tmp_path: Path) -> None:
    files = PlainFiles(OsEnv(seed=1), str(tmp_path / "conf"))
    files.load()
    await ask(files, PUT)
    again = PlainFiles(OsEnv(seed=1), files.home)
    again.load()
    assert set(again.acl.accounts) == set(files.acl.accounts) == {"newcomer1"}


@pytest.mark.parametrize("request_", [PUT, DELETE, WHITE], ids=["put", "delete", "white"])
async def test_a_change_that_is_answered_as_failed_is_not_written(
    files: PlainFiles, request_: Command
) -> None:
    broken = Path(files.home) / "acl" / "x.yml"
    broken.parent.mkdir()
    for text in ("accounts: {", "accounts:\n- {accessKey: x}\n"):
        broken.write_text(text)
        with pytest.raises(Refused, match=r"x\.yml"):
            await ask(files, request_)
        assert Path(files.default).read_text() == PLAIN
    broken.unlink()
    await files.look()
    assert set(files.acl.accounts) == {"admin-key", "shop-key1"}
    assert not files.acl.on_white_list("8.8.8.8")


async def test_a_change_that_would_be_too_long_to_be_read_is_not_written(
    files: PlainFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remoting.acl.plain_files.FILE_BYTES_MAX", len(PLAIN) + 10)
    with pytest.raises(Refused, match="longer than"):
        await ask(files, PUT)
    files.load()
    assert set(files.acl.accounts) == {"admin-key", "shop-key1"}


async def test_a_look_that_began_before_a_deletion_does_not_undo_it(
    files: PlainFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(files.default).write_text(PLAIN + "# saved by hand\n")
    reads, go = threading.Event(), threading.Event()
    real = plain_files._read

    def slow(disk: Disk, path: str) -> dict[str, Any]:
        found = real(disk, path)
        reads.set()
        go.wait(30)
        return found

    monkeypatch.setattr(plain_files, "_read", slow)
    look = asyncio.create_task(files.look())
    await asyncio.to_thread(reads.wait, 30)
    monkeypatch.undo()
    deletion = asyncio.create_task(ask(files, DELETE))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(look, deletion)
    assert set(files.acl.accounts) == {"admin-key"}
