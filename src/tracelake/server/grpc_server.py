"""gRPC's server for asyncio, without three weaknesses. Each lets who reaches the port, with no key, hold up all others.

*A call whose name is no text ended it.* Its loop takes calls of registered methods as they are, and decodes the names
of all others; one that is not UTF-8 ends the loop, which shuts the server down. So our methods are registered, and
calls of others are refused before the loop sees them.

*It stood still while the event loop took some 208 turns.* A thread of gRPC puts events in a queue, and a byte for each
in a socket that wakes the event loop; that reads one byte a turn, and takes all events. So bytes stay, until at some
277 the socket is full and the thread waits: on Linux until three quarters are read, one a turn (`sock_alloc_send_pskb`,
`unix_writable`). Turns of 0.3 s, as on a busy machine, made it a minute. So `emptied` reads all bytes.

*It began with one call in two to four turns*, however many waited. So each method has `GRPC_ACCEPTED_AT_ONCE` tasks
that each wait for a call.
"""

# ruff: noqa: PLC0415  gRPC takes a while to import, and not every server has it

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from tracelake.limits import GRPC_ACCEPTED_AT_ONCE

_ALL_BYTES: Final = 65_536
"""More than the socket that wakes the event loop ever has."""


def grpc_server(options: Sequence[tuple[str, int]]) -> Any:
    """Return a server of `grpc.aio`, for the running event loop, that takes calls of its registered methods alone."""
    from grpc._cython import cygrpc
    from grpc.aio import _server as aio

    class Calls(cygrpc.AioServer):  # type: ignore[misc]  # it has no types
        """Begins with many calls at once, and refuses what is not registered."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._methods: dict[str, Any] = {}
            self._answering: set[asyncio.Task[None]] = set()

        def add_registered_method_handlers(self, method_handlers: Mapping[str, Any]) -> None:
            self._methods.update(method_handlers)
            super().add_registered_method_handlers(method_handlers)

        def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
            """Called once for each method, and for all others. What it returns ends when the server does."""
            if method is None:
                return asyncio.ensure_future(self._refuse_others())
            return asyncio.gather(*(self._accept(method) for _ in range(GRPC_ACCEPTED_AT_ONCE)))

        async def _accept(self, method: bytes) -> None:
            name, resolver = method.decode(), _Resolver(self._methods[method.decode()])
            while True:
                call = await self._next(self._request_registered_call, method)
                loop = asyncio.get_running_loop()
                answer = cygrpc._handle_rpc(name, resolver, (), call, loop, False)
                self._begin(cygrpc._schedule_rpc_coro(answer, call, loop, name))

        async def _refuse_others(self) -> None:
            while True:
                self._begin(_refuse(cygrpc, await self._next(self._request_call)))

        async def _next(self, request: Callable[..., Coroutine[Any, Any, Any]], *args: bytes) -> Any:
            """Return a call. Raises cygrpc's `_RequestCallError` where the server stops, as its loop expects."""
            while True:
                try:
                    return await request(*args)
                except cygrpc._RequestCallError:
                    if not self.is_running():
                        raise

        def _begin(self, answering: Coroutine[Any, Any, None]) -> None:
            task = asyncio.get_running_loop().create_task(answering)
            self._answering.add(task)  # the loop itself would forget it
            task.add_done_callback(self._answering.discard)

    class Server(aio.Server):  # type: ignore[misc]
        """The public one, over `Calls`."""

        def __init__(self) -> None:
            self._loop = asyncio.get_running_loop()
            with emptied(self._loop):
                self._server = Calls(self._loop, None, (), (), tuple(options), None)

    return Server()


@contextmanager
def emptied(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have sockets that gRPC adds to a loop meanwhile read empty before it looks at what it queued.

    It adds one for each loop, with the first server or channel there. A byte is written after its event is queued, so
    that an event whose byte is read here is found at once, and no wake-up is lost.
    """
    add = loop.add_reader

    def add_reader(wakes: socket.socket, handle: Callable[..., None], *args: Any) -> None:
        def emptied_first() -> None:
            with suppress(BlockingIOError):
                wakes.recv(_ALL_BYTES)
            handle(*args)

        add(wakes, emptied_first)

    loop.add_reader = add_reader  # type: ignore[method-assign, assignment]  # of this loop, until it is taken back
    try:
        yield
    finally:
        del loop.add_reader


class _Resolver:
    """Finds the handler of a call, as gRPC asks for it; which is known here."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def resolve_handler(self, _details: Any) -> Any:
        """Return it."""
        return self._handler


async def _refuse(cygrpc: Any, call: Any) -> None:
    """Answer a call of a method that nobody has."""
    begin = cygrpc.SendInitialMetadataOperation(None, 0)
    with suppress(Exception):  # whose client has gone
        await cygrpc._send_error_status_from_server(
            call, cygrpc.StatusCode.unimplemented, "Method not found!", (), begin, asyncio.get_running_loop()
        )
