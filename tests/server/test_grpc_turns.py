"""gRPC while turns of the event loop are slow: concurrent calls start within few turns and do not wait for each
other.

The tests count turns, not seconds, because a busy machine lengthens both. They also check leftovers of ended calls.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from itertools import pairwise
from typing import Any

import grpc
import pytest

from tests.patience import HANG_S
from tracelake._errors import UsageError
from tracelake.server import otlp_grpc as module
from tracelake.server.otlp_grpc import GRPC_ACCEPTED_AT_ONCE, emptied, grpc_server

CALLERS = 16
CALLS = 8
"""Number of calls per caller. Each causes about five events: several times the capacity of the socket."""
AT_ONCE = 128
TURN_S = 0.01


class Turns:
    """A counter of an event loop's turns, which slows each of them."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._goes_on = True
        self._next()

    def _next(self) -> None:
        time.sleep(TURN_S)
        self.count += 1
        if self._goes_on:
            self._loop.call_soon(self._next)

    def stop(self) -> None:
        """Stop slowing the loop."""
        self._goes_on = False


@asynccontextmanager
async def listening(answer: Callable[..., Any], **options: Any) -> AsyncIterator[tuple[Any, int]]:
    """Run a server with one method and yield its port; stop it at the end, even with calls in flight."""
    server = grpc_server([("grpc.so_reuseport", 0)])
    handler = grpc.stream_unary_rpc_method_handler(answer, **options)
    server.add_registered_method_handlers("Good", {"Call": handler})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(None)


def begun_in(ask: Callable[[int], None], held_back: int = 0) -> list[int]:
    """Return the loop turns in which the threads' calls started; each thread calls `ask` with the port.

    No call is answered until all of them have reached the handler.
    """

    async def run() -> list[int]:
        begun: list[int] = []
        enough = asyncio.Event()

        async def answer(messages: Any, _context: Any) -> bytes:
            begun.append(turns.count)
            if len(begun) >= held_back:
                enough.set()
            await enough.wait()
            return bytes(await anext(messages))

        async with listening(answer) as (_, port):
            turns = Turns()
            try:
                with ThreadPoolExecutor(CALLERS) as pool:
                    callers = [
                        asyncio.wrap_future(pool.submit(ask, port))
                        for _ in range(1 if held_back else CALLERS)
                    ]
                    await asyncio.wait_for(asyncio.gather(*callers), HANG_S)
            finally:
                turns.stop()
        return begun

    return asyncio.run(run())


def one_after_the_other(port: int) -> None:
    """Make calls on a connection, one after the other."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(CALLS):
            assert channel.unary_unary("/Good/Call")(b"x", timeout=HANG_S) == b"x"


def all_at_once(port: int) -> None:
    """Make concurrent calls on one connection."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/Good/Call")
        assert {each.result() for each in [call.future(b"x", timeout=HANG_S) for _ in range(AT_ONCE)]} == {
            b"x"
        }


def check_no_call_waits_for_a_socket() -> None:
    """Check that one of hundreds of calls starts every few turns: a thread that waits for a full socket takes 208
    turns."""
    begun = begun_in(one_after_the_other)
    assert len(begun) == CALLERS * CALLS
    assert max(late - early for early, late in pairwise(begun)) < 100


def check_many_are_begun_at_once() -> None:
    """Check that concurrent calls start in fewer turns than calls; gRPC itself needs two turns for each."""
    begun = begun_in(all_at_once, held_back=AT_ONCE)
    assert len(begun) == AT_ONCE
    assert begun[-1] - begun[0] < AT_ONCE


class Reader:
    """A fake event loop that only watches a gRPC socket."""

    def __init__(self) -> None:
        self.read: Callable[[], None] = lambda: None
        self.soon: list[Callable[[], None]] = []

    def add_reader(self, _socket: socket.socket, read: Callable[[], None]) -> None:
        """Record the registered reader."""
        self.read = read

    def call_soon(self, read: Callable[[], None]) -> None:
        """Record the callback that is due."""
        self.soon.append(read)


