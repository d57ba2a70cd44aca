"""What the commands of the archive print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from tracelake.cli.render import fields, grid, size

if TYPE_CHECKING:
    from tracelake.archive.model import ArchiveDue, ArchiveSettings
    from tracelake.archive.space import ArchiveSpace


def archive_plan(due: Sequence[ArchiveDue]) -> Table:
    """Return what the next pass would take, a row an experiment."""
    headers = ("experiment", "workspace", "hot for", "set for", "at once", "due", "bytes", "problem")
    return grid(
        headers,
        [
            (
                each.experiment_id,
                each.workspace,
                each.retention or "ever",
                each.source or "",
                "yes" if each.is_now else "",
                f"{each.traces:,}",
                size(each.size_bytes),
                each.problem or "",
            )
            for each in due
        ],
    )


def archive_status(settings: ArchiveSettings, space: ArchiveSpace) -> Table:
    """Return what is where."""
    free = f", {size(space.free_bytes)} of it free" if space.free_bytes else ""
    return fields(
        [
            ("hot", f"{space.hot_traces:,} traces, {size(space.hot_bytes)} of OTLP"),
            ("archived", f"{space.archived_traces:,} traces, {size(space.archived_bytes)} in the repository"),
            ("failed", f"{space.failed_traces:,} traces"),
            ("unfinished", f"{space.uploads:,} uploads, for `tracelake archive sweep`"),
            ("database", f"{size(space.database_bytes)}{free}"),
            *_settings(settings),
        ]
    )


def archive_settings(settings: ArchiveSettings) -> Table:
    """Return how a lake archives."""
    return fields(_settings(settings))


def _settings(settings: ArchiveSettings) -> list[tuple[str, str]]:
    return [
        ("layout", settings.layout),
        (
            "repository",
            settings.location or ("the tables" if settings.layout == "lake" else "archive/ in the lake"),
        ),
        ("retention", settings.retention or "none: traces stay hot"),
        ("longer for", ", ".join(settings.allowlist) or "no experiment"),
    ]
