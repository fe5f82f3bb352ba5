"""The key that peers have in tests, and one that is nearly the same."""

import json
from pathlib import Path

from remoting.auth import Credentials

KEY = Credentials("keelmq", "0123456789abcdef")
WRONG = Credentials("keelmq", "0123456789abcdeF")
KEY_JSON = json.dumps({"accessKey": KEY.access_key, "secretKey": KEY.secret_key})


def key_file(directory: Path) -> str:
    """What ``peerCredentialsFile`` names."""
    path = directory / "peers.json"
    path.write_text(KEY_JSON)
    return str(path)
