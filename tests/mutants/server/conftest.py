"""Fixtures of `tests/server`."""

from __future__ import annotations

from tests.server.conftest import client, lake, store
