"""Own prices of models: which one counts, from when, and the same one in every place and after a crash."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tests.server.client import Client
from tracelake._errors import DamageError, LimitError, NotFoundError, UsageError
from tracelake.journal import prices as own
from tracelake.journal.prices import PARTITION, Prices
from tracelake.otlp import prices
from tracelake.otlp.prices import SHIPPED, PriceTable
from tracelake.pipeline.publish import Outputs
from tracelake.server.app import create_app
from tracelake.storage import MemoryKeyValueStore
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import TrackingDoor

JSON = {"Content-Type": "application/json"}
ORIGIN = {"Origin": "http://127.0.0.1"}
DAY_NS = 86_400 * 10**9
MILLION = 1_000_000


def call(trace: int, model: str = "mine-1", cost: float | None = None) -> dict[str, Any]:
    """Return a model call with a million input tokens."""
    values = {"gen_ai.request.model": model, "gen_ai.usage.input_tokens": MILLION, "gen_ai.usage.cost": cost}
    attributes = [
        {"key": key, "value": {"stringValue": str(value)}}
        for key, value in values.items()
        if value is not None
    ]
    return a_span(trace, 0, attributes=attributes)


def check_choice() -> None:
    """Check which of several prices counts for a model and a day."""
    store = Prices(MemoryKeyValueStore())
    for model, dollars, day in (
        ("mine*", 1, ""),
        ("mine-1", 2, "1970-01-03"),
        ("mine-1", 3, "1970-01-05"),
        ("mine-1-pro*", 4, ""),
        ("GPT-4o", 5, "1970-01-03"),
        ("host/mine-1", 6, ""),
    ):
        store.set(model, input=dollars, valid_from=day)
    table = store.table()
    expected = {
        ("mine-1", 0): 1.0,
        ("mine-1", 2 * DAY_NS): 2.0,
        ("MINE-1", 4 * DAY_NS - 1): 2.0,
        ("mine-1", 4 * DAY_NS): 3.0,
        ("other/mine-1-2026-01-31", 9 * DAY_NS): 3.0,
        ("host/mine-1", 9 * DAY_NS): 6.0,
        ("mine-1-pro-max", 9 * DAY_NS): 4.0,
        ("mine-2", 0): 1.0,
        ("openai/gpt-4o-2024-08-06", 2 * DAY_NS - 1): 2.5,
        ("openai/gpt-4o-2024-08-06", 2 * DAY_NS): 5.0,
    }
    for (name, time_ns), per_million in expected.items():
        price = table.price_at(name, time_ns)
        assert price is not None
        assert price.input == per_million, (name, time_ns, price)
    assert table.price_at("not-mine", 0) is None


def test_choice_of_a_price() -> None:
    """The most specific name with a valid day wins, then the latest day, then the shipped price."""
    check_choice()
    for name in ("_day", "_fits", "_names_of"):
        wrong = {"_day": "0001-01-01", "_fits": True, "_names_of": ["gpt-4o"]}[name]
        with (
            mock.patch.object(prices, name, lambda *_, wrong=wrong: wrong),
            mock.patch.object(prices, "prices_of", prices.prices_of.__wrapped__),
            pytest.raises(AssertionError),
        ):
            check_choice()


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": ""},
        {"model": "a*b"},
        {"model": "x" * 201},
        {"model": "a\nb"},
        {"input": float("nan")},
        {"input": -1},
        {"output": float("inf")},
        {"cached_input": 2e6},
        {"valid_from": "2026-1-1"},
        {"valid_from": "20260101"},
        {"valid_from": "yesterday"},
    ],
)
def test_a_wrong_price_is_refused(wrong: dict[str, Any]) -> None:
    """No part of it is stored."""
    store = Prices(MemoryKeyValueStore())
    fields: dict[str, Any] = {"model": "x", "input": 1}
    with pytest.raises(UsageError):
        store.set(**fields | wrong)
    assert store.table() is SHIPPED


def test_prices_are_replaced_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model has one price a day. A version stays readable; without own prices the shipped ones count."""
    key_value = MemoryKeyValueStore()
    store = Prices(key_value)
    store.set("Mine", input=1)
    first = store.table()
    store.set("mine", input=2)
    assert [each.input for each in store.all()] == [2.0]
    assert Prices(key_value).table_of(first.version) == first != store.table()
    with pytest.raises(NotFoundError):
        store.remove("mine", "2026-01-01")
    monkeypatch.setattr(own, "PRICES_MAX", 2)
    store.set("mine", input=3, valid_from="2026-01-01")
    with pytest.raises(LimitError):
        store.set("other", input=1)
    assert [each.input for each in store.remove("MINE")] == [2.0, 3.0]
    assert store.table() == store.table_of("") == SHIPPED
    with pytest.raises(DamageError):
        store.table_of("0" * 16)


def costs(lake: tracelake.Lake) -> dict[str, float | None]:
    """Return the cost of each trace, which equals that of its span."""
    spans, traces = (
        {
            row["trace_id"][-1]: row["cost"]
            for row in lake.sql(f"select trace_id, cost from {name}").to_pylist()
        }
        for name in ("spans", "traces")
    )
    assert spans == traces
    return spans


