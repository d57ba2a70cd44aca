"""Evaluation runs: stored results of a function on each example of a dataset version, and comparisons of two runs.

A run is immutable. Its entries are in the commits of the lake: `evaluations/<dataset>/<run>/.run`, and a file for each
result, in order of example id, so that the erasure of a trace deletes its results alone. The id of a run begins with
its time, so runs are listed in order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec

from tracelake._errors import DamageError, NotFoundError
from tracelake.datasets.files import IsErased, commit_files, read_files
from tracelake.datasets.model import Example, from_bytes, trace_of
from tracelake.formats import decode, encode
from tracelake.limits import EVALUATION_TEXT_MAX_CHARS
from tracelake.storage import ObjectStore
from tracelake.versions.model import FileAt
from tracelake.versions.repository import Repository
from tracelake.versions.tree import below

FORMAT_VERSION: Final = 1
EVALUATIONS: Final = "evaluations"
_SPEC: Final = ".run"
_RUN_ID: Final = re.compile(r"[0-9]{8}T[0-9]{12}-[0-9a-f]{8}")
_TABLE_ROWS_SHOWN: Final = 50
_CELL_MAX_CHARS: Final = 200

Score: TypeAlias = bool | int | float | str
"""A number or a truth value, of which more is better, or a label."""


class ExampleResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Result of one example: the output of the function with its scores, or its error."""

    example_id: str
    output: str | None = None
    scores: dict[str, Score] = {}
    error: str | None = None
    scorer_errors: dict[str, str] = {}
    """Errors by scorer; such a scorer has no score."""
    latency_ms: float = 0.0
    trace_id: str | None = None
    """The trace that the function produced, if it is traced."""


class RunInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An evaluation run without its results."""

    id: str
    name: str
    dataset: str
    version: str
    """The commit with the examples."""
    created_at: str
    author: str
    examples: int
    errors: int
    """Examples whose function or scorer failed."""
    scores: dict[str, float]
    """The mean of each score that is a number or truth value."""
    metadata: dict[str, str]
    latency_ms: float
    """The median of all examples."""
    format_version: int = FORMAT_VERSION


class _ResultFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    result: ExampleResult
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """An evaluation run with its results, in order of example id."""

    info: RunInfo
    results: tuple[ExampleResult, ...]

    def __repr__(self) -> str:
        """Return the name and the mean scores, because the outputs may be megabytes of text."""
        means = ", ".join(f"{name}={mean:.3g}" for name, mean in self.info.scores.items())
        counts = f"{self.info.examples:,} examples, {self.info.errors:,} errors"
        return f"EvaluationRun({self.info.name!r}, {counts}, {means})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        plain: dict[str, Any] = msgspec.to_builtins(self.info)
        return plain | {"results": msgspec.to_builtins(self.results)}

    def _repr_html_(self) -> str:
        """Return the results as a table, for a notebook."""
        names = score_names(self.results)
        rows = [
            (
                each.example_id,
                each.output or each.error,
                *(score_text(each.scores.get(name)) for name in names),
            )
            for each in self.results[:_TABLE_ROWS_SHOWN]
        ]
        return f"<p>{escape(repr(self))}</p>" + _html_table(("example", "output or error", *names), rows)


@dataclass(frozen=True, slots=True)
class ComparedExample:
    """One example in two runs; a result is None if the run has none."""

    example_id: str
    base: ExampleResult | None
    run: ExampleResult | None
    worse: tuple[str, ...]
    """Scores that fell or are missing now; `error` for a new error."""
    better: tuple[str, ...]
    """Scores that rose or are new; `error` for an error that no longer occurs."""

    @property
    def change(self) -> str:
        """`regression`, `improvement`, `mixed`, `same`, or `added` or `removed` if only one run has the example."""
        if self.base is None or self.run is None:
            return "added" if self.base is None else "removed"
        if self.worse:
            return "mixed" if self.better else "regression"
        return "improvement" if self.better else "same"


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Comparison of two runs, example by example: regressions first, then other changes."""

    base: RunInfo
    run: RunInfo
    examples: tuple[ComparedExample, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Number of examples by their change."""
        kinds = [each.change for each in self.examples]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    @property
    def score_names(self) -> list[str]:
        """Names of the scores of both runs."""
        return score_names(
            result for each in self.examples for result in (each.base, each.run) if result is not None
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        examples = [
            {
                "example_id": each.example_id,
                "change": each.change,
                "worse": list(each.worse),
                "better": list(each.better),
                "base": msgspec.to_builtins(each.base),
                "run": msgspec.to_builtins(each.run),
            }
            for each in self.examples
        ]
        return {
            "base": msgspec.to_builtins(self.base),
            "run": msgspec.to_builtins(self.run),
            "counts": self.counts,
            "examples": examples,
        }

    def __repr__(self) -> str:
        """Return the names and the number of examples by change."""
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
        return f"RunComparison({self.base.name!r} → {self.run.name!r}: {counts})"

    def _repr_html_(self) -> str:
        """Return the comparison as a table, for a notebook."""
        names = self.score_names
        rows = [
            (
                each.example_id,
                each.change,
                *(
                    " → ".join(score_text(score_of(side, name)) for side in (each.base, each.run))
                    for name in names
                ),
            )
            for each in self.examples[:_TABLE_ROWS_SHOWN]
        ]
        return f"<p>{escape(repr(self))}</p>" + _html_table(("example", "change", *names), rows)


def _html_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell)[:_CELL_MAX_CHARS])}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return f"<table><tr>{cells}</tr>{body}</table>"


def score_text(score: Score | None) -> str:
    """Return a score as people read it."""
    if score is None:
        return "-"
    if isinstance(score, bool):
        return "true" if score else "false"
    return f"{score:.3g}" if isinstance(score, float) else str(score)


def score_of(result: ExampleResult | None, name: str) -> Score | None:
    """Return a score of a result, or None without one."""
    return None if result is None else result.scores.get(name)


def score_names(results: Iterable[ExampleResult]) -> list[str]:
    """Return the names of all scores, in order of their first result."""
    return list(dict.fromkeys(name for each in results for name in chain(each.scores, each.scorer_errors)))


def mean_scores(results: Sequence[ExampleResult]) -> dict[str, float]:
    """Return the mean of each score that is a number or truth value in all results that have it."""
    means = {}
    for name in score_names(results):
        values = [each.scores[name] for each in results if name in each.scores]
        numbers = [float(value) for value in values if not isinstance(value, str)]
        if values and len(numbers) == len(values):
            means[name] = math.fsum(numbers) / len(numbers)
    return means


def clean_text(text: str) -> str:
    """Return a text that can be stored: valid Unicode, and cut at the limit with an ellipsis."""
    if len(text) > EVALUATION_TEXT_MAX_CHARS:
        text = text[: EVALUATION_TEXT_MAX_CHARS - 1] + "…"
    return text.encode(errors="replace").decode()


def new_run_id(token: str) -> str:
    """Return the id of a run that begins now, given random hex digits."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{token[:8]}"


def compare(base: EvaluationRun, run: EvaluationRun) -> RunComparison:
    """Compare two runs. A new error and a lower score are regressions; a changed label is neither better nor worse.

    A scorer that only one of the runs has is no change.
    """
    shared = set(score_names(base.results)) & set(score_names(run.results))
    before, after = ({each.example_id: each for each in side.results} for side in (base, run))
    compared = [
        ComparedExample(
            identity,
            before.get(identity),
            after.get(identity),
            *score_changes(before.get(identity), after.get(identity), shared),
        )
        for identity in {**before, **after}
    ]
    order = ("regression", "mixed", "improvement", "added", "removed", "same")
    compared.sort(
        key=lambda each: (
            order.index(each.change),
            "error" not in each.worse,
            -len(each.worse),
            each.example_id,
        )
    )
    return RunComparison(base.info, run.info, tuple(compared))


def score_changes(
    old: ExampleResult | None, new: ExampleResult | None, shared: Container[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the scores that are worse, and of those that are better."""
    worse: list[str] = []
    better: list[str] = []
    if old is None or new is None:
        return (), ()
    if (old.error is None) != (new.error is None):
        (better if new.error is None else worse).append("error")
    for name in (each for each in dict.fromkeys((*old.scores, *new.scores)) if each in shared):
        values = old.scores.get(name), new.scores.get(name)
        if None in values:
            (worse if values[1] is None else better).append(name)
        elif not any(isinstance(value, str) for value in values) and values[0] != values[1]:
            (worse if values[1] < values[0] else better).append(name)  # type: ignore[operator]
    return tuple(worse), tuple(better)


def store_run(
    repository: Repository, objects: ObjectStore, branch: str, run: EvaluationRun, committer: str | None
) -> None:
    """Store a run by one commit on a branch, without other staged changes."""
    folder = _folder(run.info.dataset, run.info.id)
    contents: dict[str, bytes | None] = {f"{folder}/{_SPEC}": encode(run.info)}
    for number, result in enumerate(run.results):
        contents[f"{folder}/{number:06}"] = encode(_ResultFile(result))
    message = f"dataset {run.info.dataset}: evaluation run {run.info.name}"
    commit_files(repository, objects, branch, contents, message, committer)


def list_runs(
    repository: Repository, objects: ObjectStore, dataset: str, head: str, limit: int | None = None
) -> list[RunInfo]:
    """Return the runs of a dataset in a commit, the newest first; at most `limit`."""
    start, stop = below(f"{EVALUATIONS}/{dataset}")
    files = []
    while (entry := next(repository.scan(head, start, stop), None)) is not None:
        path, file = entry
        folder = path.rpartition("/")[0]
        if path.endswith(f"/{_SPEC}") and isinstance(file, FileAt):
            files.append(file)
        start = below(folder)[1]
    runs = [
        decode(RunInfo, data, f"an evaluation run of dataset {dataset}", FORMAT_VERSION)
        # Paths sort by the time of the run.
        for data in read_files(objects, files if limit is None else files[max(0, len(files) - limit) :])
    ]
    return sorted(runs, key=lambda run: run.id, reverse=True)


def read_run(
    repository: Repository, objects: ObjectStore, dataset: str, head: str, name: str, is_erased: IsErased
) -> EvaluationRun:
    """Return a run with its results, by its id or its name; of several with a name, the newest. Erased results are left
    out.

    Raises NotFoundError.
    """
    if not _RUN_ID.fullmatch(name):
        ids = [run.id for run in list_runs(repository, objects, dataset, head) if run.name == name]
        if not ids:
            raise _no_run(dataset, name)
        name = ids[0]
    start, stop = below(_folder(dataset, name))
    files = [file for _, file in repository.scan(head, start, stop) if isinstance(file, FileAt)]
    records = read_files(objects, files, is_erased)
    if not files:
        raise _no_run(dataset, name)
    title = f"evaluation run {name} of dataset {dataset}"
    info = decode(RunInfo, next(records), title, FORMAT_VERSION)
    stored = (decode(_ResultFile, data, title, FORMAT_VERSION) for data in records)
    return EvaluationRun(info, tuple(each.result for each in stored))


def traces_of(data: bytes, path: str) -> set[str | None]:
    """Return the traces of which a dataset's file has content: an example's, or a result's. Other files have none."""
    with suppress(DamageError):
        return {from_bytes(Example, data, path).provenance.trace_id}
    with suppress(DamageError):
        result = decode(_ResultFile, data, path, FORMAT_VERSION).result
        return {trace_of(result.example_id), result.trace_id}
    return set()


def _no_run(dataset: str, name: str) -> NotFoundError:
    return NotFoundError(
        f"dataset {dataset} has no evaluation run {name!r}; `tracelake dataset runs {dataset}` lists them."
    )


def _folder(dataset: str, run_id: str) -> str:
    return f"{EVALUATIONS}/{dataset}/{run_id}"
