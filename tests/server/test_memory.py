"""Crafted requests against a real server process: its memory has a bound, and good requests are answered."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest

import tracelake
from tests.patience import HANG_S
from tests.server.otlp_requests import export_request
from tests.server.process import serving

BOUND_MIB: Final = 96
SETUP: Final = f"from tracelake import limits\nlimits.REQUESTS_MEMORY_MAX_BYTES = {BOUND_MIB} * limits.MIB"
SIZE: Final = 750_000
AT_ONCE: Final = 6
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"


def field(number: int, data: bytes) -> bytes:
    """Return a field of a protobuf message in wire format."""
    length = len(data)
    encoded = bytearray()
    while length > 127:
        encoded.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2]) + encoded + bytes([length]) + data


def spans(*of_scope: bytes) -> bytes:
    """Return a request of these spans."""
    return field(1, field(2, b"".join(field(2, span) for span in of_scope)))


IDS: Final = field(1, b"1" * 16) + field(2, b"2" * 8)
JSON_SPAN: Final = b'{"traceId":"%s","spanId":"%s",' % (b"1" * 32, b"2" * 16)


def json_spans(inner: bytes) -> bytes:
    """Return a request with this text as its spans."""
    return b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + inner + b"]}]}]}"


CRAFTED: Final = {
    "empty spans": (PROTOBUF, field(1, field(2, b"\x12\x00" * (SIZE // 2)))),
    "empty spans behind a group": (
        PROTOBUF,
        b"\xa3\x06\xa4\x06" + field(1, field(2, b"\x12\x00" * (SIZE // 2))),
    ),
    "empty scopes": (PROTOBUF, field(1, b"\x12\x00" * (SIZE // 2))),
    "empty resources": (PROTOBUF, b"\x0a\x00" * (SIZE // 2)),
    "empty attributes": (PROTOBUF, spans(IDS + b"\x4a\x00" * (SIZE // 2))),
    "empty events": (PROTOBUF, spans(IDS + b"\x5a\x00" * (SIZE // 2))),
    "empty links": (PROTOBUF, spans(IDS + b"\x6a\x00" * (SIZE // 2))),
    "attributes of an event": (PROTOBUF, spans(IDS + field(11, b"\x1a\x00" * (SIZE // 2)))),
    "attributes of a resource": (
        PROTOBUF,
        field(1, field(1, b"\x0a\x00" * (SIZE // 2)) + field(2, field(2, IDS))),
    ),
    "empty values": (PROTOBUF, spans(IDS + field(9, field(2, field(5, b"\x0a\x00" * (SIZE // 2)))))),
    "empty spans of JSON": (JSON, json_spans(b",".join([b"{}"] * (SIZE // 3)))),
    "empty attributes of JSON": (
        JSON,
        json_spans(JSON_SPAN + b'"attributes":[' + b",".join([b"{}"] * (SIZE // 3)) + b"]}"),
    ),
    "arrays in an unknown field": (
        JSON,
        json_spans(JSON_SPAN + b'"kind":{},"x":[' + b",".join([b"[]"] * (SIZE // 3)) + b"]}"),
    ),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Serve a new lake; return its address and the process."""
    tracelake.init(tmp_path / "lake").close()
    with serving(tmp_path / "lake", setup=SETUP) as running:
        yield running.url, psutil.Process(running.process.pid)


def peak_mib(process: psutil.Process) -> float:
    """Return the peak memory of the process."""
    lines = Path(f"/proc/{process.pid}/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def test_crafted_requests_at_once(server: tuple[str, psutil.Process]) -> None:
    """The server accepts or refuses each, accepts the next good one, and never uses more memory than its bound."""
    url, process = server

    def post(content: bytes, of_type: str) -> int:
        headers = {"Content-Type": of_type}
        return httpx.post(f"{url}/v1/traces", content=content, headers=headers, timeout=HANG_S).status_code

    good = export_request(1).SerializeToString()
    assert post(good, PROTOBUF) == 200
    before_mib = peak_mib(process)
    for kind, (content_type, body) in CRAFTED.items():
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = set(pool.map(lambda _, body=body, of=content_type: post(body, of), range(AT_ONCE)))
        assert answers <= {200, 400, 413, 503}, kind
        assert post(good, PROTOBUF) == 200, kind
        # The excess over the bound is memory that the allocator keeps after requests have ended.
        assert peak_mib(process) - before_mib < 1.5 * BOUND_MIB, kind
