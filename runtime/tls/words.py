"""Why did a TLS connection not come about, or end? In words that say what to do."""

from __future__ import annotations

import ssl
from typing import Final

_WORDS: Final = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not believed",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate (tls.server.need.client.auth=require)",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the authority of our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that our certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not believe our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not believe our certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate: set tls.client.certPath and .keyPath",
    "NO_SHARED_CIPHER": "no cipher in common",
    "UNSUPPORTED_PROTOCOL": "it speaks only versions before TLS 1.2",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it does not speak TLS",
    "RECORD_LAYER_FAILURE": "it does not speak TLS",
}


def told(error: BaseException) -> str:
    """Why a handshake failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _WORDS.get(reason, reason.lower().replace("_", " ") or str(error))
    if isinstance(error, TimeoutError | ConnectionAbortedError):
        return str(error) or "it took too long"
    return str(error) or "it hung up during the handshake"


def alert(error: BaseException | None) -> str:
    """``: `` and what the other end, or TLS, says about the end of a connection; empty when nothing."""
    return f": {told(error)}" if isinstance(error, ssl.SSLError) else ""
