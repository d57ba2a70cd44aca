"""Requests with bytes altered, cut and made up, over OTLP (HTTP, gRPC) and every route: none is a fault of the server.

    python -m tests.faults.fuzz_server --requests 10000 --seed 7

Whatever comes is taken or refused: no answer is a 500 or INTERNAL, and a good request at the end is taken.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final
from urllib.parse import quote

import grpc
import grpc.aio
import httpx
import zstandard
from fastapi import FastAPI

from tests.patience import HANG_S
from tests.server.fake_lake import FakeLake, span_row
from tests.server.faults import FaultyStore
from tests.server.grpc_client import Export, export_call
from tests.server.otlp_requests import export_request
from tests.server.test_guard import every_route
from tracelake.server.app import create_app
from tracelake.server.grpc_door import GrpcDoor
from tracelake.tracking.inbox import Inbox

GOOD: Final = export_request(1, 2).SerializeToString()
PROTOBUF: Final = {"Content-Type": "application/x-protobuf"}
COMPRESS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "br": bytes,
}
TYPES: Final = ("application/x-protobuf", "application/json", "text/plain")
TEXTS: Final = (
    *("", "0", "-1", "x", "\x00", "a" * 2_000, "💥", "%00", "../..", "[[", '"', "1e999", "null", "{}", "\\"),
    *(
        "main~9999",
        "main@2026",
        "'; DROP",
        "🎉" * 300,
        "2026-13-45",
        "tr-0",
        "\x1b[2J",
        "b:c",
        "a AND",
        "NaN",
    ),
)
PARAMETERS: Final = (
    *("q", "limit", "offset", "ref", "a", "b", "name", "service", "order", "format", "tag", "facet", "page"),
    *("mode", "vector", "state", "min_duration_ms", "next", "experiment_id", "older_than", "errors", "sort"),
)
BODIES: Final = (
    *(
        b"[]",
        b"{",
        b"{}",
        b'{"name":"a","role":"read"}',
        b'{"source":"a","into":"b"}',
        b'{"trace_ids":["x"]}',
    ),
    *(b'{"key":"a","value":"b"}', b'{"retention":"1d"}', b'{"experiment":"0"}', b'{"assessment":{}}'),
)


class Fuzz:
    """One run: counts what was answered, and keeps what should not have been."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.answers: Counter[str] = Counter()
        self.faults: list[tuple[object, ...]] = []

    def run(self, requests: int) -> None:
        """Send so many requests."""
        asyncio.run(self._run(requests))

    async def _run(self, requests: int) -> None:
        with closing(Inbox(FaultyStore(), ack_timeout_s=HANG_S)) as inbox:
            app = create_app(FakeLake([span_row(output="a refund")]), inbox)
            door = GrpcDoor(app.state.otlp.traces, "127.0.0.1:0")
            port = await door.start()
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            try:
                async with (
                    httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
                    grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
                ):
                    await self._send(app, client, export_call(channel), requests)
                    last = await client.post("/v1/traces", content=GOOD, headers=PROTOBUF)
                    assert last.status_code == 200, last.text
            finally:
                await door.stop()

    async def _send(self, app: FastAPI, client: httpx.AsyncClient, export: Export, requests: int) -> None:
        # A key that is made would close the server to all that follows.
        routes = [each for each in every_route(app) if each != ("POST", "/api/v1/keys")]
        for _ in range(requests):
            client.cookies.clear()
            match self._rng.randrange(4):
                case 0:
                    await self._call(export)
                case 1:
                    encoding = self._rng.choice(list(COMPRESS))
                    headers = {"Content-Type": self._rng.choice(TYPES), "Content-Encoding": encoding}
                    body = self._altered(COMPRESS[encoding](GOOD))
                    await self._ask(client, "POST", "/v1/traces", content=body, headers=headers)
                case _:
                    await self._any_route(client, *self._rng.choice(routes))

    async def _call(self, export: Export) -> None:
        body = self._altered(gzip.compress(GOOD) if self._rng.random() < 0.3 else GOOD)
        code = "OK"
        try:
            await export(body)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
        self.answers[code] += 1
        if code not in {"OK", "INVALID_ARGUMENT"}:
            self.faults.append(("gRPC", code, body))

    async def _any_route(self, client: httpx.AsyncClient, method: str, path: str) -> None:
        parts = [
            quote(self._rng.choice(TEXTS), safe="") if part and self._rng.random() < 0.3 else part
            for part in path.split("/")
        ]
        names = self._rng.sample(PARAMETERS, self._rng.randrange(4))
        params = {name: self._rng.choice(TEXTS) for name in names}
        options: dict[str, Any] = {"params": params}
        if method != "GET":
            options["content"] = self._altered(self._rng.choice(BODIES))
            options["headers"] = {"Content-Type": "application/json"}
        await self._ask(client, method, "/".join(parts) or "/", **options)

    async def _ask(self, client: httpx.AsyncClient, method: str, path: str, **options: Any) -> None:
        try:
            answer = await client.request(method, path, **options)
        except httpx.InvalidURL:
            self.answers["no URL"] += 1
            return
        self.answers[str(answer.status_code)] += 1
        if answer.status_code == 500:
            self.faults.append((method, path, options, answer.text[:200]))

    def _altered(self, data: bytes) -> bytes:
        body = bytearray(data)
        for _ in range(self._rng.randrange(5)):
            body[self._rng.randrange(len(body))] = self._rng.randrange(256)
        return bytes(body[: self._rng.randrange(len(body))] if self._rng.random() < 0.3 else body)


def main() -> None:
    """Run, and say what was answered."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}\n")
    fuzz = Fuzz(options.seed)
    fuzz.run(options.requests)
    print(dict(fuzz.answers))
    assert not fuzz.faults, fuzz.faults[:5]


if __name__ == "__main__":
    main()
