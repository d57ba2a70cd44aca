"""The search for due traces: as many queries for all experiments as for one, for any number of archived traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import event, insert

from tests.archive.place import HotLake
from tracelake.archive.candidates import BEGINNING, Candidates
from tracelake.archive.model import ArchiveDue
from tracelake.archive.retention import ARCHIVE_NOW_TAG, RETENTION_TAG
from tracelake.tracking.schema import (
    ARCHIVE_REPO,
    TRACKING_STORE,
    archive_settings,
    experiment_tags,
    trace_info,
    trace_parts,
)

Make = Callable[..., HotLake]
MINUTE_NS = 60 * 10**9


def fill(lake: HotLake, now_ns: int, experiments: int) -> None:
    """Store two hot traces and an archived one per experiment, 5 and 15 minutes old, each with two parts."""
    numbers = iter(range(1, 1_000_000))
    infos: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    tags: list[dict[str, Any]] = []
    for experiment in range(experiments):
        for minutes, place in ((5, TRACKING_STORE), (15, TRACKING_STORE), (15, ARCHIVE_REPO)):
            info: dict[str, object] = {
                "lake": lake.tracking.lake,
                "trace_id": f"{next(numbers):032x}",
                "workspace": "default",
            }
            start_ns = now_ns - minutes * MINUTE_NS
            infos.append(
                {
                    **info,
                    "workspace": "default",
                    "experiment_id": str(experiment),
                    "start_ns": start_ns,
                    "end_ns": start_ns,
                    "state": "OK",
                    "spans_location": place,
                    "updated_ns": 0,
                }
            )
            part: dict[str, object] = {
                "lake": lake.tracking.lake,
                "trace_id": info["trace_id"],
                "spans": 1,
                "payload": b"",
            }
            hot = place == TRACKING_STORE
            parts += [{**part, "sequence": number, "size_bytes": 50} for number in ((1, 2) if hot else ())]
        text = f'{{"type":"duration","value":"{10 if experiment % 2 else 20}m"}}'
        tag = {"lake": lake.tracking.lake, "experiment_id": str(experiment)}
        tags.append({**tag, "key": RETENTION_TAG, "value": text})
    tags.append({"lake": lake.tracking.lake, "experiment_id": "0", "key": ARCHIVE_NOW_TAG, "value": "{}"})
    with lake.tracking.database.writing() as connection:
        for table in (trace_info, trace_parts, experiment_tags):
            connection.execute(table.delete().where(table.c.lake == lake.tracking.lake))
        for table, rows in ((trace_info, infos), (trace_parts, parts), (experiment_tags, tags)):
            connection.execute(insert(table), rows)


def test_as_many_queries_for_all_experiments_as_for_one(make: Make) -> None:
    """Each experiment has its retention and its due traces. A pass counts nothing, and queries hot traces only."""
    lake, now_ns = make("trace", retention="30m"), time.time_ns()
    with lake.tracking.database.writing() as connection:
        connection.execute(archive_settings.delete())
    lake.archive.configure(allowlist=[str(number) for number in range(9)])
    found = Candidates(lake.tracking)

    def queries(look: Callable[[], list[ArchiveDue]]) -> tuple[int, list[ArchiveDue]]:
        asked: list[str] = []

        def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
            asked.extend([statement] * (statement != "BEGIN"))

        engine = lake.tracking.database.engine
        event.listen(engine, "before_cursor_execute", note)
        try:
            due = look()
            return len(asked), due
        finally:
            event.remove(engine, "before_cursor_execute", note)

    def check() -> None:
        settings = lake.archive.settings()
        for look, most in ((found.due, 4), (found.hot, 2)):
            for experiments in (1, 9):
                fill(lake, now_ns, experiments)
                asked, due = queries(lambda look=look: look(settings, now_ns))  # type: ignore[misc]
                assert asked <= most
                assert len(due) == experiments
        by_id = {each.experiment_id: each for each in found.due(settings, now_ns)}
        counts = {id: (each.retention, each.traces, each.size_bytes) for id, each in by_id.items()}
        assert counts["0"] == ("20m", 2, 200), "marked archiveNow"
        assert (counts["1"], counts["2"]) == (("10m", 1, 100), ("20m", 0, 0))
        assert {(each.hot_traces, each.archived_traces) for each in by_id.values()} == {(2, 1)}
        assert found.due(settings, now_ns, 2) == list(by_id.values())[:2]
        assert [each.experiment_id for each in lake.archive.plan(limit=2)] == ["0", "1"]
        hot = found.hot(settings, now_ns)
        assert hot == [replace(each, archived_traces=0, traces=0, size_bytes=0) for each in by_id.values()]

    check()


def check_ahead(lake: HotLake) -> None:
    """Store traces that begin far in the future, one of them received before the retention, and check which are
    due."""
    now_ns = time.time_ns()
    fill(lake, now_ns, 1)
    with lake.tracking.database.writing() as connection:
        for number, (ahead, minutes) in enumerate([(10**6, 15), (10**6, 5), (10**7, 25), (-15, 5)]):
            values = {
                "lake": lake.tracking.lake,
                "trace_id": f"{10 + number:032d}",
                "workspace": "default",
                "experiment_id": "0",
                "start_ns": now_ns + ahead * MINUTE_NS,
                "end_ns": now_ns,
                "state": "OK",
                "spans_location": TRACKING_STORE,
                "updated_ns": now_ns - minutes * MINUTE_NS,
            }
            connection.execute(insert(trace_info).values(values))
        connection.execute(experiment_tags.delete())
    lake.archive.configure(retention="10m")
    of = Candidates(lake.tracking)
    (due,) = of.due(lake.archive.settings(), now_ns)
    assert (due.hot_traces, due.traces) == (6, 4)
    for traces_max in (1, 2, 3, None):
        ids: list[str] = []
        after = BEGINNING
        while some := list(of.batches(due, traces_max, after)):
            ids += (taken := [trace_id for batch in some for trace_id in batch.trace_ids])
            assert len(taken) <= (traces_max or 4)
            after = some[-1].end
        assert sorted(ids) == [f"{number:032d}" for number in (2, 10, 12, 13)]


def test_a_trace_of_a_clock_that_is_ahead_is_as_old_as_it_came(make: Make) -> None:
    """Otherwise it would stay hot for as long as that clock is ahead."""
    lake = make("trace")
    check_ahead(lake)


def test_what_passes_ask_is_answered_by_indexes(make: Make) -> None:
    """SQLite scans no rows of traces or payloads for a count, and no archived traces for a batch."""
    lake = make("trace")
    if not lake.tracking.database.is_sqlite:
        return  # its planner uses statistics that an empty table lacks
    lake.write((1, 1))
    plans: list[str] = []
    of_the_future: list[str] = []

    def explain(_c: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        if statement.startswith("SELECT") and "trace_" in statement:
            raw = lake.tracking.database.engine.raw_connection()
            rows = raw.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
            its = [row[3] for row in rows if "tracelake_trace_" in row[3]]
            (of_the_future if "updated_ns" in statement else plans).extend(its)
            raw.close()

    engine = lake.tracking.database.engine
    event.listen(engine, "before_cursor_execute", explain)
    try:
        lake.archive.space()
        assert plans
        assert all("COVERING INDEX" in plan for plan in plans), plans
        plans.clear()
        (due,) = Candidates(lake.tracking).hot(lake.archive.settings(), time.time_ns())
        assert next(Candidates(lake.tracking).batches(due))
        looks = [plan for plan in plans if "tracelake_trace_info" in plan]
        assert looks
        assert all("COVERING INDEX" in plan and "spans_location=?" in plan for plan in looks), looks
        # There are few of these.
        assert any("workspace=? AND start_ns>?" in plan for plan in of_the_future), of_the_future
    finally:
        event.remove(engine, "before_cursor_execute", explain)