def test_own_prices_count_from_the_next_ingest_on(tmp_path: Path) -> None:
    """A stated cost wins, a stored cost stays, and a span that arrives again keeps its cost."""
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    paths[0].write_bytes(a_line(call(0), call(1, "gpt-4o")))
    paths[1].write_bytes(a_line(call(2), call(3, cost=7), call(4, "gpt-4o")))
    paths[2].write_bytes(a_line(call(2), call(5)))
    with tracelake.init(tmp_path / "lake") as lake:
        lake.ingest(paths[0], runner=InProcess())
        lake.prices.set("mine*", input=0.5)
        lake.prices.set("gpt-4o", input=1)
        lake.ingest(paths[1], runner=InProcess())
        lake.prices.set("mine*", input=9)
        lake.ingest(paths[2], runner=InProcess())
        assert costs(lake) == {"1": None, "2": 2.5, "3": 0.5, "4": 7.0, "5": 1.0, "6": 9.0}
        assert lake.verify().ok


def check_replay(folder: Path) -> None:
    """Check that the prices of a step count, although they changed before it was read again after a crash."""
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(a_line(call(0)))
    with tracelake.init(folder / "lake") as lake:
        lake.prices.set("mine-1", input=2)
        with mock.patch.object(Outputs, "publish", side_effect=SystemExit), suppress(SystemExit):
            lake.ingest(folder / "a.jsonl", runner=InProcess())
        lake.prices.set("mine-1", input=3)
        with tracelake.open(folder / "lake") as other:
            other.ingest(folder / "a.jsonl", runner=InProcess())
            assert costs(other) == {"1": 2.0}


def test_a_replay_has_the_prices_of_its_step(tmp_path: Path) -> None:
    """Two processes that publish one transaction therefore compute the same costs."""
    check_replay(tmp_path / "right")
    with mock.patch.object(Prices, "table_of", lambda self, _: self.table()), pytest.raises(AssertionError):
        check_replay(tmp_path / "wrong")


def check_uncommitted(lake: tracelake.Lake) -> None:
    """Check that lists, a trace and a search have the current prices for spans that no pipeline has taken."""
    with closing(TrackingDoor(lake.hot.set_up())) as door:
        client = Client(create_app(lake, door))
        assert client.post("/v1/traces", content=a_line(call(0)), headers=JSON).status_code == 200
        for dollars in (2, 3):
            assert client.post("/api/v1/prices", json={"model": "mine*", "input": dollars}).status_code == 201
            (row,) = client.get("/api/v1/traces").json()["traces"]
            (span,) = client.get(f"/api/v1/traces/{row['trace_id']}").json()["spans"]
            found = client.get(f"/api/v1/search?q=cost%3E{dollars - 0.5}").json()
            assert (row["cost"], span["cost"], found["total"]) == (dollars, dollars, 1)


def test_uncommitted_spans_have_the_current_prices(lake: tracelake.Lake) -> None:
    """A change of a price drops the cached rows of the hot tier."""
    check_uncommitted(lake)


def test_rows_cached_with_old_prices(lake: tracelake.Lake) -> None:
    """Without a comparison of the prices, lists and searches would show old costs."""
    equal = mock.Mock(return_value=True)
    with mock.patch.object(PriceTable, "__eq__", equal), pytest.raises(AssertionError):
        check_uncommitted(lake)


def test_prices_in_the_api_and_on_the_page(lake: tracelake.Lake) -> None:
    """A price is set, listed and removed by both, and shipped prices are listed too. A wrong one is refused."""
    with closing(TrackingDoor(lake.hot.set_up())) as door:
        client = Client(create_app(lake, door))
        sent = {"model": "Mine*", "input": 1, "output": 2.5, "valid_from": "2026-01-31"}
        stored = sent | {"model": "mine*", "input": 1.0, "cached_input": None, "cache_write": None}
        assert client.post("/api/v1/prices", json=sent).json() == {"price": stored}
        assert client.post("/api/v1/prices", json=sent | {"input": -1}).status_code == 400
        assert client.post("/api/v1/prices", json=sent | {"inputs": 1}).status_code == 400
        assert client.get("/api/v1/prices").json()["prices"] == [stored]
        page = client.get("/pipeline/prices").text
        assert 'name="model" value="mine*"' in page
        assert "claude-sonnet-4-5" in page
        form = {
            "model": "<b>",
            "input": "0.25",
            "cached_input": "",
            "cache_write": "",
            "output": "",
            "valid_from": "",
        }
        assert client.post("/pipeline/prices", data=form, headers=ORIGIN).status_code == 303
        for wrong in ({"input": ""}, {"input": "x"}, {"input": "inf"}, {"model": ""}, {"output": "-1"}):
            assert client.post("/pipeline/prices", data=form | wrong, headers=ORIGIN).status_code == 400, (
                wrong
            )
        assert "&lt;b&gt;" in client.get("/pipeline/prices").text
        gone = client.post("/pipeline/prices/delete", data={"model": "<b>", "valid_from": ""}, headers=ORIGIN)
        assert gone.status_code == 303
        assert client.delete("/api/v1/prices?model=mine*&valid_from=2026-02-01").status_code == 404
        assert client.delete("/api/v1/prices?model=mine*").json() == {"removed": [stored]}
        assert client.get("/api/v1/prices").json()["prices"] == []


def test_nothing_is_priced_by_a_torn_record() -> None:
    """A damaged record is an error, not a lake without own prices."""
    key_value = MemoryKeyValueStore()
    key_value.set(PARTITION, "current", b"{}")
    for read in (Prices(key_value).all, Prices(key_value).table):
        with pytest.raises(DamageError):
            read()
