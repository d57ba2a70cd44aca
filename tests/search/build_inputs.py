"""Shared helpers of the search tests: rows, a store that fails on request, and the real data."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from tracelake.otlp.schema import SPANS_TABLE
from tracelake.scratch import scratch_directory
from tracelake.search.analyzers import ENGLISH, Analyzer
from tracelake.search.build import build_part
from tracelake.search.finalize import finalize
from tracelake.search.model import Manifest, Receipt
from tracelake.search.part_cache import PackedFile, unpack
from tracelake.search.vectors import VectorSettings
from tracelake.storage.local import MemoryObjectStore
from tracelake.storage.ports import ObjectInfo, ObjectStore

DATA = Path(__file__).parents[3] / "shared" / "data"
INDEX = "spans"
BUILD = "spans-0000000001"
KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUSES = ("UNSET", "OK", "ERROR")


class HookedStore:
    """An `ObjectStore` that calls `hook(operation, path)` before each operation; the hook may raise."""

    def __init__(self, inner: ObjectStore, hook: Callable[[str, str], None]) -> None:
        """Wrap another store."""
        self.inner = inner
        self.hook = hook

    @property
    def url(self) -> str:
        """Return the store's URL."""
        return self.inner.url

    def put(self, path: str, data: bytes) -> None:
        """Write the object."""
        self.hook("put", path)
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Write the object iff the path is free."""
        self.hook("create", path)
        return self.inner.create(path, data)

    def replace(self, path: str, data: bytes, expected: bytes) -> bool:
        """Replace the object iff it has the expected bytes."""
        self.hook("replace", path)
        return self.inner.replace(path, data, expected)

    def get(self, path: str) -> bytes:
        """Return the whole object."""
        self.hook("get", path)
        return self.inner.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of the object."""
        self.hook("get_range", path)
        return self.inner.get_range(path, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and time."""
        self.hook("head", path)
        return self.inner.head(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects under a prefix."""
        self.hook("list", prefix)
        return self.inner.list(prefix)

    def copy(self, source: str, target: str) -> None:
        """Copy an object."""
        self.hook("copy", target)
        self.inner.copy(source, target)

    def delete(self, path: str) -> None:
        """Delete the object."""
        self.hook("delete", path)
        self.inner.delete(path)

    def local_path(self, path: str) -> str | None:
        """Return where the object is in the file system."""
        return self.inner.local_path(path)


def span(number: int, **columns: Any) -> dict[str, Any]:
    """Return one row with ids made from a number and some columns set."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    row: dict[str, Any] = {field.name: None for field in SPANS_TABLE}
    row.update(
        trace_id=digest[:32],
        span_id=digest[32:48],
        workspace="default",
        service="shop",
        name=f"span {number}",
        kind="SERVER",
        status="OK",
        start_ns=number,
        end_ns=number + 1,
        duration_ns=1,
        attributes=[],
        resource=[],
        events=[],
        links=[],
        transaction=0,
    )
    return row | columns


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return rows as table `spans`, with the ids that they have there."""
    found = pa.Table.from_pylist(list(rows), schema=SPANS_TABLE)
    ids = [(row["transaction"] << 32) + number for number, row in enumerate(rows)]
    return found.append_column("_row_id", pa.array(ids, pa.int64()))


def plain_rows(spans: pa.Table) -> list[dict[str, Any]]:
    """Return rows with maps as dicts."""
    return [
        row
        | {
            "attributes": dict(row["attributes"] or ()),
            "events": [
                event | {"attributes": dict(event["attributes"] or ())} for event in row["events"] or ()
            ],
        }
        for row in spans.to_pylist()
    ]


def stage(
    objects: ObjectStore,
    ranges: Sequence[tuple[int, int]],
    *,
    build: str = BUILD,
    attempt: str = "a",
    analyzer: Analyzer = ENGLISH,
) -> list[Receipt]:
    """Stage one part for each range of buckets; each bucket has two spans that name their bucket."""
    receipts = []
    for lo, hi in ranges:
        numbers = [(bucket, n) for bucket in range(lo, hi) for n in (0, 1)]
        rows = table([span(10 * bucket + n, input=f"common bucket{bucket}") for bucket, n in numbers])
        receipts.append(build_part(objects, INDEX, build, lo, hi, attempt, rows, analyzer=analyzer))
    return receipts


def finalize_build(
    objects: ObjectStore,
    size: int,
    *,
    build: str = BUILD,
    upper: int = 1,
    parent: Manifest | None = None,
    analyzer: Analyzer = ENGLISH,
) -> Manifest:
    """Finalize and return only the manifest."""
    return finalize(objects, INDEX, build, upper, size, parent, analyzer.fingerprint)[1]


def paths(objects: ObjectStore, kind: str) -> list[str]:
    """Return the paths of the staging, parts or manifests in the store."""
    return [info.path for info in objects.list(f"search/{INDEX}/{kind}/")]


def index_of(
    tables: Sequence[pa.Table], analyzer: Analyzer = ENGLISH, vectors: VectorSettings | None = None
) -> tuple[MemoryObjectStore, Manifest]:
    """Return a store with an index of one part for each table."""
    objects = MemoryObjectStore()
    for number, rows in enumerate(tables):
        build_part(objects, INDEX, BUILD, number, number + 1, "a", rows, analyzer=analyzer, vectors=vectors)
    _, manifest = finalize(objects, INDEX, BUILD, 1, len(tables), None, analyzer.fingerprint, vectors=vectors)
    return objects, manifest


@functools.cache
def agents() -> pa.Table:
    """Return the agents data as table `spans`, decoded with plain json, transaction 7."""
    rows: list[dict[str, Any]] = []
    with gzip.open(DATA / "agents.otlp.jsonl.gz") as lines:
        for line in lines:
            for resource in json.loads(line)["resourceSpans"]:
                attributes = dict(_attributes(resource["resource"].get("attributes")))
                for scope in resource["scopeSpans"]:
                    rows += [_row(raw, attributes.get("service.name")) for raw in scope["spans"]]
    return table(rows)


def _row(raw: dict[str, Any], service: str | None) -> dict[str, Any]:
    attributes = _attributes(raw.get("attributes"))
    values = dict(attributes)
    return span(
        0,
        trace_id=raw["traceId"],
        span_id=raw["spanId"],
        service=service,
        name=raw["name"],
        kind=KINDS[raw.get("kind", 0)],
        status=STATUSES[raw.get("status", {}).get("code", 0)],
        status_message=raw.get("status", {}).get("message"),
        input=values.get("input.value"),
        output=values.get("output.value"),
        attributes=attributes,
        events=[
            {"name": event["name"], "attributes": _attributes(event.get("attributes"))}
            for event in raw.get("events", [])
        ],
        transaction=7,
    )


def _attributes(raw: list[dict[str, Any]] | None) -> list[tuple[str, str]]:
    return [(item["key"], _text(item["value"])) for item in raw or []]


def _text(value: dict[str, Any]) -> str:
    inner = next(iter(value.values()), "")
    return inner if isinstance(inner, str) else json.dumps(inner)


def earlier_pack(data: bytes) -> bytes:
    """Return a pack in format 1, as earlier versions wrote it."""
    with scratch_directory("earlier") as directory:
        header = unpack(data, hashlib.sha256(data).hexdigest(), "p", directory)
        contents = [(directory / file.name).read_bytes() for file in header.files]
    files = [PackedFile(name=file.name, size_bytes=file.size_bytes) for file in header.files]
    encoded = msgspec.json.encode(replace(header, format_version=1, files=files))
    return b"".join((b"TLPACK01", len(encoded).to_bytes(4, "little"), encoded, *contents))
