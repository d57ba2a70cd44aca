"""A lake with a hot tier whose pipeline commits writes at once if a test asks for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tracelake
from tests.tracking.requests import request, trace_id
from tracelake import Lake
from tracelake.archive.service import LakeArchive
from tracelake.tasks.runners import InProcess
from tracelake.tracking.location import set_up
from tracelake.tracking.store import TrackingStore


class HotLake:
    """One lake in a directory, with a tracking store."""

    def __init__(
        self, path: Path, tracking_url: str | None = None, *, lake_id: str = "lake-a", **archive: Any
    ) -> None:
        """Create the lake; `archive` are its settings, see `LakeArchive.configure`."""
        self.path, self._url = path, tracking_url
        self.lake: Lake = tracelake.init(path, buckets=2)
        self.tracking: TrackingStore = set_up(self.lake.objects, lake_id, "", tracking_url)
        self.archive: LakeArchive = self.lake.archive
        self.archive.configure(**archive)

    def write(self, *spans: tuple[int, int], text: str = "hello", commit: bool = True) -> None:
        """Store spans of (trace, span) pairs, as a server does, and run the pipeline to commit them."""
        self.tracking.write([request(*spans, text=text)])
        if commit:
            self.commit()

    def commit(self) -> None:
        """Run the pipeline to commit pending input."""
        pipeline = self.lake.pipeline(runner=InProcess())
        while pipeline.run_once() is not None:
            pass

    def environment(self) -> dict[str, str]:
        """Return the environment in which another process finds the same tracking store."""
        return {**os.environ, **({"TRACELAKE_TRACKING": self._url} if self._url else {})}

    def hot(self, numbers: Sequence[int]) -> list[int]:
        """Return the hot ones among some traces."""
        stored = self.tracking.traces([trace_id(number) for number in numbers])
        return [number for number in numbers if (each := stored.get(trace_id(number))) and each.is_hot]
