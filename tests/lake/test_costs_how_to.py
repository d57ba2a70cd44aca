"""The queries of the how-to on costs, on the traces of real agents."""

from __future__ import annotations

import re
from pathlib import Path

import tracelake
from tests.pipeline.spans import AGENTS
from tracelake.tasks.runners import InProcess

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "query-costs.md"


def test_queries_of_the_page(tmp_path: Path) -> None:
    """Each query returns rows; costs by session and by user add up, and own prices give the planned sum."""
    by_model, by_session, by_user = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with tracelake.init(tmp_path / "lake") as lake:
        lake.ingest(AGENTS, runner=InProcess())
        at_any_time = by_model.replace("and start_ns >=", "and 0 <")
        models = {row["model"]: row for row in lake.sql(at_any_time).to_pylist()}
        assert models["gpt-4o"]["calls"] == 4_077
        assert models["gpt-4o"]["dollars"] > models["gpt-4o-mini"]["dollars"] > 0
        everything = {
            query: lake.sql(query.replace(" limit 20", "")).to_pylist() for query in (by_session, by_user)
        }
        sums = {query: sum(row["dollars"] or 0 for row in rows) for query, rows in everything.items()}
        assert len(everything[by_session]) > 60
        assert sums[by_session] > sums[by_user] > 2
        lake.prices.set("gpt-4o", input=2, output=8)
        (planned, _) = lake.prices.apply(dry_run=True).models  # and releases of the model
        totals = (
            "sum(input_tokens)::bigint as i, sum(output_tokens)::bigint as o, sum(cost) as c, count(*) as n"
        )
        query = f"select {totals} from spans where model = 'gpt-4o' and total_tokens is not null"
        (tokens,) = lake.sql(query).to_pylist()
        assert planned.spans == tokens["n"]
        assert round(planned.cost_before, 6) == round(tokens["c"], 6)
        assert round(planned.cost_after, 6) == round((tokens["i"] * 2 + tokens["o"] * 8) / 1e6, 6)
