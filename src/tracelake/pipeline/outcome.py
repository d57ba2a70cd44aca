"""What one run of a pipeline did."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tracelake.journal.model import ReadRange, RecordedRange, Suspect
from tracelake.pipeline.outputs.counts import Counts
from tracelake.pipeline.sources.port import Input


@dataclass(slots=True)
class RunResult:
    """What one run did."""

    transactions: list[int] = field(default_factory=list)
    recovered: list[int] = field(default_factory=list)
    ranges: list[RecordedRange] = field(default_factory=list)
    """Every input that was read, of recovered transactions and of new ones, in order."""
    known: list[ReadRange] = field(default_factory=list)
    """Inputs whose bytes an earlier transaction holds, as they were read then: they are not read again."""
    failed: dict[str, str] = field(default_factory=dict)
    """Inputs that could not be read this time, as path and reason: nothing was taken, and the next run tries again."""
    set_aside: list[Suspect] = field(default_factory=list)
    """Inputs that are not taken: set aside in this run, or before and named again."""
    counts: list[Counts] = field(default_factory=list)
    commit: str | None = None
    steps: int = 0
    """How many steps it recorded."""
    recorded: set[tuple[str, str]] = field(default_factory=set)
    """Sources and paths of what they have."""
    waits: int | None = None
    """The transaction that is open at the end, and waits for more: its input is recorded, and not committed."""

    def note_step(self, inputs: Iterable[Input]) -> None:
        """Note what a step has that this run has recorded."""
        self.steps += 1
        self.recorded.update((item.source, item.path) for item in inputs)

    def note(self, kept: Iterable[Suspect]) -> None:
        """Note inputs that are not taken."""
        for suspect in kept:
            self.note_aside(suspect)

    def note_aside(self, suspect: Suspect) -> None:
        """Note an input that is not taken, once."""
        if suspect.state != "offered" and suspect not in self.set_aside:
            self.set_aside.append(suspect)


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.fromtimestamp(time.time(), UTC)  # by `time`, so that a simulation can answer
