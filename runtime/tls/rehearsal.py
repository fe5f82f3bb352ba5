"""Would a handshake with this server's own files succeed? Played in memory, with the contexts it serves and
dials with."""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import Final

from runtime.tls.contexts import Contexts, client_context
from runtime.tls.words import told

_ROUNDS: Final = 8


def rehearse(now: Contexts, host: str) -> str:
    """Why another server with the same files could not dial this one as ``host``; empty when it could."""
    return "" if now.server is None else handshake(now.server, now.client, host)


def rehearse_anywhere(now: Contexts, now_ms: int) -> str:
    """As ``rehearse``, whatever this server is called. Reads the files again; raises ConfigError."""
    if now.server is None:
        return ""
    return handshake(now.server, client_context(replace(now.config, client_check_host=False), now_ms), None)


def advice(problem: str, trusted: str) -> str:
    """What to do about files whose rehearsal failed; ``trusted``: the keys of those that say whom to
    believe."""
    if "purpose" in problem:
        return "A client's certificate serves nobody: make one for a server (keelmq certs server)"
    return f"Put the new certificate's authority into {trusted} first"


def handshake(serving: ssl.SSLContext, dialling: ssl.SSLContext, host: str | None) -> str:
    """Why one between these ends would fail; empty when it would not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = dialling.wrap_bio(to_client, to_server, server_hostname=host)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    open_ends = [client, server]
    for _ in range(_ROUNDS):
        for end in list(open_ends):
            try:
                end.do_handshake()
                open_ends.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return told(error)
        if not open_ends:
            return ""
    return "the handshake does not end"
