"""Search beside plain tantivy, SQLite, PostgreSQL, DuckDB and Lance: one run, one corpus, a JSON line for each figure.

    scripts/setup-search                                          # installs Lance beside Tracelake, in .tools/search
    python -m benchmarks.search                                   # 200,000 documents, 1 and 100 transactions
    python -m benchmarks.search --documents 2000 --minutes 3 --only tracelake tantivy
    python -m benchmarks.search --transactions 1 100 10000 --minutes 60 --out figures.jsonl

The corpus is the text of real agents, again and again, with a fifth of the words others in each copy. Each contestant
is a process of its own. They build one after the other (processor time, and bytes of the index, without rows that lie
apart), then all are open, and **each query goes to one after the other**, so that what else the machine does falls on
all: each once (*cold*: by a process that has not asked before; files may be in the page cache), then again and again
(*warm*), then one of each kind while a transaction of 20 documents comes in. Who has used up its share sits out.
Seconds are by the clock; *cpu* is processor time in the mean, of all threads; of the server it is not told.

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
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import search_corpus
from benchmarks.search_measure import CONTESTANTS, KINDS, milliseconds

ROOT: Final = Path(__file__).resolve().parents[1]
LANCE_PYTHON: Final = ROOT / ".tools" / "search" / "bin" / "python"
BUILD_SHARE: Final = 0.5
"""Of the time for a number of transactions, what builds may take."""
REPLY_MAX_S: Final = 120.0
SCORES_DIFFER_AT: Final = 1e-4

Line = dict[str, Any]


class FailedError(Exception):
    """A contestant that ended, or did not answer in time."""


class Process:
    """A contestant in a process of its own, built and open."""

    def __init__(self, name: str, corpus: Path, transactions: int) -> None:
        """Start it; what it tells is read by `reply`."""
        self.name, self.transactions = name, transactions
        self.told: Line = {"contestant": name, "transactions": transactions}
        self.used_s = 0.0
        python = str(LANCE_PYTHON) if name == "lance" else sys.executable
        if not Path(python).exists():
            raise FailedError("not installed: run scripts/setup-search")
        self._folder = tempfile.TemporaryDirectory(prefix=f"tracelake-search-{name}-")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        command = [python, "-m", "benchmarks.search_measure", name, str(corpus), self._folder.name]
        command += ["--transactions", str(transactions)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def reply(self, seconds: float = REPLY_MAX_S) -> Line:
        """Return the next line that it tells. Raises FailedError."""
        assert self._process.stdout is not None
        late = threading.Timer(max(seconds, 1.0), self._kill)
        late.start()
        line = self._process.stdout.readline()
        in_time = late.is_alive()
        late.cancel()
        if line:
            reply: Line = json.loads(line)
            return reply
        self._process.wait()
        self._errors.seek(0)
        said = re.findall(
            r"^[\w.]+(?:Error|Exception): .+", self._errors.read().decode(errors="replace"), re.M
        )
        raise FailedError(
            said[-1] if said and in_time else f"not done within {seconds:.0f} s" if not in_time else "ended"
        )

    def ask(self, *numbers: int) -> Line:
        """Ask one query, or several while a transaction comes in. Raises FailedError."""
        assert self._process.stdin is not None
        begun = time.monotonic()
        try:
            self._process.stdin.write(" ".join(map(str, numbers)) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise FailedError(str(error)) from error
        reply = self.reply()
        self.used_s += time.monotonic() - begun
        return reply

    def close(self) -> None:
        """End it, and what it has started: at the end of its input, or else by force."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._kill()
        self._process.wait()
        self._errors.close()
        self._folder.cleanup()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


_Took = dict[tuple[tuple[str, int], str], list[tuple[float, float]]]
"""Seconds, and those of processor time, by contestant with transactions and by kind."""
ADDED: Final = "a transaction"


