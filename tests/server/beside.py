"""A pipeline beside a server that tells what a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tracelake.results import ReplicaInfo


@dataclass
class FakeBeside:
    """Runs nothing."""

    text: str | None = None
    tell: Callable[[], ReplicaInfo | None] = lambda: None
    ended: int = 0

    def start(self) -> None:
        """Begin nothing."""

    def stop(self) -> None:
        """End nothing."""

    def problem(self) -> str | None:
        """Say what it was given."""
        return self.text

    def replica(self) -> ReplicaInfo | None:
        """Tell what it was given."""
        return self.tell()

    def restarts(self) -> int:
        """Tell what it was given."""
        return self.ended
