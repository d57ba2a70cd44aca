"""Servers of the storage tests, for pages that need them."""

from __future__ import annotations

from tests.storage.conftest import postgres, s3

__all__ = ["postgres", "s3"]
