"""Evaluation runs: results of each example, scores, errors, traces, storage, and comparisons."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider

from tests.datasets.conversations import a_lake, ids
from tests.patience import HANG_S
from tracelake import Dataset, Lake, NotFoundError, UsageError, limits
from tracelake.datasets import runs
from tracelake.datasets.evaluation import check_score
from tracelake.datasets.runs import EvaluationRun, ExampleResult, RunInfo, compare, mean_scores
from tracelake.formats import decode

COAT, SHOES, HAT = ids(0, 1), ids(1, 0), ids(2, 0)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake of conversations."""
    with a_lake(tmp_path) as lake:
        yield lake


@pytest.fixture
def refunds(lake: Lake) -> Dataset:
    """Return a dataset of three examples."""
    dataset = lake.datasets.create("refunds", message="a dataset")
    dataset.add(search="refund", message="three")
    return dataset


def exact(output: str, expected: str) -> bool:
    """Score whether the output is the expected one."""
    return output == expected


def test_each_example_is_run_and_scored(lake: Lake, refunds: Dataset) -> None:
    """A run has the outputs, scores and times of a dataset version, is stored by one commit, and is read again."""
    version = lake.branch("main").head
    refunds.add(spans=[f"{1:016x}"], traces=[f"{4:032x}"])  # staged only

    def answer(question: str) -> str:
        return "no refund" if "shoes" in question else "ask the shop"

    run = refunds.evaluate(
        answer,
        [exact, lambda output: {"length": len(output), "topic": "refund"}],
        name="first",
        metadata={"model": "m1"},
        committer="ada",
    )
    assert [(each.example_id, each.output, each.scores["exact"]) for each in run.results] == [
        (COAT, "ask the shop", False),
        (SHOES, "no refund", True),
        (HAT, "ask the shop", True),
    ]
    info = run.info
    assert (info.name, info.version, info.author, info.metadata) == ("first", version, "ada", {"model": "m1"})
    assert (info.examples, info.errors) == (3, 0)
    assert info.scores == {"exact": pytest.approx(2 / 3), "length": pytest.approx(11)}
    assert all(each.latency_ms > 0 for each in run.results)
    assert lake.log()[0].message == "dataset refunds: evaluation run first"
    assert refunds.states() == {ids(3, 0): "added"}
    assert refunds.runs() == [info]
    assert refunds.run(info.id) == refunds.run("first") == run
    assert lake.verify().findings == ()
    with pytest.raises(NotFoundError, match="dataset runs refunds"):
        refunds.run("second")


def test_errors_do_not_stop_other_examples(refunds: Dataset) -> None:
    """A failing function or scorer is recorded at its example, and the others have their scores."""

    def answer(input: str) -> Any:
        if "coat" in input:
            raise ValueError("no coat \ud800")
        return {"answer": input}

    def fails(text: str, metadata: dict[str, str], input: str) -> float:
        assert (text, metadata["service"]) != ("", "")
        return 1 / 0 if "hat" in input else math.nan if "coat" in input else 0.5

    run = refunds.evaluate(answer, {"fails": fails, "none": [].clear})
    coat, shoes, hat = run.results
    assert (coat.output, coat.error, coat.scores) == (None, "ValueError: no coat ?", {})
    assert (shoes.output, shoes.scores) == ('{"answer": "refund for shoes"}', {"fails": 0.5})
    assert (hat.scores, list(hat.scorer_errors)) == ({}, ["fails"])
    assert run.info.errors == 2
    assert refunds.run(run.info.id) == run


def test_examples_run_at_once(refunds: Dataset) -> None:
    """As many examples run at the same time as `concurrency` allows, also asynchronous functions."""
    barrier = Barrier(3)

    async def answer(input: str) -> str:
        await asyncio.sleep(0)
        return f"{input} {barrier.wait(HANG_S) < 3}"

    assert all(each.error is None for each in refunds.evaluate(answer, concurrency=3).results)


