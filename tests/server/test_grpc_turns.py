"""gRPC where turns of the event loop are slow: as many calls as come are begun in few turns, and none waits for others.

Counted are turns, not seconds: a machine that is busy makes both longer. And what is left of calls that have ended.
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

from tests.broken import Broken, assert_caught
from tests.patience import HANG_S
from tracelake._errors import UsageError
from tracelake.limits import GRPC_ACCEPTED_AT_ONCE
from tracelake.server import otlp_grpc as module
from tracelake.server.otlp_grpc import emptied, grpc_server

CALLERS = 16
CALLS = 8
"""Of each; some five events each: several times what the socket has room for."""
AT_ONCE = 128
TURN_S = 0.01


class Turns:
    """Counts the turns of an event loop, each of which takes a while."""

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
        """Let the loop rest again."""
        self._goes_on = False


@asynccontextmanager
async def listening(answer: Callable[..., Any], **options: Any) -> AsyncIterator[tuple[Any, int]]:
    """Lend a server of one method, and its port; stop it at the end, whatever is under way."""
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
    """Return the turns in which calls were begun with that some threads make, each by `ask` of the port.

    Until so many calls have come to the handler, none is answered.
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
    """Make calls on a connection."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(CALLS):
            assert channel.unary_unary("/Good/Call")(b"x", timeout=HANG_S) == b"x"


def all_at_once(port: int) -> None:
    """Make calls on a connection, none of which waits for another."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/Good/Call")
        assert {each.result() for each in [call.future(b"x", timeout=HANG_S) for _ in range(AT_ONCE)]} == {
            b"x"
        }


def check_no_call_waits_for_a_socket() -> None:
    """Of hundreds of calls one is begun every few turns: a thread that waits for room in a socket waits for 208."""
    begun = begun_in(one_after_the_other)
    assert len(begun) == CALLERS * CALLS
    assert max(late - early for early, late in pairwise(begun)) < 100


def check_many_are_begun_at_once() -> None:
    """Calls that come together are begun with in fewer turns than there are calls; gRPC itself takes two for each."""
    begun = begun_in(all_at_once, held_back=AT_ONCE)
    assert len(begun) == AT_ONCE
    assert begun[-1] - begun[0] < AT_ONCE


class Reader:
    """An event loop, as far as it reads a socket of gRPC."""

    def __init__(self) -> None:
        self.read: Callable[[], None] = lambda: None
        self.soon: list[Callable[[], None]] = []

    def add_reader(self, _socket: socket.socket, read: Callable[[], None]) -> None:
        """Note what reads."""
        self.read = read

    def call_soon(self, read: Callable[[], None]) -> None:
        """Note what is to be called again."""
        self.soon.append(read)


def check_a_socket_is_emptied() -> None:
    """The handler of a socket is called once for all bytes, also for none; and again where it raised."""
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
    """Stands for the message of a call: bytes do not tell whether they are still there."""


def check_ended_calls_leave_nothing() -> None:
    """Of calls that were refused no message stays, and of none anything that is under way."""
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
            while server._server._under_way:  # an answer is sent before its call has ended
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), HANG_S))


def check_a_call_that_cannot_be_begun() -> None:
    """It ends no other: as many as are waited for at once, and the next ones are answered."""
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
    """A server that is stopped, also at once, leaves no task."""

    async def run(turns: int) -> None:
        before = asyncio.all_tasks()
        async with listening(run):
            for _ in range(turns):
                await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    for number in range(60):
        asyncio.run(asyncio.wait_for(run(number % 3), HANG_S))


CHECKS = (
    check_no_call_waits_for_a_socket,
    check_many_are_begun_at_once,
    check_a_socket_is_emptied,
    check_ended_calls_leave_nothing,
    check_a_call_that_cannot_be_begun,
    check_nothing_waits_once_it_has_stopped,
)


@pytest.mark.parametrize("check", CHECKS)
def test_calls_are_begun(check: Callable[[], None]) -> None:
    """See each."""
    check()


def test_a_release_of_grpc_that_is_built_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on without what is ours."""
    monkeypatch.setattr(module, "_BUILT_ON", ("_make_call",))
    with pytest.raises(UsageError, match=r"grpcio \d.*--no-grpc"):
        grpc_server([])


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Broken("a socket is emptied", module.emptied, "wakes.recv(_ALL_BYTES)", "wakes.recv(1)"),
         check_a_socket_is_emptied),
        (Broken("also where nothing woke it", module.emptied, "suppress(BlockingIOError)", "suppress()"),
         check_a_socket_is_emptied),
        (Broken("what is behind an error is not left", module.emptied, "loop.call_soon(emptied_first)", "pass"),
         check_a_socket_is_emptied),
        (Broken("the loop is its own again", module.emptied, "del loop.add_reader", "pass"),
         check_a_socket_is_emptied),
        (Broken("gRPC's socket is", module.grpc_server, "with emptied(self._loop):", "if True:"),
         check_no_call_waits_for_a_socket),
        (Broken("many are asked for", module._Accepting._accept_many, "range(GRPC_ACCEPTED_AT_ONCE)", "range(1)"),
         check_many_are_begun_at_once),
        (Broken("a call is under no name", module._Accepting._accept, "self._begin(answer, await request())",
                "call = await request(); self._begin(answer, call)"), check_ended_calls_leave_nothing),
        (Broken("tasks are kept", module._Accepting._begin, "self._under_way.add(task)", "pass"),
         check_ended_calls_leave_nothing),
        (Broken("and no longer than they run", module._Accepting._begin,
                "task.add_done_callback(self._under_way.discard)", "pass"), check_ended_calls_leave_nothing),
        (Broken("one that cannot be begun ends no other", module._Accepting._begin,
                "except Exception:  # whatever it is, it ends this call alone", "except KeyError:"),
         check_a_call_that_cannot_be_begun),
        (Broken("all that wait are waited for", module._Accepting._accept_many,
                "await asyncio.gather(*waiting, return_exceptions=True)", "pass"),
         check_nothing_waits_once_it_has_stopped),
    ],
    ids=lambda case: getattr(case, "rule", ""),
)  # fmt: skip
def test_each_rule_is_needed(broken: Broken, check: Callable[[], None]) -> None:
    """Without it, calls wait."""
    assert_caught(broken, check)
