"""Datasets: content of examples, staging and commits, and reproducible versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tracelake
from tests.datasets.conversations import a_lake, ids, ingest, talk
from tracelake import (
    DamageError,
    Dataset,
    DatasetInfo,
    DatasetNotFoundError,
    Lake,
    NotFoundError,
    QueryError,
    RefNotFoundError,
    UsageError,
)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake of conversations."""
    with a_lake(tmp_path) as lake:
        yield lake


@pytest.fixture
def refunds(lake: Lake) -> Dataset:
    """Return an empty dataset, committed."""
    return lake.datasets.create("refunds", "questions about refunds", message="a dataset", committer="ada")


def inputs(dataset: Dataset, *, staged: bool = False) -> list[str | None]:
    """Return the inputs of the examples, in order."""
    return [example.input for example in dataset.examples(staged=staged)]


def test_an_example_is_what_its_span_was_asked_and_said(lake: Lake, refunds: Dataset) -> None:
    """An example has input, output, attributes of its span, the caller's notes, and trace, span and commit."""
    seen = lake.log()[1].id  # the transaction; the newest commit has made the dataset
    report = refunds.add(traces=[f"{2:032x}"], metadata={"kind": "shoes"}, message="one", committer="ada")
    assert (report.added, report.known, report.empty, report.replaced) == (1, 0, 0, 0)
    (example,) = refunds.examples()
    assert (example.id, example.input, example.expected_output) == (
        ids(1, 0),
        "refund for shoes",
        "no refund",
    )
    assert example.metadata == {"service": "shop", "name": "work", "kind": "shoes"}
    where = example.provenance
    assert (where.trace_id, where.span_id, where.commit) == (f"{2:032x}", f"{1:016x}", seen)
    (span,) = lake.table("spans", at=where.commit).to_arrow(where=f"span_id = '{where.span_id}' and "
        f"trace_id = '{where.trace_id}'").to_pylist()  # fmt: skip
    assert (span["input"], span["output"]) == (example.input, example.expected_output)
    assert [(c.message, c.committer) for c in lake.log(limit=2)] == [("one", "ada"), ("a dataset", "ada")]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"search": "refund"}, ["refund for a coat", "refund for shoes", "refund for a hat"]),
        ({"search": "refund", "where": "input like '%coat%'"}, ["refund for a coat"]),
        ({"where": "true", "limit": 2}, ["refund for a coat", "refund for shoes"]),
        (
            {"where": "name = 'work' -- all", "limit": 3},
            ["refund for a coat", "refund for shoes", "refund for a hat"],
        ),
        ({"traces": [f"{1:032x}", f"{4:032x}"]}, ["refund for a coat", "weather"]),
        ({"traces": [f"{1:032x}", f"{4:032x}"], "spans": [f"{1:016x}"]}, ["weather"]),
        ({"traces": [f"{1:032x}"], "spans": [f"{2:016x}"]}, ["refund for a coat"]),
        ({"spans": [f"{2:016x}"]}, ["refund for a coat"]),
        ({"where": "false"}, []),
    ],
)
def test_spans_are_added_by_search_condition_and_ids(
    refunds: Dataset, selection: dict[str, Any], expected: list[str]
) -> None:
    """Search, condition and ids find at most `limit` spans; a trace gives the named spans or the first with text."""
    assert refunds.add(**selection).added == len(expected)
    assert inputs(refunds, staged=True) == expected


def test_a_span_makes_one_example(lake: Lake, refunds: Dataset, tmp_path: Path) -> None:
    """A span added again keeps its example, staged or committed, even if the span changed, unless it is replaced."""
    refunds.add(search="hat")
    assert refunds.add(search="hat").known == 1
    lake.branch("main").commit("a hat")
    first = next(refunds.examples())
    ingest(lake, tmp_path, talk(2, 0, "refund for a hat", "no", start=4, end=99))
    assert refunds.add(search="hat", message="again").known == 1
    assert next(refunds.examples()) == first
    report = refunds.add(search="hat", replace=True)
    assert (report.added, report.replaced, report.known) == (0, 1, 0)
    assert refunds.states() == {ids(2, 0): "changed"}
    lake.branch("main").commit("another answer")
    assert next(refunds.examples()).expected_output == "no"
    assert next(lake.datasets.get("refunds", at="main~2").examples()) == first


