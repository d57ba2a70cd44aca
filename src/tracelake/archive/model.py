"""Data classes of the archive.

The archive settings of a lake are one row, which changes of the settings and archivers that begin uploads lock.

Concurrent changes therefore do not overwrite each other. If the repository is moved before uploads are registered, the
registration fails; afterwards the move is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import Connection, delete, select, update

from tracelake._errors import DamageError, UsageError
from tracelake.archive.protocol import LIVE
from tracelake.archive.retention import DEFAULT_RETENTION, ArchiveOutcome
from tracelake.tracking.schema import archive_objects, archive_settings
from tracelake.tracking.store import TrackingStore

LayoutName: TypeAlias = Literal["lake", "trace", "pack"]
LAYOUTS: Final[dict[str, LayoutName]] = {"lake": "lake", "trace": "trace", "pack": "pack"}

_STORED: Final = ("layout", "location", "retention", "allowlist")
DELETION_REMOVED: Final = (
    "tracking store: spans, tags, metadata and assessments of the trace; MLflow's client no longer finds it",
    "archive repository: the file of the trace (layout `trace`), or its pack once every trace of the pack is deleted",
)
"""Places from which a deletion removes a trace."""
DELETION_KEPT: Final = (
    "tables of the lake, with older commits, branches and tags: SQL, the pages and `tracelake trace` still show it",
    "search index: `tracelake search` still finds its text",
    "outbox: spans that the pipeline has not read yet are still committed to the tables",
    "archive repository: a pack that other traces share (layout `pack`); an object that cannot be deleted now stays "
    "until `tracelake archive sweep`",
    "copies elsewhere: datasets, outputs, attachments, backups",
)
"""Places where a deleted trace stays. If more spans arrive, it becomes a trace of the tracking store again."""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Archive settings of a lake; stored with its traces, so that all archivers use the same."""

    layout: LayoutName = "lake"
    location: str | None = None
    """URL of the repository of layouts `trace` and `pack`; None for `archive/` in the lake."""
    retention: str | None = None
    """Time for which traces stay hot, if it is set."""
    allowlist: tuple[str, ...] = ()
    """Experiments that may have a longer retention than the server."""
    default_retention: str | None = None
    """Retention that applies if nothing is set; None for unlimited. It is not stored."""


@dataclass(frozen=True, slots=True)
class ArchiveDue:
    """An experiment with its retention and counts of traces, at the time of a pass."""

    experiment_id: str
    workspace: str
    retention: str | None
    source: str | None
    is_now: bool
    cutoff_ns: int | None
    traces: int = 0
    size_bytes: int = 0
    """Bytes of the due traces. A pass counts the traces that it archives instead."""
    hot_traces: int = 0
    archived_traces: int = 0
    failed_traces: int = 0
    """Number of marked traces, which passes skip."""
    problem: str | None = None
    """An invalid tag that keeps all its traces hot."""
    quiet_ns: int | None = None
    """Time after which a due trace received no span; None for any. The default retention keeps traces hot that still
    receive spans."""


@dataclass(frozen=True, slots=True)
class HotSnapshot:
    """A hot trace at the start of its upload."""

    trace_id: str
    experiment_id: str
    generation: int
    life: int
    """Identifies the trace between deletions. See `protocol.TraceState`."""
    data: bytes
    """One OTLP `TracesData`."""
    path: str
    """Path of its object; empty in layout `lake`."""
    frame: bytes | None = None
    """The whole trace as one zstd frame, if the store has it as one."""


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """A complete trace in the repository, verified by reading it back."""

    trace_id: str
    generation: int
    life: int
    path: str
    location: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class AbandonedUpload:
    """An upload that a sweep may delete."""

    path: str
    state: str


@dataclass(slots=True)
class ArchiveReport:
    """Report of a pass, or of a dry run."""

    layout: str
    dry_run: bool
    due: list[ArchiveDue] = field(default_factory=list)
    fates: dict[str, int] = field(default_factory=dict)
    """Number of traces by outcome, see `retention.ArchiveOutcome`."""
    failures: dict[str, str] = field(default_factory=dict)
    """The first due traces that stayed hot, with the reasons."""
    failed_first: str | None = None
    """The reason of the first failed trace."""
    archived_bytes: int = 0
    """OTLP bytes cleared from the tracking store."""
    stored_bytes: int = 0
    """Bytes written to the repository for them."""
    seconds: float = 0.0
    goes_on: bool = False
    """Whether the pass stopped at its limit of traces; the next one continues."""

    @property
    def problem(self) -> str | None:
        """Number of failed traces with the first reason, or None. Traces that stay hot for valid reasons do not
        count."""
        failed = self.fates.get(ArchiveOutcome.FAILED.value, 0)
        if not failed:
            return None
        return f"{failed:,} traces stay hot: {self.failed_first or 'no reason is known'}"

    @property
    def line(self) -> str:
        """The pass in one line."""
        counts = (
            ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.fates.items()))
            or "nothing was due"
        )
        return (
            f"archive pass ({self.layout}): {counts}; {self.archived_bytes:,} bytes cleared, "
            f"{self.stored_bytes:,} stored, {self.seconds:.1f} s"
            + ("; the next pass continues" if self.goes_on else "")
            + (f"; {self.problem}" if self.problem else "")
        )


