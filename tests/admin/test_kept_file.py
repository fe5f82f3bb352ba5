"""The promise of admin.host.kept_file: a changed key is in the file, which stays whose it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from admin.host.kept_file import keep


def test_a_changed_file_and_the_former_one_have_the_owner_and_rights_it_had(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# ours\nbrokerPermission=6\n")
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 12345, 12346)
    before = file.stat()
    for value in ("4", "2"):  # the second time a former one is there
        keep(file, {"brokerPermission": value})
    assert file.read_text() == "# ours\nbrokerPermission=2\n"
    former = tmp_path / "broker.conf.bak"
    assert former.read_text() == "# ours\nbrokerPermission=4\n"
    for one in (file, former):
        found = one.stat()
        assert (found.st_uid, found.st_gid, found.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.conf", "broker.conf.bak"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL])
def test_a_file_of_somebody_else_is_changed_all_the_same(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's file in a directory that the server's group writes. EINVAL: of a user its namespace lacks."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    file = tmp_path / "broker.conf"
    file.write_text("brokerPermission=6\n")
    monkeypatch.setattr(os, "chown", refuse)
    keep(file, {"brokerPermission": "4"})
    assert file.read_text() == "brokerPermission=4\n"
