"""Decoders of access control: files of ACL 1.0, tables, bodies and address lists of both versions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final, cast

from model.acl.addresses import from_source, is_source, white
from model.acl.directory import Directory
from model.acl.policies import acl_to_json, policies_of
from model.errors import ConfigError, PeerError, Refused
from remoting import bodies
from remoting.acl.plain_files import PlainFiles
from tests.fuzz.targets.target import Target, disk_with

PLAIN: Final = b"""globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress: 192.168.0.1-9
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  groupPerms:
  - groupA=DENY
"""
POLICIES: Final[dict[str, Any]] = {
    "subject": "User:u",
    "policies": [
        {
            "policyType": "Custom",
            "entries": [
                {
                    "resource": "Topic:t*",
                    "actions": ["Pub", "Sub"],
                    "sourceIps": ["10.0.0.0/8"],
                    "decision": "Allow",
                }
            ],
        }
    ],
}


def _plain(data: bytes) -> None:
    files = PlainFiles(
        cast(Any, SimpleNamespace(disk=disk_with("/c/plain_acl.yml", data), offload=None)), "/c"
    )
    files.load()
    assert isinstance(files.acl.accounts, Mapping)


def _white(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    if is_source(text):
        assert from_source("10.0.0.1", text) in (True, False)
    white(text)


def _policies(data: bytes) -> None:
    found = policies_of(bodies.loads(data))
    assert policies_of(acl_to_json("u", found)) == found, "written and read, it is another policy"


def _directory(data: bytes) -> None:
    directory = Directory()
    directory.load(bodies.loads_object(data))
    again = Directory()
    again.load(bodies.loads_object(bodies.dumps(directory.to_json())))
    assert again.to_json() == directory.to_json()


def _directory_seed() -> bytes:
    user = {"username": "u", "password": "p" * 12, "userType": "Normal", "userStatus": "enable"}
    return bodies.dumps({"revision": 3, "users": {"u": user}, "acls": {"u": POLICIES}})


logging.getLogger("remoting.acl.plain_files").setLevel(logging.CRITICAL)

TARGETS: Final = (
    Target(
        name="plain_acl",
        run=_plain,
        declared=(ConfigError,),
        seeds=lambda: [PLAIN, b"accounts: []\n"],
        weight=1,
        bytes_max=1024,
    ),
    Target(
        name="white_list",
        run=_white,
        declared=(ConfigError,),
        seeds=lambda: [b"10.0.0.{1,2}", b"10.0.1-9.*", b"fe80::{1,2}", b"10.0.0.0/8", b"*"],
        weight=6,
    ),
    Target(
        name="acl_policies",
        run=_policies,
        declared=(PeerError, Refused),
        seeds=lambda: [bodies.dumps(POLICIES)],
        weight=4,
    ),
    Target(
        name="acl_table",
        run=_directory,
        declared=(PeerError, Refused, ValueError, KeyError),
        seeds=lambda: [_directory_seed()],
        weight=3,
    ),
)
