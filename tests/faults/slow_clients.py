"""Connections that send a byte a second to a separate server: they block no other client, and the server ends them.

    python -m tests.faults.slow_clients --connections 200

This many go to the HTTP port, as many to the gRPC port, and as many to each port of a TLS server, all at once. Each
second a neighbour opens a new connection to each port and has its spans taken. Memory has a bound. Runs until the
server has ended every slow connection; one without a call ends after GRPC_IDLE_MAX_S.
"""

from __future__ import annotations

import argparse
import ssl
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Final

import grpc
import httpx
import psutil

import tracelake
from tests.patience import HANG_S
from tests.server.otlp_requests import export_request
from tests.server.process import ServerProcess, serving
from tests.server.slow_connections import TLS_KIND, Kind, SlowConnections, grpc_kinds, http_kinds
from tests.server.test_run import TLS, certificate
from tracelake import limits
from tracelake.server.otlp_grpc import TRACES

MEMORY_MAX_MIB: Final = 128
"""Maximum memory of a server for all of them and its good clients: TLS takes a quarter of a MiB for each."""
ENDED_WITHIN_S: Final = 1.2 * limits.GRPC_IDLE_MAX_S + 30
"""gRPC varies its idle limit by a tenth."""


class Neighbour:
    """A well-behaved client that opens a new connection each time."""

    def __init__(self, server: ServerProcess, token: str, cert: Path | None) -> None:
        self._url = server.url.replace("0.0.0.0", "127.0.0.1")
        self._address = server.grpc_address.removeprefix("https://").replace("0.0.0.0", "127.0.0.1")
        self._key = f"Bearer {token}"
        self._cert = cert
        self._numbers = count(1)
        self.took_s: list[float] = []

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        """Return the addresses of HTTP and gRPC."""
        http, rpc = (int(each.rpartition(":")[2]) for each in (self._url, self._address))
        return {"http": ("127.0.0.1", http), "grpc": ("127.0.0.1", rpc)}

    def send(self) -> None:
        """Send a span over both protocols."""
        body = export_request(next(self._numbers)).SerializeToString()
        trusted = ssl.create_default_context(cafile=self._cert) if self._cert else True
        begun_s = time.monotonic()
        with httpx.Client(verify=trusted, timeout=HANG_S) as client:
            headers = {"Content-Type": "application/x-protobuf", "Authorization": self._key}
            assert client.post(f"{self._url}/v1/traces", content=body, headers=headers).status_code == 200
        self.took_s.append(time.monotonic() - begun_s)
        begun_s = time.monotonic()
        options = [("grpc.use_local_subchannel_pool", 1)]
        with ExitStack() as stack:
            if self._cert is None:
                channel = stack.enter_context(grpc.insecure_channel(self._address, options))
            else:
                credentials = grpc.ssl_channel_credentials(self._cert.read_bytes())
                channel = stack.enter_context(grpc.secure_channel(self._address, credentials, options))
            export = channel.unary_unary(f"/{TRACES}/Export")
            assert export(body, timeout=HANG_S, metadata=(("authorization", self._key),)) == b""
        self.took_s.append(time.monotonic() - begun_s)


def run(connections: int, folder: Path) -> None:
    """Open this many connections to each port, and run until all are ended. Prints the results."""
    with tracelake.init(folder / "lake") as lake:
        token = lake.keys.create("neighbour", "ingest").token
    cert, key = certificate(folder)
    with ExitStack() as stack:
        plain = stack.enter_context(serving(folder / "lake"))
        secured = stack.enter_context(
            serving(folder / "lake", setup=TLS.format(cert=str(cert), key=str(key)))
        )
        neighbours = [Neighbour(plain, token, None), Neighbour(secured, token, cert)]
        for neighbour in neighbours:
            neighbour.send()
        processes = [psutil.Process(server.process.pid) for server in (plain, secured)]
        before_mib = [process.memory_info().rss / 2**20 for process in processes]
        slow: list[SlowConnections] = []
        with_key = (http_kinds(f"Bearer {token}"), grpc_kinds(f"Bearer {token}"))
        tls = ({"TLS for HTTP": TLS_KIND}, {"TLS for gRPC": TLS_KIND})
        for neighbour, kinds in zip(neighbours, (with_key, tls), strict=True):
            for port, of_port in zip(neighbour.ports.values(), kinds, strict=True):
                slow.append(_connected(port, of_port, connections))
                stack.callback(slow[-1].close)
        began_s = time.monotonic()
        most_mib = 0.0
        for turn in count():
            for each in slow:
                each.turn()
            for neighbour in neighbours:
                neighbour.send()
            taken_mib = [
                process.memory_info().rss / 2**20 - before
                for process, before in zip(processes, before_mib, strict=True)
            ]
            most_mib = max(most_mib, *taken_mib)
            assert most_mib < MEMORY_MAX_MIB, taken_mib
            is_open = sum(each.open for each in slow)
            if not is_open:
                break
            assert time.monotonic() - began_s < ENDED_WITHIN_S, f"{is_open} are not ended"
            time.sleep(max(0.0, began_s + turn + 1 - time.monotonic()))
        took_s = sorted(took_s for neighbour in neighbours for took_s in neighbour.took_s)
    print(
        f"neighbours: {len(took_s)} answered, p50 {took_s[len(took_s) // 2]:.3f} s, most {took_s[-1]:.3f} s"
    )
    print(f"memory: {most_mib:.0f} MiB more at most")
    for each in slow:
        for name, ended_s in each.ended_after_s.items():
            print(f"{name}: {len(ended_s)} ended after {min(ended_s):.0f} to {max(ended_s):.0f} s")


def _connected(port: tuple[str, int], kinds: dict[str, Kind], connections: int) -> SlowConnections:
    return SlowConnections(port, kinds, -(-connections // len(kinds)))


def main() -> None:
    """Run with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--connections", type=int, default=200, help="to each port")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracelake-slow-") as folder:
        run(options.connections, Path(folder))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
