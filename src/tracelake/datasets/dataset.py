"""Public API of a dataset: add spans, remove examples, read and export them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tracelake._errors import DatasetNotFoundError, NotFoundError, NothingToCommitError, UsageError
from tracelake._settings import find_committer
from tracelake.datasets import examples, files, model
from tracelake.datasets.evaluation import Scorers, check_run, evaluate_examples, make_info
from tracelake.datasets.examples import ExampleChange, Key, Selection, SpanReader
from tracelake.datasets.files import write
from tracelake.datasets.runs import (
    EvaluationRun,
    ExampleResult,
    RunComparison,
    RunInfo,
    compare,
    list_runs,
    new_run_id,
    read_run,
    store_run,
)
from tracelake.erasure.store import ErasureStore
from tracelake.limits import DATASET_ADD_DEFAULT, PAGE_ROWS_DEFAULT, QUOTED_MAX_CHARS
from tracelake.results import AddReport, CommitInfo, EntryChange, ExportReport, Row
from tracelake.storage import ObjectStore
from tracelake.storage.ports import printable
from tracelake.tables.builtin import TABLE_SPANS
from tracelake.tables.table import to_rows
from tracelake.tables.view import CommitView
from tracelake.versions.branch import Branch
from tracelake.versions.branch_store import MAIN
from tracelake.versions.model import TRANSACTION, FileAt, Reference
from tracelake.versions.repository import Repository

if TYPE_CHECKING:
    import polars as pl


class Dataset:
    """One dataset at a branch, a tag, a commit or a time. Each call reads it again.

    On a branch, changes are staged and become part of the branch's next commit. Elsewhere, the dataset is read-only.
    """

    def __init__(
        self,
        name: str,
        at: str,
        repository: Repository,
        objects: ObjectStore,
        view: Callable[[str], CommitView],
        spans: Callable[[], SpanReader],
        erasures: ErasureStore,
    ) -> None:
        self.name = name
        self.at = at
        self._repository = repository
        self._objects = objects
        self._view = view
        self._spans = spans
        self._erasures = erasures

    def __repr__(self) -> str:
        """Return the name and the version."""
        return f"Dataset({self.name!r}, at={self.at!r})"

    def _at(self, at: str) -> Dataset:
        """Return the dataset at another version."""
        return Dataset(
            self.name, at, self._repository, self._objects, self._view, self._spans, self._erasures
        )

    @property
    def description(self) -> str:
        """The description of the dataset."""
        (data,) = files.read_files(self._objects, [self._check()])
        return model.from_bytes(model.DatasetSpec, data, f"dataset {self.name}").description

    def _check(self) -> FileAt:
        """Return the specification file of the dataset, staged or committed. Raises DatasetNotFoundError if the dataset
        does not exist."""
        entry = self._find([model.spec_path(self.name)]).get(model.spec_path(self.name))
        if not isinstance(entry, FileAt):
            raise DatasetNotFoundError(
                f"no dataset {self.name!r} at {printable(self.at)}; `tracelake dataset create "
                f"{printable(self.name)}` creates it, "
                "and `tracelake dataset list` shows the existing ones."
            )
        return entry

    def add(
        self,
        *,
        traces: Sequence[str] = (),
        spans: Sequence[str] = (),
        where: str | None = None,
        search: str | None = None,
        limit: int = DATASET_ADD_DEFAULT,
        at: str | None = None,
        input: str | None = None,
        expected: str | None = None,
        metadata: Mapping[str, str] | None = None,
        replace: bool = False,
        message: str | None = None,
        committer: str | None = None,
        request_id: str | None = None,
    ) -> AddReport:
        """Make examples from spans: the span's input, and its output as the expected output. Each example references
        its span.

        A span always makes the same example, however often it is added. An existing example stays unchanged.

        Args:
            traces: ids of traces, or unique prefixes. From each trace, the spans in `spans` are taken; without `spans`,
                the first span, parents before children, that has input or output.
            spans: ids of spans.
            where: a DuckDB condition on table `spans`; the earliest spans that have input or output.
            search: a full-text query; the best hits, of those that meet `where` if it is given.
            limit: maximum number of spans, up to 10,000, and 1,000 for a search.
            at: the commit from which spans are taken; the branch's by default.
            input: content of one example, in place of the input of its span. The span, one of `traces` and `spans`, may
                still be uncommitted. Without a span, the example has no reference.
            expected: expected output of one example. If only one of both is given, the other is proposed from the
                span's messages.
            metadata: metadata of each example, in addition to the service, name and model of its span.
            replace: update existing examples with the current input and output of their span.
            message: commit everything that is staged on the branch, including these examples, with this message;
                by default they stay staged.
            committer: name of the committer.
            request_id: idempotency key of that commit; repeated calls with it return the same commit (see `Branch`).
        Raises:
            UsageError: `at` of the dataset is not a branch, it is protected, or nothing or too much is selected.
            LimitError: the metadata is too long.
            NotFoundError: a trace or span does not exist.
            QueryError: a condition or query that does not parse.
            ExpiredError: garbage collection repeatedly deleted examples before they were staged.
        """
        if input is not None or expected is not None:
            if where is not None or search is not None or len(traces) > 1 or len(spans) > 1:
                raise UsageError(
                    "input and expected belong to one example: name one trace and one span of it."
                )
            trace_id, span_id = next(iter(traces), None), next(iter(spans), None)
            if trace_id is None and span_id is not None:
                trace_id = Selection(spans=spans).keys(self._view(self._repository.resolve(self.at)))[0][0]
            example = self.propose(trace_id, span_id, input=input, expected=expected, metadata=metadata)
            return self.put(
                example, replace=replace, message=message, committer=committer, request_id=request_id
            )
        selection = Selection(traces, spans, where, search, limit)
        selection.check()
        notes = dict(metadata or {})
        model.check_notes("metadata", (text for pair in notes.items() for text in pair))
        self._check_writable()
        if (commit_id := self._committed(request_id)) is not None:
            return AddReport(self.name, self.at, added=0, replaced=0, known=0, empty=0, commit=commit_id)
        commit = self._repository.resolve(at or self.at)
        view, source = self._view(commit), self._source(commit)
        keys = selection.keys(view)
        paths = [model.example_path(self.name, model.example_id(*key)) for key in keys]
        existing = set(self._find(paths))
        self._repository.keep_staged(self.at, existing)
        wanted = [key for key, path in zip(keys, paths, strict=True) if replace or path not in existing]

        def make(some: Sequence[Key]) -> Iterator[files.Made]:
            for batch in examples.examples(view, source, some, notes):
                yield [(model.example_path(self.name, each.id), model.to_bytes(each)) for each in batch]

        entries = files.stage_files(self._repository, self._objects, self.at, wanted, make)
        replaced = len(existing & set(entries))
        return AddReport(
            dataset=self.name,
            branch=self.at,
            added=len(entries) - replaced,
            replaced=replaced,
            known=len(keys) - len(wanted),
            empty=len(wanted) - len(entries),
            commit=self._commit_staged(message, committer, request_id) if entries or request_id else None,
        )

    def propose(
        self,
        trace_id: str | None,
        span_id: str | None = None,
        *,
        workspace: str | None = None,
        kind: str | None = None,
        input: str | None = None,
        expected: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> model.Example:
        """Return an example that is not stored yet: the given content, otherwise content from the messages of a span.

        The span is the root of its trace unless its id is given, and may still be uncommitted. Its last assistant
        message is the expected output. Without a trace, the example has no reference. An empty text means no content.
        """
        model.check_notes("metadata", (text for pair in (metadata or {}).items() for text in pair))
        if trace_id is None:
            return model.Example(
                model.written_id(input, expected),
                input or None,
                expected or None,
                dict(metadata or {}),
                model.Provenance("", "", ""),
            )
        spans = self._spans()
        span = examples.read_span(spans, trace_id, span_id, workspace, kind)
        proposal = examples.propose(spans, span)
        return model.Example(
            id=examples.span_example_id(span),
            input=(proposal.input if input is None else input) or None,
            expected_output=(proposal.expected_output if expected is None else expected) or None,
            metadata=proposal.metadata | dict(metadata or {}),
            provenance=model.Provenance(span["trace_id"], span["span_id"], self._commit_with(span)),
        )

    def put(
        self,
        example: model.Example,
        *,
        replace: bool = False,
        message: str | None = None,
        alone: bool = False,
        committer: str | None = None,
        request_id: str | None = None,
    ) -> AddReport:
        """Store an example, such as an edited one of `propose`. An existing example stays unchanged unless `replace`.

        The arguments are those of `add`; with `alone`, the commit has no other staged changes. The report warns of
        another example with the same input and of a missing expected output. Raises as `add` does, and LimitError if
        the content is too long.
        """
        model.check_texts(example.input, example.expected_output)
        self._check_writable()
        path = model.example_path(self.name, example.id)
        if (commit_id := self._committed(request_id)) is not None:
            return AddReport(self.name, self.at, 0, 0, 0, 0, commit_id)
        exists = bool(self._find([path]))
        warnings = examples.remarks(self.examples(staged=True), example)
        if exists and not replace:
            return AddReport(self.name, self.at, 0, 0, 1, 0, None, warnings)
        commit_id = self._write({path: model.to_bytes(example)}, message, committer, request_id, alone=alone)
        return AddReport(self.name, self.at, int(not exists), int(exists), 0, 0, commit_id, warnings)

    def example(self, identity: str) -> model.Example:
        """Return one example, staged or committed. Raises NotFoundError if it does not exist."""
        path = model.example_path(self.name, identity)
        entry = self._find([path]).get(path)
        is_masked = model.trace_of(identity) in self._erasures.masked().trace_ids
        stored = [entry] if isinstance(entry, FileAt) and not is_masked else []
        data = next(files.read_files(self._objects, stored, self._erasures.is_file_erased), None)
        if data is None:
            raise self._no_example(identity)
        return model.from_bytes(model.Example, data, f"example {identity} of dataset {self.name}")

    def select(self, ids: Sequence[str]) -> list[model.Example]:
        """Return the examples with these ids, staged or committed; without those that do not exist."""
        masked = self._erasures.masked().trace_ids
        paths = [
            model.example_path(self.name, identity)
            for identity in ids
            if model.trace_of(identity) not in masked
        ]
        stored = [entry for entry in self._find(paths).values() if isinstance(entry, FileAt)]
        return [
            model.from_bytes(model.Example, data, f"an example of dataset {self.name}")
            for data in files.read_files(self._objects, stored, self._erasures.is_file_erased)
        ]

    def update(
        self,
        identity: str,
        *,
        input: str | None = None,
        expected: str | None = None,
        metadata: Mapping[str, str] | None = None,
        digest: str | None = None,
        message: str | None = None,
        alone: bool = False,
        committer: str | None = None,
        request_id: str | None = None,
    ) -> str | None:
        """Change the given fields of an example; older commits keep it as it was. Return the commit, or None if the
        change is staged.

        An empty text removes the input or the expected output, and `metadata` replaces all of it. If `digest` is given
        and is not that of the stored example, another client has changed it, and UsageError is raised. Raises
        NotFoundError if the example does not exist, and otherwise as `put` does.
        """
        self._check_writable()
        if (commit_id := self._committed(request_id)) is not None:
            return commit_id
        old = self.example(identity)
        if digest is not None and digest != model.example_digest(old):
            raise UsageError(f"example {identity} has changed in the meantime; open it again, then edit it.")
        new = msgspec.structs.replace(
            old,
            input=old.input if input is None else input or None,
            expected_output=old.expected_output if expected is None else expected or None,
            metadata=old.metadata if metadata is None else dict(metadata),
        )
        model.check_texts(new.input, new.expected_output)
        model.check_notes("metadata", (text for pair in new.metadata.items() for text in pair))
        contents = {model.example_path(self.name, identity): model.to_bytes(new)}
        return self._write(contents, message, committer, request_id, alone=alone)

    def diff(self, before: str, limit: int | None = None) -> list[ExampleChange]:
        """Return the examples that differ between version `before` and this one, in order of id. Staged changes do not
        count."""
        commits = (self._at(before)._commit() or "", self._commit() or "")
        changes = examples.diff(self._repository, self._objects, self._erasures, self.name, *commits)
        return list(islice(changes, limit))

    def versions(self, limit: int = PAGE_ROWS_DEFAULT) -> list[CommitInfo]:
        """Return the newest commits that changed the dataset, the newest first. Only recent history is searched."""
        head = self._commit()
        return examples.versions(self._repository, self.name, head, limit) if head else []

    def evaluate(
        self,
        function: Callable[..., Any],
        scorers: Scorers = (),
        *,
        name: str | None = None,
        concurrency: int = 8,
        metadata: Mapping[str, str] | None = None,
        branch: str | None = None,
        progress: bool = True,
        committer: str | None = None,
    ) -> EvaluationRun:
        """Run a function on each committed example, score the outputs, and store the run.

        An error of one example does not stop the others. If the function is traced by OpenTelemetry or MLflow, each
        result has its trace. Outputs that are no text are stored as JSON.

        Args:
            function: gets the input of an example. Parameters may be named `input`, `expected`, `metadata` and
                `example`. It may be asynchronous.
            scorers: functions of `output` and `expected`, or of these, `input`, `metadata` and `example` by name, which
                return a number, a truth value, a label, or a mapping from names to these. Larger numbers are
                better.
            name: name of the run; by default the function's name and the time.
            concurrency: examples that run at the same time, in threads.
            metadata: texts that describe the run, such as the model and the prompt.
            branch: the branch that stores the run; by default the dataset's, or `main` if it is not at a branch.
            progress: show a progress bar on a terminal or in a notebook.
            committer: name of the person or program that evaluates.
        Raises:
            UsageError: the dataset is empty, a parameter has no value, or the branch is protected.
        """
        self._check()
        target = branch or (self.at if self.on_branch else MAIN)
        self._repository.refuse_protected(target)
        version = self._commit() or ""
        pinned = list(self._at(version).examples()) if version else []
        run = evaluate_examples(
            self.name, version, pinned, function, scorers, name=name, author=find_committer(committer),
            metadata=dict(metadata or {}), concurrency=concurrency, progress=progress,
        )  # fmt: skip
        store_run(self._repository, self._objects, target, run, committer)
        return run

    def log_run(
        self,
        results: Sequence[ExampleResult],
        *,
        name: str,
        metadata: Mapping[str, str] | None = None,
        branch: str | None = None,
        committer: str | None = None,
    ) -> EvaluationRun:
        """Store results that another program computed as an evaluation run; the arguments are those of `evaluate`.

        Raises UsageError for a repeated result, or one of an example that this version does not have.
        """
        self._check()
        version, notes = self._commit() or "", dict(metadata or {})
        check_run(name, notes)
        ordered = sorted(results, key=lambda each: each.example_id)
        paths = [model.example_path(self.name, each.example_id) for each in ordered]
        entries = self._repository.find(version, paths) if version else {}
        for path, following in zip(paths, [*paths[1:], ""], strict=True):
            if path not in entries or path == following:
                identity = path.rpartition("/")[2][:QUOTED_MAX_CHARS]
                raise UsageError(
                    f"a run has one result for each example, and {identity!r} is repeated or not in this version."
                )
        author = find_committer(committer)
        info = make_info(new_run_id(uuid.uuid4().hex), name, self.name, version, author, ordered, notes)
        run = EvaluationRun(info, tuple(ordered))
        store_run(self._repository, self._objects, branch or MAIN, run, committer)
        return run

    def runs(self, limit: int | None = None) -> list[RunInfo]:
        """Return the evaluation runs of the dataset, the newest first; at most `limit`."""
        head = self._commit()
        return list_runs(self._repository, self._objects, self.name, head, limit) if head else []

    def run(self, name: str) -> EvaluationRun:
        """Return an evaluation run with its results, by id, or by name if the newest of that name is meant.

        Results of erased traces are left out.
        """
        is_erased = self._erasures.is_file_erased
        run = read_run(self._repository, self._objects, self.name, self._commit() or "", name, is_erased)
        masked = self._erasures.masked().trace_ids
        shown = (
            each for each in run.results if not masked & {model.trace_of(each.example_id), each.trace_id}
        )
        return EvaluationRun(run.info, tuple(shown))

    def compare(self, base: str, run: str) -> RunComparison:
        """Compare two evaluation runs by example, regressions first."""
        return compare(self.run(base), self.run(run))

    def remove(
        self,
        ids: Iterable[str],
        *,
        message: str | None = None,
        alone: bool = False,
        committer: str | None = None,
        request_id: str | None = None,
    ) -> str | None:
        """Remove examples. Return the commit, or None if the removal is staged.

        With `alone`, the commit has no other staged changes. Raises NotFoundError if no example has one of the ids, and
        UsageError as `add` does.
        """
        self._check_writable()
        if (commit_id := self._committed(request_id)) is not None:
            return commit_id
        paths = [model.example_path(self.name, identity) for identity in ids]
        there = {*self._find(paths), *self._staged_before(request_id)}
        for path in paths:
            if path not in there:
                raise self._no_example(path.rpartition("/")[2])
        if alone:
            return self._write(dict.fromkeys(paths), message, committer, request_id, alone=True)
        return self._change(dict.fromkeys(paths), message, committer, request_id)

    def _no_example(self, identity: str) -> NotFoundError:
        return NotFoundError(
            f"dataset {self.name} has no example {identity!r}; `tracelake dataset show {self.name}` lists them."
        )

    def staged(self) -> list[EntryChange]:
        """Return the staged changes of examples relative to the branch's newest commit, in order of id."""
        self._check_branch()
        start, stop = model.examples_of(self.name)
        return [
            change for change in Branch(self.at, self._repository).staged() if start <= change.path < stop
        ]

    @property
    def on_branch(self) -> bool:
        """Return whether the dataset is at a branch, so that examples can be staged."""
        return self.at in self._repository.branches()

    def states(self) -> dict[str, str]:
        """Return `added`, `changed` or `removed` for each staged example, by id; empty if not at a branch."""
        changes = self.staged() if self.on_branch else []
        return {change.path.rpartition("/")[2]: change.change for change in changes}

    def examples(self, *, staged: bool = False, after: str = "") -> Iterator[model.Example]:
        """Yield the examples in order of id, with few of them in memory.

        Args:
            staged: include staged changes; all ids are in memory then.
            after: begin after this id.
        """
        start, stop = model.examples_of(self.name)
        if after:
            start = model.example_path(self.name, f"{after} ")  # sorts directly after that id
        entries: Iterable[tuple[str, Reference]] = ()
        if staged:
            self._check_branch()
            entries = self._repository.uncommitted(self.at, start, stop).items()
        elif head := self._commit():
            entries = self._repository.scan(head, start, stop)
        masked = self._erasures.masked().trace_ids
        stored = (
            entry
            for path, entry in entries
            if isinstance(entry, FileAt) and model.trace_of(path.rpartition("/")[2]) not in masked
        )
        for data in files.read_files(self._objects, stored, self._erasures.is_file_erased):
            yield model.from_bytes(model.Example, data, f"an example of dataset {self.name}")

    def to_arrow(self) -> pa.Table:
        """Return the examples as an Arrow table with the columns of an export."""
        return pa.Table.from_batches(files.batches(self.examples()), files.SCHEMA)

    def to_polars(self) -> pl.DataFrame:
        """Return the examples as a Polars frame with the columns of an export."""
        import polars as pl  # noqa: PLC0415  a sixth of the start of a process that has no use for it

        frame = pl.from_arrow(self.to_arrow())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def export(self, path: str | os.PathLike[str], format: str | None = None) -> ExportReport:
        """Write the committed examples to a file, with few of them in memory. The complete file atomically replaces
        an old one.

        Args:
            path: path of the file.
            format: `jsonl` or `parquet`; by default the file's extension.

        Raises UsageError for another format, OSError if the file cannot be written, and DamageError if an example is
        damaged.
        """
        kind = files.format_of(path, format)
        commit = self._commit()
        pinned = self._at(commit or self.at)
        count = write(pinned.examples(), Path(path), kind)
        return ExportReport(self.name, commit, os.fspath(path), kind, count, Path(path).stat().st_size)

    def delete(
        self, *, message: str | None = None, committer: str | None = None, request_id: str | None = None
    ) -> str | None:
        """Delete the dataset and all of its examples. Return the commit, or None if the deletion is staged.

        Older commits still have the dataset.
        """
        self._check_branch()
        if (commit_id := self._committed(request_id)) is not None:
            return commit_id
        if model.spec_path(self.name) not in self._staged_before(request_id):
            self._check_writable()
        paths = [
            model.spec_path(self.name),
            *self._repository.uncommitted(self.at, *model.examples_of(self.name)),
        ]
        return self._change(dict.fromkeys(paths), message, committer, request_id)

    def _check_branch(self) -> None:
        if not self.on_branch:
            raise UsageError(
                f"{self.at!r} is not a branch, and examples can only be staged on a branch. Name one, or "
                f"create it: `tracelake branch create NAME {printable(self.at)}`."
            )

    def _check_writable(self) -> None:
        self._check_branch()
        self._repository.refuse_protected(self.at)
        self._check()

    def _commit(self) -> str | None:
        """Return the commit, or None for `main` of an empty lake."""
        branch = self._repository.branches().get(self.at)
        return self._repository.resolve(self.at) if branch is None else branch.head or None

    def _source(self, commit_id: str) -> str:
        """Return the commit of the transaction that added the newest spans of a commit.

        Branches with the same spans record the same source, so they make byte-identical examples, which merge without
        conflict.
        """
        repository = self._repository
        transaction = repository.transaction_of(commit_id)
        ancestor: str | None = commit_id
        ancestry = repository.ancestry()
        while ancestor is not None:
            commit = ancestry.commit(ancestor)
            if commit.metadata.get(TRANSACTION) == str(transaction):
                path = [TABLE_SPANS.entry]
                is_same = repository.find(ancestor, path) == repository.find(commit_id, path)
                return ancestor if is_same else commit_id
            parents = (each for each in commit.parents if repository.transaction_of(each) == transaction)
            ancestor = next(parents, None)
        return commit_id

    def _commit_with(self, span: Row) -> str:
        """Return the commit that an example of a span cites, or an empty text if the span is uncommitted."""
        head = self._commit()
        if head is None:
            return ""
        rows = self._view(head).table("spans").lookup([span["trace_id"]], examples.KEY)
        return self._source(head) if examples.key_of(span) in map(examples.key_of, to_rows(rows)) else ""

    def _write(
        self,
        contents: Mapping[str, bytes | None],
        message: str | None,
        committer: str | None,
        request_id: str | None,
        *,
        alone: bool,
    ) -> str | None:
        """Stage contents, or commit them: alone, or with everything that is staged."""
        if alone:
            committed = (
                self._repository.find(head, [model.spec_path(self.name)]) if (head := self._commit()) else {}
            )
            if not committed:
                raise UsageError(
                    f"dataset {self.name} is only staged on branch {self.at}; commit it first: `tracelake commit`."
                )
            title = message or f"dataset {self.name} changed"
            return files.commit_files(
                self._repository, self._objects, self.at, contents, title, committer, request_id
            )
        written = [(path, data) for path, data in contents.items() if data is not None]
        files.stage_files(self._repository, self._objects, self.at, written, lambda some: [some])
        return self._commit_staged(message, committer, request_id)

    def _find(self, paths: Sequence[str]) -> dict[str, Reference]:
        """Return the entries at these paths; on a branch, staged changes included."""
        if self.on_branch:
            return self._repository.find_uncommitted(self.at, paths)
        head = self._commit()
        return self._repository.find(head, paths) if head else {}

    def _committed(self, request_id: str | None) -> str | None:
        """Return the commit made by an earlier call with this request id, or None."""
        if not request_id:
            return None
        try:
            return self._repository.committed(request_id, self.at)
        except NothingToCommitError as nothing:
            return nothing.head

    def _staged_before(self, request_id: str | None) -> set[str]:
        """Return the paths that an earlier call with this request id may have staged: all staged ones."""
        return set(chain(*self._repository.staged_or_damaged(self.at))) if request_id else set()

    def _change(
        self,
        entries: Mapping[str, Reference | None],
        message: str | None,
        committer: str | None,
        request_id: str | None,
    ) -> str | None:
        self._repository.stage(entries, self.at)
        return self._commit_staged(message, committer, request_id) if entries else None

    def _commit_staged(
        self, message: str | None, committer: str | None, request_id: str | None
    ) -> str | None:
        if message is None:
            return None
        try:
            return Branch(self.at, self._repository).commit(
                message, committer=committer, request_id=request_id
            )
        except NothingToCommitError as nothing:  # another caller committed the staged changes
            return nothing.head


def create(
    dataset: Dataset,
    spec: model.DatasetSpec,
    message: str | None = None,
    committer: str | None = None,
    request_id: str | None = None,
    *,
    alone: bool = False,
) -> None:
    """Create a dataset: staged, or committed if there is a message. Raises UsageError if it already exists."""
    dataset._check_branch()
    dataset._repository.refuse_protected(dataset.at)
    model.check_notes("description", [spec.description])
    if dataset._committed(request_id) is not None:
        return
    path = model.spec_path(dataset.name)
    if dataset._find([path]) and path not in dataset._staged_before(request_id):
        raise UsageError(f"dataset {dataset.name} already exists on branch {dataset.at}; add to it.")
    written = [(path, model.to_bytes(spec))]
    if alone and message is not None:
        files.commit_files(
            dataset._repository, dataset._objects, dataset.at, dict(written), message, committer, request_id
        )
        return
    files.stage_files(dataset._repository, dataset._objects, dataset.at, written, lambda some: [some])
    dataset._commit_staged(message, committer, request_id)


def check(dataset: Dataset) -> None:
    """Raise DatasetNotFoundError if the dataset does not exist."""
    dataset._check()
