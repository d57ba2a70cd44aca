"""The evaluation datasets of a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from tracelake._errors import DamageError, DatasetNotFoundError, RefNotFoundError
from tracelake.context import LakeContext
from tracelake.datasets import model
from tracelake.datasets.dataset import Dataset, check, create
from tracelake.datasets.examples import SpanReader
from tracelake.results import DatasetInfo
from tracelake.versions.branch_store import MAIN
from tracelake.versions.tree import DATASETS, below


class Datasets:
    """Evaluation datasets of a lake: `lake.datasets`."""

    def __init__(self, opened: LakeContext, spans: Callable[[], SpanReader]) -> None:
        self._opened = opened
        self._spans = spans

    def __getitem__(self, name: str) -> Dataset:
        """Return the dataset of this name on `main`; see `get`."""
        return self.get(name)

    def get(self, name: str, at: str = MAIN) -> Dataset:
        """Return a dataset at a branch, tag, commit or time. Raises DatasetNotFoundError if no dataset has the name
        there, and RefNotFoundError if `at` names no commit."""
        dataset = self._dataset(name, at)
        check(dataset)
        return dataset

    def create(
        self,
        name: str,
        description: str = "",
        branch: str = MAIN,
        *,
        message: str | None = None,
        alone: bool = False,
        committer: str | None = None,
        request_id: str | None = None,
    ) -> Dataset:
        """Create an empty dataset on a branch. Without a message it is staged; with one, it is committed with all
        staged changes, or alone.

        A repeated call with the same `request_id` makes no second commit. Raises UsageError if the name is invalid or
        taken, or if the branch is protected or missing.
        """
        model.check_name(name)
        dataset = self._dataset(name, branch)
        create(dataset, model.DatasetSpec(name, description), message, committer, request_id, alone=alone)
        return dataset

    def propose(
        self,
        trace_id: str,
        span_id: str | None = None,
        branch: str = MAIN,
        *,
        workspace: str | None = None,
        kind: str | None = None,
    ) -> model.Example:
        """Return an example with content proposed from the messages of a span. It is in no dataset; see
        `Dataset.propose` and `Dataset.put`."""
        return self._dataset("", branch).propose(trace_id, span_id, workspace=workspace, kind=kind)

    def examples_of(self, name: str, at: str, ids: Sequence[str]) -> list[model.Example]:
        """Return these examples of a dataset, without those that do not exist there. If the reference or dataset does
        not exist any more, return none."""
        dataset = self._dataset(name, at)
        try:
            return dataset.select(ids)
        except RefNotFoundError:
            return []

    def delete(
        self,
        name: str,
        branch: str = MAIN,
        *,
        message: str | None = None,
        committer: str | None = None,
        request_id: str | None = None,
    ) -> str | None:
        """Delete a dataset and all of its examples. Return the commit, or None if the deletion is staged.

        A repeated call with the same `request_id` returns the same commit, although the dataset no longer exists.
        Raises DatasetNotFoundError, or UsageError if the branch is protected or missing.
        """
        return self._dataset(name, branch).delete(message=message, committer=committer, request_id=request_id)

    def all(self, at: str = MAIN) -> list[DatasetInfo]:
        """Return all datasets at a branch, including staged ones, or at a tag, commit or time."""
        record = self._opened.repository.branches().get(at)
        head = self._opened.repository.resolve(at) if record is None else record.head
        staged: dict[str, int] = {}
        for path in chain(*self._opened.repository.staged_or_damaged(at)) if record is not None else ():
            name = model.dataset_of(path)
            if name is not None:
                staged[name] = staged.get(name, 0) + (path != model.spec_path(name))
        names = {*self._names(head), *staged} if head else set(staged)
        return [
            DatasetInfo(
                name,
                self._description(name, at),
                self._opened.repository.count(head, *model.examples_of(name)) if head else 0,
                staged.get(name, 0),
            )
            for name in sorted(names)
        ]

    def _description(self, name: str, at: str) -> str:
        try:
            return self._dataset(name, at).description
        except (DatasetNotFoundError, DamageError):
            # Its deletion is staged, a merge kept examples of a deleted dataset, or its staged records are
            # damaged.
            return ""

    def _dataset(self, name: str, at: str) -> Dataset:
        opened = self._opened
        return Dataset(name, at, opened.repository, opened.objects, opened.view, self._spans, opened.erasures)

    def _names(self, head: str) -> Iterator[str]:
        """Yield the names of a commit's datasets. After each name, the scan skips the examples of that dataset."""
        start, stop = below(DATASETS)
        while (entry := next(self._opened.repository.scan(head, start, stop), None)) is not None:
            name = model.dataset_of(entry[0])
            assert name is not None, entry
            yield name
            start = model.examples_of(name)[1]
