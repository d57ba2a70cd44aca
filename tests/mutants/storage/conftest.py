"""Fixtures of `tests/storage`."""

from __future__ import annotations

from tests.storage.conftest import azure, gcs, objects, postgres, records, s3
