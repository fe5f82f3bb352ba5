"""The promise of admin.host.kept_file: a changed key is in the file, which stays whose it was."""

from __future__ import annotations

import os
from pathlib import Path

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
