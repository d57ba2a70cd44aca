"""What benchmarks/search.py asks: all contestants after so many transactions, each query of one after the other."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from benchmarks import search_corpus
from benchmarks.search_process import FailedError, Line, Process, built, leave_page_cache

COLD_PROCESSES: Final = 5
"""Processes of each contestant that are asked one query of each kind."""
TURNS: Final = 8
"""How often a warm query is asked, if there is time."""
SCORES_DIFFER_AT: Final = 1e-4
ADDED: Final = "a transaction"
OURS: Final = ("tracelake", "tracelake-at-rest")

Numbers = dict[int, list[tuple[float, float]]]
"""Of each query, seconds and those of processor time, as often as it was asked."""


class Round:
    """All contestants after so many transactions."""

    def __init__(
        self,
        names: Sequence[str],
        kinds: Sequence[str],
        place: tuple[Path, Path],
        transactions: int,
        deadline: float,
        build_cpu_s: float,
        tell: Callable[[Line], None],
        is_told: Callable[[Line], bool],
    ) -> None:
        """`place` is of the corpus and of indexes; `tell` takes figures as they are had, but those that are told."""
        self._corpus, self._kept = place
        self._kinds, self._transactions = kinds, transactions
        self._tell, self._is_told, self._deadline = tell, is_told, deadline
        self._build_cpu_s = build_cpu_s
        asked = json.loads((self._corpus / search_corpus.QUERIES).read_text())
        self._numbers = {kind: [at for at, one in enumerate(asked) if one["kind"] == kind] for kind in kinds}
        self._names = list(names)

    def run(self, kind_s: float) -> None:
        """Build what is not there, and ask: cold, until it is warm for so long a kind, and while documents come in."""
        self._names = [name for name in self._names if self._build(name)]
        self._cold()
        self._warm(kind_s)
        self._beside()

    def _folder(self, name: str) -> Path:
        return self._kept / f"{name}-{self._transactions}"

    def _build(self, name: str) -> bool:
        left_s = self._deadline - time.monotonic()
        try:
            if left_s <= 0:
                raise FailedError("no time was left to build it")
            folder = self._folder(name)
            line = built(name, self._corpus, folder, self._transactions, left_s, self._build_cpu_s)
        except FailedError as error:
            self._failed(name, error)
            return False
        if line is not None:
            self._tell(self._of(name) | line)
        return True

    def _cold(self) -> None:
        names = [name for name in self._names if not self._is_told(self._of(name, "cold"))]
        for name in names:
            took: dict[str, Numbers] = defaultdict(lambda: defaultdict(list))
            open_ms = list[float]()
            for at in range(COLD_PROCESSES):
                if self._is_late():
                    return
                leave_page_cache(self._folder(name))
                try:
                    with closing(Process(name, self._corpus, self._folder(name))) as process:
                        open_ms.append(process.reply()["ms"])
                        for kind in (*self._kinds[at:], *self._kinds[:at]):
                            self._ask(process, self._numbers[kind][at], took[kind])
                except FailedError as error:
                    self._failed(name, error)
                    break
            if open_ms:
                self._tell(self._of(name, "open") | {"p50_ms": round(statistics.median(open_ms), 2)})
            self._tell_times(name, "cold", took)

    @staticmethod
    def _ask(process: Process, number: int, took: Numbers) -> Line | None:
        reply = process.ask(number)
        if reply["answer"] is None:
            return None
        took[number].append((reply["s"], reply["cpu_s"]))
        answer: Line = reply["answer"]
        return answer

    def _warm(self, kind_s: float) -> None:
        kinds = [
            kind
            for kind in self._kinds
            if any(not self._is_told(self._of(n, "warm", kind)) for n in self._names)
        ]
        with ExitStack() as stack:
            there = self._opened(stack, self._folder) if kinds else []
            for kind in kinds:
                if self._is_late():
                    return
                answers: dict[str, dict[int, Line]] = defaultdict(dict)
                took: dict[str, Numbers] = defaultdict(lambda: defaultdict(list))
                for process in there:
                    process.used_s = 0.0
                for turn in range(TURNS):
                    for number in self._numbers[kind]:
                        # Who comes second finds tantivy's code in the caches of the processor.
                        for process in list(there)[:: -1 if turn % 2 else 1]:
                            if turn and (process.used_s > kind_s or number not in answers[process.name]):
                                continue
                            try:
                                answer = self._ask(process, number, took[process.name])
                            except FailedError as error:
                                self._failed(process.name, error)
                                there.remove(process)
                                continue
                            if answer is not None:
                                answers[process.name][number] = answer
                for name, own in took.items():
                    self._tell_times(name, "warm", {kind: own})
                self._compare(kind, answers)

    def _beside(self) -> None:
        """Ask one query of each kind while a transaction comes in, of copies of the indexes."""
        names = [name for name in self._names if not self._is_told(self._of(name, "while ingest goes on"))]
        for name in names:
            if self._is_late():
                return
            copy = self._kept / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self._folder(name), copy, symlinks=True)
            took: dict[str, Numbers] = defaultdict(lambda: defaultdict(list))
            try:
                with closing(Process(name, self._corpus, copy)) as process:
                    process.reply()
                    known = [kind for kind in self._kinds if process.ask(self._numbers[kind][0])["answer"]]
                    for at in range(len(self._numbers[self._kinds[0]])):
                        numbers = [self._numbers[kind][at] for kind in known]
                        reply = process.ask(*numbers)
                        if reply["each"] is None:
                            raise FailedError("it has no way to add documents to its index")
                        took[ADDED][0].append((reply["added_s"], 0.0))
                        for kind, number, each in zip(known, numbers, reply["each"], strict=True):
                            took[kind][number].append((each["s"], each["cpu_s"]))
            except FailedError as error:
                self._failed(name, error)
            shutil.rmtree(copy, ignore_errors=True)
            self._tell_times(name, "while ingest goes on", took)

    def _opened(self, stack: ExitStack, folder: Callable[[str], Path]) -> list[Process]:
        there = list[Process]()
        for name in self._names:
            try:
                process = stack.enter_context(closing(Process(name, self._corpus, folder(name))))
                process.reply()
                there.append(process)
            except FailedError as error:
                self._failed(name, error)
        return there

    def _tell_times(self, name: str, figure: str, took: dict[str, Numbers]) -> None:
        for kind, own in took.items():
            both = [each for asked in own.values() for each in asked]
            line = self._of(name, figure, kind)
            if both and not self._is_told(line):
                least = [1000 * min(cpu_s for _, cpu_s in asked) for asked in own.values()]
                cpu = {
                    "cpu_ms": round(statistics.fmean(least), 3),
                    "cpu_p50_ms": round(statistics.median(least), 3),
                }
                self._tell(line | {"asked": len(both), **milliseconds([s for s, _ in both]), **cpu})

    def _compare(self, kind: str, answers: dict[str, dict[int, Line]]) -> None:
        plain = answers.get("tantivy")
        for name in OURS:
            ours = answers.get(name)
            if ours and plain:
                differ = [number for number in sorted(ours) if not alike(ours[number], plain[number])]
                told = {"queries": len(ours), "differ": differ, "the same": not differ}
                self._tell(self._of(name, "compared", kind) | told)

    def _of(self, name: str, figure: str = "", kind: str = "") -> Line:
        told: Line = {"contestant": name, "transactions": self._transactions}
        return told | ({"figure": figure} if figure else {}) | ({"kind": kind} if kind else {})

    def _failed(self, name: str, error: FailedError) -> None:
        self._tell(self._of(name, "failed") | {"error": str(error)})

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline


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


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    ordered = sorted(seconds)
    return {
        "p50_ms": round(1000 * statistics.median(ordered), 3),
        "p99_ms": round(1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 3),
    }
