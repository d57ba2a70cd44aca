"""Examples with given content: proposals from messages, edits, removals, and differences between versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.datasets.conversations import a_lake, ids, ingest, talk
from tests.server.walls import spans
from tracelake import Dataset, Lake, LimitError, NotFoundError, UsageError, limits
from tracelake.datasets.examples import remarks
from tracelake.datasets.model import Example, Provenance, example_digest
from tracelake.tasks.runners import InProcess

ANSWER = "You get **40 EUR** back."


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake of conversations."""
    with a_lake(tmp_path) as lake:
        yield lake


@pytest.fixture
def refunds(lake: Lake) -> Dataset:
    """Return an empty dataset, committed."""
    return lake.datasets.create("refunds", message="a dataset")


def test_given_content_replaces_that_of_the_span(lake: Lake, refunds: Dataset) -> None:
    """The expected output is the given one, the input that of the span; the span and its commit are cited."""
    transaction = lake.log()[1].id
    report = refunds.add(
        traces=[f"{2:032x}"], expected=ANSWER, metadata={"kind": "shoes"}, message="one", committer="ada"
    )
    assert (report.added, report.warnings) == (1, ())
    (example,) = lake.datasets["refunds"].examples()
    assert (example.id, example.input, example.expected_output) == (ids(1, 0), "refund for shoes", ANSWER)
    assert example.metadata == {"service": "shop", "name": "work", "kind": "shoes"}
    assert example.provenance == Provenance(f"{2:032x}", f"{1:016x}", transaction)
    assert refunds.add(spans=[f"{2:016x}"], input="a coat?", message="two").added == 1
    assert refunds.example(ids(0, 1)).expected_output == "within 30 days"


def test_an_existing_example_stays_unless_it_is_replaced(refunds: Dataset) -> None:
    """Adding the span again changes nothing; with `replace`, its example has the new content."""
    refunds.add(traces=[f"{2:032x}"], expected="first", message="one")
    assert refunds.add(traces=[f"{2:032x}"], expected="second", message="two").known == 1
    assert refunds.example(ids(1, 0)).expected_output == "first"
    assert refunds.add(traces=[f"{2:032x}"], expected="second", replace=True, message="two").replaced == 1
    assert refunds.example(ids(1, 0)).expected_output == "second"


def test_an_example_needs_no_span(refunds: Dataset) -> None:
    """The same input makes the same example, and an export has no trace for it."""
    assert refunds.add(input="Where is my hat?", expected="In the post.", message="one").added == 1
    assert refunds.add(input="Where is my hat?", expected="Lost.", message="two").known == 1
    (row,) = refunds.to_arrow().to_pylist()
    assert (row["input"], row["trace_id"], row["span_id"], row["commit"]) == (
        "Where is my hat?",
        None,
        None,
        None,
    )


def test_a_span_that_is_not_committed_is_an_example_too(tmp_path: Path) -> None:
    """Its example has the content and no commit; added again after the commit, it cites the commit."""
    with tracelake.init(tmp_path / "lake") as lake:
        trace_id = "ab" * 16
        lake.hot.set_up().write([spans("default", trace_id, 1, 2)])
        dataset = lake.datasets.create("hot", message="made")
        assert dataset.add(traces=[trace_id], expected="right", message="added").added == 1
        (example,) = dataset.examples()
        assert (example.provenance.trace_id, example.provenance.commit) == (trace_id, "")
        assert (example.input, example.expected_output) != (None, None)
        with closing(lake.pipeline(runner=InProcess())) as pipeline:
            commit = pipeline.run_once().commit  # type: ignore[union-attr]
        dataset.add(traces=[trace_id], expected="right", replace=True, message="again")
        assert next(dataset.examples()).provenance.commit == commit


def test_content_comes_from_messages(lake: Lake, refunds: Dataset, tmp_path: Path) -> None:
    """A conversation becomes JSON with its history; an agent without output has the answer of its last model call."""
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "A refund?"},
        {"role": "assistant", "content": "For what?"},
        {"role": "user", "content": "For a hat."},
    ]
    kind = {"key": "openinference.span.kind", "value": {"stringValue": "LLM"}}
    first, last = (
        talk(8, place, json.dumps({"messages": history}), json.dumps([{"role": "assistant", "content": answer}]),
             parentSpanId=f"{1:016x}", start=4 + place, end=5 + place)
        for place, answer in ((1, "Wait."), (2, ANSWER))
    )  # fmt: skip
    for span in (first, last):
        span["attributes"].append(kind)
    ingest(lake, tmp_path, talk(8, 0, "For a hat.", None, start=3, end=20), first, last)
    of_root = refunds.propose(f"{9:032x}")
    assert (of_root.input, of_root.expected_output) == ("For a hat.", ANSWER)
    of_call = refunds.propose(f"{9:032x}", f"{2:016x}")
    assert json.loads(of_call.input or "") == history
    assert of_call.expected_output == "Wait."


