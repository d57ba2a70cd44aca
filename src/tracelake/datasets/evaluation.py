"""Evaluation of a function on the examples of a dataset: calls in threads, scores, traces, and a progress bar.

The error of one example or scorer does not stop the others.
"""

from __future__ import annotations

import inspect
import json
import math
import statistics
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Final, TypeAlias

from tracelake import limits
from tracelake._errors import LimitError, UsageError
from tracelake.datasets import runs
from tracelake.datasets.model import Example, check_notes

Scorers: TypeAlias = Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]
_ERROR_MAX_CHARS: Final = 4_000
_OF_FUNCTION: Final = ("input", "expected", "metadata", "example")
_OF_SCORER: Final = ("output", "expected", "input", "metadata", "example")


class _Bound:
    """A function with the names of the values that it takes.

    A parameter with the name of a value gets that value. Others get the first values that no name asks for, at most
    as many as `positional`.
    """

    def __init__(self, function: Callable[..., Any], values: Sequence[str], positional: int) -> None:
        if not callable(function):
            raise UsageError(f"{function!r} is not a function; give one that takes {values[0]}.")
        self._function = function
        self._positional: list[str] = []
        self._named: dict[str, str] = {}
        parameters = _parameters(function)
        names = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
        free = iter([value for value in values[:positional] if value not in names])
        for parameter in parameters:
            has_value = parameter.name in values and parameter.kind is not parameter.POSITIONAL_ONLY
            if not has_value and parameter.default is not parameter.empty:
                continue
            value = parameter.name if has_value else next(free, None)
            if value is None:
                raise UsageError(
                    f"parameter {parameter.name!r} of {_name(function)} has no value; its parameters may be "
                    f"{', '.join(values)}."
                )
            if parameter.kind is parameter.POSITIONAL_ONLY:
                self._positional.append(value)
            else:
                self._named[parameter.name] = value

    def __call__(self, values: Mapping[str, Any]) -> Any:
        result = self._function(
            *(values[name] for name in self._positional),
            **{name: values[value] for name, value in self._named.items()},
        )
        if not inspect.isawaitable(result):
            return result
        import asyncio  # noqa: PLC0415  most functions need no loop

        return asyncio.run(_result_of(result))


async def _result_of(result: Awaitable[Any]) -> Any:
    return await result


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some functions in C
        return [inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in parameters if each.kind not in kinds]


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def scorers_by_name(scorers: Scorers) -> dict[str, Callable[..., Any]]:
    """Return scorers by name: their key, otherwise the name of the function. Raises UsageError for a repeated name."""
    pairs = (
        list(scorers.items()) if isinstance(scorers, Mapping) else [(_name(each), each) for each in scorers]
    )
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"several scorers have the name {name!r}; give them as a mapping from names to functions."
            )
    return dict(pairs)


def evaluate_examples(
    dataset: str,
    version: str,
    examples: Sequence[Example],
    function: Callable[..., Any],
    scorers: Scorers,
    *,
    name: str | None,
    author: str,
    metadata: Mapping[str, str],
    concurrency: int,
    progress: bool,
) -> runs.EvaluationRun:
    """Call a function on each example, score its outputs, and return the run, which is not stored yet.

    See `Dataset.evaluate`.
    """
    if not 1 <= concurrency <= limits.EVALUATION_CONCURRENCY_MAX:
        raise UsageError(
            f"concurrency must be from 1 to {limits.EVALUATION_CONCURRENCY_MAX}, not {concurrency}."
        )
    if not examples:
        raise UsageError(f"dataset {dataset} has no committed examples; add some and commit them first.")
    run_id = runs.new_run_id(uuid.uuid4().hex)
    call = _Bound(function, _OF_FUNCTION, 1)
    score = {key: _Bound(each, _OF_SCORER, 2) for key, each in scorers_by_name(scorers).items()}
    title = name or f"{_name(function)} {datetime.now(UTC):%Y-%m-%d %H:%M}"
    check_run(title, metadata)
    results: dict[str, runs.ExampleResult] = {}
    with _bar(len(examples), progress) as advance, ThreadPoolExecutor(concurrency) as threads:
        futures = [
            threads.submit(copy_context().run, _result, call, score, each, dataset, run_id)
            for each in examples
        ]
        try:
            for future in as_completed(futures):
                results[future.result().example_id] = future.result()
                advance()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    ordered = [results[each.id] for each in examples]
    return runs.EvaluationRun(
        make_info(run_id, title, dataset, version, author, ordered, metadata), tuple(ordered)
    )


def check_run(name: str, metadata: Mapping[str, str]) -> None:
    """Raise UsageError or LimitError if a run cannot have this name or metadata."""
    if not name.strip() or len(name) > limits.EVALUATION_NAME_MAX_CHARS or not name.isprintable():
        raise UsageError(
            f"the name of a run has 1 to {limits.EVALUATION_NAME_MAX_CHARS} printable characters; "
            f"{name[: limits.QUOTED_MAX_CHARS]!r} is not one."
        )
    check_notes("metadata", (text for pair in metadata.items() for text in pair))


