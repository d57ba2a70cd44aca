"""Differences between versions of a dataset, and remarks on an example before it is added.

A version of a dataset is a commit. Only examples whose files differ are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from tracelake.datasets.files import read_files
from tracelake.datasets.model import Example, example_id, examples_of, from_bytes, spec_path, trace_of
from tracelake.erasure.store import ErasureStore
from tracelake.limits import EXAMPLES_COMPARED_MAX
from tracelake.results import CommitInfo, Row, is_server_side
from tracelake.storage import ObjectStore
from tracelake.versions.model import FileAt, Reference
from tracelake.versions.repository import Repository

_COMMITS_SEARCHED: Final = 200
"""Commits in which the versions of a dataset are searched."""


@dataclass(frozen=True, slots=True)
class ExampleChange:
    """An example that differs between two versions of a dataset; None where it does not exist."""

    id: str
    before: Example | None
    after: Example | None

    @property
    def change(self) -> str:
        """Kind of the change: `added`, `removed` or `changed`."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the changed fields of a changed example."""
        if self.before is None or self.after is None:
            return ()
        names = ("input", "expected_output", "metadata")
        return tuple(name for name in names if getattr(self.before, name) != getattr(self.after, name))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with `change`."""
        return {
            "id": self.id,
            "change": self.change,
            "fields": list(self.fields),
            "before": self.before and self.before.to_row(),
            "after": self.after and self.after.to_row(),
        }


def diff(
    repository: Repository,
    objects: ObjectStore,
    erasures: ErasureStore,
    name: str,
    before: str,
    after: str,
) -> Iterator[ExampleChange]:
    """Yield the examples of a dataset that differ between two commits, in order of id, without erased ones. An empty
    commit has none."""
    start, stop = examples_of(name)
    masked = erasures.masked().trace_ids

    def read(file: Reference | None) -> Example | None:
        files = [file] if isinstance(file, FileAt) else []
        data = next(read_files(objects, files, erasures.is_file_erased), None)
        return None if data is None else from_bytes(Example, data, f"an example of dataset {name}")

    for change in repository.diff(before, after):
        if change.path >= stop:
            return
        if change.path < start:
            continue
        identity = change.path.rpartition("/")[2]
        if trace_of(identity) in masked:
            continue
        sides = read(change.before), read(change.after)
        if sides != (None, None):
            yield ExampleChange(identity, *sides)


def versions(repository: Repository, name: str, head: str, limit: int) -> list[CommitInfo]:
    """Return the newest commits that changed a dataset, the newest first, of the last commits before `head`."""
    start, stop = spec_path(name), examples_of(name)[1]
    commits: list[CommitInfo] = []
    for commit_id, commit in islice(repository.log(head), _COMMITS_SEARCHED):
        parent = commit.parents[0] if commit.parents else ""
        paths = (change.path for change in repository.diff(parent, commit_id))
        if any(start <= path < stop for path in _up_to(paths, stop)):
            commits.append(
                CommitInfo(
                    commit_id,
                    commit.parents,
                    commit.message,
                    commit.committer,
                    commit.created_at,
                    commit.metadata,
                )
            )
        if len(commits) == limit:
            break
    return commits


def _up_to(paths: Iterable[str], stop: str) -> Iterator[str]:
    for path in paths:
        if path >= stop:
            return
        yield path


def span_example_id(span: Row) -> str:
    """Return the id of the example of a span."""
    return example_id(span["trace_id"], span["span_id"], span["workspace"], is_server_side(span))


def remarks(examples: Iterable[Example], example: Example) -> tuple[str, ...]:
    """Return warnings about an example that is to be added to others: no expected output, or the same input."""
    warnings = []
    if not (example.expected_output or "").strip():
        warnings.append("It has no expected output, so that scorers have nothing to compare with.")
    if not (example.input or "").strip():
        warnings.append("It has no input.")
    wanted = " ".join((example.input or "").split())
    same = (
        other.id
        for other in islice(examples, EXAMPLES_COMPARED_MAX)
        if wanted and other.id != example.id and " ".join((other.input or "").split()) == wanted
    )
    if (identity := next(same, None)) is not None:
        warnings.append(f"Example {identity} has the same input.")
    return tuple(warnings)
