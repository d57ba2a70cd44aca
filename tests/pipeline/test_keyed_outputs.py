"""Outputs that users add: each transaction with new spans arrives once, under any failure and from any writer."""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

import tracelake
from tests.lake.test_own_prices import call
from tests.pipeline.lost_replies import LosesReplies, Silent
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake, StorageError, UsageError, limits
from tracelake.pipeline import protocol
from tracelake.pipeline.outputs.builtin import CommitOutput
from tracelake.pipeline.outputs.configured import AddedOutputs
from tracelake.storage import open_objects
from tracelake.tasks.runners import InProcess

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "send-spans-elsewhere.md"


@pytest.fixture
def lake() -> Iterator[Lake]:
    """A new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory that the documentation's sink, module `my_sinks`, writes to."""
    (source,) = re.findall(r"```python\n(# my_sinks\.py\n.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    module = ModuleType("my_sinks")
    exec(compile(source, "my_sinks.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "my_sinks", module)
    monkeypatch.setenv("SPANS_FOLDER", str(tmp_path / "out"))
    return tmp_path / "out"


def ingest(lake: Lake, path: Path, *numbers: int) -> None:
    """Ingest a file with some spans."""
    path.write_bytes(a_line(*(a_span(number, number) for number in numbers)))
    lake.ingest(path, runner=InProcess())


def written(folder: Path) -> dict[int, list[int]]:
    """Return the numbers of an output's spans, by transaction."""
    found = {}
    for path in sorted(folder.glob("*/*.spans")):
        data, numbers = path.read_bytes(), []
        while data:
            size = int.from_bytes(data[:4])
            message = TracesData.FromString(data[4 : 4 + size])
            data = data[4 + size :]
            for resource in message.resource_spans:
                numbers += [
                    int.from_bytes(span.span_id) - 1 for scope in resource.scope_spans for span in scope.spans
                ]
        found[int(path.stem)] = sorted(numbers)
    return found


def test_the_sink_of_the_documentation_gets_each_transaction_once(
    lake: Lake, folder: Path, tmp_path: Path
) -> None:
    """Only input after the sink was added is sent, once; repeats are not new, and no batch is empty."""
    ingest(lake, tmp_path / "a.jsonl", 0)
    info = lake.outputs.add("files", "my_sinks:Files")
    ingest(lake, tmp_path / "b.jsonl", 1)  # another run might have begun it before the output existed
    assert info.since == 2
    ingest(lake, tmp_path / "c.jsonl", 2, 3)
    ingest(lake, tmp_path / "d.jsonl", 3)
    ingest(lake, tmp_path / "e.jsonl", 3, 4)
    assert written(folder) == {2: [2, 3], 4: [4]}
    lake.outputs.remove("files")
    ingest(lake, tmp_path / "f.jsonl", 5)
    assert written(folder) == {2: [2, 3], 4: [4]}
    assert lake.outputs.all() == []


def test_j7_a_run_that_dies_after_the_output_does_not_write_twice(
    lake: Lake, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run finds the marker and continues with the commit."""
    lake.outputs.add("files", "my_sinks:Files")
    ingest(lake, tmp_path / "a.jsonl", 0)

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(CommitOutput, "publish", die)
        with pytest.raises(RuntimeError, match="killed"):
            ingest(lake, tmp_path / "b.jsonl", 1)
    assert written(folder) == {1: [1]}
    (file,) = folder.glob("*/*.spans")
    before = file.stat().st_mtime_ns
    ingest(lake, tmp_path / "c.jsonl", 2)
    assert written(folder) == {1: [1], 2: [2]}
    assert file.stat().st_mtime_ns == before
    assert len(lake.branch("main").log()) == 3


def test_an_output_that_fails_holds_the_commit_back(
    lake: Lake, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction is committed that an output lacks; the error names the output, and work continues once it
    recovers."""
    lake.outputs.add("files", "my_sinks:Files")
    ingest(lake, tmp_path / "a.jsonl", 0)
    sink = sys.modules["my_sinks"].Files

    def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(sink, "write", fail)
        with pytest.raises(StorageError, match="output files, transaction 1: the disk is full"):
            ingest(lake, tmp_path / "b.jsonl", 1)
        assert len(lake.branch("main").log()) == 1
    ingest(lake, tmp_path / "c.jsonl", 2)
    assert written(folder) == {1: [1], 2: [2]}


def test_an_output_that_cannot_be_opened_is_refused(lake: Lake, folder: Path) -> None:
    """Names that cannot be imported and names in use are refused before anything is recorded."""
    del folder
    for to in ("nowhere:at_all", "my_sinks:Nothing", "kafka://no-port/topic", "plain"):
        with pytest.raises(UsageError):
            lake.outputs.add("a", to)
    assert lake.outputs.all() == []
    lake.outputs.add("a", "my_sinks:Files")
    with pytest.raises(UsageError, match="already exists"):
        lake.outputs.add("a", "my_sinks:Files")
    with pytest.raises(UsageError, match="no output 'b'"):
        lake.outputs.remove("b")


def test_what_is_written_follows_from_four_numbers() -> None:
    """Each transaction with rows is written once: if the system has no marker of it or of a later one."""
    for t, since, rows, marker in product(range(4), range(4), range(2), range(-1, 4)):
        wanted = since <= t and rows == 1 and marker < t
        assert protocol.is_to_be_written(t, since, rows, marker) == wanted
    assert protocol.begins_at(5) > 5, "somebody may be at 5 and not know of it"


def test_a_marker_is_asked_for_anew_after_a_failure(
    lake: Lake, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker is read again after a failure. Otherwise, an attempt that succeeded without a reply is repeated."""

    def check() -> None:
        lake.outputs.add(name := f"n{uuid.uuid4().hex}", "my_sinks:Files")
        ingest(lake, tmp_path / f"{name}-1.jsonl", int(uuid.uuid4().hex[:7], 16))
        sink = sys.modules["my_sinks"].Files
        write, wrote = sink.write, list[int]()

        def lose_the_reply(self: object, t: int, messages: Iterator[bytes]) -> None:
            wrote.append(t)
            write(self, t, messages)
            raise StorageError("no reply")

        with monkeypatch.context() as patch:
            patch.setattr(sink, "write", lose_the_reply)
            ingest(lake, tmp_path / f"{name}-2.jsonl", int(uuid.uuid4().hex[:7], 16))
        lake.outputs.remove(name)
        assert len(wrote) == 1

    check()
    assert folder.exists()


@pytest.mark.parametrize("name", ["", "ü", "~", "two words", "a/b", "n" * (limits.NAME_MAX_CHARS + 1)])
def test_an_output_that_no_pipeline_would_look_up_is_refused(lake: Lake, folder: Path, name: str) -> None:
    """An output name beyond the listing's bound is refused; such an output was once silently never written."""
    del folder
    with pytest.raises(UsageError, match="is not a valid name of an output"):
        lake.outputs.add(name, "my_sinks:Files")
    assert lake.outputs.all() == []


@pytest.mark.parametrize("to", ["json", "json:loads", "os:getcwd", "types:SimpleNamespace", "builtins:str"])
def test_what_makes_no_sink_is_refused_in_words(lake: Lake, to: str) -> None:
    """An importable object that is not a sink is refused as a user error."""
    with pytest.raises(UsageError, match="does not create a sink"):
        lake.outputs.add("files", to)
    assert lake.outputs.all() == []


def outputs_change_without_replies() -> None:
    """Add and remove an output in a store that loses every other reply."""
    for done in (False, True):
        outputs = AddedOutputs(LosesReplies(done=done), open_objects(f"memory://{uuid.uuid4().hex}"), 1)
        to = f"{Silent.__module__}:{Silent.__name__}"
        record = outputs.add("a", to, lambda: 3)
        assert outputs.records().readable == [record]
        assert record.since == protocol.begins_at(3)
        with pytest.raises(UsageError, match="already exists"):
            outputs.add("a", to, lambda: 3)
        outputs.remove("a")
        assert outputs.records().readable == []


def test_an_output_is_added_and_removed_whatever_the_store_did_not_answer() -> None:
    """Adding and removing report the truth after lost replies; they once reported success without a write (found by
    simulation)."""
    outputs_change_without_replies()


def check_corrected(folder: Path, path: Path) -> None:
    """Check that a correction of costs sends no spans, and that the next spans arrive."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as lake:
        lake.outputs.add("files", "my_sinks:Files")
        ingest(lake, path, 9)
        path.write_bytes(a_line(call(0), call(1, cost=7)))
        lake.ingest(path, runner=InProcess())
        lake.prices.set("mine*", input=0.5)
        assert lake.prices.apply().spans == 1
        ingest(lake, path, 5)
        assert written(folder) == {1: [0, 0], 3: [5]}


def test_a_correction_of_costs_sends_no_spans(folder: Path, tmp_path: Path) -> None:
    """Messages have no costs, so the spans would be sent twice."""
    check_corrected(folder, tmp_path / "a.jsonl")


def lines(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the changes of an output, by transaction."""
    changes: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*/*.spans")):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:4])
            changes.setdefault(int(path.stem), []).extend(
                json.loads(line) for line in data[4 : 4 + size].decode().splitlines()
            )
            data = data[4 + size :]
    return changes


def test_changes_of_no_table_are_refused(lake: Lake, folder: Path) -> None:
    """The error names the existing tables."""
    del folder
    with pytest.raises(UsageError, match="spans or traces"):
        lake.outputs.add("changes", "my_sinks:Files", "nothing")
    assert lake.outputs.all() == []