def make_info(
    run_id: str,
    name: str,
    dataset: str,
    version: str,
    author: str,
    results: Sequence[runs.ExampleResult],
    metadata: Mapping[str, str],
) -> runs.RunInfo:
    """Return the record of a run with the sums of its results."""
    return runs.RunInfo(
        id=run_id,
        name=name,
        dataset=dataset,
        version=version,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        author=author,
        examples=len(results),
        errors=sum(bool(each.error or each.scorer_errors) for each in results),
        scores=runs.mean_scores(results),
        metadata=dict(metadata),
        latency_ms=statistics.median(each.latency_ms for each in results) if results else 0.0,
    )


def _result(
    call: _Bound, scorers: Mapping[str, _Bound], example: Example, dataset: str, run_id: str
) -> runs.ExampleResult:
    """Return the result of one example."""
    values: dict[str, Any] = {
        "input": example.input,
        "expected": example.expected_output,
        "metadata": dict(example.metadata),
        "example": example,
    }
    error: str | None = None
    trace_ids: list[str] = []
    begin_s = perf_counter()
    try:
        with _traced(dataset, example.id, run_id, trace_ids):
            values["output"] = call(values)
    except Exception as failure:  # noqa: BLE001  of user code
        error = _error_text(failure)
    latency_ms = round((perf_counter() - begin_s) * 1_000, 3)
    scores: dict[str, runs.Score] = {}
    scorer_errors: dict[str, str] = {}
    for name, scorer in scorers.items() if error is None else ():
        try:
            scores |= _scores(name, scorer(values))
        except Exception as failure:  # noqa: BLE001  of user code
            scorer_errors[name] = _error_text(failure)
    return runs.ExampleResult(
        example_id=example.id,
        output=None if error is not None else _output_text(values["output"]),
        scores=scores,
        error=error,
        scorer_errors=scorer_errors,
        latency_ms=latency_ms,
        trace_id=next(iter(trace_ids), None),
    )


def _scores(name: str, value: Any) -> dict[str, runs.Score]:
    """Return the scores of a scorer: one, several by name, or none. Raises UsageError for another value."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        if len(value) > limits.EVALUATION_SCORES_MAX:
            raise LimitError(
                f"a scorer returns at most {limits.EVALUATION_SCORES_MAX} scores, not {len(value)}."
            )
        return {
            runs.clean_text(str(key)): check_score(each) for key, each in value.items() if each is not None
        }
    return {name: check_score(value)}


def check_score(value: Any) -> runs.Score:
    """Return a score as it is stored. Raises UsageError if it is no finite number, truth value or label."""
    if isinstance(value, str):
        return runs.clean_text(value)
    if hasattr(value, "item"):  # of NumPy
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise UsageError(
        "a score is a finite number, true or false, or a label; "
        f"{str(value)[: limits.QUOTED_MAX_CHARS]!r} is none of them."
    )


def _output_text(output: Any) -> str | None:
    if output is None or isinstance(output, str):
        return None if output is None else runs.clean_text(output)
    try:
        text = json.dumps(output, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = repr(output)
    return runs.clean_text(text)


def _error_text(failure: Exception) -> str:
    return runs.clean_text(f"{type(failure).__name__}: {failure}")[:_ERROR_MAX_CHARS]


@contextmanager
def _traced(dataset: str, example_id: str, run_id: str, trace_ids: list[str]) -> Iterator[None]:
    """Run in a new OpenTelemetry trace, and record the id of the trace, or of the trace that MLflow made. Without a
    configured tracer, record none."""
    from opentelemetry import trace  # noqa: PLC0415  only evaluations need it
    from opentelemetry.context import Context  # noqa: PLC0415

    attributes = {
        "tracelake.dataset": dataset,
        "tracelake.example": example_id,
        "tracelake.evaluation.run": run_id,
    }
    tracer = trace.get_tracer("tracelake.evaluation")
    before = _mlflow_trace_id()
    with tracer.start_as_current_span(
        f"evaluate {dataset}", context=Context(), attributes=attributes
    ) as span:
        try:
            yield
        finally:
            context = span.get_span_context()
            of_mlflow = _mlflow_trace_id()
            if of_mlflow is not None and of_mlflow != before:
                trace_ids.append(of_mlflow.removeprefix("tr-"))
            elif context.is_valid and context.trace_flags.sampled:
                trace_ids.append(f"{context.trace_id:032x}")


def _mlflow_trace_id() -> str | None:
    """Return the last trace that MLflow made in this thread, if the program uses MLflow."""
    mlflow = sys.modules.get("mlflow")
    with suppress(Exception):  # of a version without this function
        if mlflow is not None and (trace_id := mlflow.get_last_active_trace_id(thread_local=True)):
            return str(trace_id)
    return None


@contextmanager
def _bar(total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal or in a notebook; yield the function that advances it."""
    from rich.console import Console  # noqa: PLC0415  only evaluations need it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    is_hidden = not wanted or not (console.is_terminal or console.is_jupyter)
    with Progress(*columns, console=console, disable=is_hidden) as bar:
        task = bar.add_task("Evaluating", total=total)
        yield lambda: bar.advance(task)
