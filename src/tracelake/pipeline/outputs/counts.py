"""What a transaction did, in numbers: its commit carries them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """What a transaction did to the tables."""

    new: int
    replaced: int
    repeated: int
    traces: int

    def to_metadata(self) -> dict[str, str]:
        """Return the counts as a commit carries them."""
        return {
            "spans_new": str(self.new),
            "spans_replaced": str(self.replaced),
            "spans_repeated": str(self.repeated),
            "traces": str(self.traces),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Counts:
        """Return the counts that a commit carries."""
        names = ("spans_new", "spans_replaced", "spans_repeated", "traces")
        return cls(*(int(metadata[name]) for name in names))
