"""Ports of this machine."""

from __future__ import annotations

import secrets
import socket
from typing import Final

_FIRST: Final = 15_000
_LAST: Final = 30_000
"""Last port of the range that tests use. Linux assigns ports from 32,768 on to connections, so a killed server
finds its port free when it restarts."""
_TRIES_MAX: Final = 100


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free now and that Linux assigns to no connection."""
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
