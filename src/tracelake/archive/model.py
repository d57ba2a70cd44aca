"""What the archive works with, as plain records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tracelake.archive.retention import ArchiveOutcome

LayoutName: TypeAlias = Literal["lake", "trace", "pack"]
LAYOUTS: Final[dict[str, LayoutName]] = {"lake": "lake", "trace": "trace", "pack": "pack"}


DELETION_REMOVED: Final = (
    "tracking store: spans, tags, metadata and assessments of the trace; MLflow's client no longer finds it",
    "archive repository: the file of the trace (layout `trace`), or its pack once every trace of the pack is deleted",
)
"""The places that a deletion removes a trace from."""
DELETION_KEPT: Final = (
    "tables of the lake, with older commits, branches and tags: SQL, the pages and `tracelake trace` still show it",
    "search index: `tracelake search` still finds its text",
    "outbox: spans that the pipeline has not read yet are still committed to the tables",
    "archive repository: a pack that other traces share (layout `pack`); an object that cannot be deleted now stays "
    "until `tracelake archive sweep`",
    "copies elsewhere: datasets, outputs, attachments, backups",
)
"""The places where a deleted trace stays. Spans that arrive later make it a trace of the tracking store again."""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """How a lake archives; kept beside its traces, so that all archivers do alike."""

    layout: LayoutName = "lake"
    location: str | None = None
    """URL of the repository of layouts `trace` and `pack`; None: `archive/` in the lake."""
    retention: str | None = None
    """How long traces stay hot where nothing narrower says so; None: for ever."""
    allowlist: tuple[str, ...] = ()
    """Experiments that may have a longer retention than the server."""


@dataclass(frozen=True, slots=True)
class ArchiveDue:
    """An experiment with traces that a pass would take."""

    experiment_id: str
    workspace: str
    retention: str | None
    source: str | None
    is_now: bool
    cutoff_ns: int | None
    traces: int = 0
    size_bytes: int = 0
    """Of what is due; a pass counts what it takes instead."""
    hot_traces: int = 0
    archived_traces: int = 0
    failed_traces: int = 0
    """Hot ones that are marked as malformed."""
    problem: str | None = None
    """Why nothing of it is taken: a tag that says nothing."""


@dataclass(frozen=True, slots=True)
class HotSnapshot:
    """A hot trace as it was when its upload began."""

    trace_id: str
    experiment_id: str
    generation: int
    life: int
    """Of which writes it is, see `protocol.TraceStanding`."""
    data: bytes
    """One OTLP `TracesData`."""
    path: str
    """The object that it goes to; empty in layout `lake`."""
    frame: bytes | None = None
    """All of it as one frame of zstd, where the store has it so."""


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """A trace in the repository, whole and read back."""

    trace_id: str
    generation: int
    life: int
    path: str
    location: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class AbandonedUpload:
    """An upload that a sweep may take away."""

    path: str
    state: str


@dataclass(slots=True)
class ArchiveReport:
    """What a pass did, or would do."""

    layout: str
    dry_run: bool
    due: list[ArchiveDue] = field(default_factory=list)
    fates: dict[str, int] = field(default_factory=dict)
    """How many traces became what, see `retention.TraceFate`."""
    failures: dict[str, str] = field(default_factory=dict)
    """The first traces that stayed hot though they were due, with the reason."""
    failed_first: str | None = None
    """Why the first trace failed, of those whose fate that is."""
    archived_bytes: int = 0
    """Bytes of OTLP that were cleared from the tracking store."""
    stored_bytes: int = 0
    """Bytes that the repository took for them."""
    seconds: float = 0.0
    goes_on: bool = False
    """Whether it ended because it had taken as many traces as it might: the next one goes on."""

    @property
    def problem(self) -> str | None:
        """What failed, with the first reason; None where nothing did, whatever stays hot for good reasons."""
        failed = self.fates.get(ArchiveOutcome.FAILED.value, 0)
        if not failed:
            return None
        return f"{failed:,} traces stay hot: {self.failed_first or 'no reason is known'}"

    @property
    def line(self) -> str:
        """The pass in one line."""
        counts = (
            ", ".join(f"{count} {fate}" for fate, count in sorted(self.fates.items())) or "nothing was due"
        )
        return (
            f"archive pass ({self.layout}): {counts}; {self.archived_bytes:,} bytes cleared, "
            f"{self.stored_bytes:,} stored, {self.seconds:.1f} s"
            + ("; the next pass goes on" if self.goes_on else "")
            + (f"; {self.problem}" if self.problem else "")
        )
