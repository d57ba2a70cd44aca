"""Tokens and cost along the tree of a trace follow the rule of table `traces`."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

import tracelake
from tests.pipeline.spans import AGENTS
from tracelake.server import trace_page
from tracelake.server.trace_page import TREE_COLUMNS, tree_usage
from tracelake.server.traces import lay_out
from tracelake.tables import builtin
from tracelake.tasks.runners import InProcess


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tracelake.Lake]:
    """Return a lake with the traces of real agents."""
    with tracelake.init(tmp_path_factory.mktemp("agents") / "lake") as lake:
        lake.ingest(AGENTS, runner=InProcess())
        yield lake


def check_trees(lake: tracelake.Lake) -> dict[str, tuple[int, int]]:
    """Check that the roots of each trace add up to its row. Return the tokens of traces with repeated usage."""
    repeated = {}
    for trace_id in lake.sql("select trace_id from traces")["trace_id"].to_pylist():
        trace = lake.hot.outline(str(trace_id))
        bars = lay_out(trace).bars
        parents = trace_page.parents_of(bars)
        totals = tree_usage([bar.span for bar in bars], parents)
        for name in TREE_COLUMNS:
            roots = [
                total[name]
                for total, parent in zip(totals, parents, strict=True)
                if parent is None and total[name] is not None
            ]
            assert (sum(roots) if roots else None) == pytest.approx(trace.summary[name]), (trace_id, name)
        plain = sum(span["input_tokens"] or 0 for span in trace.spans)
        if plain != (trace.summary["input_tokens"] or 0):
            repeated[str(trace.summary["service"])] = (plain, trace.summary["input_tokens"])
    return repeated


def test_the_tree_of_real_agents_adds_up_to_the_trace(agents: tracelake.Lake) -> None:
    """Of 202 traces, three have spans that repeat the usage of the model calls below them."""
    repeated = check_trees(agents)
    assert len(repeated) == 3
    assert repeated["agno"] == (2_936, 2_110)
    assert repeated["microsoft-agent"] == (337, 293)
    with mock.patch.object(trace_page, "has_usage", return_value=False), pytest.raises(AssertionError):
        check_trees(agents)


def test_a_span_has_the_usage_below_it() -> None:
    """Each span counts what it reports beyond the nearest spans below it that report usage."""
    empty = dict.fromkeys((*TREE_COLUMNS, *builtin.TRACES_ADDED))
    spans = [
        empty | {"input_tokens": 10, "cost": 0.5},
        empty,
        empty | {"input_tokens": 4},
        empty | {"input_tokens": 3, "output_tokens": 2, "cost": 0.75},
        empty,
    ]
    totals = tree_usage(spans, [None, 0, 1, 1, 0])
    assert [total["input_tokens"] for total in totals] == [10, 7, 4, 3, None]
    assert [total["output_tokens"] for total in totals] == [2, 2, None, 2, None]
    assert [total["cost"] for total in totals] == [0.75, 0.75, None, 0.75, None]
