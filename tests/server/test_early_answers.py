"""Responses that do not need the request's body reach the client, however the client sends that body."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

import tracelake
from tests.patience import HANG_S
from tests.server.process import ServerProcess, serving
from tests.server.test_connections import connect, fails_to_send, is_ended
from tests.server.test_run import TLS, certificate
from tracelake import limits
from tracelake.server.otlp_http import RequestBody

MIB = 1024 * 1024
KEY = "Authorization: Bearer {token}"


class Served(NamedTuple):
    """A server whose lake has a key."""

    server: ServerProcess
    token: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a lake that requires a key."""
    path = tmp_path_factory.mktemp("early") / "lake"
    with tracelake.init(path) as lake:
        token = lake.keys.create("me", role="admin").token
    with serving(path) as server:
        yield Served(server, token)


REFUSALS = {
    "401": ("/v1/traces", ["Content-Type: application/x-protobuf"], 8 * MIB),
    "415": ("/v1/traces", [KEY, "Content-Type: text/plain"], 8 * MIB),
    "415 encoding": ("/v1/traces", [KEY, "Content-Type: application/json", "Content-Encoding: br"], 8 * MIB),
    "413": ("/v1/traces", [KEY, "Content-Type: application/x-protobuf"], 40 * MIB),
    "413 logs": ("/v1/logs", [KEY, "Content-Type: application/x-protobuf"], 40 * MIB),
    "413 API": ("/api/v1/commits", [KEY, "Content-Type: application/json"], 8 * MIB),
    "415 API": ("/api/v1/commits", [KEY], 8 * MIB),
    "401 MLflow": ("/api/3.0/mlflow/traces/search", ["Content-Type: application/json"], 8 * MIB),
    "403": ("/v1/traces", ["Origin: https://elsewhere.example"], 8 * MIB),
    "404": ("/nowhere", [KEY], 8 * MIB),
    "405": ("/metrics", [KEY], 8 * MIB),
    "413 sign-in": ("/sign-in", ["Content-Type: application/x-www-form-urlencoded"], 8 * MIB),
}


def send(served: Served, name: str, headers: list[str], *, chunked: bool) -> bytes:
    """Send a complete request, then read until the server has answered; return its response."""
    path, own, size_bytes = REFUSALS[name]
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    lines += [line.format(token=served.token) for line in own]
    lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {size_bytes}")
    head = "\r\n".join([*lines, "", ""]).encode()
    piece = b"x" * MIB
    with closing(connect(served.server)) as connection:
        connection.sendall(head)
        for _ in range(size_bytes // MIB):
            connection.sendall(b"%x\r\n%s\r\n" % (MIB, piece) if chunked else piece)
        if chunked:
            connection.sendall(b"0\r\n\r\n")
        return read(connection, until_end="Connection: close" in headers)


def read(connection: socket.socket, *, until_end: bool) -> bytes:
    """Return the bytes of a response, or of all until the server closes the connection."""
    answer = b""
    while until_end or b"\r\n\r\n" not in answer:
        piece = connection.recv(65_536)
        if not piece:
            break
        answer += piece
    return answer


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_reaches_a_client_that_sends_first(
    served: Served, name: str, connection: str, chunked: bool
) -> None:
    """A client that reads only after sending its entire body gets the response, and no reset."""
    answer = send(served, name, [f"Connection: {connection}"], chunked=chunked)
    assert answer.split(b" ", 2)[1] == name[:3].encode()


@pytest.mark.parametrize("sends", [False, True], ids=["waits", "sends"])
@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_a_client_that_expects_100_is_answered_at_once(served: Served, connection: str, sends: bool) -> None:
    """With `Expect: 100-continue` the response precedes the body, without `100 Continue`, and the connection
    closes."""
    head = (
        "POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-protobuf\r\n"
        f"Expect: 100-continue\r\nContent-Length: {8 * MIB}\r\nConnection: {connection}\r\n\r\n"
    )
    with closing(connect(served.server)) as opened:
        opened.sendall(head.encode())
        if sends:
            opened.sendall(b"x" * 8 * MIB)
        answer = read(opened, until_end=True)
    assert answer.startswith(b"HTTP/1.1 401")
    assert answer.lower().count(b"connection: close") == 1


def test_a_connection_serves_on_after_a_refusal(served: Served) -> None:
    """A refused body is read to its end, so the next request of the connection is answered too."""
    refused = (
        b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000
    )
    with closing(connect(served.server)) as connection:
        for _ in range(3):
            connection.sendall(refused)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = read(connection, until_end=True)
    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"401", b"401", b"401", b"200"]


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_a_refusal_reaches_a_client_over_tls(tmp_path: Path, connection: str) -> None:
    """TLS has no half-close, and the client still gets the complete response and the end of the connection."""
    cert, key = certificate(tmp_path)
    with tracelake.init(tmp_path / "lake") as lake:
        lake.keys.create("me", role="admin")
    head = (
        f"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-protobuf\r\n"
        f"Content-Length: {8 * MIB}\r\nConnection: {connection}\r\n\r\n"
    )
    trusted = ssl.create_default_context(cafile=str(cert))
    with (
        serving(tmp_path / "lake", setup=TLS.format(cert=str(cert), key=str(key))) as server,
        trusted.wrap_socket(connect(server), server_hostname="127.0.0.1") as opened,
    ):
        opened.sendall(head.encode() + b"x" * 8 * MIB)
        answer = read(opened, until_end=connection == "close")
    assert answer.startswith(b"HTTP/1.1 401")


LOW = """
from tracelake import limits
limits.DISCARDED_BODY_MAX_BYTES = 4 * 1024 * 1024
limits.DISCARDED_BODY_MAX_S = 0.5
"""


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_what_is_discarded_has_a_bound(tmp_path: Path, connection: str) -> None:
    """An endless body is cut off after a number of bytes; one that stalls is answered after some time."""
    tracelake.init(tmp_path / "lake").close()
    head = f"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: {connection}\r\n"
    with serving(tmp_path / "lake", setup=LOW) as server:
        with closing(connect(server)) as opened:
            opened.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
            chunk = b"%x\r\n%s\r\n" % (MIB, b"x" * MIB)
            assert any(fails_to_send(opened, chunk) for _ in range(64))
        with closing(connect(server)) as opened:
            opened.settimeout(HANG_S)
            opened.sendall(head.encode() + b"Content-Length: 1000\r\n\r\nx")
            assert read(opened, until_end=False).startswith(b"HTTP/1.1 404")
            assert is_ended(opened)
        assert server.stop()[0] == 0


def check_bound_of_bytes() -> None:
    """Discard an endless body: a bounded number of its bytes is read."""
    read_bytes = 0

    async def receive() -> dict[str, object]:
        nonlocal read_bytes
        read_bytes += MIB
        assert read_bytes <= limits.DISCARDED_BODY_MAX_BYTES + MIB
        return {"type": "http.request", "body": b"x" * MIB, "more_body": True}

    assert not anyio.run(RequestBody({"headers": [(b"transfer-encoding", b"chunked")]}, receive).discard)


def test_discarding_is_bounded_by_bytes() -> None:
    """The server stops reading an endless body."""
    check_bound_of_bytes()