def test_staged_examples_wait_for_the_commit(lake: Lake, refunds: Dataset) -> None:
    """Staged examples are visible on request and in no commit; a commit takes all, and a discard removes all."""
    refunds.add(search="coat")
    assert (inputs(refunds), inputs(refunds, staged=True)) == ([], ["refund for a coat"])
    assert refunds.states() == {ids(0, 1): "added"}
    assert lake.datasets.all() == [DatasetInfo("refunds", "questions about refunds", 0, 1)]
    lake.branch("main").commit("a coat")
    assert (inputs(refunds), refunds.states()) == (["refund for a coat"], {})
    refunds.remove([ids(0, 1)])
    assert (inputs(refunds), inputs(refunds, staged=True)) == (["refund for a coat"], [])
    assert refunds.states() == {ids(0, 1): "removed"}
    lake.branch("main").discard()
    assert inputs(refunds, staged=True) == ["refund for a coat"]


def test_a_message_commits_all_that_is_staged(lake: Lake, refunds: Dataset) -> None:
    """A message commits all staged examples, of other datasets, too; without staged examples there is no commit."""
    other = lake.datasets.create("other")
    refunds.add(search="coat")
    report = other.add(search="hat", message="a hat")
    assert report.commit == lake.branch("main").head
    assert (inputs(other), inputs(refunds), refunds.states()) == (
        ["refund for a hat"],
        ["refund for a coat"],
        {},
    )
    assert [info.name for info in lake.datasets.all(at=report.commit or "")] == ["other", "refunds"]
    other.remove([ids(2, 0)], message="no hat")
    assert inputs(other) == []
    assert other.add(search="nothing", message="none").commit is None


def test_every_version_can_be_exported_again(lake: Lake, refunds: Dataset, tmp_path: Path) -> None:
    """An export at a tag or commit is the same bytes at any later time; Parquet has the same rows."""
    refunds.add(search="refund", message="three")
    lake.tag("v1")
    first = refunds.export(tmp_path / "1.jsonl")
    assert (first.examples, first.format, first.commit) == (3, "jsonl", lake.branch("main").head)
    assert first.bytes == (tmp_path / "1.jsonl").stat().st_size
    refunds.remove([ids(0, 1)], message="two")
    refunds.add(search="weather", message="three again")
    for at in ("v1", first.commit or "", "main~2"):
        assert lake.datasets.get("refunds", at).export(tmp_path / "again.jsonl").examples == 3
        assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "1.jsonl").read_text("utf-8").splitlines()]
    assert [line["id"] for line in lines] == [ids(0, 1), ids(1, 0), ids(2, 0)]
    assert set(lines[0]) == {"id", "input", "expected_output", "metadata", "trace_id", "span_id", "commit"}
    lake.datasets.get("refunds", "v1").export(tmp_path / "1.parquet")
    rows = pq.read_table(tmp_path / "1.parquet").to_pylist(maps_as_pydicts="strict")
    assert rows == lines
    assert lake.datasets.get("refunds", "v1").to_arrow().to_pylist(maps_as_pydicts="strict") == lines
    assert lake.datasets.get("refunds", "v1").to_polars()["input"].to_list() == [
        line["input"] for line in lines
    ]
    lake.datasets.get("refunds", "v1").export(tmp_path / "no-ending", format="jsonl")
    assert (tmp_path / "no-ending").read_bytes() == (tmp_path / "1.jsonl").read_bytes()


