"""Pruning by a condition never skips a part with a wanted row."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.shards.model import Part
from tracelake.shards.parts import bucket_of, ranges_of
from tracelake.tables.predicates import Comparison, Layout, comparisons_by_use, comparisons_in, key_text
from tracelake.tables.scan import connection

FIELDS: list[tuple[str, pa.DataType]] = [
    ("k", pa.string()),
    ("n", pa.int64()),
    ("x", pa.float64()),
    ("flag", pa.bool_()),
]
SCHEMA = pa.schema(FIELDS)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("k = 'a' and N > 1e3 and (n = 1 or n = 2)", [("k", "=", ("a",)), ("n", ">", (1000.0,))]),
        (
            "k in ('a', 'it''s') and n between -3 and 5",
            [("k", "in", ("a", "it's")), ("n", "between", (-3, 5))],
        ),
        ("7 < n and 'b' >= k", [("n", ">", (7,)), ("k", "<=", ("b",))]),
        ("n = '5' and k = 5", []),
        ("not (n = 3) and n not in (3) and n <> 4 and k is null and flag", []),
        ("n in (1, null) or n = 2", []),
        ("rows.n = 1 and other = 2 and n = 1::int and n = 0.5 + 0.5", []),
        (None, []),
    ],
)
def test_only_certain_comparisons_are_taken(where: str | None, expected: list[Any]) -> None:
    """Only comparisons of a column with constants of its type, joined by `and`, are used."""
    assert comparisons_in(where, SCHEMA) == [Comparison(*each) for each in expected]


VALUES = st.one_of(
    st.integers(-4, 4).map(str),
    st.floats(-4, 4, width=16).map(repr),
    st.sampled_from(
        ["'a'", "'b'", "'ba'", "'ü'", "''", "null", "1e18", "9007199254740993", "9223372036854775807"]
    ),
)
CONDITIONS = st.recursive(
    st.one_of(
        st.builds(
            "{} {} {}".format,
            st.sampled_from(["k", "n", "x"]),
            st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]),
            VALUES,
        ),
        st.builds("{} in ({}, {})".format, st.sampled_from(["k", "n", "x"]), VALUES, VALUES),
        st.builds("{} between {} and {}".format, st.sampled_from(["k", "n", "x"]), VALUES, VALUES),
    ),
    lambda inner: st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or"]), inner),
    max_leaves=4,
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ba", "ü", "", None]),
        st.one_of(st.none(), st.integers(-4, 4), st.sampled_from([10**18 + 1, 2**53 + 1, 2**63 - 1])),
        st.one_of(
            st.none(),
            st.floats(-4, 4, width=16),
            st.sampled_from([2.0**53, 1e18, float("nan"), float("inf")]),
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(ROWS, CONDITIONS)
def test_no_part_with_a_wanted_row_is_left_out(rows: list[tuple[object, ...]], condition: str) -> None:
    """If DuckDB finds that a row fulfils the condition, its part is not pruned."""
    columns = dict(zip(("k", "n", "x"), zip(*rows, strict=True), strict=True))
    table = pa.table({name: pa.array(column, SCHEMA.field(name).type) for name, column in columns.items()})
    key = rows[0][0]
    one_key = key is not None and set(columns["k"]) == {key}
    layout = Layout(SCHEMA, ("k",) if one_key else (), 4)
    part = Part("p", bucket_of(str(key), 4) if one_key else 0, len(table), 1, "", ranges=ranges_of(table))
    if part not in layout.matching([part], condition):
        with connection() as db:
            db.register("rows", table)
            try:
                found = db.sql(f"select * from rows where {condition}").fetchall()
            except duckdb.Error:
                return  # DuckDB does not compare these types
        assert found == []


def test_keys_lead_to_their_buckets() -> None:
    """Equality on the whole key selects buckets; equality on a part of it selects none."""
    layout = Layout(SCHEMA, ("k", "n"), 8)
    parts = [Part(f"{bucket}", bucket, 1, 1, "") for bucket in range(8)]
    found = layout.matching(parts, "k = 'a' and n in (1, 2)")
    assert {part.bucket for part in found} == {bucket_of(key_text(("a", n)), 8) for n in (1, 2)}
    assert layout.matching(parts, "k = 'a'") == parts
    assert layout.matching(parts, "k = 'a' and n = 1.0") == parts
    assert key_text(("a",)) == "a"
    assert key_text((1,)) == "[1]"
    assert key_text(("ü", 2)) == '["ü",2]'


def test_ranges_are_kept_of_numbers_and_short_texts() -> None:
    """Long texts, all-null columns, NaN and nested columns have no range, so their parts are never pruned."""
    rows = pa.table(
        {
            "n": [3, None, -1],
            "k": ["b", "a", None],
            "long": ["a" * 41, "b", "c"],
            "none": pa.nulls(3, pa.int64()),
            "nan": [1.0, float("nan"), 2.0],
            "inf": [1.0, float("inf"), 2.0],
            "list": [[1], [2], [3]],
        }
    )
    assert ranges_of(rows) == {"n": (-1, 3), "k": ("a", "b")}


QUERIES: dict[str, list[list[tuple[str, str]]]] = {
    "select count(*) from t where a between 1 and 5": [[("a", "between")]],
    'select * from "T" x where A >= 3 and b = 2 order by a': [[("a", ">="), ("b", "=")]],
    "select a from t": [[]],
    "select a from t where a = 1 or a = 2": [[]],
    "select t.a from t join u using (a) where t.a = 1": [[]],
    "select a from t tablesample 10% where a = 1": [[]],
    "select a from t s(b, a) where a = 1": [[]],
    "with t2 as (select * from t where a = 1) select * from t2, t where t.a = 2": [[], [("a", "=")]],
    "select a from t where a < 1 union all select b from t where b > 2": [[("a", "<")], [("b", ">")]],
    "select a from t where a < 1 and b in (select b from t)": [[("a", "<")], []],
    "select 1 from u where a = 1": [],
}


@pytest.mark.parametrize("query", QUERIES)
def test_comparisons_of_each_use_of_a_table(query: str) -> None:
    """A query prunes a table only by conditions on the rows of each place that reads it."""
    schema = pa.schema({"a": pa.int64(), "b": pa.int64()})
    found = comparisons_by_use(query, "t", schema)
    uses = [[(c.column, c.operator) for c in use] for use in found]
    assert sorted(uses, key=str) == sorted(QUERIES[query], key=str)


def test_a_column_hides_an_alias_in_a_condition() -> None:
    """DuckDB reads a name in WHERE as the column, not as an alias of the same name."""
    with duckdb.connect() as db:
        found = db.sql("select -a as a from (values (7), (1)) t(a) where a > 5").fetchall()
    assert found == [(-7,)]
