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
        "limits": "every limit that a user can reach",
        "results": "what calls return, as plain records",
        "batching": "items cut into batches that fit, neighbours merged by their sizes; pure",
    },
    {
        "scratch": "temporary directories, gone afterwards, whoever is killed",
        "durations": "`30d` as nanoseconds, pauses between retries; pure",
    },
    {
        "formats": "records of the lake as JSON, with their versions",
        "_settings": "TRACELAKE_* and tracelake.toml",
        "otlp": "OTLP to rows and back, without loss; pure",
        "tasks": "where tasks run: on Spark, or in this process; Java; progress",
    },
    {"storage": "two primitives, objects and conditional records, and what keeps them"},
    {
        "shards": "a table in time: rows appended, read, compacted, collected",
        "versions": "branches, commits, merges; reading at one",
        "journal": "which inputs made which transaction",
        "search": "full-text parts: built, published, merged, searched",
        "tracking": "what a server took: its inbox, and the tracking store",
        "access": "keys: who may do what, and how much",
        "replicas": "who works on a lake, and whether it is stuck",
        "testing": "simulated stores, crashes and schedules, for our tests and those of users",
    },
    {
        "location": "where a lake and its metadata are: `lake.json`",
        "tables": "built-in tables and specs of others, pruning, scans, all tables at one commit, changes",
    },
    {
        "context": "the stores, views and task runner that the components of an open lake share",
        "indexing": "full-text parts of transactions: built, merged, rebuilt by tasks",
    },
    {
        "pipeline": "inputs to transactions to commits",
        "user_tables": "tables that users write: upserts by key, ties",
        "datasets": "evaluation sets: examples cut from traces",
    },
    {"archive": "cold traces out of the tracking store, and back; retention, layouts, sweeps"},
    {"hot": "uncommitted spans of the tracking store, read and searched together with the tables"},
    {"lake": "the façade that puts the rooms together; verify"},
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
    {"__main__": "`python -m tracelake`: the command line"},
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