def test_an_edit_is_a_new_version(lake: Lake, refunds: Dataset) -> None:
    """An edit changes the given fields only, older versions keep the example, and the dataset lists both."""
    refunds.add(spans=[f"{2:016x}"], expected="no", metadata={"kind": "coat"}, message="added")
    before = lake.log()[0].id
    refunds.update(ids(0, 1), expected=ANSWER, message="edited")
    assert refunds.example(ids(0, 1)).expected_output == ANSWER
    assert refunds.example(ids(0, 1)).metadata["kind"] == "coat"
    assert lake.datasets.get("refunds", before).example(ids(0, 1)).expected_output == "no"
    refunds.update(ids(0, 1), expected="", metadata={}, message="emptied")
    assert refunds.example(ids(0, 1)).expected_output is None
    assert refunds.example(ids(0, 1)).metadata == {}
    assert [each.message for each in refunds.versions()] == ["emptied", "edited", "added", "a dataset"]


def test_an_edit_of_an_old_version_is_refused(refunds: Dataset) -> None:
    """With the digest of an example that has changed since, an edit fails and changes nothing."""
    refunds.add(spans=[f"{2:016x}"], expected="no", message="added")
    read = refunds.example(ids(0, 1))
    refunds.update(ids(0, 1), expected="first", digest=example_digest(read), message="first")
    with pytest.raises(UsageError, match="changed in the meantime"):
        refunds.update(ids(0, 1), expected="second", digest=example_digest(read), message="second")
    assert refunds.example(ids(0, 1)).expected_output == "first"


def test_a_change_alone_leaves_other_changes_staged(lake: Lake, refunds: Dataset) -> None:
    """With `alone`, the commit has this example only. A staged change of the same example blocks it."""
    refunds.add(search="hat")
    refunds.put(refunds.propose(f"{2:032x}"), message="one", alone=True)
    assert [example.id for example in refunds.examples()] == [ids(1, 0)]
    assert refunds.states() == {ids(2, 0): "added"}
    refunds.remove([ids(1, 0)], message="none", alone=True)
    assert (list(refunds.examples()), refunds.states()) == ([], {ids(2, 0): "added"})
    with pytest.raises(UsageError, match="has a staged change"):
        refunds.update(ids(2, 0), expected="x", message="edited", alone=True)
    lake.branch("main").protect()
    with pytest.raises(UsageError, match="is protected"):
        refunds.put(refunds.propose(f"{4:032x}"), message="late", alone=True)


def test_versions_are_compared_by_example(lake: Lake, refunds: Dataset) -> None:
    """The difference of two versions names added, removed and changed examples with the changed fields."""
    refunds.add(search="refund", message="three")
    refunds.update(ids(0, 1), expected=ANSWER, message="edited")
    refunds.remove([ids(1, 0)], message="removed")
    refunds.add(traces=[f"{4:032x}"], message="weather")
    changes = refunds.diff("main~3")
    assert [(each.id, each.change, each.fields) for each in changes] == [
        (ids(0, 1), "changed", ("expected_output",)),
        (ids(1, 0), "removed", ()),
        (ids(3, 0), "added", ()),
    ]
    assert changes[0].before is not None
    assert changes[0].after is not None
    assert (changes[0].before.expected_output, changes[0].after.expected_output) == ("within 30 days", ANSWER)
    assert [each.change for each in lake.datasets.get("refunds", "main~3").diff("main")] == [
        "changed", "added", "removed",
    ]  # fmt: skip
    assert len(refunds.diff("main~3", limit=1)) == 1
    assert refunds.diff("main") == []


def test_remarks_name_duplicates_and_missing_content() -> None:
    """White space does not hide the same input; an example is no duplicate of itself."""

    def example(identity: str, given: str | None, expected: str | None = "x") -> Example:
        return Example(identity, given, expected, {}, Provenance("", "", ""))

    others = [example("1", "Where is  my\nhat?"), example("2", None), example("3", "coat")]
    assert remarks(others, example("9", "Where is my hat?")) == ("Example 1 has the same input.",)
    assert remarks(others, example("1", "Where is my hat?")) == ()
    assert remarks(others, example("9", None, " "))[0].startswith("It has no expected output")
    assert len(remarks(others, example("9", "", None))) == 2


def test_bad_content_is_refused(refunds: Dataset) -> None:
    """Too long or no content, two spans, unknown spans, and unknown examples are refused with the reason."""
    long = "x" * (limits.EXAMPLE_TEXT_MAX_CHARS - 1)
    assert refunds.add(input=long, expected="y").added == 1
    with pytest.raises(LimitError, match="EXAMPLE_TEXT_MAX_CHARS"):
        refunds.add(input=long, expected="yy")
    with pytest.raises(UsageError, match="needs an input"):
        refunds.add(input="", expected="")
    with pytest.raises(UsageError, match="text"):
        refunds.add(input="\ud800", expected="y")
    with pytest.raises(UsageError, match="one example"):
        refunds.add(search="hat", expected="y")
    with pytest.raises(NotFoundError):
        refunds.add(traces=["f" * 32], expected="y")
    with pytest.raises(NotFoundError, match="has no span"):
        refunds.add(traces=[f"{1:032x}"], spans=["f" * 16], expected="y")
    with pytest.raises(NotFoundError, match="dataset show"):
        refunds.update("nothing", expected="y")