class Round:
    """All contestants after so many transactions, asked in turn."""

    def __init__(self, names: Sequence[str], corpus: Path, transactions: int, seconds: float) -> None:
        """Build and open them, one after the other; `lines` is what there is to tell so far."""
        self.lines: list[Line] = []
        self.answers: dict[str, dict[int, Line]] = {name: {} for name in names}
        self._kinds = [query["kind"] for query in json.loads((corpus / search_corpus.QUERIES).read_text())]
        self._there: list[Process] = []
        self._seconds = seconds * (1 - BUILD_SHARE)
        for at, name in enumerate(names):
            begun = time.monotonic()
            try:
                process = Process(name, corpus, transactions)
                self._there.append(process)
                left = seconds * BUILD_SHARE / (len(names) - at)
                self.lines += [process.told | process.reply(left) for _ in range(2)]
            except FailedError as error:
                self._failed({"contestant": name, "transactions": transactions}, error)
                self._end([one for one in self._there if one.name == name])
            seconds -= time.monotonic() - begun

    def run(self) -> None:
        """Ask all queries: cold, until they are warm, and while documents come in."""
        queries = range(len(self._kinds))
        self._phase("cold", [[number] for number in queries], 1)
        self._phase("warm", [[number] for number in queries], None)
        by_kind = [[number for number in queries if self._kinds[number] == kind] for kind in KINDS]
        self._phase("while ingest goes on", [list(one) for one in zip(*by_kind, strict=True)], None)

    def close(self) -> None:
        """End all that are there."""
        self._end(list(self._there))

    def _phase(self, figure: str, asked: Sequence[list[int]], times: int | None) -> None:
        """Ask each query of each contestant in turn, so many times, or twice and on as long as there is time."""
        share_s = self._seconds / 2 / max(1, len(self._there))
        took: _Took = defaultdict(list)
        for process in self._there:
            process.used_s = 0.0

        def has_time(process: Process) -> bool:
            return process.used_s < share_s and bool(self.answers[process.name])

        for turn in count():
            if turn >= (times or 2) and (times or not any(map(has_time, self._there))):
                break
            for numbers in asked:
                for process in list(self._there):
                    if turn < (times or 2) or has_time(process):
                        self._ask(process, numbers, took, is_first=figure == "cold")
        for (told, kind), both in took.items():
            cpu_s = statistics.fmean(cpu for _, cpu in both)
            figures = {"asked": len(both), **milliseconds([s for s, _ in both])}
            self.lines.append(
                {"contestant": told[0], "transactions": told[1], "figure": figure, "kind": kind, **figures}
                | ({"cpu_ms": round(1000 * cpu_s, 3)} if cpu_s else {})
            )

    def _ask(self, process: Process, numbers: list[int], took: _Took, *, is_first: bool) -> None:
        name, transactions, known = process.name, process.transactions, self.answers[process.name]
        numbers = numbers if is_first else [number for number in numbers if number in known]
        if not numbers:
            return  # it has no such query
        try:
            reply = process.ask(*numbers)
        except FailedError as error:
            self._failed(process.told, error)
            self._end([process])
            return
        if len(numbers) > 1:
            took[(name, transactions), ADDED].append((reply["added_s"], 0.0))
            for number, s in zip(numbers, reply["s"], strict=True):
                took[(name, transactions), self._kinds[number]].append((s, 0.0))
        elif reply["answer"] is not None:
            took[(name, transactions), self._kinds[numbers[0]]].append((reply["s"], reply["cpu_s"]))
            if is_first:
                known[numbers[0]] = reply["answer"]

    def _failed(self, told: Line, error: FailedError) -> None:
        self.lines.append({**told, "figure": "failed", "error": str(error)})

    def _end(self, processes: Sequence[Process]) -> None:
        for process in processes:
            self._there.remove(process)
            process.close()


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
    times = Table("p50 / p99 / CPU ms", "transactions", "figure", *KINDS, ADDED)
    cells: dict[tuple[str, int, str], dict[str, str]] = {}
    for line in lines:
        if "kind" in line:
            row = cells.setdefault((line["contestant"], line["transactions"], line["figure"]), {})
            row[line["kind"]] = f"{line['p50_ms']} / {line['p99_ms']}" + (
                f" / {line['cpu_ms']}" if "cpu_ms" in line else ""
            )
    for (name, transactions, figure), row in cells.items():
        times.add_row(name, str(transactions), figure, *(row.get(kind, "-") for kind in (*KINDS, ADDED)))
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
    answers: dict[tuple[str, int], dict[int, Line]] = {}
    with tempfile.TemporaryDirectory(prefix="tracelake-corpus-") as name:
        corpus = Path(name)
        search_corpus.make(corpus, options.documents, options.queries)
        deadline = time.monotonic() + 60 * options.minutes
        for at, transactions in enumerate(options.transactions):
            seconds = (deadline - time.monotonic()) / (len(options.transactions) - at)
            with closing(Round(options.only, corpus, transactions, seconds)) as round_:
                round_.run()
            for line in round_.lines:
                tell(line, lines, options.out)
            answers |= {(contestant, transactions): own for contestant, own in round_.answers.items() if own}
    plain = next((own for (contestant, _), own in answers.items() if contestant == "tantivy"), {})
    for (contestant, transactions), own in answers.items():
        if contestant == "tracelake" and plain:
            differ = compare(own, plain)
            told = {"queries": len(own.keys() & plain.keys()), "differ": differ, "the same": not differ}
            tell(
                {"contestant": contestant, "transactions": transactions, "figure": "compared", **told},
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
