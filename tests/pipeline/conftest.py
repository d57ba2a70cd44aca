"""Looks of pipelines that go on wait for their answers as long as a slow machine takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.patience import HANG_S
from tracelake.pipeline.sources import poller


@pytest.fixture(autouse=True)
def _patient_looks() -> Iterator[None]:
    """What a test is told of a source does not hang on how quick a look was; who tests that sets its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(poller, "LOOK_WAIT_S", HANG_S)
        yield
