"""Real server processes: addresses, shutdown, and kill -9 under load."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import tracelake
from tests.patience import HANG_S
from tests.server.faults import inbox_payloads
from tests.server.otlp_requests import export_request
from tests.server.process import serving
from tracelake.server import connections
from tracelake.server.connections import Renewal, Tls
from tracelake.server.otlp_grpc import TRACES
from tracelake.server.run import Exposure, listen, serve
from tracelake.storage.local import FileObjectStore

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
def test_only_this_machine_is_served_without_a_key(lake: tracelake.Lake, host: str) -> None:
    """An address reachable by other machines is refused while the lake has no valid key, and the error names the
    solution."""
    lake.keys.revoke(lake.keys.create("old", "admin").key.id)
    with pytest.raises(tracelake.UsageError, match=r"tracelake key create.*127\.0\.0\.1"):
        serve(lake, host=host, port=0)


def test_a_name_is_no_address(lake: tracelake.Lake) -> None:
    """If the lake has a key, an invalid listen address is refused, and so is an unreadable certificate."""
    lake.keys.create("ada", "admin")
    with pytest.raises(tracelake.UsageError, match="--allowed-host"):
        serve(lake, host="example.com", port=0)
    with pytest.raises(tracelake.UsageError, match=r"no\.pem.*PEM"):
        serve(lake, port=0, exposure=Exposure(tls=Tls("no.pem", "no.pem")))


TLS = """
import functools
from tracelake.server import connections
from tracelake.server.connections import Tls
from tracelake.server.run import Exposure
connections.TLS_LOOK_S = 0.0
serve = functools.partial(serve, host="0.0.0.0", exposure=Exposure(tls=Tls({cert!r}, {key!r})))
"""


def test_off_loopback_with_tls_and_a_key(lake_path: Path, lake: tracelake.Lake, tmp_path: Path) -> None:
    """On all addresses, both ports speak TLS, and accept traces only with a key; a renewed certificate counts."""
    cert, key = certificate(tmp_path)
    token = lake.keys.create("shop", "ingest").token
    (tmp_path / "other").mkdir()
    renewed = certificate(tmp_path / "other")
    with serving(lake_path, setup=TLS.format(cert=str(cert), key=str(key))) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(verify=trusted, timeout=HANG_S) as client:
            answers = [
                client.post(
                    f"{url}/v1/traces", content=export_request(1).SerializeToString(), headers=headers
                )
                for headers in (HEADERS, HEADERS | {"Authorization": f"Bearer {token}"})
            ]
        assert [answer.status_code for answer in answers] == [401, 200]
        address = server.grpc_address.replace("https://0.0.0.0", "127.0.0.1")
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(cert.read_bytes())) as channel:
            export = channel.unary_unary(f"/{TRACES}/Export")
            body = export_request(2).SerializeToString()
            with pytest.raises(grpc.RpcError, match="requires a key"):
                export(body, timeout=HANG_S)
            assert export(body, metadata=(("authorization", f"Bearer {token}"),), timeout=HANG_S) == b""
        for now, before in zip(renewed, (cert, key), strict=True):
            now.replace(before)
        with httpx.Client(verify=ssl.create_default_context(cafile=str(cert)), timeout=HANG_S) as client:
            assert client.get(f"{url}/healthz").status_code == 200
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(cert.read_bytes())) as channel:
            export = channel.unary_unary(f"/{TRACES}/Export")
            with pytest.raises(grpc.RpcError, match="requires a key"):
                export(body, timeout=HANG_S)
    assert len(list(inbox_payloads(FileObjectStore(lake_path)))) == 2


def test_a_certificate_that_is_renewed(tmp_path: Path) -> None:
    """A renewed certificate counts after a while, once its key exists too. Until then, or if it is invalid, the old
    one counts."""
    cert, key = certificate(tmp_path)
    (tmp_path / "other").mkdir()
    new_cert, new_key = certificate(tmp_path / "other")
    before, after = (cert.read_bytes(), key.read_bytes()), (new_cert.read_bytes(), new_key.read_bytes())

    def check() -> None:
        cert.write_bytes(before[0])
        key.write_bytes(before[1])
        now_s = [0.0]
        renewal = Renewal(Tls(str(cert), str(key)), lambda: now_s[0])
        first = renewal.context()
        cert.write_bytes(after[0])
        for now in (after[0], b"half", None, after[0]):
            cert.unlink() if now is None else cert.write_bytes(now)
            now_s[0] += connections.TLS_LOOK_S
            assert renewal.context() is first
        key.write_bytes(after[1])
        assert renewal.context() is first  # the server checked a moment ago
        now_s[0] += connections.TLS_LOOK_S
        assert renewal.context() is not first
        assert renewal.pair() == after[::-1]
        second = renewal.context()
        now_s[0] += connections.TLS_LOOK_S
        assert renewal.context() is second

    check()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Return the files of a new certificate for this machine, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"


def test_a_taken_port_is_refused(lake: tracelake.Lake) -> None:
    """If another process listens on a port, the error names the port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(tracelake.UsageError, match=rf"127\.0\.0\.1:{port}.*--port"):
            serve(lake, port=port)


def test_small_responses_are_sent_at_once() -> None:
    """Connections have TCP_NODELAY: headers and body of a response are two writes, and the second must not wait for
    the client's delayed acknowledgment (40 ms)."""

    async def accepted() -> int:
        opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            option = (socket.IPPROTO_TCP, socket.TCP_NODELAY)
            opened.set_result(writer.get_extra_info("socket").getsockopt(*option))
            writer.close()

        listener = listen("127.0.0.1", 0)
        async with await asyncio.start_server(on_connection, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            nodelay = await asyncio.wait_for(opened, HANG_S)
            writer.close()
        return nodelay

    assert asyncio.run(accepted()) != 0


def test_sigterm_ends_it_cleanly(lake_path: Path) -> None:
    """After SIGTERM the server answers requests in flight and stores their data; its exit code is 0."""
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
            # The response proves that the server has read everything sent before: it knows of the request.
            assert httpx.get(f"{server.url}/healthz", timeout=HANG_S).status_code == 200
            assert server.stop() == (0, "closed\n")
            assert answer.result(HANG_S).status_code == 200
    assert [item.data for item in inbox_payloads(FileObjectStore(lake_path))] == [body]
