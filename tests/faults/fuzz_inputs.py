"""Inputs of the fuzzer: valid requests of every route and of OTLP, altered by their structure or in their bytes.

The routes, their parameters and the schemas of their bodies come from the application itself.
"""

from __future__ import annotations

import copy
import gzip
import inspect
import json
import random
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
import zstandard
from fastapi import FastAPI
from google.protobuf.json_format import MessageToDict

from tests.server.otlp_requests import export_request
from tests.server.test_memory import field

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
    *("0" * 31 + "1", "0" * 15 + "1", "tr-" + "0" * 31 + "1", "shop", "step", "1d", "a.b", "<b>", "\ud800"),
)
NUMBERS: Final = (0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, 1e308, -0.0)
ODD: Final[tuple[Any, ...]] = (None, True, [], {}, [[]], {"": {}}, *TEXTS, *NUMBERS)
HOSTS: Final = ("example.com", "127.0.0.1:1", "[::1]", "", "127.0.0.1, x", "localhost")
TYPES: Final = (
    "application/x-protobuf",
    "application/json",
    "text/plain",
    "application/json; charset=\xff",
    "",
)
ENCODINGS: Final = ("gzip", "zstd", "deflate", "br", "gzip, zstd", "identity", "")
MESSAGE: Final = export_request(1, 2)
DOCUMENT: Final = MessageToDict(MESSAGE)
DEPTH: Final = 100_000


class Route(NamedTuple):
    """A method and path of the application, its parameters, and the kind of its body."""

    method: str
    path: str
    parameters: tuple[str, ...]
    body: Any


