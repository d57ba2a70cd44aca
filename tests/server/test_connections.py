"""Clients that are slow, many or both, against a real server process."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

import tracelake
from tests.patience import HANG_S
from tests.server.otlp_requests import export_request
from tests.server.process import ServerProcess, serving

FILES_MAX = 128
"""Files that the server may open: a quarter of the tests' connections."""
SLOW = 256
SHORT = """
from tracelake import limits
limits.CONNECTION_GRACE_S = 0.3
CONNECTION_LOOK_S = 0.05
"""


@pytest.fixture
def lake_path(tmp_path: Path) -> Path:
    """Return the directory of a new lake."""
    tracelake.init(tmp_path / "lake").close()
    return tmp_path / "lake"


FEW_FILES = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES_MAX}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""
"""Code that limits open files of the server alone: this process may have more open already."""


def connect(server: ServerProcess) -> socket.socket:
    """Return a connection to the server."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    return socket.create_connection((address.hostname, address.port or 0), timeout=HANG_S)


def is_ended(connection: socket.socket) -> bool:
    """Wait until the server has closed the connection, after reading all bytes sent before."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_slow_clients_keep_nobody_out(lake_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With more unfinished requests than the file limit allows, good requests are answered, and the log stays
    short."""
    with serving(lake_path, setup=FEW_FILES) as server:
        with ExitStack() as stack:
            for number in range(SLOW):
                slow = stack.enter_context(closing(connect(server)))
                slow.sendall(b"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
                if number % 16 == 0:
                    body = export_request(number + 1).SerializeToString()
                    headers = {"Content-Type": "application/x-protobuf"}
                    answer = httpx.post(
                        f"{server.url}/v1/traces", content=body, headers=headers, timeout=HANG_S
                    )
                    assert answer.status_code == 200
        assert server.stop()[0] == 0
    assert len(capfd.readouterr().err.splitlines()) < 50


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: ",
        b"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /heal",
    ],
    ids=["nothing", "half a head", "half a body", "half a second request"],
)
def test_who_does_not_finish_is_ended(lake_path: Path, sent: bytes) -> None:
    """A connection whose client stalls is closed, at any point in a request."""
    with serving(lake_path, setup=SHORT) as server, closing(connect(server)) as connection:
        connection.sendall(sent)
        assert is_ended(connection)


def test_who_does_not_read_is_ended(lake_path: Path) -> None:
    """A client that sends requests and reads no response is disconnected too."""
    requests = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100
    with serving(lake_path, setup=SHORT) as server, closing(connect(server)) as connection:
        assert any(fails_to_send(connection, requests) for _ in range(100_000))


def fails_to_send(connection: socket.socket, data: bytes) -> bool:
    """Return whether the server closed the connection before all data was sent; raise a timeout."""
    try:
        connection.sendall(data)
    except ConnectionError:
        return True
    return False
