"""gRPC where turns of the event loop are slow: as many calls as come are begun in few turns, and none waits for others.

Counted are turns, not seconds: a machine that is busy makes both longer.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from typing import Any

import grpc
import pytest

from tests.broken import Broken, assert_caught
from tests.patience import HANG_S
from tracelake.server import grpc_server as module
from tracelake.server.grpc_server import emptied, grpc_server

CALLERS = 16
CALLS = 20
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

        server = grpc_server([("grpc.so_reuseport", 0)])
        server.add_registered_method_handlers("Good", {"Call": grpc.stream_unary_rpc_method_handler(answer)})
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        turns = Turns()
        try:
            with ThreadPoolExecutor(CALLERS) as pool:
                callers = [
                    asyncio.wrap_future(pool.submit(ask, port)) for _ in range(1 if held_back else CALLERS)
                ]
                await asyncio.wait_for(asyncio.gather(*callers), HANG_S)
        finally:
            turns.stop()
            await server.stop(None)
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


def check_a_socket_is_emptied() -> None:
    """The handler of a socket is called once for all bytes that it has."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        calls: list[str] = []
        wakes, wake = socket.socketpair()
        with closing(wakes), closing(wake):
            wakes.setblocking(False)
            with emptied(loop):
                loop.add_reader(wakes, calls.append, "called")
            for times in range(1, 4):
                for _ in range(100):
                    wake.send(b"1")
                for _ in range(10):
                    await asyncio.sleep(0)
                assert calls == ["called"] * times
            loop.remove_reader(wakes)
        assert "add_reader" not in vars(loop), "only while gRPC adds its own"

    asyncio.run(run())


CHECKS = (check_no_call_waits_for_a_socket, check_many_are_begun_at_once, check_a_socket_is_emptied)


@pytest.mark.parametrize("check", CHECKS)
def test_calls_are_begun(check: Callable[[], None]) -> None:
    """See each."""
    check()


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Broken("a socket is emptied", module.emptied, "wakes.recv(_ALL_BYTES)", "wakes.recv(1)"),
         check_a_socket_is_emptied),
        (Broken("the loop is its own again", module.emptied, "del loop.add_reader", "pass"),
         check_a_socket_is_emptied),
        (Broken("gRPC's socket is", module.grpc_server, "with emptied(self._loop):", "if True:"),
         check_no_call_waits_for_a_socket),
        (Broken("many are asked for", module.grpc_server, "range(GRPC_ACCEPTED_AT_ONCE)", "range(1)"),
         check_many_are_begun_at_once),
    ],
    ids=lambda case: getattr(case, "rule", ""),
)  # fmt: skip
def test_each_rule_is_needed(broken: Broken, check: Callable[[], None]) -> None:
    """Without it, calls wait."""
    assert_caught(broken, check)
