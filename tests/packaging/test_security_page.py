"""The promise of docs/security.md: each threat names the tests that hold it off, and they are there."""

from __future__ import annotations

import re
import textwrap

import yaml

from model.acl.plain import Perm, acl_of, complaints
from tests import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`((?:\w+/)+test_\w+\.py)(?:::(test_\w+))?`")


def rows() -> list[str]:
    table = PAGE.partition("| a client tries |")[2].partition("\n\n")[0]
    return [line for line in table.splitlines()[2:] if line.startswith("|")]


def test_each_threat_has_a_test_and_each_named_test_exists() -> None:
    found = rows()
    assert len(found) > 20
    for row in found:
        named = NAMED.findall(row)
        assert named, f"no test: {row}"
        for file, test in named:
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert not test or re.search(rf"^(?:async )?def {test}\(", text, re.MULTILINE), f"{file}::{test}"


def test_each_named_test_of_the_page_exists() -> None:
    for file, test in NAMED.findall(PAGE):
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, f"{file}::{test}"


def test_the_hardening_takes_ten_lines() -> None:
    text = PAGE.partition("## Hardening in ten lines")[2].partition("\n## ")[0]
    assert [line.partition(".")[0] for line in text.splitlines() if line[:1].isdigit()] == [
        str(n) for n in range(1, 11)
    ]


def test_the_example_of_plain_acl_yml_is_one() -> None:
    begin = PAGE.index("    globalWhiteRemoteAddresses: []")
    raw = yaml.load(textwrap.dedent(PAGE[begin : PAGE.index("\n\n", begin)]), Loader=yaml.BaseLoader)
    assert complaints(raw) == []
    account = acl_of([raw]).accounts["orders-app"]
    assert (account.topics["orders"], account.groups["orders-readers"]) == (Perm.PUB | Perm.SUB, Perm.SUB)
    assert (account.default_topic, account.admin) == (Perm.DENY, False)
