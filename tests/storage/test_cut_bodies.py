"""Bucket replies with a truncated body: lists and reads are retried, with and without an entity tag."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from tests.storage.conftest import environment
from tracelake import limits
from tracelake._errors import StorageError
from tracelake.storage.buckets import BucketObjectStore

DATA = bytes(range(250)) * 20
LISTED = b"".join(
    b"<Contents><Key>x/%d</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>1</Size></Contents>"
    % n
    for n in range(9)
)
LISTING = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>%s</ListBucketResult>" % LISTED


class _Answers(BaseHTTPRequestHandler):
    """Request handler for lists and reads that truncates the first reply of each kind."""

    cuts = 1
    tag = True
    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        kind = "list" if "list-type" in self.path else "read"
        body, status = (LISTING, 200) if kind == "list" else (DATA, 200)
        self.asked[kind] += 1
        if kind == "read" and (asked := self.headers.get("Range")):
            first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
            body, status = DATA[first : last + 1], 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
        if self.tag:
            self.send_header("ETag", '"tag"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.asked[kind] <= self.cuts else body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Suppress the log."""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketObjectStore]:
    """Return a bucket on a server that truncates the first reply of each kind."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(limits, "STORE_PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(limits, "STORE_PAUSE_MAX_S", 0.002)
    monkeypatch.setattr(_Answers, "asked", Counter())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    names = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
    }
    with environment("AWS_", names):
        yield BucketObjectStore("s3://b")
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("tag", [True, False])
def test_a_cut_body_is_read_again(
    bucket: BucketObjectStore, tag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, reads and range reads are whole although the first reply of each is truncated."""
    monkeypatch.setattr(_Answers, "tag", tag)
    assert [info.path for info in bucket.list("x/")] == [f"x/{n}" for n in range(9)]
    assert bucket.get("x/1") == DATA
    _Answers.asked.clear()
    assert bucket.get_range("x/1", 10, 2000) == DATA[10:2010]
    assert _Answers.asked["read"] == 2


def test_a_store_that_always_cuts_is_an_error(
    bucket: BucketObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that truncates every reply is an error, because retries are bounded."""
    monkeypatch.setattr(_Answers, "cuts", 10**9)
    with pytest.raises(StorageError, match="cannot list"):
        list(bucket.list("x/"))
    assert _Answers.asked["list"] == limits.STORE_TRIES_MAX