def test_an_export_is_of_the_commit_that_it_names(
    refunds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export does not contain examples committed after it began."""
    refunds.add(search="refund", message="three")
    whole = Dataset.examples

    def after_a_commit(of: Dataset) -> object:
        monkeypatch.setattr(Dataset, "examples", whole)
        refunds.remove([ids(0, 1)], message="two")
        return whole(of)

    monkeypatch.setattr(Dataset, "examples", after_a_commit)
    report = refunds.export(tmp_path / "1.jsonl")
    assert report.examples == len((tmp_path / "1.jsonl").read_text("utf-8").splitlines()) == 3
    assert len(list(refunds.examples())) == 2


def test_an_export_that_fails_leaves_the_old_file(refunds: Dataset, tmp_path: Path) -> None:
    """If an export fails on a damaged file, the error names it, and the old export stays whole without leftovers."""
    refunds.add(search="refund", message="three")
    target = tmp_path / "out" / "x.jsonl"
    target.parent.mkdir()
    refunds.export(target)
    before = target.read_bytes()
    damaged = next(
        path for path in (tmp_path / "lake" / "files").glob("*/*") if b"shoes" in path.read_bytes()
    )
    damaged.write_bytes(damaged.read_bytes().replace(b"shoes", b"socks"))
    with pytest.raises(DamageError, match=damaged.name):
        refunds.export(target)
    damaged.unlink()
    with pytest.raises(DamageError, match="is missing"):
        list(refunds.examples())
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["x.jsonl"]


def test_datasets_are_listed_past_their_examples(lake: Lake, refunds: Dataset) -> None:
    """Names that are prefixes of one another are distinguished; datasets staged or staged for deletion are listed."""
    refunds.add(search="refund", message="three")
    for name in ("a", "refunds-2", "refunds.b", "refunds2", "Z"):
        lake.datasets.create(name, message="made")
    lake.datasets.create("staged", "soon")
    named = {info.name: (info.examples, info.staged) for info in lake.datasets.all()}
    assert list(named) == ["Z", "a", "refunds", "refunds-2", "refunds.b", "refunds2", "staged"]
    assert named["refunds"] == (3, 0)
    assert {count for name, count in named.items() if name != "refunds"} == {(0, 0)}
    refunds.delete()
    assert lake.datasets.all()[2] == DatasetInfo("refunds", "", 3, 3)
    lake.branch("main").commit("without refunds")
    assert "refunds" not in [info.name for info in lake.datasets.all()]
    assert [info.examples for info in lake.datasets.all(at="main~1") if info.name == "refunds"] == [3]
    with pytest.raises(DatasetNotFoundError, match="dataset create refunds"):
        lake.datasets.get("refunds")


def test_datasets_on_branches_merge(lake: Lake, refunds: Dataset) -> None:
    """After two branches add to one dataset, a merge has both additions, and the difference shows it."""
    work = lake.create_branch("work")
    lake.datasets.get("refunds", at="work").add(search="coat", message="a coat")
    refunds.add(search="hat", message="a hat")
    assert inputs(lake.datasets.get("refunds", at="work")) == ["refund for a coat"]
    assert [(c.path, c.change) for c in work.diff("main")] == [
        (f"datasets/refunds/{ids(0, 1)}", "added"),
        (f"datasets/refunds/{ids(2, 0)}", "removed"),
    ]
    lake.merge("work")
    assert inputs(refunds) == ["refund for a coat", "refund for a hat"]


@pytest.mark.usefixtures("refunds")
def test_spans_of_another_commit_can_be_taken(lake: Lake, tmp_path: Path) -> None:
    """`at` selects the commit of the spans, so a branch that is older than they are can add them."""
    lake.create_branch("early")
    ingest(lake, tmp_path, talk(7, 0, "refund for gloves", "yes"))
    early = lake.datasets.get("refunds", at="early")
    assert early.add(search="gloves").added == 0
    assert early.add(search="gloves", at="main", message="gloves").added == 1
    assert next(early.examples()).provenance.commit == lake.branch("main").head


def test_hundreds_of_examples(lake: Lake, refunds: Dataset, tmp_path: Path) -> None:
    """Hundreds of examples are added at once, their traces read in groups, and examples are listed from any id on."""
    ingest(
        lake, tmp_path, *(talk(100 + n, 0, f"question {n}", "yes", start=n + 10, end=999) for n in range(700))
    )
    assert refunds.add(where="starts_with(input, 'question')", message="many").added == 700
    found = inputs(refunds)
    assert found == [f"question {n}" for n in range(700)]
    after = ids(100 + 649, 0)
    assert [example.input for example in refunds.examples(after=after)] == found[650:]
    assert [example.input for example in refunds.examples(after=after, staged=True)] == found[650:]
    assert lake.datasets.all()[0].examples == 700
    assert len(lake.diff("main~1")) == 700
    assert len(lake.diff("main~1", limit=10)) == 10


def test_what_cannot_be_is_refused_and_changes_nothing(lake: Lake, refunds: Dataset, tmp_path: Path) -> None:
    """Wrong names, selections, ids and locations are refused with the reason, and change nothing."""
    head = lake.branch("main").head
    for name in ("", "a/b", "../x", ".hidden", "x" * 64, "nul\0", "é"):
        with pytest.raises(UsageError, match="cannot be the name"):
            lake.datasets.create(name)
    with pytest.raises(UsageError, match="already"):
        lake.datasets.create("refunds")
    with pytest.raises(UsageError, match="choose the spans"):
        refunds.add()
    with pytest.raises(UsageError, match="choose the spans"):
        refunds.add(where="true", traces=["a" * 32])
    with pytest.raises(UsageError, match="limit must be"):
        refunds.add(where="true", limit=10_001)
    with pytest.raises(UsageError, match="limit must be"):
        refunds.add(search="refund", limit=1_001)
    with pytest.raises(UsageError, match="ids can be added"):
        refunds.add(traces=["a" * 32] * 10_001)
    with pytest.raises(NotFoundError, match="no trace"):
        refunds.add(traces=["f" * 32])
    with pytest.raises(NotFoundError, match="has no span"):
        refunds.add(traces=[f"{1:032x}"], spans=["f" * 16])
    with pytest.raises(NotFoundError, match="o'x"):
        refunds.add(spans=["o'x"])
    with pytest.raises(QueryError):
        refunds.add(where="no such column")
    with pytest.raises(NotFoundError, match="no example 'x'"):
        refunds.remove(["x"])
    with pytest.raises(UsageError, match="choose a format"):
        refunds.export(tmp_path / "x.csv")
    with pytest.raises(RefNotFoundError):
        lake.datasets.get("refunds", at="nowhere")
    lake.tag("v1")
    with pytest.raises(UsageError, match="is not a branch"):
        lake.datasets.get("refunds", at="v1").add(search="coat")
    with pytest.raises(UsageError, match="is not a branch"):
        lake.datasets.create("other", branch="v1")
    assert lake.branch("main").staged() == []
    assert lake.branch("main").head == head


def test_a_protected_branch_takes_no_examples(lake: Lake, refunds: Dataset) -> None:
    """On a protected branch, examples can be neither staged nor committed, only merged."""
    lake.create_branch("work")
    lake.branch("main").protect()
    for message in (None, "now"):
        with pytest.raises(UsageError, match="protected"):
            refunds.add(search="coat", message=message)
        with pytest.raises(UsageError, match="protected"):
            lake.datasets.create("other", message=message)
    lake.datasets.get("refunds", at="work").add(search="coat", message="a coat")
    lake.merge("work")
    assert inputs(refunds) == ["refund for a coat"]


def test_a_lake_without_commits(tmp_path: Path) -> None:
    """A dataset can be made in a lake without commits; adding spans is then an error that says so."""
    with tracelake.init(tmp_path / "empty") as empty:
        assert empty.datasets.all() == []
        made = empty.datasets.create("first")
        assert (list(made.examples()), list(made.examples(staged=True))) == ([], [])
        with pytest.raises(RefNotFoundError, match="the lake is empty"):
            made.add(where="true")
        empty.branch("main").commit("a dataset")
        assert [info.name for info in empty.datasets.all()] == ["first"]
        assert made.export(tmp_path / "x.parquet").examples == 0


def test_verify_names_examples_that_are_gone_or_altered(lake: Lake, refunds: Dataset, tmp_path: Path) -> None:
    """`verify` reads the examples of every branch and tag, also in older commits, and reports each damage once."""
    lake.create_branch("work")
    lake.datasets.get("refunds", at="work").add(search="coat", message="a coat")
    refunds.add(search="shoes", message="shoes")
    lake.tag("v1")
    refunds.remove([ids(1, 0)], message="no shoes")
    report = lake.verify()
    assert (report.files, report.findings) == (3, ())
    files = {path.read_bytes(): path for path in (tmp_path / "lake" / "files").glob("*/*")}
    for data, path in files.items():
        if b"coat" in data:
            path.unlink()
        elif b"shoes" in data:
            path.write_bytes(data + b" ")
    found = {(f.kind, f.what, Path(f.path).name): f.detail for f in lake.verify().findings}
    assert len(found) == 2
    for (kind, what, name), detail in found.items():
        assert what == "file"
        assert (any(path.name == name for path in files.values()), kind) in {
            (True, "missing"),
            (True, "damaged"),
        }
        assert detail.startswith("datasets/refunds/")


def test_garbage_collection_leaves_staged_examples(lake: Lake, refunds: Dataset, tmp_path: Path) -> None:
    """Garbage collection keeps staged and committed examples, and deletes discarded ones."""
    refunds.add(search="coat", message="a coat")
    refunds.remove([ids(0, 1)], message="no coat")
    refunds.add(search="weather")
    lake.branch("main").discard()
    refunds.add(search="hat")
    for _ in range(4):
        lake.maintenance.gc(epoch_min_s=0)
    lake.branch("main").commit("a hat")
    assert inputs(refunds) == ["refund for a hat"]
    assert inputs(lake.datasets.get("refunds", at="main~2")) == ["refund for a coat"]
    texts = [path.read_text("utf-8") for path in (tmp_path / "lake" / "files").glob("*/*")]
    assert not [text for text in texts if "weather" in text]
    assert lake.verify().findings == ()


def test_several_add_and_commit_at_once(lake: Lake, refunds: Dataset, tmp_path: Path) -> None:
    """With concurrent adds and commits, no example is lost, and no client gets an error for an empty commit."""
    lake.datasets.create("other", message="another")

    def add(number: int) -> list[str | None]:
        with tracelake.open(tmp_path / "lake") as own:
            dataset = own.datasets.get("refunds" if number % 2 else "other")
            word = ("coat", "shoes", "hat", "weather")[number // 2]
            report = dataset.add(search=word, message=f"{number}")
            assert report.added == 1
            return [
                example.input for example in own.datasets.get(dataset.name, report.commit or "").examples()
            ]

    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(add, range(8)))
    assert all(seen)
    for dataset in (refunds, lake.datasets.get("other")):
        assert len(inputs(dataset)) == 4
    assert lake.branch("main").staged() == []


def test_the_same_example_added_on_two_branches_merges(lake: Lake, refunds: Dataset) -> None:
    """The same example on two branches, with different commits on top of the same spans, merges without conflict."""
    for name in ("one", "two"):
        lake.create_branch(name)
        lake.branch(name).commit(f"on {name}", allow_empty=True)
        branch = lake.datasets.get("refunds", at=name)
        assert branch.add(search="coat", message="a coat").added == 1
    lake.merge("one")
    lake.merge("two")
    assert len(inputs(refunds)) == 1
    refunds.add(search="hat", metadata={"by": "main"}, message="a hat")
    lake.datasets.get("refunds", at="two").add(search="hat", metadata={"by": "two"}, message="a hat")
    with pytest.raises(tracelake.ConflictError):
        lake.merge("two")
