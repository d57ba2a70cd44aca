"""Retention rules: the first matching rule decides for a whole trace, and ordinary transactions delete it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tracelake
from tests.pipeline.spans import AGENTS, a_line, a_span
from tests.tracking.conftest import new_url, postgres
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import DamageError, NotFoundError, StorageError, UsageError
from tracelake.archive.store import ArchiveStore
from tracelake.lake import retention
from tracelake.lake.lake import Lake
from tracelake.lake.retention import RetentionReport
from tracelake.pipeline.sources import deletions
from tracelake.tables.retention import (
    Candidate,
    DueTrace,
    RetentionRule,
    age_ns,
    day_of,
    first_match,
    in_order,
    is_due,
    newest_due_ns,
    requests,
)
from tracelake.tasks.runners import InProcess

__all__ = ["new_url", "postgres"]

DAY_S = 86_400
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def ago(days: float) -> int:
    """Return the time that many days before NOW, in nanoseconds."""
    return int((NOW.timestamp() - days * DAY_S) * 10**9)


def old(trace: int, days: float, span: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a span that ended that many days before NOW."""
    return a_span(trace, span, start=ago(days) - 10, end=ago(days), **fields)


ERROR: dict[str, Any] = {"status": {"code": 2}}


def ingest(lake: Lake, *spans: dict[str, Any], service: str = "shop", workspace: str = "") -> None:
    folder = Path(lake.place).parent
    file = folder / f"{time.monotonic_ns()}.jsonl"
    file.write_bytes(a_line(*spans, service=service, workspace=workspace))
    lake.ingest(file, runner=InProcess())


def traces_of(lake: Lake, at: str = "main") -> list[int]:
    """Return the numbers of the traces. Both tables and the index must agree."""
    ids = lake.sql("select trace_id from traces order by 1", at)["trace_id"].to_pylist()
    assert lake.sql("select distinct trace_id from spans order by 1", at)["trace_id"].to_pylist() == ids
    assert lake.search("*", at=at).total == lake.sql("select span_id from spans", at).num_rows
    return [int(str(each), 16) - 1 for each in ids]


def due_of(report: RetentionReport) -> dict[tuple[str, str], tuple[int, int]]:
    return {(each.rule, each.day): (each.traces, each.spans) for each in report.due}


def test_first_matching_rule_decides_for_the_whole_trace(lake: Lake) -> None:
    """Errors stay a year, checkout 180 days, all others 30 days; a trace goes whole, with all its spans or none."""
    ingest(lake, old(0, 40), old(0, 40, 1, **ERROR), old(1, 40), old(2, 10), old(3, 400, **ERROR))
    ingest(lake, old(4, 100), old(5, 200), service="checkout")
    ingest(lake, old(4, 101, 9), old(6, 31), old(6, 29, 1))
    lake.retention.set("errors", "1y", query="status:error")
    lake.retention.set("checkout", "180d", service="checkout")
    lake.retention.set("rest", "30d")
    before = lake.branch("main").head
    assert before is not None
    expected = {
        ("rest", day_of(ago(40))): (1, 1),
        ("errors", day_of(ago(400))): (1, 1),
        ("checkout", day_of(ago(200))): (1, 1),
    }
    preview = lake.retention.preview(NOW)
    assert due_of(preview) == expected
    assert preview.size_bytes > 0
    assert traces_of(lake) == [0, 1, 2, 3, 4, 5, 6]
    report = lake.retention.apply(NOW, by="ada")
    assert (due_of(report), report.spans_deleted) == (expected, 3)
    assert traces_of(lake) == [0, 2, 4, 6]
    assert traces_of(lake, before) == [0, 1, 2, 3, 4, 5, 6]
    assert lake.retention.preview(NOW).due == []
    assert not list(lake.objects.list(deletions.PREFIX))
    assert lake.verify().findings == ()
    (entry,) = (each for each in lake.audit.newest(10) if each.action == "retention apply")
    assert (entry.name, entry.object, entry.outcome) == ("ada", "3 traces, 3 spans", "done")


