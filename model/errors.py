"""Whose fault is it, and is it worth trying again?

MqError
+- ConfigError     the operator's: a key or value that cannot be right
+- PeerError       the other side broke the wire format: close the connection, keep serving the rest
+- DiskError       our files hold bytes we did not write, or the disk refused: never answer OK
+- Refused         a well-formed request answered with no; ``code`` goes back on the wire
+- Unknown         no answer in time: neither yes nor no; histories record it as ``unknown``

BrokenInvariantError: nobody's fault but ours, so it is no MqError, which callers answer or try again.
"""


class BrokenInvariantError(AssertionError):
    """A promise of ours does not hold: a mistake of the program, and nobody's fault from outside.

    What it was about must not go on (a broker fences itself for good). Raised by what guards such promises
    while a server runs; a plain AssertionError, ours or a library's, is a failure like any other there.
    """


class MqError(Exception):
    """Base of all errors this project raises on purpose."""


class ConfigError(MqError):
    """The configuration cannot be right; the text names the key and what to do."""


class PeerError(MqError):
    """The other side broke the wire format: close the connection, keep serving the rest."""


class DiskError(MqError):
    """A file holds bytes we did not write, or the disk refused a write or a sync."""


class Refused(MqError):
    """A well-formed request answered with no; ``code`` is what goes back on the wire."""

    code: int = 1
    lacks: str = ""
    """The rights one of which would have been enough, for the log: RocketMQ's texts name none."""

    def __init__(self, remark: str, code: int | None = None) -> None:
        super().__init__(remark)
        self.remark = remark
        if code is not None:
            self.code = code


class Unknown(MqError):
    """No answer in time, or the connection ended first: the outcome is neither yes nor no."""
