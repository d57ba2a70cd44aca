"""Fixtures of `tests/lake`."""

from __future__ import annotations

from tests.lake.conftest import fixture_lake, fixture_store, pipeline
