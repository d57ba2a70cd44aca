"""A contestant of benchmarks/search.py, a process of its own: it builds, or opens and then answers what it is asked.

    python -m benchmarks.search_measure tantivy corpus folder --build 100 --cpu-s 720
    python -m benchmarks.search_measure tantivy corpus folder

It reads numbers of queries, one in a line, and answers each with a line of JSON: seconds by the clock, of processor
time, and what it found. A line of several numbers is asked while a transaction comes in beside it.
Imports nothing but what is in every contestant's environment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
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
    "tracelake-at-rest": "benchmarks.search_tantivy:TracelakeAtRest",
    "tantivy": "benchmarks.search_tantivy:Tantivy",
    "sqlite": "benchmarks.search_peers:Sqlite",
    "postgres": "benchmarks.search_peers:Postgres",
    "duckdb": "benchmarks.search_duckdb:DuckDb",
    "lance": "benchmarks.search_lance:Lance",
}
ADDED_ROWS: Final = 20
"""Documents of each transaction while ingest goes on."""
LOOKED_EVERY: Final = 100
"""Transactions of a build between two looks at its processor time."""


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
    """An index of one system. `cpu_s`, where it has that, is the processor time of what answers; else the thread's."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Take the corpus; the index is to lie in the folder, or lies there."""

    def build(self, transactions: int) -> Iterator[int]:
        """Index the corpus in so many transactions, and yield how many are there after each."""

    def size_bytes(self) -> int:
        """Return how large the index is."""

    def open(self) -> None:
        """Open it for searches."""

    def search(self, query: Query) -> Answer | None:
        """Return the best, None where the system has no such query."""

    def add(self, rows: int) -> None:
        """Add some documents of the corpus again, in one transaction, so that the next search finds them.

        Raises NotImplementedError where the system cannot.
        """

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


def build(contestant: Contestant, corpus: Path, transactions: int, most_s: float) -> None:
    """Build, and tell what that took: processor time of all threads, and of a server; or how far it came in so much."""
    cpu_s: Callable[[], float] = getattr(contestant, "build_cpu_s", time.process_time)
    documents = read(corpus / "flat.arrow").num_rows
    begun, cpu_begun = time.perf_counter(), cpu_s()
    for done in contestant.build(transactions):
        if done % LOOKED_EVERY == 0 and (took_s := cpu_s() - cpu_begun) > most_s:
            tell(
                figure="stopped", error=f"{done:,} of {transactions:,} transactions took {took_s:,.0f} CPU s"
            )
            return
    took_s = cpu_s() - cpu_begun
    tell(
        figure="build",
        documents=documents,
        cpu_us_per_document=round(1e6 * took_s / documents, 2),
        documents_per_core_s=round(documents / took_s),
        wall_s=round(time.perf_counter() - begun, 2),
        bytes_per_document=round(contestant.size_bytes() / documents, 1),
    )


def answer(contestant: Contestant, corpus: Path) -> None:
    """Open, and answer until there is nothing more to read."""
    queries = [Query(**one) for one in json.loads((corpus / "queries.json").read_text())]
    begun = time.perf_counter()
    contestant.open()
    tell(figure="open", ms=round(1000 * (time.perf_counter() - begun), 2))
    for line in sys.stdin:
        asked = [queries[int(number)] for number in line.split()]
        if len(asked) == 1:
            tell(**_asked(contestant, asked[0]))
        else:
            _tell_beside(contestant, asked)


def _asked(contestant: Contestant, query: Query) -> dict[str, Any]:
    clock: Callable[[], float] = getattr(contestant, "cpu_s", time.thread_time)
    cpu_begun, begun = clock(), time.perf_counter()
    found = contestant.search(query)
    took_s, cpu_s = time.perf_counter() - begun, clock() - cpu_begun
    return {"s": took_s, "cpu_s": cpu_s, "answer": None if found is None else asdict(found)}


def _tell_beside(contestant: Contestant, queries: Sequence[Query]) -> None:
    """Ask while a transaction comes in."""
    with ThreadPoolExecutor(1) as adder:
        adding = adder.submit(_timed, partial(contestant.add, ADDED_ROWS))
        each = [_asked(contestant, query) for query in queries]
        try:
            tell(each=each, added_s=adding.result())
        except NotImplementedError:
            tell(each=None)


def _timed(does: Callable[[], object]) -> float:
    begun = time.perf_counter()
    does()
    return time.perf_counter() - begun


def main() -> None:
    """Build one contestant, or let it answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", type=int, metavar="TRANSACTIONS")
    parser.add_argument("--cpu-s", type=float, default=math.inf, help="after which a build is stopped")
    options = parser.parse_args()
    module, _, kind = CONTESTANTS[options.contestant].partition(":")
    contestant: Contestant = getattr(importlib.import_module(module), kind)(options.corpus, options.folder)
    with closing(contestant):
        if options.build:
            build(contestant, options.corpus, options.build, options.cpu_s)
        else:
            answer(contestant, options.corpus)


if __name__ == "__main__":
    main()
