"""Correction of stored costs after a change of prices: everywhere, once, beside ingest, and interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tracelake
from tests.lake.test_own_prices import MILLION, ORIGIN, call
from tests.pipeline.spans import a_line, a_span
from tests.pipeline.test_deletions import delete, submit
from tests.server.client import Client
from tracelake import ContentionError, limits
from tracelake.journal.prices import Prices
from tracelake.lake.lake import Lake
from tracelake.lake.prices import RepricingLoop
from tracelake.lake.sources import commit_request
from tracelake.otlp.prices import SHIPPED
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.run_result import RunResult
from tracelake.pipeline.sources import deletions
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.deletions import REPRICINGS, DeletionRequest, RepricingRequest, RequestFence
from tracelake.pipeline.sources.registry import find
from tracelake.results import RepricedModel
from tracelake.server.app import create_app
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import TrackingDoor

Check = Callable[[Lake, Path], None]
AT = "2026-01-01T00:00:00"


@pytest.fixture(name="lake")
def fixture_lake(tmp_path: Path) -> Iterator[Lake]:
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        yield lake


def file_of(folder: Path, name: str, *spans: dict[str, Any]) -> Path:
    file = folder / f"{name}.jsonl"
    file.write_bytes(a_line(*spans))
    return file


def ingest(lake: Lake, folder: Path, name: str, *spans: dict[str, Any]) -> None:
    lake.ingest(file_of(folder, name, *spans), runner=InProcess())


def child(trace: int, span: int, **fields: Any) -> dict[str, Any]:
    """Return another model call in a trace."""
    return call(trace, **fields) | {"spanId": f"{span + 1:016x}"}


def costs(lake: Lake, at: str = "main") -> dict[str, float | None]:
    """Return the cost of each trace by its number. It equals the sum over its spans, of which each occurs once."""
    spans = lake.sql("select trace_id, span_id, cost from spans", at).to_pylist()
    assert len({(row["trace_id"], row["span_id"]) for row in spans}) == len(spans)
    sums: dict[str, float | None] = {}
    for row in spans:
        number = str(int(row["trace_id"], 16) - 1)
        known = [cost for cost in (sums.get(number), row["cost"]) if cost is not None]
        sums[number] = sum(known) if known else None
    traces = lake.sql("select trace_id, cost from traces", at).to_pylist()
    assert {str(int(row["trace_id"], 16) - 1): row["cost"] for row in traces} == sums
    return sums


def when_due(lake: Lake) -> int | None:
    """Correct costs as a server does. Return the number of corrected spans, None if nothing was due."""
    _, report = lake.prices.apply_when_due()
    return None if report is None else report.spans


def check_everywhere(lake: Lake, folder: Path) -> None:
    """Check a correction in tables, sums, search and lists; a stated cost, a plain span and another model stay."""
    spans = a_span(0, 0), child(0, 1), child(0, 2), child(0, 3, cost=7), call(2, "gpt-4o")
    ingest(lake, folder, "a", *spans)
    before = lake.branch("main").head
    assert costs(lake) == {"0": 7.0, "2": 2.5}
    lake.prices.set("mine*", input=0.5)
    planned = lake.prices.apply(dry_run=True)
    assert planned.models == (RepricedModel("mine-1", 2, 0.0, 1.0),)
    assert costs(lake)["0"] == 7
    assert when_due(lake) == 2
    assert costs(lake) == {"0": 8.0, "2": 2.5}
    assert before is not None
    assert costs(lake, before)["0"] == 7
    assert [hit.type for hit in lake.search("cost>0.4 cost<1")] == ["llm", "llm"]
    newest = next(iter(lake.log()))
    assert newest.message == "transaction 1: 2 spans priced again"
    assert (newest.metadata["spans_new"], newest.metadata["spans_repriced"]) == ("0", "2")
    lake.prices.set("mine*", input=0.25)
    assert when_due(lake) == 2
    assert costs(lake) == {"0": 7.5, "2": 2.5}
    assert lake.search("cost>0.4 cost<1").total == 0
    lake.maintenance.compact(runner=InProcess())
    lake.maintenance.rebuild_index(runner=InProcess())
    assert (costs(lake)["0"], lake.search("cost:0.25").total) == (7.5, 2)
    assert lake.verify().findings == ()


def test_costs_are_corrected_everywhere(lake: Lake, tmp_path: Path) -> None:
    """Tables, sums of traces and search have the new cost, and an older commit the old one."""
    check_everywhere(lake, tmp_path)


def check_over_http(lake: Lake, folder: Path) -> None:
    """Check that API and page show a correction without making it, and that either makes it on request."""
    ingest(lake, folder, "a", call(0), call(1, cost=7))
    lake.prices.set("mine*", input=0.5)
    with closing(TrackingDoor(lake.hot.set_up())) as door:
        client = Client(create_app(lake, door))
        model = {"model": "mine-1", "spans": 1, "cost_before": 0.0, "cost_after": 0.5}
        planned = client.get("/api/v1/prices/corrections").json()
        assert planned == {"spans": 1, "models": [model], "transactions": []}
        assert "Spans to correct" in client.get("/pipeline/prices?preview=true").text
        assert costs(lake) == {"0": None, "1": 7.0}
        done = client.post("/api/v1/prices/corrections", json={}).json()
        assert done == planned | {"transactions": [1]}
        assert costs(lake) == {"0": 0.5, "1": 7.0}
        assert "No cost of a stored span differs" in client.get("/pipeline/prices?preview=true").text
        lake.prices.set("mine*", input=0.25)
        assert client.post("/pipeline/prices/apply", data={}, headers=ORIGIN).status_code == 303
        assert costs(lake) == {"0": 0.25, "1": 7.0}


def test_a_correction_over_http(lake: Lake, tmp_path: Path) -> None:
    """A user sees how many spans a change corrects before the costs change."""
    check_over_http(lake, tmp_path)


def check_once(lake: Lake, folder: Path) -> None:
    """Check that a correction writes nothing twice, also of spans that arrive again."""
    ingest(lake, folder, "a", call(0), call(1, cost=7))
    lake.prices.set("mine*", input=0.5)
    assert when_due(lake) == 1
    assert [when_due(lake), lake.prices.apply().transactions] == [None, ()]
    ingest(lake, folder, "b", call(0))
    assert (when_due(lake), costs(lake)) == (None, {"0": 0.5, "1": 7.0})
    lake.prices.remove("mine*")
    assert (when_due(lake), costs(lake)) == (1, {"0": None, "1": 7.0})
    assert lake.verify().findings == ()


def test_a_correction_is_idempotent(lake: Lake, tmp_path: Path) -> None:
    """Without own prices, the shipped price counts again, or none."""
    check_once(lake, tmp_path)


def test_a_correction_beside_an_erasure(lake: Lake, tmp_path: Path) -> None:
    """A correction that is slower than an erasure submits no list with the erased trace, and can be repeated."""
    ingest(lake, tmp_path, "a", call(0), call(1))
    lake.prices.set("mine*", input=0.5)
    submitted = RequestFence.submit

    def slowly(fence: RequestFence, request: RepricingRequest) -> Input | None:
        assert lake.erase(trace=f"{1:032x}").state == "finished"
        return submitted(fence, request)

    with (
        mock.patch.object(RequestFence, "submit", slowly),
        pytest.raises(ContentionError, match="correct the costs again"),
    ):
        lake.prices.apply()
    assert list(lake.objects.list(REPRICINGS)) == []
    lake.prices.apply()
    assert costs(lake) == {"1": 0.5}


def test_from_a_day_on(lake: Lake, tmp_path: Path) -> None:
    """Only spans since the first day of a price change."""
    day_ns = 86_400 * 10**9
    ingest(lake, tmp_path, "a", *(call(day) | {"startTimeUnixNano": str(day * day_ns)} for day in range(4)))
    lake.prices.set("mine-1", input=1, valid_from="1970-01-03")
    assert when_due(lake) == 2
    assert costs(lake) == {"0": None, "1": None, "2": 1.0, "3": 1.0}


def request(lake: Lake, *traces: int) -> Input:
    """Submit a request to price traces again."""
    return submit(lake.objects, RepricingRequest(tuple(f"{each + 1:032x}" for each in traces), 3, AT))


def check_beside_ingest(lake: Lake, folder: Path) -> None:
    """Check that versions win by content alone, whether they arrive with a correction, or before or after it."""
    ingest(lake, folder, "a", *(call(trace) | {"endTimeUnixNano": "10"} for trace in range(4)))
    lake.prices.set("mine*", input=0.5)
    later = [call(trace) | {"endTimeUnixNano": "20", "name": "later"} for trace in (1, 3)]
    (beside,) = find(
        lake.objects, [str(file_of(folder, "b", call(0) | {"endTimeUnixNano": "10"}, later[0], call(9)))]
    )
    item = request(lake, 0, 1, 2, 3)
    (counts,) = delete(lake, item, beside).counts
    assert (counts.new, counts.replaced, counts.repeated, counts.repriced) == (1, 2, 0, 2)
    ingest(lake, folder, "c", later[1], call(2) | {"endTimeUnixNano": "5", "name": "earlier"})
    names = lake.sql("select name from spans order by trace_id").to_pylist()
    assert [row["name"] for row in names] == ["work", "later", "work", "later", "work"]
    assert costs(lake) == dict.fromkeys(["0", "1", "2", "3", "9"], 0.5)
    assert lake.search("name:later").total == 2
    assert lake.search("*").total == 5
    assert [counts.repriced for counts in delete(lake, item).counts] == [0]
    assert lake.verify().findings == ()


def test_a_correction_beside_ingest_of_the_same_traces(lake: Lake, tmp_path: Path) -> None:
    """A later version replaces a corrected span, also in its transaction; an earlier one does not."""
    check_beside_ingest(lake, tmp_path)


def check_deleted(lake: Lake, folder: Path) -> None:
    """Check that a correction returns no deleted trace."""
    ingest(lake, folder, "a", call(0), call(1))
    lake.prices.set("mine*", input=0.5)
    deletion = DeletionRequest(0, None, (f"{1:032x}",), 1, "test", "ada", AT)
    delete(lake, request(lake, 0, 1), submit(lake.objects, deletion))
    assert costs(lake) == {"1": 0.5}
    assert lake.search("*").total == 1


def test_a_deleted_trace_stays_deleted(lake: Lake, tmp_path: Path) -> None:
    """A deletion in the transaction of a correction wins."""
    check_deleted(lake, tmp_path)


def check_erased(lake: Lake, folder: Path) -> None:
    """Check that a correction writes no row of a trace that is being erased."""
    ingest(lake, folder, "a", call(0), call(1))
    lake.prices.set("mine*", input=0.5)
    lake.erasures.request(trace=f"{1:032x}")
    counts = delete(lake, request(lake, 0, 1)).counts
    assert [each.repriced for each in counts] == [1]


def test_an_erased_trace_is_not_copied(lake: Lake, tmp_path: Path) -> None:
    """An erasure deletes the only rows."""
    check_erased(lake, tmp_path)


def check_pages(lake: Lake, folder: Path) -> None:
    """Check that bounded transactions correct all spans of many traces."""
    spans = [span for trace in range(6) for span in (call(trace), child(trace, 1), child(trace, 2))]
    ingest(lake, folder, "a", *spans)
    lake.prices.set("mine*", input=0.5)
    with (
        mock.patch.object(limits, "REPRICED_SPANS_MAX", 4),
        mock.patch("tracelake.lake.prices._EXAMINED_TOGETHER", 2),
    ):
        report = lake.prices.apply()
    assert (report.spans, len(report.transactions) > 2) == (18, True)
    assert set(costs(lake).values()) == {1.5}
    lake.prices.set("mine*", input=1)
    with mock.patch("tracelake.lake.prices._EXAMINED_TOGETHER", 2):
        assert lake.prices.apply().spans == 18
    assert set(costs(lake).values()) == {3.0}


def test_many_spans_take_several_transactions(lake: Lake, tmp_path: Path) -> None:
    """Each bucket of the tables has pages, and each page whole traces."""
    check_pages(lake, tmp_path)


def test_large_traces_are_apart(lake: Lake, tmp_path: Path) -> None:
    """A page ends before the trace that exceeds the limit of spans."""
    ingest(lake, tmp_path, "a", *(span for trace in range(6) for span in (call(trace), a_span(trace, 5))))
    lake.prices.set("mine*", input=0.5)
    with mock.patch.object(limits, "DELETION_SPANS_MAX", 3):
        report = lake.prices.apply()
    assert (report.spans, len(report.transactions)) == (6, 6)
    assert set(costs(lake).values()) == {0.5}


def check_late(lake: Lake, folder: Path) -> None:
    """Check the spans of a pipeline run that began before a change of prices and committed after the correction."""
    ingest(lake, folder, "a", call(0))
    lake.prices.set("mine*", input=0.5)
    assert when_due(lake) == 1
    with mock.patch.object(Prices, "table", return_value=SHIPPED):
        ingest(lake, folder, "b", call(1))
    assert costs(lake) == {"0": 0.5, "1": None}
    assert (when_due(lake), costs(lake)) == (1, {"0": 0.5, "1": 0.5})
    assert when_due(lake) is None


def test_spans_of_a_run_that_began_before_the_change(lake: Lake, tmp_path: Path) -> None:
    """The journal names the prices of each step."""
    check_late(lake, tmp_path)


def check_interrupted(lake: Lake, folder: Path) -> None:
    """Check that another process completes a correction that was killed before, during or after a transaction."""
    ingest(lake, folder, "a", *(call(trace) for trace in range(6)))
    for number, (target, name) in enumerate(
        (
            ("tracelake.lake.sources", "main_pipeline"),
            (Outputs.__module__, "Outputs.publish"),
            ("tracelake.lake.prices", "finish"),
        )
    ):
        lake.prices.set("mine*", input=number + 1)
        with mock.patch(f"{target}.{name}", side_effect=SystemExit), suppress(SystemExit):
            lake.prices.apply()
        assert list(lake.objects.list(REPRICINGS))
        with tracelake.open(lake.url) as other:
            other.prices.apply()
            assert set(costs(other).values()) == {number + 1}
            assert other.verify().findings == ()
        assert not [*lake.objects.list(REPRICINGS), *lake.objects.list("staging/")]


def test_an_interrupted_correction_is_completed(lake: Lake, tmp_path: Path) -> None:
    """Requests and staged rows are gone in the end."""
    check_interrupted(lake, tmp_path)


def test_another_process_has_the_claim(lake: Lake, tmp_path: Path) -> None:
    """Two servers do not correct the same costs at once. An abandoned claim ends after a minute."""
    ingest(lake, tmp_path, "a", call(0))
    lake.prices.set("mine*", input=0.5)

    def killed(*_: object) -> RunResult:
        assert when_due(lake) is None
        raise SystemExit

    with mock.patch("tracelake.lake.prices.commit_request", killed), suppress(SystemExit):
        when_due(lake)
    assert when_due(lake) is None
    with mock.patch("tracelake.lake.prices._CLAIM_S", 0.0):
        assert when_due(lake) == 0, "the pending request has corrected it"
    assert (costs(lake), lake.prices.applied().spans) == ({"0": 0.5}, 1)


def test_prices_that_change_during_a_correction(lake: Lake, tmp_path: Path) -> None:
    """The correction ends, and the next one has the newer prices."""
    ingest(lake, tmp_path, "a", *(call(trace) for trace in range(6)))
    lake.prices.set("mine*", input=0.5)

    def slow(*args: Any) -> RunResult:
        lake.prices.set("mine*", input=2)
        return commit_request(*args)

    with mock.patch("tracelake.lake.prices.commit_request", slow):
        when_due(lake)
    when_due(lake)
    assert set(costs(lake).values()) == {2.0}
    assert when_due(lake) is None


def check_between(lake: Lake, folder: Path) -> None:
    """Check the costs by prices that are gone before the next correction, also of an interrupted one."""
    lake.prices.set("mine*", input=1)
    ingest(lake, folder, "a", *(call(trace) for trace in range(6)))
    lake.prices.remove("mine*")
    assert lake.prices.is_due(), "the version is that of the last correction, but spans have other costs"
    assert (when_due(lake), set(costs(lake).values())) == (6, {None})
    assert not lake.prices.is_due()
    lake.prices.set("mine*", input=1)

    def early(*args: Any) -> RunResult:
        result = commit_request(*args)
        lake.prices.remove("mine*")
        lake.prices.set("other", input=2)
        return result

    with (
        mock.patch("tracelake.lake.prices.commit_request", early),
        mock.patch.object(limits, "REPRICED_SPANS_MAX", 2),
    ):
        assert when_due(lake) == 3
    assert set(costs(lake).values()) == {None, 1.0}
    lake.prices.set("mine*", input=3)
    ingest(lake, folder, "b", call(6))
    lake.prices.remove("mine*")
    assert (when_due(lake), set(costs(lake).values())) == (4, {None})
    assert when_due(lake) is None


def test_prices_that_are_gone_before_a_correction(lake: Lake, tmp_path: Path) -> None:
    """Spans that have costs by such prices are corrected, too."""
    check_between(lake, tmp_path)


def test_the_loop_of_a_server(lake: Lake, tmp_path: Path) -> None:
    """A turn corrects what is due. An empty lake, and one without own prices, have nothing to correct."""
    loop = RepricingLoop(lake.prices)
    loop.turn()
    lake.prices.set("mine*", input=0.5)
    loop.turn()
    ingest(lake, tmp_path, "a", call(0))
    lake.prices.set("mine*", input=1)
    loop.turn()
    assert costs(lake) == {"0": 1.0}


def test_corrections_in_the_api_and_lists(lake: Lake, tmp_path: Path) -> None:
    """`/api/v1/prices` reports them. The list, the overview and the trace have the new cost."""
    ingest(lake, tmp_path, "a", call(0))
    with closing(TrackingDoor(lake.hot.set_up())) as door:
        client = Client(create_app(lake, door))
        client.post("/api/v1/prices", json={"model": "mine*", "input": 3})
        expected = {"pending": True, "applied_at": None, "spans": 0}
        assert client.get("/api/v1/prices").json()["corrections"] == expected
        assert "next turn" in client.get("/pipeline/prices").text
        assert when_due(lake) == 1
        corrections = client.get("/api/v1/prices").json()["corrections"]
        assert (corrections["pending"], corrections["spans"]) == (False, 1)
        assert "Last correction: 1 span," in client.get("/pipeline/prices").text
        (row,) = client.get("/api/v1/traces").json()["traces"]
        (span,) = client.get(f"/api/v1/traces/{row['trace_id']}").json()["spans"]
        assert (row["cost"], span["cost"]) == (3.0, 3.0)
        overview = client.get("/api/v1/overview").json()
        assert [each["cost"] for each in overview["models"]] == [3.0]


def test_odd_costs_and_tokens(lake: Lake, tmp_path: Path) -> None:
    """A correction leaves the cost that an ingest by the same prices gives, whatever the attributes."""
    values: list[dict[str, Any]] = [
        {"gen_ai.usage.cost": "nan"},
        {"gen_ai.usage.cost": ""},
        {"gen_ai.usage.cost": "0"},
        {"llm.cost.total": "-1", "operation.cost": "0.125"},
        {"mlflow.llm.cost": '{"total_cost": 0.5}'},
        {"mlflow.llm.cost": "{"},
        {"gen_ai.usage.input_tokens": "-4"},
        {"gen_ai.usage.cache_read.input_tokens": "1000", "gen_ai.usage.output_tokens": "7"},
        {"note": "π" * 300_000},
        {"gen_ai.request.model": "mine\0'\"; -- \ud83d\ude00 π"},
        {"gen_ai.request.model": ""},
    ]
    base = {"gen_ai.request.model": "mine-1", "gen_ai.usage.input_tokens": str(MILLION)}
    spans = [
        a_span(
            number,
            0,
            attributes=[{"key": key, "value": {"stringValue": text}} for key, text in (base | each).items()],
        )
        for number, each in enumerate(values)
    ]
    ingest(lake, tmp_path, "a", *spans)
    lake.prices.set("mine*", input=0.5, output=100, cached_input=0)
    when_due(lake)
    with tracelake.init(tmp_path / "other") as other:
        other.prices.set("mine*", input=0.5, output=100, cached_input=0)
        ingest(other, tmp_path, "b", *spans)
        assert costs(lake) == costs(other)
        queries = [
            each.sql("select * exclude (transaction) from spans order by trace_id") for each in (lake, other)
        ]
        assert queries[0].equals(queries[1])


def test_a_damaged_request_changes_nothing(lake: Lake, tmp_path: Path) -> None:
    """A request that fails its checksum is reported."""
    ingest(lake, tmp_path, "a", call(0))
    lake.prices.set("mine*", input=0.5)
    item = request(lake, 0)
    lake.objects.put(item.path, lake.objects.get(item.path).replace(b"spans", b"spams"))
    result = delete(lake, item)
    assert result.transactions == []
    assert "checksum" in str(result.ranges)
    deletions.finish(lake.objects, item.path)
    assert costs(lake) == {"0": None}
