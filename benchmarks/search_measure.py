"""How contestants of benchmarks/search.py are measured, each in a process of its own: a JSON line for each figure.

    python -m benchmarks.search_measure tantivy folder --transactions 100 --seconds 60

Imports nothing but what is in every contestant's environment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
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
ADDED_EVERY_S: Final = 0.25
KIND_MAX_S: Final = 5.0
"""How long queries of one kind are asked."""


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


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    ordered = sorted(seconds)
    return {
        "p50_ms": round(1000 * statistics.median(ordered), 3),
        "p99_ms": round(1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 3),
    }


def measure(name: str, corpus: Path, folder: Path, transactions: int, seconds: float) -> None:
    """Build, then ask all queries: cold, until they are warm, and while documents come in."""
    module, _, kind = CONTESTANTS[name].partition(":")
    contestant: Contestant = getattr(importlib.import_module(module), kind)(corpus, folder)
    with closing(contestant):
        _measure(name, contestant, corpus, transactions, seconds)


def _measure(name: str, contestant: Contestant, corpus: Path, transactions: int, seconds: float) -> None:
    told = {"contestant": name, "transactions": transactions}
    documents = read(corpus / "flat.arrow").num_rows
    begun = time.perf_counter()
    cpu_s = contestant.build(transactions)
    tell(
        **told,
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
    tell(**told, figure="open", ms=round(1000 * (time.perf_counter() - begun), 2))
    share_s = min(KIND_MAX_S, seconds / (2 * len(KINDS)))
    cold: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number, query in enumerate(queries):
        took_s, answer = _timed(contestant.search, query)
        if answer is not None:
            cold[query.kind].append(took_s)
            tell(**told, figure="answer", number=number, **asdict(answer))
    for kind, took in cold.items():
        if took:
            own = [query for query in queries if query.kind == kind]
            tell(**told, figure="cold", kind=kind, **milliseconds(took))
            tell(**told, figure="warm", kind=kind, **_asked(contestant, own, share_s))
    with _Ingest(contestant) as ingest:
        for kind, took in cold.items():
            if took:
                own = [query for query in queries if query.kind == kind]
                tell(**told, figure="while ingest goes on", kind=kind, **_asked(contestant, own, share_s))
    tell(**told, figure="ingest", transactions_added=ingest.added, **milliseconds(ingest.took or [0.0]))


def _timed(search: Callable[[Query], Answer | None], query: Query) -> tuple[float, Answer | None]:
    begun = time.perf_counter()
    answer = search(query)
    return time.perf_counter() - begun, answer


def _asked(contestant: Contestant, queries: list[Query], seconds: float) -> dict[str, Any]:
    """Ask again and again, each query twice at least."""
    took: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(took) < 2 * len(queries) or time.perf_counter() < deadline:
        took += [_timed(contestant.search, query)[0] for query in queries]
    return {"asked": len(took), **milliseconds(took)}


class _Ingest:
    """Adds documents in a thread while somebody searches."""

    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: Exception | None = None
        self.added = 0
        self.took: list[float] = []

    def _run(self) -> None:
        try:
            while not self._over.wait(ADDED_EVERY_S):
                begun = time.perf_counter()
                self._contestant.add(ADDED_ROWS)
                self.took.append(time.perf_counter() - begun)
                self.added += 1
        except Exception as error:  # noqa: BLE001  told by who waits for the thread
            self._error = error

    def __enter__(self) -> _Ingest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


def main() -> None:
    """Measure one contestant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--transactions", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    measure(options.contestant, options.corpus, options.folder, options.transactions, options.seconds)


if __name__ == "__main__":
    main()
