"""Objects as input in S3, GCS and Azure buckets, over emulator servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import InvalidPathError

from tests.pipeline.bucket_place import Place, bad, fixture_place
from tests.pipeline.spans import a_line, a_span
from tests.storage.conftest import BUCKET_BACKENDS, azure, gcs, object_url, s3
from tests.storage.servers.s3 import S3Server
from tracelake import StorageError
from tracelake.storage import open_objects
from tracelake.tasks.runners import InProcess

__all__ = ["azure", "fixture_place", "gcs", "s3"]


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Return the keys of subsequent calls of a client library function."""
    keys: list[str] = []
    function: Callable[..., Any] = getattr(obstore, name)

    def call(client: Any, key: str = "", **more: Any) -> Any:
        keys.append(key)
        return function(client, key, **more)

    monkeypatch.setattr(obstore, name, call)
    return keys


@pytest.mark.parametrize("backend", BUCKET_BACKENDS)
def test_a_bucket_of_each_kind(
    place: Place, backend: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Objects are listed, read and watched by the URLs of S3, GCS and Azure; a missing one is named."""
    bucket = Place(place.lake, open_objects(object_url(backend, request, tmp_path)))
    for number in range(9):  # more than one page of an emulator
        bucket.put(f"in/{number}.jsonl", number)
    report = bucket.ingest("in/*.jsonl", "absent")
    assert (report.files, report.spans_new, list(bad(report))) == (10, 9, ["absent"])
    pipeline = bucket.watch(bucket.url("in/**"))
    bucket.put("in/later/a é.jsonl", 9)
    watched = pipeline.run_once()
    assert watched is not None
    assert (watched.files_known, watched.spans_new) == (9, 1)
    assert pipeline.run_once() is None


def test_a_bucket_of_s3(place: Place, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd keys keep their names, each object takes one request, and only named objects are reported."""
    bucket = open_objects(s3.url())
    prefix = bucket.url.removeprefix("s3://tests/")
    keys = ["a b.gz", "a%20b", "a[1].gz", "é", "q?x#y", "dir/x", "100%", "dir.x/+&<"]
    for number, key in enumerate(keys):
        bucket.put(key, a_line(a_span(number, 0)))
    bucket.put("empty", b"")
    read = counted(monkeypatch, "get")
    report = place.lake.ingest(
        f"{bucket.url}/**", f"{bucket.url}/a[1].gz", f"{bucket.url}/dir/x", runner=InProcess()
    )
    assert (report.files, report.spans_new, report.bad) == (len(keys), len(keys), ())
    assert sorted(key for key in read if key.startswith(prefix)) == sorted(f"{prefix}/{key}" for key in keys)
    report = place.lake.ingest(
        f"{bucket.url}/absent", f"{bucket.url}/a%20b", f"{bucket.url}/empty", runner=InProcess()
    )
    assert (report.files_known, sorted(bad(report))) == (1, ["absent", "empty"])


def test_a_bucket_of_s3_that_cannot_be_listed(
    place: Place, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the denied key or the missing bucket and a remedy; good input is ingested."""
    with pytest.raises(
        StorageError, match=r"s3://absent/\*.gz cannot be polled: .*the bucket does not exist"
    ):
        place.watch("s3://absent/*.gz").run_once()
    report = place.lake.ingest("s3://absent/a.gz", place.put("good", 0), runner=InProcess())
    assert (report.spans_new, list(bad(report))) == (1, ["a.gz"])
    assert "the bucket does not exist" in bad(report)["a.gz"]

    def stumbling(
        *_: Any, **__: Any
    ) -> Any:  # as the library does, over objects that no other test server has
        raise InvalidPathError(
            'Path "odd//x.gz" contained empty path segment\n\nDebug source:\nInvalidPath {}'
        )

    monkeypatch.setattr(obstore, "list", stumbling)
    with pytest.raises(
        StorageError, match=r'"odd//x.gz" contained empty path segment\), and.*rename that object'
    ):
        place.lake.ingest(f"{s3.url()}/**", runner=InProcess())
