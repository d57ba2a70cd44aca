"""What users write of a query: a condition or an order, which is one expression each and nothing else, or a SELECT.

DuckDB parses them. A text may not end the query that it is put into, nor add to it, so it is parsed at its place there,
and all around it must be as it is around a text that is known. Nor may it have a query of its own: that would read
other tables, or files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, Final

import duckdb

from tracelake._errors import QueryError
from tracelake.limits import CONDITIONS_REMEMBERED_MAX, QUOTED_MAX_CHARS
from tracelake.shards.rows import GIVEN_UP

_SUBQUERY: Final = '"class":"SUBQUERY"'
_NODE_KIND: Final = re.compile(r'"type":"([A-Z_]+_NODE)"')
_READING: Final = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
"""Kinds of queries that change nothing. A `with` may have others: COPY, INSERT, UPDATE, DELETE, MERGE."""
_RUNS_A_TEXT: Final = re.compile(r'"function_name":"(query|json_execute_serialized_sql)"', re.IGNORECASE)
"""Functions that run a query which is a text, where nobody sees what it does."""

_PLAIN_NAME: Final = re.compile(r"\w+", re.ASCII)
_NAMED: Final = ("catalog_name", "schema_name", "table_name")


def condition(text: str) -> str:
    """Return a condition as it may stand in a query, in parentheses. Raises QueryError for what is no condition."""
    parsed(text)
    return f"(\n{text}\n)"


def order(text: str) -> str:
    """Return what may stand behind `order by`. Raises QueryError for what is no order."""
    node = _node(f"select * from rows order by\n{text}\n", "order", text)
    modifiers = [modifier["type"] for modifier in node.pop("modifiers")]
    rest = _node("select * from rows order by\n1\n", "order", "1")
    rest.pop("modifiers")
    if node != rest or modifiers != ["ORDER_MODIFIER"]:
        raise _refused("order", text, "it is more than an order")
    return f"\n{text}\n"


@lru_cache(CONDITIONS_REMEMBERED_MAX)
def parsed(text: str) -> Any:
    """Return the expression of a condition as DuckDB parses it, not to be changed. Raises QueryError."""
    node = _node(f"select * from rows where (\n{text}\n)", "condition", text)
    clause = node.pop("where_clause", None)
    if (
        node != _without_condition()
        or clause is None
        or (clause.get("function_name") == "row" and not clause.get("children"))
    ):
        raise _refused("condition", text, "it is more than a condition, or none")
    return clause


@cache
def _without_condition() -> Any:
    """Return what a query has beside its condition, not to be changed."""
    rest = _node("select * from rows where (\ntrue\n)", "condition", "true")
    rest.pop("where_clause")
    return rest


def reading(query: str) -> str:
    """Return a SELECT that only reads. Raises QueryError for one that writes, be it in a `with` or in a text.

    The files that a query may read, it could write, too: they are the parts of the lake.
    """
    serialized = _serialized(query, "query", query)
    if not serialized.startswith('{"error":false,'):
        raise _refused("query", query, json.loads(serialized)["error_message"])
    if others := set(_NODE_KIND.findall(serialized)) - _READING:
        written = ", ".join(sorted(kind.split("_")[0] for kind in others))
        raise _refused("query", query, f"it may only read, and has {written} in it")
    if (match := _RUNS_A_TEXT.search(serialized)) is not None:
        raise _refused("query", query, f"it runs a text with {match[1].lower()}(); write its query itself")
    return query


def of_tables(query: str) -> str:
    """Return a SELECT that reads tables by their names, and nothing by a function, or a path. Raises QueryError."""
    reading(query)
    for kind, names in _sources(json.loads(_serialized(query, "query", query))):
        if kind == "TABLE_FUNCTION" or not all(map(_PLAIN_NAME.fullmatch, names)):
            raise _refused("query", query, "in one workspace it may read tables, by their names")
    return query


def _sources(node: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield what each part of a query reads from: the kind, and the names of schema and table where it has some."""
    nodes = [node]
    while nodes:
        one = nodes.pop()
        if isinstance(one, dict):
            if one.get("type") in ("TABLE_FUNCTION", "BASE_TABLE"):
                yield one["type"], [one[part] for part in _NAMED if one.get(part)]
            nodes += one.values()
        elif isinstance(one, list):
            nodes += one


def words(query: str) -> set[str]:
    """Return the words of a query, in lower case: the names of all tables that it reads are among them.

    What it says in constants and comments is left out, so that no such text opens a table.
    """
    text = query.encode()
    tokens = duckdb.tokenize(query)
    ends = [start for start, _ in tokens[1:]] + [len(text)]
    return {
        text[start:end].decode().strip().strip('"').lower()
        for (start, kind), end in zip(tokens, ends, strict=True)
        if kind not in (duckdb.token_type.string_const, duckdb.token_type.comment)
    }


def _node(query: str, what: str, text: str) -> dict[str, Any]:
    """Return the one SELECT of a query."""
    serialized = _serialized(query, what, text)
    try:
        said = json.loads(serialized)
    except RecursionError as error:
        raise _refused(what, text, str(error)) from error
    if said["error"]:
        raise _refused(what, text, said["error_message"])
    if _SUBQUERY in serialized:
        raise _refused(what, text, "it has a query of its own; use `sql` for that")
    nodes = [statement["node"] for statement in said["statements"]]
    if len(nodes) != 1 or nodes[0].get("type") != "SELECT_NODE":
        raise _refused(what, text, f"it is more than one {what}")
    node: dict[str, Any] = nodes[0]
    return node


def _serialized(query: str, what: str, text: str) -> str:
    """Return the syntax tree of a query, or DuckDB's error, as JSON."""
    db = _parser().cursor()
    try:
        ((serialized,),) = db.execute("select json_serialize_sql(?)", [query]).fetchall()
        return str(serialized)
    except (duckdb.Error, UnicodeError) as error:
        if isinstance(error, GIVEN_UP):
            _parser.cache_clear()
        raise _refused(what, text, str(error)) from error
    finally:
        db.close()


def _refused(what: str, text: str, why: str) -> QueryError:
    shown = text if len(text) <= QUOTED_MAX_CHARS else text[:QUOTED_MAX_CHARS] + "…"
    return QueryError(f"DuckDB refuses the query: {shown!r} is no {what}: {why}.")


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"enable_external_access": "false"})