def test_readers_show_nothing_of_a_deleted_trace(lake: Lake) -> None:
    """Trace, search, SQL and table reads at head miss it; the commit before still has it."""
    ingest(lake, old(0, 40, name="refund"), old(1, 1))
    before = lake.branch("main").head
    assert before is not None
    lake.retention.set("rest", "30d")
    lake.retention.apply(NOW)
    with pytest.raises(NotFoundError):
        lake.trace(f"{1:032x}")
    assert lake.search("refund").total == 0
    assert lake.table("spans").lookup([f"{1:032x}"]).num_rows == 0
    assert lake.table("spans").to_arrow().num_rows == 1
    assert sum(batch.num_rows for each in lake.table("spans").splits() for batch in each.batches()) == 1
    assert len(lake.trace(f"{1:032x}", at=before).spans) == 1
    assert lake.search("refund", at=before).total == 1


def test_without_rules_nothing_goes(lake: Lake) -> None:
    """A lake without rules, or with a rule that keeps forever, deletes nothing."""
    ingest(lake, old(0, 4000))
    assert lake.retention.apply(NOW).transactions == []
    lake.retention.set("audit", "forever", service="shop")
    lake.retention.set("rest", "1d")
    assert lake.retention.apply(NOW).traces == 0
    assert traces_of(lake) == [0]
    assert lake.retention.remove("audit").age == "forever"
    assert lake.retention.apply(NOW).traces == 1
    assert traces_of(lake) == []


def test_workspaces_have_rules_and_shared_traces_are_divided(lake: Lake) -> None:
    """A workspace's rule concerns its spans only, also in a trace that another workspace shares."""
    ingest(lake, old(0, 40), old(1, 40), workspace="a")
    ingest(lake, old(0, 41, 5), old(2, 40), workspace="b")
    lake.retention.set("mine", "30d", workspace="a")
    lake.retention.set("rest", "1y")
    report = lake.retention.apply(NOW)
    assert [(each.workspace, each.rule, each.traces) for each in report.due] == [("a", "mine", 2)]
    assert lake.sql("select distinct workspace from spans").to_pylist() == [{"workspace": "b"}]
    assert traces_of(lake) == [0, 2]
    assert lake.retention.rules("b") == [rule for rule in lake.retention.rules() if rule.workspace == "*"]


def test_traces_of_datasets_stay_and_the_report_says_so(lake: Lake) -> None:
    """A trace from which an example was made stays, staged or committed; tags keep showing deleted traces."""
    note: dict[str, Any] = {"attributes": [{"key": "input.value", "value": {"stringValue": "ask"}}]}
    ingest(lake, *(old(number, 40, **note) for number in range(4)))
    lake.tag("release", "main")
    lake.datasets.create("refunds").add(traces=[f"{1:032x}"], message="examples")
    lake.datasets.get("refunds").add(traces=[f"{2:032x}"])
    lake.retention.set("rest", "30d")
    report = lake.retention.apply(NOW)
    assert report.stays == {"dataset refunds": 2}
    assert report.readable_at == ("release",)
    assert traces_of(lake) == [0, 1]
    assert traces_of(lake, "release") == [0, 1, 2, 3]


