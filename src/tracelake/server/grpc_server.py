"""gRPC's server, without its weakness: a call whose name is no text would end it, and all calls with it.

Its loop takes calls of registered methods as they are, and decodes the names of all others; one that is not UTF-8 ends
the loop, which shuts the server down. Whoever reaches the port can send such a name, with no key. So our methods are
registered, and calls of others are refused before the loop sees them.
"""

# ruff: noqa: PLC0415  gRPC takes a while to import, and not every server has it

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


def grpc_server(options: Sequence[tuple[str, int]]) -> Any:
    """Return a server of `grpc.aio` that takes calls of its registered methods alone."""
    from grpc._cython import cygrpc
    from grpc.aio import _server as aio

    class Calls(cygrpc.AioServer):  # type: ignore[misc]  # it has no types
        """Refuses what is not registered."""

        refusals: set[asyncio.Task[None]]

        async def _request_call(self) -> Any:
            while True:
                call = await super()._request_call()
                task = asyncio.get_running_loop().create_task(_refuse(cygrpc, call))
                self.refusals.add(task)  # the loop itself would forget it
                task.add_done_callback(self.refusals.discard)

    class Server(aio.Server):  # type: ignore[misc]
        """The public one, over `Calls`."""

        def __init__(self) -> None:
            self._loop = asyncio.get_running_loop()
            self._server = Calls(self._loop, None, (), (), tuple(options), None)
            self._server.refusals = set()

    return Server()


async def _refuse(cygrpc: Any, call: Any) -> None:
    """Answer a call of a method that nobody has."""
    begin = cygrpc.SendInitialMetadataOperation(None, 0)
    with suppress(Exception):  # whose client has gone
        await cygrpc._send_error_status_from_server(
            call, cygrpc.StatusCode.unimplemented, "Method not found!", (), begin, asyncio.get_running_loop()
        )
