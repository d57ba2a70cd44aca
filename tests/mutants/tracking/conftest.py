"""Fixtures of `tests/tracking`."""

from __future__ import annotations

from tests.tracking.conftest import database, new_url, postgres, store
