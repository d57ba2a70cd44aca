"""Fixtures of `tests/pipeline`."""

from __future__ import annotations

from tests.pipeline.conftest import _patient_looks
