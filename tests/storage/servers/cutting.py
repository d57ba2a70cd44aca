"""TCP proxy that cuts connections on command: before a request reaches the server, or its reply the client."""

from __future__ import annotations

import re
import select
import socket
import threading
from contextlib import suppress
from typing import Literal

from tests.patience import HANG_S

Cut = Literal["request", "reply"]


class CuttingProxy:
    """Proxy that forwards connections to a port of this machine.

    After `cut("request", marker)`, the next request that contains the marker never reaches the server, and the
    proxy closes the connection. After `cut("reply", marker)`, the server acts on the request, and the proxy closes
    the connection when the reply arrives.
    """

    def __init__(self, target_port: int) -> None:
        """Listen on a free port."""
        self._target = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._plan: tuple[Cut, bytes] | None = None
        self.cuts = 0
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self, what: Cut, marker: bytes) -> None:
        """Cut at the next request that contains the marker."""
        with self._lock:
            self._plan = (what, marker)

    def close(self) -> None:
        """Accept no more connections and end the existing ones."""
        self._closed.set()
        # wakes the thread that waits in accept
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=HANG_S)

    def _accept(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                try:
                    client, _ = self._listener.accept()
                except OSError:
                    return
                self._threads.append(threading.Thread(target=self._forward, args=(client,)))
                self._threads[-1].start()

    def _forward(self, client: socket.socket) -> None:
        doomed = False
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as server:
            while not self._closed.is_set():
                for source in select.select([client, server], [], [], 0.1)[0]:
                    data = source.recv(1 << 20)
                    if not data or (doomed and source is server):
                        return
                    what = self._planned(data) if source is client else None
                    if what == "request":
                        return
                    doomed = doomed or what == "reply"
                    (server if source is client else client).sendall(self._through(data))

    def _through(self, data: bytes) -> bytes:
        """Return the bytes to forward in place of the received ones."""
        return data

    def _planned(self, data: bytes) -> Cut | None:
        with self._lock:
            if self._plan is None or self._plan[1] not in data:
                return None
            what = self._plan[0]
            self._plan = None
            self.cuts += 1
            return what


class DroppingProxy(CuttingProxy):
    """Forwards HTTP requests without the headers that make a put conditional, as some gateways do."""

    def _through(self, data: bytes) -> bytes:
        return re.sub(rb"(?i)\r\nif-((none-)?match):", rb"\r\nxx-\1:", data)
