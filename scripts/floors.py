"""Layers of packages: which package may import which. `tests/test_tidy.py` checks the imports.

A package or module in `src/tracelake`, or a package beside it, imports from lower layers and from itself, never
from its own layer. Import cycles between packages are therefore impossible. After a change, run `scripts/reference.py`.
"""

from __future__ import annotations

from typing import Final

FLOORS: Final[tuple[dict[str, str], ...]] = (
    {
        "_errors": "errors that Tracelake raises",
        "limits": "limits that a user can reach",
        "results": "records that calls return",
        "batching": "batches bounded by bytes, and size classes for merges; pure",
    },
    {
        "scratch": "temporary directories, deleted also after a crash",
    },
    {
        "formats": "JSON encoding of the lake's records, with format versions",
        "_settings": "environment variables and `tracelake.toml`",
        "otlp": "lossless conversion between OTLP and rows; pure",
        "tasks": "task runners (Spark, in process), Java, backoff and periodic threads",
    },
    {"storage": "object stores, key-value stores, and their backends"},
    {
        "shards": "versioned tables: append, read, compact, collect",
        "versions": "branches, commits, merges",
        "journal": "records of the input of each transaction",
        "search": "full-text parts: build, publish, merge, search",
        "tracking": "tracking store, outbox and inbox of servers",
        "access": "API keys, sessions, audit log, quotas",
        "replicas": "status of pipeline replicas",
        "erasure": "erasures: requests, decisions, masked traces",
        "testing": "simulated stores, crashes and schedules; public",
    },
    {
        "location": "location of a lake and its metadata: `lake.json`",
        "tables": "table specifications, scans, pruning, changes, tables at a commit",
    },
    {
        "context": "stores, views and task runner of an open lake",
        "indexing": "index parts of transactions: build, merge, rebuild",
    },
    {
        "pipeline": "ingestion: inputs to transactions to commits",
        "user_tables": "upserts into users' tables",
        "datasets": "evaluation datasets",
    },
    {"archive": "archive of traces: retention, layouts, sweeps"},
    {"hot": "reads and searches of uncommitted spans"},
    {"lake": "the public facade `Lake`; backup; verify"},
    {
        "spark": "Spark format `tracelake`",
        "server": "OTLP receivers, HTTP API, web pages, metrics",
        "doctor": "checks of stores and machine",
    },
    {
        "pyspark_tracelake": "name by which PySpark finds the format",
        "__init__": "public names of `import tracelake`",
    },
    {"demo": "sample workload of `tracelake demo`"},
    {"cli": "command line"},
    {"__main__": "`python -m tracelake`"},
)
"""Each package with its purpose, the lowest layer first."""


def floor_of(room: str) -> int:
    """Return the number of a package's layer, from 1. Raises LookupError for a package without one."""
    for number, rooms in enumerate(FLOORS, 1):
        if room in rooms:
            return number
    raise LookupError(
        f"package {room} has no layer: add it to scripts/floors.py, above all packages that it imports"
    )