def check_a_socket_is_emptied() -> None:
    """Check that the handler of a socket is called once for all bytes, also for none, and again after it raised."""
    loop = Reader()
    calls: list[str] = []
    wakes, wake = socket.socketpair()

    def handle(what: str) -> None:
        calls.append(what)
        if len(calls) == 3:
            raise RuntimeError("a loop of before is closed")

    with closing(wakes), closing(wake):
        wakes.setblocking(False)
        with emptied(loop):  # type: ignore[arg-type]
            loop.add_reader(wakes, handle, "called")  # type: ignore[call-arg, arg-type]
        assert "add_reader" not in vars(loop), "only while gRPC adds its own"
        for _ in range(100):
            wake.send(b"1")
        loop.read()
        with pytest.raises(BlockingIOError):
            wakes.recv(1)
        loop.read()
        assert (calls, loop.soon) == (["called"] * 2, [])
        with pytest.raises(RuntimeError):
            loop.read()
        assert loop.soon == [loop.read]


class Message:
    """A stand-in for a call's message, because bytes cannot show whether they still exist."""


def check_ended_calls_leave_nothing() -> None:
    """Check that no message of a refused call remains in memory, and that no ended call leaves a task."""
    there: weakref.WeakSet[Message] = weakref.WeakSet()

    def read(_data: bytes) -> Message:
        there.add(message := Message())
        return message

    async def refuse(messages: Any, context: Any) -> bytes:
        assert len(server._server._under_way) == 1
        await anext(messages)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused")
        raise AssertionError

    def ask(port: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for number in range(GRPC_ACCEPTED_AT_ONCE):
                with pytest.raises(grpc.RpcError, match="refused"):
                    channel.unary_unary("/Good/Call")(b"%d" % number, timeout=HANG_S)

    server: Any = None

    async def run() -> None:
        nonlocal server
        async with listening(refuse, request_deserializer=read) as (server, port):
            await asyncio.to_thread(ask, port)
            gc.collect()
            assert len(there) < 4
            while server._server._under_way:  # a response is sent before its call has ended
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), HANG_S))


def check_a_call_that_cannot_be_begun() -> None:
    """A failing call ends no other: concurrent calls and later ones are answered."""
    begun = grpc._cython.cygrpc._handle_rpc
    failures = [MemoryError()] * GRPC_ACCEPTED_AT_ONCE

    def begin(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return begun(*args)

    def ask(port: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            while failures:
                with suppress(grpc.RpcError):
                    channel.unary_unary("/Good/Call")(b"x", timeout=0.2)
            assert channel.unary_unary("/Good/Call")(b"x", timeout=15) == b"x"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc._cython.cygrpc, "_handle_rpc", begin)
        assert len(begun_in(ask)) >= CALLERS


def check_nothing_waits_once_it_has_stopped() -> None:
    """Check that a stopped server leaves no task, also if it stops at once."""

    async def run(turns: int) -> None:
        before = asyncio.all_tasks()
        async with listening(run):
            for _ in range(turns):
                await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    for number in range(60):
        asyncio.run(asyncio.wait_for(run(number % 3), HANG_S))


def check_all_accept_tasks_are_awaited() -> None:
    """Check that a method's accept tasks end together, even if the server fails one of them first."""

    async def run() -> None:
        others_may_end = asyncio.Event()
        requests = 0

        class Stopped(module._Accepting):
            def is_running(self) -> bool:
                return False

            async def _request_registered_call(self, _method: bytes) -> None:
                nonlocal requests
                requests += 1
                if requests > 1:
                    await others_may_end.wait()
                raise ConnectionError

        before = asyncio.all_tasks()
        accepting = Stopped()._make_request_call_future(b"/Good/Call")
        for _ in range(10):
            await asyncio.sleep(0)
        assert requests == GRPC_ACCEPTED_AT_ONCE
        assert not accepting.done()
        others_may_end.set()
        with pytest.raises(ConnectionError):
            await accepting
        assert asyncio.all_tasks() == before

    asyncio.run(asyncio.wait_for(run(), HANG_S))


CHECKS = (
    check_no_call_waits_for_a_socket,
    check_many_are_begun_at_once,
    check_a_socket_is_emptied,
    check_ended_calls_leave_nothing,
    check_a_call_that_cannot_be_begun,
    check_nothing_waits_once_it_has_stopped,
    check_all_accept_tasks_are_awaited,
)


@pytest.mark.parametrize("check", CHECKS)
def test_calls_are_begun(check: Callable[[], None]) -> None:
    """Each check holds."""
    check()


def test_a_release_of_grpc_that_is_built_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would run without Tracelake's changes."""
    monkeypatch.setattr(module, "_BUILT_ON", ("_make_call",))
    with pytest.raises(UsageError, match=r"grpcio \d.*--no-grpc"):
        grpc_server([])
