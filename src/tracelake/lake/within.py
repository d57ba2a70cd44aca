"""One workspace of a lake, to read and to annotate: what is of others is not there.

What is asked of it goes on with the name of the workspace, and the condition is applied below, where rows, terms and
records are read. What a lake has beside that is of all workspaces, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import pyarrow as pa

from tracelake._errors import ForbiddenError
from tracelake.access.audit import Audit
from tracelake.lake.annotations import LakeAnnotations, annotations_of
from tracelake.lake.hot import HotTier, SpanPage
from tracelake.lake.opened import OpenLake
from tracelake.lake.reads import WithReads
from tracelake.limits import NAME_QUOTED_MAX_CHARS
from tracelake.results import Trace
from tracelake.tracking.trace_search import FoundTraces
from tracelake.versions.branches import MAIN


class WorkspaceLake(WithReads):
    """The part of a lake that is of one workspace: `lake.within("team-a")`. Threads may share it."""

    def __init__(self, opened: OpenLake, hot: HotTier, workspace: str) -> None:
        self._opened = opened
        self._whole_hot = hot
        self.workspace = self._workspace = workspace
        self.hot = WorkspaceHot(hot, workspace)
        self.audit = Audit(lambda: opened.key_value, workspace)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what is not divided by workspace."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise _of_the_whole(name, self.workspace)

    @property
    def annotations(self) -> LakeAnnotations:
        """Tags, experiments and assessments. Raises UsageError for a lake without a tracking store."""
        return annotations_of(self._opened, self._whole_hot.store, self.workspace)

    def sql(self, query: str, at: str = MAIN, *, uncommitted: bool = False) -> pa.Table:
        """Run a DuckDB query over the rows of `spans` and `traces` that are of the workspace. Raises QueryError."""
        return self._sql(query, at, uncommitted)

    def trace(self, trace_id: str, *, tiers: bool = False) -> Trace:
        """Return the spans of a trace that are of the workspace, by its id or the beginning of it.

        Raises NotFoundError.
        """
        return self._whole_hot.trace(trace_id, tiers=tiers, workspace=self.workspace)


class WorkspaceHot:
    """What a workspace has of both tiers, as rows."""

    def __init__(self, hot: HotTier, workspace: str) -> None:
        self._hot = hot
        self._workspace = workspace

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what is not divided by workspace."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise _of_the_whole(f"hot.{name}", self._workspace)

    @property
    def is_there(self) -> bool:
        """Whether the lake has a tracking store."""
        return self._hot.is_there

    def spans_of(self, trace_id: str) -> pa.Table:
        """Return the rows of a trace, with the columns of SPANS. Raises NotFoundError."""
        return self._hot.spans_of(trace_id, self._workspace)

    def outline(self, trace_id: str) -> Trace:
        """Return a trace whose spans have the columns of an outline only. Raises NotFoundError."""
        return self._hot.outline(trace_id, self._workspace)

    def page(self, trace_id: str, limit: int, page: str | None = None, *, tiers: bool = False) -> SpanPage:
        """Return a page of the spans of a trace; see `HotTier.page`."""
        return self._hot.page(trace_id, limit, page, tiers=tiers, workspace=self._workspace)

    def span_rows(self, trace_id: str, span_id: str) -> pa.Table:
        """Return the spans of a trace with an id. Raises NotFoundError where there is no such trace."""
        return self._hot.span_rows(trace_id, span_id, self._workspace)

    def infos(self, trace_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what the tracking store says of traces, by id. Raises UsageError for a lake without one."""
        return self._hot.infos(trace_ids, self._workspace)

    def said_of(self, trace_ids: Sequence[str]) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
        """Return metadata and fields that clients told of traces, by id. Raises UsageError as `infos` does."""
        return self._hot.said_of(trace_ids, self._workspace)

    def deleted(self, trace_ids: Sequence[str]) -> set[str]:
        """Return those of some traces that were deleted; see `HotTier.deleted`."""
        return self._hot.deleted(trace_ids)

    def find_traces(self, *asked: Any) -> FoundTraces:
        """Search the tracking store as MLflow does; see `HotTier.find_traces`."""
        return self._hot.find_traces(*asked, workspace=self._workspace)


def _of_the_whole(name: str, workspace: str) -> ForbiddenError:
    return ForbiddenError(
        f"{name[:NAME_QUOTED_MAX_CHARS]!r} is of the whole lake, and this is workspace {workspace!r} of it; ask the "
        "lake itself, over HTTP with a key of all workspaces"
    )
