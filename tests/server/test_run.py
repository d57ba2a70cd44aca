"""Real server processes: addresses, shutdown, and kill -9 under load."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
import pytest

import tracelake
from tests.patience import HANG_S
from tests.server.faults import inbox_payloads
from tests.server.otlp_requests import export_request
from tests.server.process import serving
from tracelake.server.run import serve
from tracelake.storage.files import FileObjectStore

HEADERS = {"Content-Type": "application/x-protobuf"}


@pytest.fixture
def lake_path(tmp_path: Path) -> Path:
    """Return the directory of a new lake."""
    tracelake.init(tmp_path / "lake").close()
    return tmp_path / "lake"


@pytest.fixture
def lake(lake_path: Path) -> Iterator[tracelake.Lake]:
    """Return a new lake, open."""
    with tracelake.open(lake_path) as opened:
        yield opened


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", ""])
def test_only_this_machine_is_served(lake: tracelake.Lake, host: str) -> None:
    """An address that other machines can reach is refused with the way out."""
    with pytest.raises(tracelake.UsageError, match=r"127\.0\.0\.1"):
        serve(lake, host=host, port=0)


def test_a_taken_port_is_refused(lake: tracelake.Lake) -> None:
    """A port that another process listens on gives an error that names it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(tracelake.UsageError, match=rf"127\.0\.0\.1:{port}.*--port"):
            serve(lake, port=port)


def test_sigterm_ends_it_cleanly(lake_path: Path) -> None:
    """After SIGTERM requests under way are answered, what they brought is stored, and the exit code is 0."""
    with serving(lake_path) as server:
        body = export_request(1).SerializeToString()

        def slowly() -> Iterator[bytes]:
            yield body[:10]
            started.set()
            time.sleep(0.5)
            yield body[10:]

        started = Event()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(
                httpx.post, f"{server.url}/v1/traces", content=slowly(), headers=HEADERS, timeout=HANG_S
            )
            assert started.wait(HANG_S)
            # What was sent before has been read when this is answered: the server knows of the request then.
            assert httpx.get(f"{server.url}/healthz", timeout=HANG_S).status_code == 200
            assert server.stop() == (0, "closed\n")
            assert answer.result(HANG_S).status_code == 200
    assert [item.data for item in inbox_payloads(FileObjectStore(lake_path))] == [body]
