"""A lake with a hot tier, for tests that do not make their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tasks.runners import InProcess
from tracelake.tracking.store import TrackingStore


@pytest.fixture(name="lake")
def fixture_lake(tmp_path: Path) -> Iterator[tracelake.Lake]:
    """Return an empty lake in a directory."""
    with tracelake.init(tmp_path / "lake") as opened:
        yield opened


@pytest.fixture(name="store")
def fixture_store(lake: tracelake.Lake) -> TrackingStore:
    """Return its tracking store."""
    return lake.hot.set_up()


@pytest.fixture
def pipeline(lake: tracelake.Lake) -> Iterator[InboxPipeline]:
    """Return a pipeline whose tasks run in this process."""
    with closing(lake.pipeline(runner=InProcess())) as running:
        yield running