@pytest.mark.parametrize(
    ("function", "scorers", "options", "message"),
    [
        (len, [lambda output, mine, other: (output, mine, other)], {}, "has no value"),
        (lambda input, other: (input, other), (), {}, "has no value"),
        ("text", (), {}, "is not a function"),
        (len, [exact, exact], {}, "several scorers"),
        (len, (), {"concurrency": 0}, "concurrency must be"),
        (len, (), {"concurrency": limits.EVALUATION_CONCURRENCY_MAX + 1}, "concurrency must be"),
        (len, (), {"name": " "}, "name of a run"),
        (len, (), {"name": "x" * (limits.EVALUATION_NAME_MAX_CHARS + 1)}, "name of a run"),
    ],
)
def test_mistakes_are_found_before_the_first_call(
    lake: Lake, refunds: Dataset, function: Any, scorers: Any, options: dict[str, Any], message: str
) -> None:
    """Wrong parameters, names and limits are refused, and nothing is stored."""
    before = lake.branch("main").head
    with pytest.raises(UsageError, match=message):
        refunds.evaluate(function, scorers, **options)
    assert lake.branch("main").head == before


def test_a_run_is_stored_on_a_branch_that_accepts_it(lake: Lake, refunds: Dataset) -> None:
    """A protected branch is refused before the first call; a tagged version is evaluated, and another branch has the
    run."""
    lake.tag("v1")
    lake.create_branch("work")
    lake.branch("main").protect()
    calls: list[str] = []
    with pytest.raises(UsageError, match="is protected"):
        refunds.evaluate(calls.append)
    assert calls == []
    run = lake.datasets.get("refunds", "v1").evaluate(len, branch="work")
    assert lake.datasets.get("refunds", "work").runs() == [run.info]
    assert refunds.runs() == []
    empty = lake.datasets.create("empty", branch="work", message="empty")
    with pytest.raises(UsageError, match="no committed examples"):
        empty.evaluate(len)


def test_the_newest_runs_are_read_alone(refunds: Dataset) -> None:
    """A list of the newest runs reads no file of an older one."""
    infos = [refunds.evaluate(len, name=f"run {number}").info for number in range(4)]
    with mock.patch.object(runs, "decode", side_effect=decode) as decoded:
        assert refunds.runs(2) == infos[:1:-1]
    assert decoded.call_count == 2
    assert refunds.runs(0) == []
    assert refunds.runs() == refunds.runs(9) == infos[::-1]


