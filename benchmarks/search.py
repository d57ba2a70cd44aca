"""Search beside plain tantivy, SQLite, PostgreSQL, DuckDB and Lance: one run, one corpus, JSON lines as they come.

    scripts/setup-search                                          # installs Lance beside Tracelake, in .tools/search
    python -m benchmarks.search                                   # 200,000 documents, 1 and 100 transactions
    python -m benchmarks.search --documents 2000 --minutes 3 --only tracelake tantivy
    python -m benchmarks.search --transactions 1 100 10000 --minutes 60 --out figures.jsonl

The corpus is the text of real agents, again and again, with a fifth of the words others in each copy. Each contestant
is a process of its own, one after the other, with an equal share of the minutes; what it told before its time was up,
or before it failed, counts. It builds (processor time, and bytes of the index, without rows that lie apart), is opened,
and is asked each query once (*cold*: by a process that has not asked before; files may be in the page cache), then
again and again (*warm*), then again while a transaction of 20 documents comes in four times a second.

- tracelake: the index as it stands after so many transactions and their merges; what they replaced is not built.
- tantivy:   tantivy-py with the same texts through the same analyzer, a commit for each transaction.
- sqlite:    FTS5, contentless, Porter's stems. No fuzzy words.
- postgres:  `tsvector` and GIN, `ts_rank`, no fsync. No fuzzy words.
- duckdb:    its extension `fts`, if it can be installed.
- lance:     an inverted index with positions; name and text are one column. No prefixes, no facets.

Of every query, the ten best of tracelake and their scores must be those of tantivy: `the same` in the last lines, and
else the queries that are not. Others rank by other words and formulas, and are not compared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import search_corpus
from benchmarks.search_measure import CONTESTANTS, KINDS

ROOT: Final = Path(__file__).resolve().parents[1]
LANCE_PYTHON: Final = ROOT / ".tools" / "search" / "bin" / "python"
BUILD_SHARE: Final = 0.5
"""Of the time of a contestant, what its build may take before its queries are asked less often."""
SCORES_DIFFER_AT: Final = 1e-4

Line = dict[str, Any]


def run(name: str, corpus: Path, transactions: int, seconds: float) -> Iterator[Line]:
    """Yield what a contestant tells within its time; the last line says what became of one that did not end well."""
    python = str(LANCE_PYTHON) if name == "lance" else sys.executable
    if not Path(python).exists():
        yield failure(name, transactions, "not installed: run scripts/setup-search")
        return
    with (
        tempfile.TemporaryDirectory(prefix=f"tracelake-search-{name}-") as folder,
        tempfile.TemporaryFile() as errors,
    ):
        command = [python, "-m", "benchmarks.search_measure", name, str(corpus), folder]
        command += ["--transactions", str(transactions), "--seconds", str(seconds * (1 - BUILD_SHARE))]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, start_new_session=True
        )
        late = threading.Timer(seconds, stop, [process])
        late.start()
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
        code = process.wait()
        if not late.is_alive():
            yield failure(name, transactions, f"not done within {seconds:.0f} s")
        elif code:
            errors.seek(0)
            said = re.findall(r"^[\w.]+(?:Error|Exception): .+", errors.read().decode(errors="replace"), re.M)
            yield failure(name, transactions, said[-1] if said else f"ended with {code}")
        late.cancel()
        stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """End a contestant and what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def failure(name: str, transactions: int, error: str) -> Line:
    """Return the line of a contestant that failed."""
    return {"contestant": name, "transactions": transactions, "figure": "failed", "error": error}


def compare(ours: dict[int, Line], plain: dict[int, Line]) -> list[int]:
    """Return the numbers of the queries of which the ten best, their scores or their facets differ."""
    return [number for number in sorted(ours.keys() & plain.keys()) if not alike(ours[number], plain[number])]


def alike(one: Line, other: Line) -> bool:
    """Whether two answers are the same, but for which of equal scores come last."""
    ours, theirs = one["hits"], other["hits"]
    if one["facets"] != other["facets"] or len(ours) != len(theirs):
        return False
    if not ours:
        return True
    if any(
        abs(a[1] - b[1]) > SCORES_DIFFER_AT * max(1.0, abs(b[1])) for a, b in zip(ours, theirs, strict=True)
    ):
        return False
    last = theirs[-1][1]
    if last == 0.0 == theirs[0][1]:  # by time
        return [number for number, _ in ours] == [number for number, _ in theirs]
    above = last + SCORES_DIFFER_AT * max(1.0, abs(last))
    return {n for n, score in ours if score > above} == {n for n, score in theirs if score > above}


def show(lines: list[Line]) -> None:
    """Print a table of builds and one of times."""
    console = Console(width=200)
    builds = Table(
        "contestant", "transactions", "µs CPU a document", "documents/s a core", "bytes a document"
    )
    for line in lines:
        if line["figure"] == "build":
            keys = (
                "contestant",
                "transactions",
                "cpu_us_per_document",
                "documents_per_core_s",
                "bytes_per_document",
            )
            builds.add_row(*(str(line[key]) for key in keys))
    console.print(builds)
    times = Table("p50 / p99 ms", "transactions", "figure", *KINDS)
    cells: dict[tuple[str, int, str], dict[str, str]] = {}
    for line in lines:
        if "kind" in line:
            row = cells.setdefault((line["contestant"], line["transactions"], line["figure"]), {})
            row[line["kind"]] = f"{line['p50_ms']} / {line['p99_ms']}"
    for (name, transactions, figure), row in cells.items():
        times.add_row(name, str(transactions), figure, *(row.get(kind, "-") for kind in KINDS))
    console.print(times)
    for line in lines:
        if line["figure"] in ("failed", "compared"):
            console.print_json(data=line)


def main() -> None:
    """Run all contestants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=20, help="of each kind")
    parser.add_argument("--transactions", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--minutes", type=float, default=30.0, help="for all, without the corpus")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--out", type=Path, help="where the JSON lines go too")
    options = parser.parse_args()
    lines: list[Line] = []
    deadline = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="tracelake-corpus-") as name:
        corpus = Path(name)
        search_corpus.make(corpus, options.documents, options.queries)
        deadline = time.monotonic() + 60 * options.minutes
        turns = [(contestant, count) for count in options.transactions for contestant in options.only]
        answers: dict[tuple[str, int], dict[int, Line]] = {}
        for at, (contestant, count) in enumerate(turns):
            seconds = (deadline - time.monotonic()) / (len(turns) - at)
            for line in run(contestant, corpus, count, seconds):
                if line["figure"] == "answer":
                    answers.setdefault((contestant, count), {})[line["number"]] = line
                    continue
                tell(line, lines, options.out)
    plain = next((found for (contestant, _), found in answers.items() if contestant == "tantivy"), {})
    for (contestant, count), found in answers.items():
        if contestant == "tracelake" and plain:
            differ = compare(found, plain)
            told = {"queries": len(found.keys() & plain.keys()), "differ": differ, "the same": not differ}
            tell(
                {"contestant": contestant, "transactions": count, "figure": "compared", **told},
                lines,
                options.out,
            )
    show(lines)


def tell(line: Line, lines: list[Line], out: Path | None) -> None:
    """Keep a line, print it, and append it to a file."""
    lines.append(line)
    text = json.dumps(line, ensure_ascii=False) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()
    if out is not None:
        with out.open("a") as opened:
            opened.write(text)


if __name__ == "__main__":
    main()
