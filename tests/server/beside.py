"""A fake pipeline host that reports what a test sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tracelake.results import ReplicaInfo


@dataclass
class FakeBeside:
    """A pipeline host that runs nothing."""

    text: str | None = None
    tell: Callable[[], ReplicaInfo | None] = lambda: None
    ended: int = 0

    def start(self) -> None:
        """Start nothing."""

    def stop(self) -> None:
        """Stop nothing."""

    def problem(self) -> str | None:
        """Return the error that the test set."""
        return self.text

    def replica(self) -> ReplicaInfo | None:
        """Return the report that the test set."""
        return self.tell()

    def restarts(self) -> int:
        """Return the number that the test set."""
        return self.ended
