"""The order in which messages are read when more calls arrive than are read at once, without gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.patience import HANG_S
from tracelake._errors import BackPressureError
from tracelake.server import otlp_grpc
from tracelake.server.otlp_grpc import OtlpGrpcServer
from tracelake.server.otlp_http import TracesEndpoint

LOOK_S = 0.01


def with_turns(reading_max: int, use: Callable[[OtlpGrpcServer], Awaitable[None]]) -> None:
    """Use a server that reads a given number of messages at once."""

    async def run() -> None:
        door = OtlpGrpcServer(TracesEndpoint.__new__(TracesEndpoint), "")
        await asyncio.wait_for(use(door), HANG_S)
        assert (door._reading, door._waiting, door._turns._value) == ({}, 0, reading_max)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(otlp_grpc, "GRPC_READING_MAX", reading_max)
        patch.setattr(otlp_grpc, "GRPC_LOOK_S", LOOK_S)
        asyncio.run(run())


async def silent() -> AsyncIterator[bytes]:
    """Send nothing."""
    await asyncio.Event().wait()
    yield b""


async def good() -> AsyncIterator[bytes]:
    """Send a message that reaches the loop two turns later."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    yield b"good"


def check_a_burst() -> None:
    """Check that slow turns of the loop never make one of many good calls count as slow."""

    async def use(door: OtlpGrpcServer) -> None:
        loop, goes_on = asyncio.get_running_loop(), True

        def turn() -> None:
            time.sleep(2 * LOOK_S)
            if goes_on:
                loop.call_soon(turn)

        turn()
        assert set(await asyncio.gather(*(door._read(good()) for _ in range(40)))) == {b"good"}
        goes_on = False

    with_turns(4, use)


def check_the_slowest_makes_room() -> None:
    """Check that each waiting call ends the oldest call in progress, and that none ends while no call waits."""

    async def use(door: OtlpGrpcServer) -> None:
        first, second, third = slow = [asyncio.ensure_future(door._read(silent())) for _ in range(3)]
        await asyncio.sleep(20 * LOOK_S)
        assert not any(each.done() for each in slow)
        assert await door._read(good()) == b"good"
        with pytest.raises(BackPressureError, match="the slowest"):
            await first
        await asyncio.sleep(20 * LOOK_S)
        assert not any(each.done() for each in (second, third))
        for each in (second, third):
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)

    with_turns(3, use)


def check_order() -> None:
    """Check that waiting calls are read in the order of arrival."""

    async def use(door: OtlpGrpcServer) -> None:
        slow = asyncio.ensure_future(door._read(silent()))
        await asyncio.sleep(0)
        order: list[int] = []

        async def ask(number: int) -> None:
            assert await door._read(good()) == b"good"
            order.append(number)

        await asyncio.gather(*map(ask, range(5)))
        assert order == list(range(5))
        with pytest.raises(BackPressureError):
            await slow

    with_turns(1, use)


def check_who_is_over_already() -> None:
    """Check that a call ends at its deadline, also if others wait in the same turn; these continue."""

    async def use(door: OtlpGrpcServer) -> None:
        over = asyncio.ensure_future(door._read(silent()))
        await asyncio.sleep(0)
        waits = asyncio.ensure_future(door._read(good()))
        await asyncio.sleep(0)
        (turn,) = door._reading
        door._reading[turn] = otlp_grpc.GRPC_LOOKS
        turn._on_timeout()  # type: ignore[attr-defined]  # its task has not heard of it
        door._look()
        with pytest.raises(TimeoutError):
            await over
        assert await waits == b"good"

    with_turns(1, use)


def check_cancelled() -> None:
    """Check that clients that disconnect, while waiting or being read, release their turns."""

    async def use(door: OtlpGrpcServer) -> None:
        calls = [asyncio.ensure_future(door._read(silent())) for _ in range(9)]
        for number in (8, 0, 4, 1, 2, 3, 5, 6, 7):
            await asyncio.sleep(LOOK_S / 3)
            calls[number].cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    with_turns(3, use)


CHECKS = (
    check_a_burst,
    check_the_slowest_makes_room,
    check_order,
    check_who_is_over_already,
    check_cancelled,
)


@pytest.mark.parametrize("check", CHECKS)
def test_turns(check: Callable[[], None]) -> None:
    """Each check holds."""
    check()