def test_many_small_transactions_delete_all(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded requests and passes delete all due traces, each whole."""
    monkeypatch.setattr(limits, "DELETION_TRACES_MAX", 3)
    monkeypatch.setattr(limits, "DELETION_SPANS_MAX", 4)
    monkeypatch.setattr(retention, "_TRACES_PER_PASS", 7)
    ingest(lake, *(old(number, 40, span) for number in range(20) for span in range(1 + number % 3)))
    ingest(lake, old(99, 1))
    lake.retention.set("rest", "30d")
    report = lake.retention.apply(NOW)
    assert (report.traces, len(report.transactions)) == (20, len(set(report.transactions)))
    assert len(report.transactions) > 9
    assert traces_of(lake) == [99]
    assert lake.verify().findings == ()


def test_invalid_rules_are_refused(lake: Lake) -> None:
    """Each error names the remedy; nothing is stored."""
    for name, age, options, message in (
        ("a b", "30d", {}, "cannot be the name of a rule"),
        ("x", "30", {}, "no duration.*years.*forever"),
        ("x", "0d", {}, "no duration"),
        ("x", "30d", {"query": "status:"}, "condition of rule x does not parse"),
        ("x", "30d", {"query": "a) OR (b"}, "does not parse"),
        ("x", "30d", {"priority": -1}, "lower numbers decide first"),
        ("x", "30d", {"workspace": ""}, r"use \* for all"),
    ):
        with pytest.raises(UsageError, match=message):
            lake.retention.set(name, age, **options)
    assert lake.retention.rules() == []
    with pytest.raises(NotFoundError, match="retention list"):
        lake.retention.remove("x")


def test_verify_names_a_damaged_rule(lake: Lake) -> None:
    """A rule with a flipped bit is a finding, and no rule is applied."""
    lake.retention.set("rest", "30d")
    key_value = lake._opened.key_value
    (entry,) = key_value.scan("retention")
    key_value.set("retention", entry.key, entry.value.replace(b"30d", b"31d"))
    assert [finding.kind for finding in lake.verify().findings] == ["damaged"]
    with pytest.raises(DamageError, match="backup"):
        lake.retention.apply(NOW)


def test_rules_are_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule beyond the limit is refused; replacing one is not."""
    monkeypatch.setattr("tracelake.tables.retention.RETENTION_RULES_MAX", 2)
    lake.retention.set("a", "1d")
    lake.retention.set("b", "1d")
    with pytest.raises(UsageError, match="RETENTION_RULES_MAX"):
        lake.retention.set("c", "1d")
    assert lake.retention.set("b", "2d", by="ada").by == "ada"
    assert [(rule.name, rule.age) for rule in lake.retention.rules()] == [("a", "1d"), ("b", "2d")]


def test_periodic_application_runs_once_an_interval(lake: Lake) -> None:
    """Of several processes, one applies the rules in an interval; without rules none does."""
    assert lake.retention.apply_when_due(by="server") is None
    ingest(lake, old(0, 4000))
    lake.retention.set("rest", "30d")
    report = lake.retention.apply_when_due(by="server")
    assert report is not None
    assert report.traces == 1
    assert lake.retention.apply_when_due(by="other") is None
    run = lake.retention.last_run()
    assert run is not None
    assert (run.by, run.traces, run.error) == ("server", 1, "")
    assert lake.retention.apply_when_due(by="other", interval_s=0) is not None
    for behind, is_applied in ((0.5, False), (10, True)):
        behind_s = time.time() - behind * limits.RETENTION_INTERVAL_S
        with mock.patch("time.time", return_value=behind_s):
            assert (lake.retention.apply_when_due(by="other") is not None) == is_applied, behind


@pytest.mark.parametrize("service", ["airline-agent", "multi-agent-team"])
def test_real_traces_by_service(lake: Lake, service: str) -> None:
    """Exactly the traces with a span of the service go; the counts of all others stay."""
    lake.ingest(AGENTS, runner=InProcess())
    query = f"""
        select service, count(*) as spans from spans where trace_id not in
            (select trace_id from spans where service = '{service}') group by 1 order by 1
    """
    expected, every = lake.sql(query).to_pylist(), lake.sql("select count(*) as n from spans").to_pylist()
    lake.retention.set("gone", "1d", service=service)
    report = lake.retention.apply(datetime(2026, 6, 1, tzinfo=UTC))
    counts = "select service, count(*) as spans from spans group by 1 order by 1"
    assert lake.sql(counts).to_pylist() == expected
    assert report.spans_deleted == every[0]["n"] - sum(row["spans"] for row in expected) > 0
    assert lake.search("*").total == sum(row["spans"] for row in expected)


def test_killed_in_the_middle_and_applied_again(tmp_path: Path) -> None:
    """After a real kill between transactions, traces are whole or gone, and another run deletes the rest."""
    script = """
import os, signal, sys
import tracelake
from datetime import UTC, datetime
from tracelake import limits
limits.DELETION_TRACES_MAX = 10
lake = tracelake.open(sys.argv[1])
seen = []
def progress(step):
    seen.append(step)
    if step.stage == "publishing" and step.done == int(sys.argv[2]) and len({each.transaction for each in seen}) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
lake.retention.apply(datetime(2026, 6, 1, tzinfo=UTC), progress=progress)
"""
    with tracelake.init(tmp_path / "lake") as lake:
        ingest(lake, *(old(number, 40, span) for number in range(60) for span in range(3)))
        ingest(lake, *(old(number, 1, span) for number in range(60, 65) for span in range(3)))
        lake.retention.set("rest", "30d")
    for done in (1, 2, 3):
        command = [sys.executable, "-c", script, str(tmp_path / "lake"), str(done)]
        process = subprocess.run(command, env=dict(os.environ), check=False, capture_output=True, text=True)
        assert process.returncode == -signal.SIGKILL, process.stderr
        with tracelake.open(tmp_path / "lake") as lake:
            counts = lake.sql("select trace_id, count(*) as n from spans group by 1").to_pylist()
            assert {row["n"] for row in counts} == {3}
            assert 5 < len(counts) < 65
    with tracelake.open(tmp_path / "lake") as lake:
        lake.retention.apply(NOW)
        assert traces_of(lake) == list(range(60, 65))
        assert not list(lake.objects.list(deletions.PREFIX))
        assert lake.verify().findings == ()


def test_ingest_beside_an_application(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of an ingest and of deletions interleave: nothing new is lost, and all that is due goes."""
    monkeypatch.setattr(limits, "DELETION_TRACES_MAX", 2)
    ingest(lake, *(old(number, 40, span) for number in range(16) for span in range(2)))
    lake.retention.set("rest", "30d")
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with tracelake.open(lake.place) as other:
                for number in range(100, 108):
                    ingest(other, old(number, 1), old(number, 1, 1))
        except BaseException as error:  # noqa: BLE001  the test reports it
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    lake.retention.apply(NOW)
    writer.join()
    assert failures == []
    lake.retention.apply(NOW)
    assert traces_of(lake) == list(range(100, 108))
    assert lake.verify().findings == ()


@pytest.fixture(name="hot_lake")
def fixture_hot_lake(tmp_path: Path, new_url: Callable[[], str]) -> Iterator[Lake]:
    """Return a lake with a hot tier on SQLite, then on PostgreSQL."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.hot.set_up(new_url())
        yield lake


def test_hot_tier_follows_the_rules(hot_lake: Lake) -> None:
    """A deleted trace leaves the tracking store too; a rated one stays with its assessment."""
    lake, store = hot_lake, hot_lake.hot.required_store()
    store.write([request((1, 1), (1, 2), (2, 1), (3, 1))])
    pipeline = lake.pipeline(runner=InProcess())
    assert pipeline.run_once() is not None
    pipeline.close()
    assessment = {"assessment_name": "quality", "feedback": {"value": True}}
    lake.annotations.log_assessment(trace_id(2), assessment)
    lake.retention.set("rated", "forever", feedback=True)
    lake.retention.set("rest", "1d")
    report = lake.retention.apply()
    assert (report.traces, report.spans_deleted, report.hot_deleted) == (2, 3, 2)
    assert [each["trace_id"] for each in lake.sql("select trace_id from traces").to_pylist()] == [trace_id(2)]
    for number in (1, 3):
        with pytest.raises(NotFoundError):
            lake.trace(trace_id(number))
    assert len(lake.trace(trace_id(2)).spans) == 1
    assert lake.verify().findings == ()


def test_a_rule_for_an_experiment_deletes_its_traces_only(hot_lake: Lake) -> None:
    """A rule with an experiment concerns the traces of this experiment, and the next rule all others."""
    lake, store = hot_lake, hot_lake.hot.required_store()
    store.write([request((1, 1))])
    for number, experiment in ((2, "trial"), (3, "other")):
        store.write([replace(request((number, 1), (number, 2)), experiment_id=experiment)])
    with closing(lake.pipeline(runner=InProcess())) as pipeline:
        assert pipeline.run_once() is not None
    lake.retention.set("trials", "1d", experiment="trial")
    lake.retention.set("rest", "forever")
    assert [(each.rule, each.traces) for each in lake.retention.preview().due] == [("trials", 1)]
    report = lake.retention.apply()
    assert (report.traces, report.spans_deleted, report.hot_deleted) == (1, 2, 1)
    rows = lake.sql("select trace_id from traces order by all").to_pylist()
    assert [each["trace_id"] for each in rows] == [trace_id(1), trace_id(3)]
    with pytest.raises(NotFoundError):
        lake.trace(trace_id(2))


def test_hot_tier_is_finished_after_a_failure(hot_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the hot tier fails after the commit, the request stays, and the next run deletes the copies."""
    lake, store = hot_lake, hot_lake.hot.required_store()
    store.write([request((1, 1), (2, 1))])
    pipeline = lake.pipeline(runner=InProcess())
    assert pipeline.run_once() is not None
    pipeline.close()
    lake.retention.set("rest", "1d")

    def fail(_: object) -> None:
        raise StorageError("the database is gone")

    with monkeypatch.context() as patch:
        patch.setattr(lake.retention, "_delete_hot", fail)
        with pytest.raises(StorageError):
            lake.retention.apply()
    assert lake.sql("select * from spans").num_rows == 0
    assert len(deletions.pending(lake.objects)) == 1
    assert lake.retention.apply().hot_deleted == 2
    assert deletions.pending(lake.objects) == []
    with pytest.raises(NotFoundError):
        lake.trace(trace_id(1))


def test_trace_that_is_archived_meanwhile_is_deleted(hot_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archiver moves a trace between the look at its place and its deletion. The trace is looked up again."""
    lake, store = hot_lake, hot_lake.hot.required_store()
    store.write([request((1, 1), (2, 1))])
    pipeline = lake.pipeline(runner=InProcess())
    assert pipeline.run_once() is not None
    pipeline.close()
    lake.archive.configure(layout="trace")
    lake.retention.set("rest", "1d")
    delete = ArchiveStore.delete
    moved: list[object] = []

    def delete_after_archiving(self: ArchiveStore, places: Mapping[str, tuple[str | None, str]]) -> list[str]:
        if not moved:
            moved.append(lake.archive.run(older_than="1d"))
        return delete(self, places)

    monkeypatch.setattr(ArchiveStore, "delete", delete_after_archiving)
    assert lake.retention.apply().hot_deleted == 2
    assert len(moved) == 1
    for number in (1, 2):
        with pytest.raises(NotFoundError):
            lake.trace(trace_id(number))


def rule(name: str = "r", age: str = "30d", priority: int = 100, workspace: str = "*") -> RetentionRule:
    return RetentionRule(workspace=workspace, name=name, age=age, priority=priority)


def test_order_of_rules() -> None:
    """Pure: by priority; at the same priority those of a workspace first; then by name."""
    rules = [rule("b"), rule("a"), rule("z", priority=1), rule("own", workspace="w")]
    assert [each.name for each in in_order(rules)] == ["z", "own", "a", "b"]
    first, second = rule("first"), rule("second")
    assert first_match([first, second], [{"y"}, {"x", "y"}], "x") == second
    assert first_match([first, second], [{"y"}, {"x", "y"}], "y") == first
    assert first_match([first, second], [set(), set()], "x") is None


def test_ages() -> None:
    """Pure: a trace is due once its last span is as old as its rule says; never without a rule or by `forever`."""
    assert age_ns("1y") == 365 * 86_400 * 10**9
    assert age_ns("forever") is None
    day = 86_400 * 10**9
    assert [is_due(rule(age="1d"), end, 10 * day) for end in (9 * day - 1, 9 * day, 9 * day + 1)] == [
        True,
        True,
        False,
    ]
    assert not is_due(rule(age="forever"), 0, 10 * day)
    assert not is_due(None, 0, 10 * day)
    assert newest_due_ns([rule(age="3d"), rule(age="forever"), rule(age="1d")], 10 * day) == 9 * day
    assert newest_due_ns([rule(age="forever")], 10 * day) is None
    assert [day_of(ns) for ns in (-1, 0, day)] == ["1969-12-31", "1970-01-01", "1970-01-02"]


def test_requests_are_bounded_and_never_divide_a_trace() -> None:
    """Pure: at most so many traces and spans a request, one workspace each; a larger trace is alone."""

    def due(number: int, spans: int, workspace: str = "w") -> DueTrace:
        return DueTrace(Candidate(str(number), workspace, 0, spans), rule())

    several = [due(0, 3), due(1, 3), due(2, 50), due(3, 1), due(4, 1, "v"), due(5, 1), due(6, 1), due(7, 1)]
    cut = [
        (workspace, [each.candidate.trace_id for each in batch])
        for workspace, batch in requests(several, 3, 6)
    ]
    assert cut == [("w", ["0", "1"]), ("w", ["2"]), ("w", ["3", "5", "6"]), ("w", ["7"]), ("v", ["4"])]
