"""A contestant of benchmarks/search.py, a process of its own: it builds, opens, and then does what it is told.

    python -m benchmarks.search_measure tantivy corpus folder --transactions 100

It reads numbers of queries, one in a line, and answers each with a line of JSON: seconds by the clock, of processor
time, and what it found. A line of several numbers is asked while a transaction comes in beside it.
Imports nothing but what is in every contestant's environment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

KINDS: Final = ("term", "phrase", "boolean", "fuzzy", "prefix", "filtered", "sorted", "faceted")
HITS: Final = 10
CONTESTANTS: Final = {
    "tracelake": "benchmarks.search_tantivy:Tracelake",
    "tantivy": "benchmarks.search_tantivy:Tantivy",
    "sqlite": "benchmarks.search_peers:Sqlite",
    "postgres": "benchmarks.search_peers:Postgres",
    "duckdb": "benchmarks.search_peers:DuckDb",
    "lance": "benchmarks.search_lance:Lance",
}
ADDED_ROWS: Final = 20
"""Documents of each transaction while ingest goes on."""


@dataclass(frozen=True)
class Query:
    """One search: all of `words` in a row for a phrase, `a AND (b OR c)` for a boolean."""

    kind: str
    words: list[str]
    service: str | None = None


@dataclass(frozen=True)
class Answer:
    """Numbers of the best documents with their scores, and how many there are of each service where asked."""

    hits: list[tuple[int, float]]
    facets: dict[str, int] = field(default_factory=dict)


class Contestant(Protocol):
    """An index of one system."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Read the corpus; the index is to lie in the folder."""

    def build(self, transactions: int) -> float:
        """Index the corpus in so many transactions, and return the seconds of processor time."""

    def size_bytes(self) -> int:
        """Return how large the index is."""

    def open(self) -> None:
        """Open it for searches."""

    def search(self, query: Query) -> Answer | None:
        """Return the best, None where the system has no such query."""

    def add(self, rows: int) -> None:
        """Add some documents of the corpus again, in one transaction, so that the next search finds them."""

    def close(self) -> None:
        """Stop what was started."""


def read(path: Path) -> pa.Table:
    """Return a file of the corpus."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def slices(rows: int, transactions: int) -> Iterator[tuple[int, int]]:
    """Yield where each of so many transactions begins and ends; none is empty."""
    count = min(rows, transactions)
    for number in range(count):
        yield rows * number // count, rows * (number + 1) // count


def tell(**figures: Any) -> None:
    """Print a JSON line."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    ordered = sorted(seconds)
    return {
        "p50_ms": round(1000 * statistics.median(ordered), 3),
        "p99_ms": round(1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 3),
    }


def measure(name: str, corpus: Path, folder: Path, transactions: int) -> None:
    """Build, open, and answer until there is nothing more to read."""
    module, _, kind = CONTESTANTS[name].partition(":")
    contestant: Contestant = getattr(importlib.import_module(module), kind)(corpus, folder)
    with closing(contestant):
        documents = read(corpus / "flat.arrow").num_rows
        begun = time.perf_counter()
        cpu_s = contestant.build(transactions)
        tell(
            figure="build",
            documents=documents,
            cpu_us_per_document=round(1e6 * cpu_s / documents, 2),
            documents_per_core_s=round(documents / cpu_s) if cpu_s else None,
            wall_s=round(time.perf_counter() - begun, 2),
            bytes_per_document=round(contestant.size_bytes() / documents, 1),
        )
        queries = [Query(**one) for one in json.loads((corpus / "queries.json").read_text())]
        begun = time.perf_counter()
        contestant.open()
        tell(figure="open", ms=round(1000 * (time.perf_counter() - begun), 2))
        for line in sys.stdin:
            asked = [queries[int(number)] for number in line.split()]
            if len(asked) == 1:
                tell(**_asked(contestant, asked[0]))
            else:
                tell(**_asked_beside(contestant, asked))


def _asked(contestant: Contestant, query: Query) -> dict[str, Any]:
    cpu_begun, begun = time.process_time(), time.perf_counter()
    answer = contestant.search(query)
    took_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_begun
    is_elsewhere = getattr(contestant, "is_server", False)
    return {
        "s": took_s,
        "cpu_s": 0.0 if is_elsewhere else cpu_s,
        "answer": None if answer is None else asdict(answer),
    }


def _asked_beside(contestant: Contestant, queries: Sequence[Query]) -> dict[str, Any]:
    """Ask while a transaction comes in; what is told is by the clock alone."""
    took: list[float] = []
    with ThreadPoolExecutor(1) as adder:
        adding = adder.submit(_timed, partial(contestant.add, ADDED_ROWS))
        for query in queries:
            took.append(_timed(partial(contestant.search, query)))
        return {"s": took, "added_s": adding.result()}


def _timed(does: Callable[[], object]) -> float:
    begun = time.perf_counter()
    does()
    return time.perf_counter() - begun


def main() -> None:
    """Measure one contestant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--transactions", type=int, default=1)
    options = parser.parse_args()
    measure(options.contestant, options.corpus, options.folder, options.transactions)


if __name__ == "__main__":
    main()
