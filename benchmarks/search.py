"""Search beside plain tantivy, SQLite, PostgreSQL, DuckDB and Lance: one corpus, a JSON line for each figure.

    scripts/setup-search                              # installs Lance and DuckDB beside Tracelake, in .tools/search
    python -m benchmarks.search --keep /big/search    # the whole: 200,000 documents; 1, 100 and 10,000 transactions
    python -m benchmarks.search --documents 2000 --transactions 1 --minutes 3 --peers tracelake tantivy
    python -m benchmarks.search --keep /big/search --show

The corpus is the text of real agents, again and again, with a fifth of the words others in each copy. Each contestant
is a process of its own. With `--keep` corpus, indexes and figures stay in a folder, by number of documents: what is
there is not had again, so a run that was cut, or had only some `--peers`, `--kinds` or `--transactions`, goes on where
it was. Where root runs this, PostgreSQL is another user, who must be able to enter the folder.

- *build*: one after the other; processor time of all threads, and bytes of the index, without rows that lie apart. One
  that takes more than `--build-minutes` of processor time is stopped, and its line says how far it had come.
- *cold*: five processes that have not asked before, and whose files have left the page cache (`posix_fadvise`; programs
  and libraries stay in it), are asked one query of each kind, each beginning with another kind. *open* is before that.
- *warm*: all are open, and each query goes to one after the other, so that what else the machine does falls on all;
  eight times, or until a contestant has had `--seconds` for a kind. Every other time the last of them is first.
- *while ingest goes on*: one query of each kind while a transaction of 20 documents comes in, of a copy of the index.

*p50* and *p99* are by the clock; *cpu* is processor time, for each query the least of the times that it was asked, in
the mean of the queries (`cpu_ms`) and the median (`cpu_p50_ms`): of the thread that asks, of PostgreSQL's process that
answers too, and of all threads for DuckDB and Lance, which have their own.

- tracelake: the index as it stands after so many transactions and their merges; what they replaced is not built.
- tracelake-at-rest: the same when a minute or two have passed without a transaction.
- tantivy:   tantivy-py with the same texts through the same analyzer, a commit for each transaction.
- sqlite:    FTS5, contentless, Porter's stems. No fuzzy words.
- postgres:  `tsvector` and GIN, `ts_rank`, no fsync, one process a query. No fuzzy words.
- duckdb:    its extension `fts`: words alone; its index is made anew for whatever comes, so there is one transaction.
- lance:     an inverted index with positions, made after all transactions; name and text are one column. No prefixes,
             no facets.

Of every query, the ten best of tracelake, at rest too, and their scores must be those of tantivy: `the same` in lines
*compared*, and else the queries that are not. Others rank by other words and formulas, and are not compared.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks import search_corpus
from benchmarks.search_measure import CONTESTANTS, KINDS
from benchmarks.search_process import Line
from benchmarks.search_rounds import ADDED, Round

_TOLD: Final = ("contestant", "transactions", "figure", "kind")


class Figures:
    """Lines in a file, each told once."""

    def __init__(self, path: Path) -> None:
        """Read what the file has."""
        self._path = path
        self.lines: list[Line] = []
        if path.exists():
            self.lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def tell(self, line: Line) -> None:
        """Keep a line, print it, and append it to the file."""
        self.lines.append(line)
        text = json.dumps(line, ensure_ascii=False) + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()
        with self._path.open("a") as opened:
            opened.write(text)

    def has(self, told: Line) -> bool:
        """Whether there is a figure of this contestant, these transactions and, if it is said, this kind."""
        return any(told.items() <= line.items() for line in self.lines)


def show(lines: list[Line]) -> None:
    """Print a table of builds and one of times."""
    console = Console(width=200)
    keys = ("contestant", "transactions", "cpu_us_per_document", "documents_per_core_s", "bytes_per_document")
    builds = Table(
        "contestant", "transactions", "µs CPU a document", "documents/s a core", "bytes a document"
    )
    for line in lines:
        if line["figure"] == "build":
            builds.add_row(*(str(line[key]) for key in keys))
    console.print(builds)
    times = Table("p50 / p99 / CPU ms", "transactions", "figure", *KINDS, ADDED)
    cells: dict[tuple[int, str, str], dict[str, str]] = {}
    for line in lines:
        if "p99_ms" in line:
            row = cells.setdefault((line["transactions"], line["figure"], line["contestant"]), {})
            row[line["kind"]] = f"{line['p50_ms']} / {line['p99_ms']} / {line['cpu_ms']}"
    for (transactions, figure, name), row in sorted(cells.items()):
        times.add_row(name, str(transactions), figure, *(row.get(kind, "-") for kind in (*KINDS, ADDED)))
    console.print(times)
    for line in lines:
        if line["figure"] == "failed" or line.get("differ"):
            console.print_json(data=line)


def _corpus(place: Path, documents: int, queries: int) -> Path:
    """Return the folder of the corpus, made where it is not there as a whole."""
    folder = place / "corpus"
    if not folder.exists():
        begun = place / "corpus-begun"
        shutil.rmtree(begun, ignore_errors=True)
        begun.mkdir(parents=True)
        search_corpus.make(begun, documents, queries)
        begun.rename(folder)
    return folder


def main() -> None:
    """Run all contestants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=20, help="of each kind")
    parser.add_argument("--transactions", type=int, nargs="+", default=[1, 100, 10_000])
    parser.add_argument("--peers", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--minutes", type=float, default=120.0, help="after which nothing is begun")
    parser.add_argument(
        "--build-minutes", type=float, default=12.0, help="of processor time, after which a build is stopped"
    )
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of a contestant for a kind of warm queries"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="for corpus, indexes and figures")
    parser.add_argument(
        "--show", action="store_true", help="print the figures that are there, and do nothing"
    )
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    with ExitStack() as stack:
        if options.keep is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tracelake-search-")))
            place.chmod(0o755)  # PostgreSQL may run as another user
        else:
            place = options.keep.resolve() / f"{options.documents}-{options.queries}"
            place.mkdir(parents=True, exist_ok=True)
        figures = Figures(place / "figures.jsonl")
        if not options.show:
            corpus = _corpus(place, options.documents, options.queries)
            for transactions in options.transactions:
                here = (corpus, place)
                round_ = Round(
                    options.peers,
                    options.kinds,
                    here,
                    transactions,
                    deadline,
                    60 * options.build_minutes,
                    figures.tell,
                    figures.has,
                )
                round_.run(options.seconds)
        show(figures.lines)


if __name__ == "__main__":
    main()
