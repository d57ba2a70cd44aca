"""Fixtures of `tests/archive`."""

from __future__ import annotations

from tests.archive.conftest import folders, make, new_url, postgres