def test_results_name_the_traces_of_the_function(refunds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an OpenTelemetry tracer, each example has another trace; without a tracer, none has a trace."""
    assert {each.trace_id for each in refunds.evaluate(len).results} == {None}
    provider = TracerProvider()
    monkeypatch.setattr(otel, "get_tracer", provider.get_tracer)
    traces: list[str] = []

    def answer(input: str) -> str:
        with provider.get_tracer("agent").start_as_current_span("agent") as span:
            traces.append(f"{span.get_span_context().trace_id:032x}")
        return input

    run = refunds.evaluate(answer)
    assert len({each.trace_id for each in run.results}) == 3
    assert {each.trace_id for each in run.results} == set(traces)


def test_results_name_the_traces_of_mlflow(refunds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """If MLflow made a trace during a call, the result has it."""
    made: list[str] = []
    last = SimpleNamespace(get_last_active_trace_id=lambda **_: made[-1] if made else None)
    monkeypatch.setitem(sys.modules, "mlflow", last)
    run = refunds.evaluate(lambda text: made.append(f"tr-{len(made):032x}{text[:0]}"), concurrency=1)
    assert [each.trace_id for each in run.results] == [f"{number:032x}" for number in range(3)]


def of(**scores: Any) -> ExampleResult:
    """Return a result with these scores; an error has no output."""
    error = scores.pop("error", None)
    return ExampleResult(example_id="", error=error, scores=scores)


@pytest.mark.parametrize(
    ("base", "run", "change", "worse"),
    [
        (of(a=1.0), of(a=0.5), "regression", ("a",)),
        (of(a=False), of(a=True), "improvement", ()),
        (of(a=1, b=0), of(a=0, b=1), "mixed", ("a",)),
        (of(a="good"), of(a="bad"), "same", ()),
        (of(a=1), of(error="lost"), "regression", ("error", "a")),
        (of(error="lost"), of(a=0), "improvement", ()),
        (of(error="lost"), of(error="other"), "same", ()),
        (of(a=1), of(a="good"), "same", ()),
        (None, of(a=1), "added", ()),
        (of(a=1), None, "removed", ()),
    ],
)
def test_examples_are_compared(
    base: ExampleResult | None, run: ExampleResult | None, change: str, worse: tuple[str, ...]
) -> None:
    """A lower or missing score and a new error are regressions; labels are neither better nor worse."""
    others = ExampleResult(example_id="z", scores={"a": 0, "b": 0})  # so that both runs have the scorers
    compared = next(
        each for each in compare(run_of(base, others), run_of(run, others)).examples if not each.example_id
    )
    assert (compared.change, compared.worse) == (change, worse)


def test_a_scorer_of_one_run_is_no_change() -> None:
    """A new scorer improves nothing, and a scorer that is no longer used makes nothing worse."""
    (compared,) = compare(run_of(of(a=1, b=1)), run_of(of(a=1, c=1))).examples
    assert compared.change == "same"


def run_of(*results: ExampleResult | None) -> EvaluationRun:
    """Return a run with these results."""
    info = RunInfo(
        id="", name="r", dataset="d", version="", created_at="", author="", examples=1, errors=0, scores={},
        metadata={}, latency_ms=0,
    )  # fmt: skip
    return EvaluationRun(info, tuple(each for each in results if each is not None))


def test_results_are_matched_by_example() -> None:
    """The order of results does not matter, and examples with more lower scores come first."""

    def result(identity: str, *scores: int) -> ExampleResult:
        return ExampleResult(example_id=identity, scores=dict(zip("abc", scores, strict=False)))

    base = run_of(result("x", 1, 1, 1), result("y", 0, 1, 1), result("z", 1, 0, 0))
    same = compare(base, run_of(*reversed(base.results)))
    assert same.counts == {"same": 3}
    worse = compare(base, run_of(result("z", 1, 0, 0), result("y", 0, 0, 0), result("x", 0, 1, 1)))
    assert [each.example_id for each in worse.examples] == ["y", "x", "z"]
    assert [each.worse for each in worse.examples] == [("b", "c"), ("a",), ()]


def test_regressions_come_first(refunds: Dataset) -> None:
    """The comparison of two runs lists new errors, then lower scores, then the others; a notebook shows it escaped."""
    base = refunds.evaluate(lambda text: text[:0] + "ask the shop", [exact], name="<b>")

    def worse(input: str) -> str:
        if "shoes" in input:
            raise RuntimeError("down")
        return "<i>"

    second = refunds.evaluate(worse, [exact], name="second")
    comparison = refunds.compare("<b>", "second")
    assert [(each.example_id, each.change) for each in comparison.examples] == [
        (SHOES, "regression"),
        (HAT, "regression"),
        (COAT, "same"),
    ]
    assert comparison.counts == {"regression": 2, "same": 1}
    assert comparison.to_dict()["examples"][0]["worse"] == ["error", "exact"]
    for shown in (base, second, comparison):
        html = shown._repr_html_()
        assert ("<table>" in html, "<b>" in html, "<i>" in html) == (True, False, False)


def test_results_are_stored_in_a_file_each(lake: Lake, refunds: Dataset) -> None:
    """Long outputs are cut, and each result is a file, read in order."""
    run = refunds.evaluate(lambda text: text[:1] * (limits.EVALUATION_TEXT_MAX_CHARS + 1))
    assert {len(each.output or "") for each in run.results} == {limits.EVALUATION_TEXT_MAX_CHARS}
    assert refunds.run(run.info.id) == run
    paths = [change.path for change in lake.diff(None, "main")]
    assert [path.rpartition("/")[2] for path in paths] == [".run", "000000", "000001", "000002"]


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**63, [1], object()])
def test_other_values_are_no_scores(value: Any) -> None:
    """A score is a finite number, a truth value or a label."""
    with pytest.raises(UsageError, match="a score is"):
        check_score(value)


def test_means_are_of_numbers_only() -> None:
    """The mean of a score counts the results that have it; a label has none."""
    assert mean_scores([of(a=1, b="x"), of(a=False, b="y"), of(c=2)]) == {"a": 0.5, "c": 2.0}


def test_results_of_erased_traces_are_left_out(refunds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the erasure of a trace, a run has no result of its example."""
    run = refunds.evaluate(len)
    masked = SimpleNamespace(trace_ids=frozenset({SHOES.partition("-")[0]}))
    monkeypatch.setattr("tracelake.erasure.store.ErasureStore.masked", lambda _: masked)
    assert [each.example_id for each in refunds.run(run.info.id).results] == [COAT, HAT]
    assert [each.id for each in refunds.select([COAT, SHOES])] == [COAT]