def read_settings(tracking: TrackingStore) -> ArchiveSettings:
    """Return the archive settings of a lake. Raises DamageError if they are unreadable."""
    query = select(archive_settings.c.settings).where(archive_settings.c.lake == tracking.lake)
    with tracking.database.reading() as connection:
        return settings_of(_fields(connection.execute(query).scalar()))


def change_settings(tracking: TrackingStore, changed: Mapping[str, Any]) -> ArchiveSettings:
    """Change some archive settings in one transaction. Raises UsageError if a value is invalid or the repository cannot
    be moved, and DamageError if the current settings are unreadable.

    The repository cannot be moved while it has archived traces; uploads in progress are abandoned. Damaged settings
    can only be replaced all at once.
    """
    with tracking.database.writing() as connection:
        before: Mapping[str, Any] = locked_fields(connection, tracking, is_changed=True)
        try:
            settings_of(before)
        except DamageError:
            if len(changed) < len(_STORED):
                raise
            before = changed
        # A retention that was never set stays out, so that the default of the layout applies.
        stored = {**{name: before[name] for name in _STORED if name in before}, **changed}
        after = settings_of(stored)
        if after.location != before.get("location"):
            _leave_repository(connection, tracking.lake)
        here = update(archive_settings).where(archive_settings.c.lake == tracking.lake)
        # Without ASCII escapes, so that invalid UTF-8, possible from a command line, fails here and not in
        # each answer.
        connection.execute(here, {"settings": json.dumps(stored, ensure_ascii=False)})
    return after


def locked_settings(connection: Connection, tracking: TrackingStore, *, is_changed: bool) -> ArchiveSettings:
    """Return the archive settings, locked until the transaction ends. Raises DamageError if they are unreadable.

    Passes take a shared lock on the settings' row, and changes an exclusive one. The row is therefore created even for
    default settings.
    """
    return settings_of(locked_fields(connection, tracking, is_changed=is_changed))


def locked_fields(connection: Connection, tracking: TrackingStore, *, is_changed: bool) -> dict[str, Any]:
    """Return the stored archive settings, locked as by `locked_settings`."""
    row = {"lake": tracking.lake, "settings": "{}"}
    column = archive_settings.c.settings
    return _fields(tracking.database.locked(connection, column, row, is_changed=is_changed))


def _leave_repository(connection: Connection, lake: int) -> None:
    """Abandon all uploads to a repository, so that no trace is archived there. Raises UsageError if it has archived
    traces.

    The repository need not be reachable, because it may never have existed or be gone. The caller has locked the
    settings, so a concurrent finalize came before, or finds its row gone.
    """
    objects = archive_objects.c
    if connection.execute(
        select(objects.path).where(objects.lake == lake, objects.state == LIVE).limit(1)
    ).first():
        raise UsageError(
            "the current repository contains archived traces: restore or delete them first, or keep the "
            "location"
        )
    connection.execute(delete(archive_objects).where(objects.lake == lake))


def _fields(text: str | None) -> dict[str, Any]:
    """Return the stored fields. Damaged text has an unknown field, which `settings_of` refuses."""
    try:
        fields = json.loads(text or "{}")
    except ValueError as error:
        fields = str(error)
    return fields if isinstance(fields, dict) else {f"{fields}": None}


def settings_of(fields: Mapping[str, Any]) -> ArchiveSettings:
    """Return stored settings with the default retention. Raises DamageError if they are unreadable."""
    try:
        settings = ArchiveSettings(**{**fields, "allowlist": tuple(fields.get("allowlist", ()))})
    except TypeError as error:
        raise DamageError(
            f"the settings of the archive cannot be read: {error}; set layout, location, retention and "
            "allowlist again, all at once"
        ) from error
    if settings.layout == "lake" and "retention" not in fields:
        return replace(settings, default_retention=DEFAULT_RETENTION)
    return settings
