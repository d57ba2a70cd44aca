"""Lakes whose records are objects, so that a test can truncate one."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from unittest import mock

import obstore
from obstore.store import MemoryStore

import tracelake
from tracelake.storage import buckets

_BUCKETS: Final[dict[Path, MemoryStore]] = {}


def lake_in_bucket(folder: Path) -> tracelake.Lake:
    """Make a lake in `folder/lake` whose records are objects of a bucket in memory."""
    bucket = _BUCKETS[folder] = MemoryStore()
    with mock.patch.object(buckets, "connect", return_value=bucket):
        return tracelake.init(folder / "lake", metadata="s3://in-memory/records", buckets=2)


def tear(folder: Path, word: str) -> None:
    """Truncate each record of such a lake that contains a word."""
    bucket = _BUCKETS[folder]
    paths = [each["path"] for page in obstore.list(bucket) for each in page]
    whole = {path: bytes(obstore.get(bucket, path).bytes()) for path in paths}
    torn = {path: body for path, body in whole.items() if word.encode() in body}
    assert torn, word
    for path, body in torn.items():
        obstore.put(bucket, path, body[:-1])
