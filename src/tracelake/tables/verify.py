"""Consistency checks of tables for `tracelake verify`: queries over parts that were already read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from tracelake._errors import DamageError, TableNotFoundError, TracelakeError
from tracelake.results import Finding
from tracelake.shards.rows import quoted
from tracelake.storage import ObjectStore
from tracelake.tables.builtin import BUILT_IN, TABLE_SPANS, TABLE_TRACES, TRACES, aggregate_sql
from tracelake.tables.scan import connection
from tracelake.tables.spec import read_spec
from tracelake.tables.view import CommitView, named_by
from tracelake.versions.model import TableAt
from tracelake.versions.repository import Repository


def user_tables(repository: Repository, heads: Iterable[str]) -> dict[str, int]:
    """Return the user tables in commits reachable from these heads, each with its latest time."""
    times: dict[str, int] = {}
    for head in filter(None, heads):
        with contextlib.suppress(DamageError):  # the check of the history reports it
            for reference in named_by(repository, head).values():
                if isinstance(reference, TableAt) and reference.shard not in BUILT_IN:
                    times[reference.shard] = max(times.get(reference.shard, -1), reference.as_of)
    return times


def check_built_in(view: CommitView) -> Iterator[Finding]:
    """Check that keys are unique in each table, and that table `traces` equals the aggregate of table `spans`."""
    for table in BUILT_IN.values():
        rows, key = view.table(table.name).sql(), ", ".join(table.key_sql)
        yield from _differences(
            f"{table.name}: {table.bucketed_by.removesuffix('_id')}",
            f"select {table.bucketed_by}, 'has the key ' || row({key}) || ' ' || count(*) || ' times' from ({rows}) "
            f"group by {table.bucketed_by}, {key} having count(*) > 1 limit 10",
        )
    spans, traces = (view.table(table.name).sql() for table in (TABLE_SPANS, TABLE_TRACES))
    content = ", ".join(name for name in TRACES.names if name != "transaction")
    aggregate = aggregate_sql(f"({spans})", 0, with_plain_sums=True)
    # Rows written by earlier versions have the sums over all spans, with repeated usage counted twice.
    earlier = ", ".join(
        f"case when s.{name} is not distinct from m.plain_{name} then m.{name} else s.{name} end as {name}"
        for name in ("input_tokens", "output_tokens")
    )
    yield from _differences(
        "traces: trace",
        f"""with summed as materialized (from ({aggregate})), made as (select {content} from summed), stored as (
                select {content} from (
                    select s.* replace ({earlier}) from ({traces}) s left join summed m using (trace_id)
                )
            )
            select trace_id, 'differs from what its spans make' from
            ((from made except all from stored) union all (from stored except all from made)) limit 10""",
    )


def check_keys(view: CommitView, name: str) -> Iterator[Finding]:
    """Check that the keys of a user table are unique."""
    table = view.table(name)
    if key := ", ".join(map(quoted, table.scan.layout.bucketed_by)):
        yield from _differences(
            f"{name}:",
            f"select row({key})::varchar, 'is the key of ' || count(*) || ' rows' "
            f"from ({table.sql()}) group by {key} having count(*) > 1 limit 10",
        )


def check_spec(objects: ObjectStore, name: str) -> Iterator[Finding]:
    """Check that the specification of a user table can be read."""
    try:
        _ = read_spec(objects, name).schema
    except TracelakeError as error:
        kind = "missing" if isinstance(error, TableNotFoundError) else "damaged"
        yield Finding(kind, "table", name, str(error))


def _differences(table: str, query: str) -> Iterator[Finding]:
    with connection() as db:
        differences = db.sql(query).to_arrow_table()
    for row, detail in zip(*(column.to_pylist() for column in differences.columns), strict=True):
        yield Finding("mismatch", "table", f"{table} {row}", detail)
