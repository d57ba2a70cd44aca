"""OTLP/gRPC calls as bytes, and a gRPC server in a test's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from tests.patience import HANG_S
from tracelake.server.otlp_grpc import TRACES, OtlpGrpcServer
from tracelake.server.otlp_http import TracesEndpoint
from tracelake.storage.ports import ObjectStore
from tracelake.tracking.ingest_queue import Inbox

Export = Callable[..., Awaitable[bytes]]


def export_call(channel: Any, service: str = TRACES) -> Export:
    """Return a function that sends bytes to a service and returns the response's bytes."""
    return channel.unary_unary(f"/{service}/Export")  # type: ignore[no-any-return]


def with_door(
    store: ObjectStore, use: Callable[[str], Awaitable[None]], **options: Any
) -> list[tuple[str, str]]:
    """Call `use` with the address of a gRPC server over an inbox in a store; return the counted outcomes."""
    counted: list[tuple[str, str]] = []

    async def run() -> None:
        with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:

            def count(service: str, code: str) -> None:
                counted.append((service.rpartition(".")[2], code))

            door = OtlpGrpcServer(TracesEndpoint(inbox), "127.0.0.1:0", count, **options)
            port = await door.start()
            try:
                await use(f"127.0.0.1:{port}")
            finally:
                await door.stop()

    asyncio.run(run())
    return counted


async def refusal_of(call: Awaitable[bytes]) -> tuple[str, str, int | None]:
    """Return code, message and retry delay in seconds, if any, of a failed call."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    error = raised.value
    status = Status.FromString(dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b""))
    assert status.message in {"", error.details()}
    retry = RetryInfo()
    wait_s = next((retry.retry_delay.seconds for each in status.details if each.Unpack(retry)), None)
    return error.code().name, str(error.details()), wait_s