class Sent(NamedTuple):
    """A request."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


def routes_of(app: FastAPI) -> list[Route]:
    """Return every route of an application."""
    routes: list[Route] = []

    def walk(inner: list[Any], prefix: str) -> None:
        for route in inner:
            if (router := getattr(route, "original_router", None)) is not None:
                walk(router.routes, prefix + route.include_context.prefix)
            elif not hasattr(route, "methods"):
                routes.append(Route("GET", f"{prefix}{route.path}/icon.svg", (), None))
            else:
                path = (prefix + route.path).replace(":path}", "}")
                told = getattr(route, "dependant", None)
                names = tuple(each.alias for each in told.query_params) if told else ()
                routes.extend(Route(method, path, names, _body_of(told)) for method in sorted(route.methods))

    walk(app.routes, "")
    return routes


def _body_of(told: Any) -> Any:
    for each in told.dependencies if told else ():
        if (kind := inspect.getclosurevars(each.call).nonlocals.get("kind")) is not None:
            return kind
    return None


class Inputs:
    """Makes requests from a seed."""

    def __init__(self, app: FastAPI, seed: str) -> None:
        self.rng = random.Random(seed)
        self._routes = routes_of(app)
        self._schemas = {
            route.body: msgspec.json.schema_components([route.body]) for route in self._routes if route.body
        }

    def otlp(self) -> Sent:
        """Return a request of OTLP over HTTP."""
        choice, rng = self.rng.random(), self.rng
        encoding = ""
        if choice < 0.005:
            kind, body, encoding = rng.choice(CRAFTED)()
        elif choice < 0.5:
            kind, body = TYPES[0], self.message()
        else:
            kind, body = TYPES[1], self.altered(self.document(json.loads(_DOCUMENT_TEXT)))
        if not encoding and rng.random() < 0.3:
            encoding = rng.choice(ENCODINGS)
            body = self.altered(_encoded(encoding, body)) if rng.random() < 0.3 else _encoded(encoding, body)
        headers = [("Content-Type", kind if rng.random() < 0.95 else rng.choice(TYPES))]
        if encoding:
            headers.append(("Content-Encoding", encoding))
        if rng.random() < 0.05:
            headers.append(("x-mlflow-experiment-id", _header(rng.choice(TEXTS))))
        path = "/v1/traces" if rng.random() < 0.95 else rng.choice(("/v1/metrics", "/v1/logs", "/v1/traces/"))
        return Sent("POST", path, tuple(headers), body)

    def message(self) -> bytes:
        """Return a message of OTLP, mostly altered."""
        choice = self.rng.random()
        if choice < 0.1:
            return _GOOD
        if choice < 0.3:
            return self.altered(_GOOD)
        body = _GOOD
        for _ in range(self.rng.randint(1, 3)):
            body = self.wire(body)
        return body

    def wire(self, data: bytes, depth: int = 0) -> bytes:
        """Alter one field of a protobuf message, at some depth."""
        fields = _fields(data)
        if not fields:
            return self.altered(data or b"\x0a")
        place = self.rng.randrange(len(fields))
        key, payload = fields[place]
        if key & 7 == 2 and depth < 12 and self.rng.random() < 0.75:
            fields[place] = key, self.wire(payload, depth + 1)
            return _joined(fields)
        return _joined(fields[:place]) + self._odd_field(key, payload) + _joined(fields[place + 1 :])

    def _odd_field(self, key: int, payload: bytes) -> bytes:  # noqa: PLR0911, PLR0912  a kind each
        rng, number = self.rng, key >> 3
        match rng.randrange(12):
            case 0:  # another wire type
                return _varint(number << 3 | rng.randrange(8)) + payload
            case 1:  # a length beyond the end
                return _varint(number << 3 | 2) + _varint(rng.choice((2**31 - 1, 2**32, 2**63, 2**64 - 1)))
            case 2:  # invalid text
                return _varint(key & ~7 | 2) + b"\x04\xff\xfe\xed\x80"
            case 3:  # another number
                return _varint(rng.choice((0, 1, 15, 16, 19_000, 2**29 - 1, 2**32)) << 3 | key & 7) + payload
            case 4:
                return b""
            case 5:
                return _joined([(key, payload)]) * rng.choice((2, 3, 50))
            case 6:  # itself, nested many times
                for _ in range(rng.choice((2, 20, 200))):
                    payload = _joined([(key & ~7 | 2, payload)])
                return payload
            case 7:  # an endless number
                return _varint(number << 3) + b"\xff" * rng.choice((9, 10, 11, 40)) + b"\x01"
            case 8:  # groups
                return _varint(number << 3 | 3) * rng.choice((1, 5, 200)) + payload[:20]
            case 9:  # wrong lengths of ids
                return (
                    _varint(key & ~7 | 2)
                    + bytes([size := rng.choice((0, 1, 7, 9, 15, 17, 100))])
                    + bytes(size)
                )
            case 10:  # extreme numbers
                return _varint(number << 3 | 1) + struct.pack(
                    "<Q", rng.choice((0, 2**63 - 1, 2**63, 2**64 - 1))
                )
            case _:
                return _varint(key) + self.altered(payload or b"\x00")

    def document(self, document: Any) -> bytes:
        """Return a JSON document with some of its nodes altered."""
        for _ in range(self.rng.randrange(4)):
            document = self._node(document)
        text = json.dumps(document)
        if self.rng.random() < 0.01:
            opened, closed = self.rng.choice((("[", "]"), ('{"a":', "}")))
            text = text.replace("null", opened * DEPTH + "0" + closed * DEPTH, 1)
        return text.encode()

    def _node(self, node: Any) -> Any:
        rng = self.rng
        if isinstance(node, dict) and node and rng.random() < 0.85:
            key = rng.choice(list(node))
            if rng.random() < 0.08:
                node[rng.choice(TEXTS)] = node.pop(key)
            else:
                node[key] = self._node(node[key])
            return node
        if isinstance(node, list) and node and rng.random() < 0.85:
            place = rng.randrange(len(node))
            if rng.random() < 0.1:
                return [node[place]] * rng.choice((0, 2, 50))
            node[place] = self._node(node[place])
            return node
        return copy.deepcopy(rng.choice(ODD))

    def any_route(self) -> Sent:
        """Return a request of some route, with its parameters and a matching body, both mostly odd."""
        rng, route = self.rng, self.rng.choice(self._routes)
        parts = [
            quote(rng.choice(TEXTS).encode("utf-8", "replace"), safe="") if part.startswith("{") else part
            for part in route.path.split("/")
        ]
        if rng.random() < 0.1:
            parts[rng.randrange(len(parts))] = quote(rng.choice(TEXTS).encode("utf-8", "replace"), safe="")
        names = [name for name in route.parameters if rng.random() < 0.4]
        target = "/".join(parts)
        target = target if target.startswith("/") else f"/{target}"
        if names:
            values = (rng.choice((*TEXTS, "1", "main", "20", "true")) for _ in names)
            target += "?" + urlencode(
                {name: value.encode("utf-8", "replace") for name, value in zip(names, values, strict=True)}
            )
        if route.method in {"GET", "HEAD"}:
            return Sent("GET", target, (), b"")
        body = b"{}"
        if route.body is not None:
            (schema,), parts_of = self._schemas[route.body]
            body = self.document(self._value(schema, parts_of))
        kind = TYPES[1] if rng.random() < 0.95 else rng.choice(TYPES)
        return Sent(route.method, target, (("Content-Type", kind),), self.altered(body, 0.15))

    def _value(  # noqa: PLR0911  a kind each
        self, schema: dict[str, Any], parts: dict[str, Any], depth: int = 0
    ) -> Any:
        rng = self.rng
        if "$ref" in schema:
            return self._value(parts[schema["$ref"].rpartition("/")[2]], parts, depth)
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if "anyOf" in schema:
            return self._value(rng.choice(schema["anyOf"]), parts, depth)
        match schema.get("type"):
            case "object":
                return {
                    name: self._value(each, parts, depth + 1)
                    for name, each in schema.get("properties", {}).items()
                    if name in schema.get("required", ()) or rng.random() < 0.6
                }
            case "array":
                of = schema.get("items") or {}
                return [self._value(of, parts, depth + 1) for _ in range(rng.randrange(3))]
            case "string":
                return rng.choice(TEXTS)
            case "integer":
                return rng.choice((0, 1, 2, 100, -1, 2**63))
            case "number":
                return rng.choice(NUMBERS)
            case "boolean":
                return rng.random() < 0.5
            case "null":
                return None
        return copy.deepcopy(rng.choice(ODD))

    def headers(self) -> list[tuple[str, str]]:  # noqa: PLR0911  a kind each
        """Return additional request headers, mostly none."""
        rng = self.rng
        match rng.randrange(40):
            case 0:
                return [("Origin", rng.choice(("https://other.example", "null", "", "http://127.0.0.1")))]
            case 1:
                return [("Cookie", _header(rng.choice(TEXTS)))]
            case 2:
                return [("X-" + "a" * rng.choice((1, 500)), "b" * rng.choice((1, 8_000)))]
            case 3:
                return [("Accept", rng.choice(("*/*", "text/html", "application/json", "\xff")))]
            case 4:
                return [("X-Forwarded-Proto", "https"), ("X-Forwarded-For", _header(rng.choice(TEXTS)))]
            case 5:
                return [("Accept-Encoding", "gzip, br"), ("Range", "bytes=0-")]
        return []

    def host(self) -> str:
        """Return the server's name in the request, mostly the right one."""
        return self.rng.choice(HOSTS) if self.rng.random() < 0.02 else "127.0.0.1"

    def altered(self, data: bytes, share: float = 1.0) -> bytes:
        """Return data with some bytes altered, cut or made up, or unchanged for a share of calls."""
        rng = self.rng
        if not data or rng.random() >= share:
            return data
        body = bytearray(data)
        for _ in range(rng.randrange(4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        return bytes(body[: rng.randrange(len(body))] if rng.random() < 0.2 else body)

    def framing(self, body: bytes) -> bytes:
        """Return a request whose framing is at or beyond the limits of HTTP/1.1."""
        head = "POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-protobuf\r\n"
        edge = self.rng.choice(EDGES).replace(b"BODY", body).replace(b"SIZE", b"%x" % len(body))
        return head.encode() + edge if self.rng.random() < 0.9 else self.altered(head.encode() + edge)


EDGES: Final = (
    b"Transfer-Encoding: chunked\r\n\r\nSIZE\r\nBODY\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\nSIZE;a=b\r\nBODY\r\n0\r\nTrailer: x\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nBODY",
    b"Transfer-Encoding: chunked\r\n\r\n-1\r\nBODY\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\nSIZE\r\nBODY0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked, gzip\r\n\r\nSIZE\r\nBODY\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nSIZE\r\nBODY\r\n0\r\n\r\n",
    b"Content-Length: -1\r\n\r\nBODY",
    b"Content-Length: 99999999999999999999\r\n\r\nBODY",
    b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nBODY",
    b"Content-Length: 40000000\r\nExpect: 100-continue\r\n\r\n",
    b"Content-Length: 3\nContent-Type: x\n\nBODY",
    b"X\x00: y\r\n\r\n",
    b" folded: y\r\n\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n\r\n",
)
_GOOD: Final = MESSAGE.SerializeToString()
_DOCUMENT_TEXT: Final = json.dumps(DOCUMENT)
_ZEROS: Final = bytes(40_000_000)
_BOMBS: Final = (("gzip", gzip.compress(_ZEROS, 1)), ("zstd", zstandard.compress(_ZEROS)))
_TWICE: Final = ("gzip", gzip.compress(gzip.compress(_ZEROS, 9), 9))
_MEMBERS: Final = (("gzip", gzip.compress(b"") * 2_000), ("zstd", zstandard.compress(b"") * 2_000))
_WINDOW: Final = zstandard.ZstdCompressor(
    compression_params=zstandard.ZstdCompressionParameters(window_log=27)
).compressobj()
_WIDE: Final = ("zstd", _WINDOW.compress(_ZEROS) + _WINDOW.flush())


def _crafted(kind: str, encoding: str, body: bytes) -> Callable[[], tuple[str, bytes, str]]:
    return lambda: (kind, body, encoding)


def _nested() -> bytes:
    value = field(1, b"x")
    for _ in range(5_000):
        value = field(5, field(1, value))  # an array in an array
    return field(1, field(2, field(2, field(1, b"1" * 16) + field(2, b"2" * 8) + field(9, field(2, value)))))


CRAFTED: Final = (
    *(_crafted(TYPES[0], encoding, body) for encoding, body in (*_BOMBS, _TWICE, *_MEMBERS, _WIDE)),
    *(_crafted(TYPES[1], encoding, body) for encoding, body in _BOMBS),
    _crafted(TYPES[0], "identity", _nested()),
    _crafted(TYPES[0], "identity", field(1, field(2, b"\x12\x00" * 6_000))),
    _crafted(TYPES[0], "identity", b"\x0a\x00" * 6_000),
    _crafted(TYPES[1], "identity", b"[" * DEPTH),
    _crafted(TYPES[1], "identity", b'{"resourceSpans":' * DEPTH),
    _crafted(TYPES[1], "identity", b'{"resourceSpans":[' + b",".join([b"{}"] * 6_000) + b"]}"),
)
"""Small requests that would become large or deep; each makes work, so they are few."""


def _encoded(encoding: str, body: bytes) -> bytes:
    if "gzip" in encoding:
        return gzip.compress(body, 1)
    return zstandard.compress(body) if "zstd" in encoding else body


def _header(text: str) -> str:
    """Return text that a header may contain."""
    kept = "".join(char for char in text if char >= " ")
    return kept.encode("utf-8", "replace").decode("latin-1")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _joined(fields: list[tuple[int, bytes]]) -> bytes:
    return b"".join(
        _varint(key) + (_varint(len(payload)) if key & 7 == 2 else b"") + payload for key, payload in fields
    )


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    """Return key and payload of each field of a message, as far as it parses."""
    fields: list[tuple[int, bytes]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    try:
        while at < len(data):
            key = varint()
            begin = at
            match key & 7:
                case 0:
                    varint()
                case 1:
                    at += 8
                case 2:
                    size = varint()
                    begin = at
                    at += size
                case 5:
                    at += 4
                case _:
                    return []
            if at > len(data):
                return []
            fields.append((key, data[begin:at]))
    except IndexError:
        return []
    return fields
