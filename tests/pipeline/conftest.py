"""Polls of continuous pipelines wait for their answers as long as a slow machine takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.patience import HANG_S
from tracelake.pipeline.sources import poller


@pytest.fixture(autouse=True)
def _patient_looks() -> Iterator[None]:
    """Make poll results independent of poll duration; tests of deadlines set their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(poller, "LOOK_WAIT_S", HANG_S)
        yield
