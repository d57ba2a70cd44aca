"""Program: run one query of a lake, and print its error and the peak memory of this process and its children.

Arguments: the lake; `sql`, `where` or `search`; the query; `unlimited` to run every query in this process.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from unittest import mock

import tracelake
from tracelake.tables import scan, view


def run(lake: tracelake.Lake, kind: str, query: str) -> int:
    """Run a query; return how many rows it has."""
    if kind == "sql":
        return len(lake.sql(query))
    if kind == "where":
        return len(lake.table("spans").to_arrow(["span_id"], query))
    return len(lake.search("work", where=query))


def main() -> None:
    """Run the query that the arguments name."""
    path, kind, query, *unlimited = sys.argv[1:]
    if unlimited:
        for module in (scan, view):
            mock.patch.object(module, "produces_large_values", return_value=False).start()
    error, rows = None, None
    with tracelake.open(path) as lake:
        try:
            rows = run(lake, kind, query)
        except tracelake.TracelakeError as raised:
            error = f"{type(raised).__name__}: {raised}"
    peaks = [own_peak_bytes(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024]
    print(json.dumps({"error": error, "rows": rows, "peaks": peaks}))


def own_peak_bytes() -> int:
    """Return the peak memory of this program; `ru_maxrss` also counts the process that started it, before `exec`."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main()
