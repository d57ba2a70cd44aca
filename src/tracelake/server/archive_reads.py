"""What page and API read of the archive."""

from __future__ import annotations

from typing import Any

from tracelake.lake.lake import Lake
from tracelake.server.archiving import Archiving


def archive_overview(lake: Lake, archiving: Archiving, limit: int) -> dict[str, Any]:
    """Return what is hot and archived, what failed and why, and what the next pass takes; lists up to a limit.

    Raises UsageError for a lake without a hot tier.
    """
    archive = lake.archive
    totals = archiving.totals
    experiments = archive.experiments(limit + 1)
    failed, archived = archive.traces("failed", limit), archive.traces("archived", limit)
    return {
        "settings": archive.settings(),
        "space": archive.space(),
        "passes": {
            "interval_s": archiving.interval_s,
            "last_ended_ns": totals.ended_ns,
            "problem": totals.problem,
        },
        "experiments": experiments[:limit],
        "more_experiments": len(experiments) > limit,
        "failed": failed,
        "archived": archived,
        "tags": lake.annotations.shown_tags([each.trace_id for each in (*failed, *archived)]),
        "operations": [each.to_dict() for each in archiving.operations.newest()[:limit]],
    }


def resolved_retention(lake: Lake) -> dict[str, Any]:
    """Return how a lake archives, and what counts for each experiment, with where it is set."""
    experiments = [
        {
            "experiment_id": each.experiment_id,
            "workspace": each.workspace,
            "retention": each.retention,
            "source": each.source,
            "problem": each.problem,
        }
        for each in lake.archive.retentions()
    ]
    return {"settings": lake.archive.settings(), "experiments": experiments}
