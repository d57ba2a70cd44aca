"""Ports of this machine."""

from __future__ import annotations

import secrets
import socket
from typing import Final

_FIRST: Final = 15_000
_LAST: Final = 30_000
"""Below the range of which Linux gives a connection its own port (32,768 on): a server that is killed finds its port
free when it starts again, whatever was connected to whatever in between."""
_TRIES_MAX: Final = 100


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on now, and that no connection will be given."""
    for _ in range(_TRIES_MAX):
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    message = f"no free port in {_TRIES_MAX} tries between {_FIRST} and {_LAST}"
    raise OSError(message)
