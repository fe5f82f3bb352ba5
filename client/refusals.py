"""Which refusals would the same request get again, however often it is sent? Pure."""

from __future__ import annotations

from typing import Final

from model.codes import Response
from model.errors import Refused

_ACL_1_MARK: Final = "AclException"
"""ACL 1.0 answers SYSTEM_ERROR with the name of its exception, before anything is looked at or written."""

_SAID_AGAIN: Final = frozenset(
    {
        Response.NO_PERMISSION,
        Response.TOPIC_NOT_EXIST,
        Response.SUBSCRIPTION_GROUP_NOT_EXIST,
        Response.SUBSCRIPTION_PARSE_FAILED,
        Response.INVALID_PARAMETER,
        Response.MESSAGE_ILLEGAL,
        Response.REQUEST_CODE_NOT_SUPPORTED,
    }
)


def is_acl_1(code: int, remark: str | None) -> bool:
    """Whether an answer is a refusal by ACL 1.0."""
    return code == Response.SYSTEM_ERROR and _ACL_1_MARK in (remark or "")


def is_by_rights(code: int, remark: str | None) -> bool:
    """Whether an answer says that the sender has no right to what it asked for."""
    return code == Response.NO_PERMISSION or is_acl_1(code, remark)


def is_final(error: BaseException) -> bool:
    """Whether an operator has to change something before the answer is another one."""
    return isinstance(error, Refused) and (error.code in _SAID_AGAIN or is_acl_1(error.code, error.remark))
