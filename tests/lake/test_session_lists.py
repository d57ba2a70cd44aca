"""Sums of sessions and users over both tiers: a trace counts once, before, during and after its commit."""

from __future__ import annotations

from typing import Any

import tracelake
from tests.lake.test_usage import hot
from tests.pipeline.spans import a_span
from tracelake.lake.trace_list import GroupedBy, TraceFilter, list_groups
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tracking.store import TrackingStore


def turn(trace: int, session: str, user: str, **fields: Any) -> dict[str, Any]:
    """Return the only span of a trace."""
    names = {"session.id": session, "user.id": user}
    attributes = [{"key": key, "value": {"stringValue": name}} for key, name in names.items()]
    return a_span(trace, 0, start=trace, attributes=attributes, **fields)


def counts(lake: tracelake.Lake, by: GroupedBy) -> dict[str, tuple[int, int, int]]:
    """Return traces, spans and errors of each group."""
    rows = list_groups(lake, by, TraceFilter()).groups
    return {row[f"{by}_id"]: (row["traces"], row["span_count"], row["error_count"]) for row in rows}


def test_both_tiers_count_together(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A session has traces that are committed and others that are not; a span sent again changes nothing."""
    store.write([hot(turn(1, "chat", "ada"), turn(2, "chat", "bob"), turn(3, "other", "ada"))])
    expected = {"chat": (2, 2, 0), "other": (1, 1, 0)}
    assert counts(lake, "session") == expected
    assert pipeline.run_once() is not None
    assert counts(lake, "session") == expected
    store.write([hot(turn(4, "chat", "ada", status={"code": 2})), hot(turn(1, "chat", "ada"))])
    assert counts(lake, "session") == {"chat": (3, 3, 1), "other": (1, 1, 0)}
    assert counts(lake, "user") == {"ada": (3, 3, 1), "bob": (1, 1, 0)}


def test_pages_have_each_session_once_while_traces_arrive(lake: tracelake.Lake, store: TrackingStore) -> None:
    """New sessions come before the first page, and shift none of the others."""
    store.write([hot(*(turn(number, f"chat {number}", "ada") for number in range(1, 12)))])
    seen: list[str] = []
    page: str | None = None
    for arriving in range(20, 40):
        listing = list_groups(lake, "session", TraceFilter(limit=3, page=page))
        seen += [row["session_id"] for row in listing.groups]
        page = listing.next_page
        if page is None:
            break
        store.write([hot(turn(arriving, f"late {arriving}", "ada"))])
    assert seen == [f"chat {number}" for number in reversed(range(1, 12))]


def test_pages_by_cost(lake: tracelake.Lake, store: TrackingStore) -> None:
    """The most expensive session comes first, and each page continues the last one."""
    costs = {"a": 0.1, "b": 0.3, "c": 0.2, "d": None, "e": 0.3}
    for number, (session, cost) in enumerate(costs.items(), 1):
        span = turn(number, session, "ada")
        stated = {"key": "gen_ai.usage.cost", "value": {"doubleValue": cost}}
        store.write([hot(span | {"attributes": span["attributes"] + [stated] * (cost is not None)})])
    seen: list[tuple[str, float | None]] = []
    page: str | None = None
    while page is not None or not seen:
        listing = list_groups(lake, "session", TraceFilter(limit=2, page=page), "cost")
        seen += [(row["session_id"], row["cost"]) for row in listing.groups]
        page = listing.next_page
    assert seen == [("e", 0.3), ("b", 0.3), ("c", 0.2), ("a", 0.1), ("d", None)]
