"""An in-memory lake with a bucket: the base of tests that ingest objects."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import InboxPipeline, Lake
from tracelake.pipeline.sources import registry
from tracelake.storage import ObjectStore, open_objects
from tracelake.tasks.runners import InProcess


@dataclass
class Place:
    """An in-memory lake with a bucket."""

    lake: Lake
    bucket: ObjectStore

    def put(self, key: str, number: int, **fields: Any) -> str:
        """Put an object with one unique span into the bucket; return its URL."""
        self.bucket.put(key, a_line(a_span(number, 0, **fields)))
        return self.url(key)

    def url(self, key: str) -> str:
        """Return the URL of a key, or a pattern."""
        return f"{self.bucket.url}/{key}"

    def ingest(self, *patterns: str) -> tracelake.IngestReport:
        """Ingest from the bucket."""
        return self.lake.ingest(*map(self.url, patterns), runner=InProcess())

    def watch(self, *patterns: str) -> InboxPipeline:
        """Return a pipeline that watches these URLs."""
        return self.lake.pipeline(watch=patterns, runner=InProcess())


@pytest.fixture(name="place")
def fixture_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Return a new lake and an empty bucket, which is polled without a pause."""
    monkeypatch.setattr(registry, "WATCHED_BUCKET_PAUSE_S", 0.0)
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as lake:
        yield Place(lake, open_objects(f"memory://{uuid.uuid4().hex}"))


def bad(report: tracelake.IngestReport) -> dict[str, str]:
    """Return the first problem of each bad input, by the last name of its path."""
    return {item.path.rpartition("/")[2]: item.problems[0].reason for item in report.bad}


def failing(monkeypatch: pytest.MonkeyPatch, *keys: str) -> set[str]:
    """Make reads of objects with these keys fail while they are in the set."""
    away, read, head = set(keys), registry._Address.read, registry._Address.size_bytes

    def failing_read(self: Any, size_bytes: int) -> Iterator[bytes]:
        if self.key in away:
            yield b"{"
            raise OSError(f"no answer of {self.bucket}")
        yield from read(self, size_bytes)

    def failing_head(self: Any) -> int:
        if self.key in away:
            raise OSError(f"no answer of {self.bucket}")
        return head(self)

    monkeypatch.setattr(registry._Address, "read", failing_read)
    monkeypatch.setattr(registry._Address, "size_bytes", failing_head)
    return away
