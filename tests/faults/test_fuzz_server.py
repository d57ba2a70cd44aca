"""A short run of malformed requests in this process; campaign `fuzz` runs longer, with a real server."""

from __future__ import annotations

import asyncio
from contextlib import closing

import uvicorn
from uvicorn.server import ServerState

from tests.faults.fuzz_server import Fuzz, Target, Tokens
from tests.patience import HANG_S
from tests.server.fake_lake import FakeLake, span_row
from tests.server.faults import FaultyStore, inbox_payloads
from tracelake.server.app import create_app
from tracelake.server.connections import Connection
from tracelake.server.otlp_grpc import OtlpGrpcServer
from tracelake.tracking.ingest_queue import Inbox


async def fuzzed(store: FaultyStore, requests: int) -> Fuzz:
    """Fuzz an application over a lake in memory, with keys, by both protocols."""
    lake = FakeLake([span_row(output="a refund")])
    tokens = Tokens(lake.keys)
    loop = asyncio.get_running_loop()
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        app = create_app(lake, inbox)
        config, state = uvicorn.Config(app, log_config=None, lifespan="off"), ServerState()
        config.load()
        door = OtlpGrpcServer(app.state.otlp.traces, "127.0.0.1:0", ring=app.state.otlp.ring)
        port = await door.start()
        server = await loop.create_server(lambda: Connection(config, state, {}, loop), "127.0.0.1", 0)
        try:
            async with server:
                fuzz = Fuzz(
                    Target(server.sockets[0].getsockname()[:2], f"127.0.0.1:{port}", app, tokens),
                    16,
                    requests,
                )
                await fuzz.run()
        finally:
            await door.stop()
    return fuzz


def test_no_request_is_a_fault() -> None:
    """Altered and made-up requests are taken or refused, never a fault, and a neighbour loses nothing."""
    store = FaultyStore()
    fuzz = asyncio.run(fuzzed(store, 600))
    assert fuzz.faults == []
    assert fuzz.count >= 500
    assert {"OK", "INVALID_ARGUMENT", "200", "400", "401", "403", "404"} <= fuzz.answers.keys()
    stored = b"".join(item.data for item in inbox_payloads(store))
    assert fuzz.acknowledged
    assert all(bytes.fromhex(trace_id) in stored for trace_id in fuzz.acknowledged)
