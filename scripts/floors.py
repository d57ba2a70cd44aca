"""The floors of the house: which room may import which. The tidy test holds the code to it, the docs are made from it.

A room is a package or a module directly in `src/tracelake`, or a package beside it. It imports from floors below its
own and from itself, never from beside it: so no circle of rooms can come about. Whoever adds, moves or renames a room
does it here, and runs `scripts/reference.py`.
"""

from __future__ import annotations

from typing import Final

FLOORS: Final[tuple[dict[str, str], ...]] = (
    {
        "_errors": "every error that a user can meet",
        "limits": "every limit on inputs, queues, retries and waits",
        "records": "what calls return, as plain records",
    },
    {
        "formats": "records of the lake as JSON, with their versions",
        "_settings": "TRACELAKE_* and tracelake.toml",
        "conditions": "DuckDB conditions of users, read alone",
        "otlp": "OTLP to rows and back, without loss; pure",
    },
    {"storage": "two primitives, objects and conditional records, and what keeps them"},
    {
        "shards": "a table in time: rows appended, read, compacted, collected",
        "versions": "branches, commits, merges; reading at one",
        "journal": "which inputs made which transaction",
        "search": "full-text parts: built, published, searched",
        "tracking": "the inbox of a server",
        "replicas": "who works on a lake, and whether it is stuck",
        "place": "where a lake is: its stores and its config",
        "testing": "simulated stores, crashes and schedules, for our tests and those of users",
    },
    {
        "pipeline": "inputs to transactions to commits, and where tasks run",
        "predicates": "what a condition says of a part's statistics",
        "branch": "a branch for people: commit, merge, revert, log",
        "record_checks": "verify: the records of metadata",
    },
    {
        "scan": "which parts to read, and as which rows",
        "lake_branches": "the part of `Lake` about branches and tags",
        "lake_quarantine": "the part of `Lake` about inputs set aside",
    },
    {
        "user_tables": "tables that users write: upserts by key, ties",
        "table": "a table at one commit, for Arrow, Polars, DuckDB, Spark",
    },
    {
        "view": "all tables, traces and the index at one commit",
        "lake_upkeep": "the part of `Lake` that compacts and collects",
    },
    {
        "changes": "rows that came and went between two commits",
        "datasets": "evaluation sets: examples cut from traces",
        "content_checks": "verify: the rows of tables",
    },
    {
        "verify": "everything read again and compared",
        "lake_datasets": "the part of `Lake` about datasets",
        "lake_tables": "the part of `Lake` about tables of users",
    },
    {"lake": "the façade that puts the rooms together"},
    {
        "spark": "format `tracelake` for Spark",
        "server": "OTLP/HTTP, the API, web pages, metrics",
        "doctor": "whether stores and machine do what they must",
    },
    {
        "pyspark_tracelake": "the name by which PySpark finds the format",
        "__init__": "`import tracelake`: the public names",
    },
    {"demo": "a small workload, and what Tracelake shows of it"},
    {"cli": "the command line"},
)
"""Each room with what it holds, the lowest floor first."""


def floor_of(room: str) -> int:
    """Return the number of a room's floor, from 1. Raises LookupError for a room that has none."""
    for number, rooms in enumerate(FLOORS, 1):
        if room in rooms:
            return number
    raise LookupError(
        f"room {room} has no floor: give it one in scripts/floors.py, above all that it imports"
    )
