"""gRPC's server for asyncio, without three weaknesses. Each lets who reaches the port, with no key, hold up all others.

*A call whose name is no text ended it.* Its loop takes calls of registered methods as they are, and decodes the names
of all others; one that is not UTF-8 ends the loop, which shuts the server down. So our methods are registered, and
calls of others are refused before the loop sees them.

*It stood still while the event loop took some 208 turns.* A thread of gRPC puts events in a queue, and a byte for each
in a socket that wakes the event loop; that reads one byte a turn, and takes all events. So bytes stay, until at some
277 the socket is full and the thread waits: on Linux until three quarters are read, one a turn (`sock_alloc_send_pskb`,
`unix_writable`). Turns of 0.3 s, as on a busy machine, made it a minute. So `emptied` reads all bytes.

*It began with one call in two to four turns*, however many waited. So each of our methods has `GRPC_ACCEPTED_AT_ONCE`
tasks that each wait for a call.

A server that has started must be stopped before its loop ends: gRPC writes a call that comes to where the task that
waits for it has its memory, also once that is gone.
"""

# ruff: noqa: PLC0415  gRPC takes a while to import, and not every server has it

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeAlias

from tracelake._errors import UsageError
from tracelake.limits import GRPC_ACCEPTED_AT_ONCE

logger = logging.getLogger("tracelake.server")

_ALL_BYTES: Final = 65_536
"""As many as the socket that wakes the event loop may have, and more."""
_Answer: TypeAlias = Callable[[Any], Coroutine[Any, Any, None]]
_BUILT_ON: Final = ("_make_request_call_future", "_request_registered_call", "_request_call")
"""What gRPC's server has to have: it would not call what it does not know."""


class _Accepting:
    """Goes before gRPC's own server as a base: begins with many calls at once, and refuses what is not registered."""

    is_running: Callable[[], bool]
    _request_call: Callable[[], Coroutine[Any, Any, Any]]
    _request_registered_call: Callable[[bytes], Coroutine[Any, Any, Any]]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._methods: dict[str, Any] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def add_registered_method_handlers(self, method_handlers: Mapping[str, Any]) -> None:
        self._methods.update(method_handlers)
        super().add_registered_method_handlers(method_handlers)  # type: ignore[misc]

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[None]:
        """Called once for each method, and for all others; ends with an error of gRPC when the server does."""
        if method is None:
            return asyncio.ensure_future(self._accept(self._request_call, _refuse))
        return asyncio.ensure_future(self._accept_many(method))

    async def _accept_many(self, method: bytes) -> None:
        request = partial(self._request_registered_call, method)
        answer = _answer(self._methods, method.decode())
        waiting = [asyncio.create_task(self._accept(request, answer)) for _ in range(GRPC_ACCEPTED_AT_ONCE)]
        try:
            await asyncio.gather(*waiting)
        finally:
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _accept(self, request: Callable[[], Coroutine[Any, Any, Any]], answer: _Answer) -> None:
        try:
            while True:
                # Under no name here: it would keep a call, and its message, until the next one comes.
                self._begin(answer, await request())
        except Exception:
            if self.is_running():
                logger.exception("one of those that wait for gRPC calls has ended")
            raise

    def _begin(self, answer: _Answer, call: Any) -> None:
        try:
            task = asyncio.create_task(answer(call))
        except Exception:  # whatever it is, it ends this call alone
            logger.exception("a gRPC call could not be begun with")
        else:
            self._under_way.add(task)  # the loop itself would forget it
            task.add_done_callback(self._under_way.discard)


def grpc_server(options: Sequence[tuple[str, int]]) -> Any:
    """Return a server of `grpc.aio`, for the running event loop, that takes calls of its registered methods alone.

    Raises UsageError for a release of gRPC whose server is built otherwise.
    """
    from grpc import __version__
    from grpc._cython import cygrpc
    from grpc.aio import _server as aio

    if not all(hasattr(cygrpc.AioServer, name) for name in _BUILT_ON):
        raise UsageError(
            f"OTLP/gRPC does not know the package grpcio {__version__}; install one that Tracelake was tested with, or "
            "use --no-grpc"
        )

    class Calls(_Accepting, cygrpc.AioServer):  # type: ignore[misc]  # it has no types
        pass

    class Server(aio.Server):  # type: ignore[misc]
        """The public one, over `Calls`."""

        def __init__(self) -> None:
            self._loop = asyncio.get_running_loop()
            with emptied(self._loop):
                self._server = Calls(self._loop, None, (), (), tuple(options), None)

    return Server()


def _answer(methods: Mapping[str, Any], name: str) -> _Answer:
    """Return what answers a call of a method as gRPC does."""
    from grpc._cython import cygrpc

    resolver = cygrpc._MethodResolver([], methods)

    def answer(call: Any) -> Coroutine[Any, Any, None]:
        loop = asyncio.get_running_loop()
        answering = cygrpc._handle_rpc(name, resolver, (), call, loop, False)
        return cygrpc._schedule_rpc_coro(answering, call, loop, name)  # type: ignore[no-any-return]

    return answer


async def _refuse(call: Any) -> None:
    """Answer a call of a method that nobody has."""
    from grpc._cython import cygrpc

    begin = cygrpc.SendInitialMetadataOperation(None, 0)
    with suppress(Exception):  # whose client has gone
        await cygrpc._send_error_status_from_server(
            call, cygrpc.StatusCode.unimplemented, "Method not found!", (), begin, asyncio.get_running_loop()
        )


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
            try:
                handle(*args)
            except BaseException:
                loop.call_soon(emptied_first)  # for events behind the one that raised
                raise

        add(wakes, emptied_first)

    loop.add_reader = add_reader  # type: ignore[method-assign, assignment]  # of this loop, until it is taken back
    try:
        yield
    finally:
        del loop.add_reader
