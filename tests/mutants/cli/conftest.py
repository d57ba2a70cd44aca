"""Fixtures of `tests/cli`."""

from __future__ import annotations

from tests.cli.conftest import agents_lake, cli
