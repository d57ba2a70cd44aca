"""Why the commits of a lake stay: names of branches, tags and datasets, and the rule by which history expires."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tracelake._settings import find_history
from tracelake.context import LakeContext
from tracelake.results import CommitInfo
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.model import FileAt, Retained, RetentionReason
from tracelake.versions.protocol import HistoryRule
from tracelake.versions.repository import Repository
from tracelake.versions.tree import DATASETS, below


def explain(opened: LakeContext, commits: Sequence[CommitInfo]) -> list[CommitInfo]:
    """Return commits with the reason why each does not expire, and until when that holds.

    Reads all newer commits, and the examples of all datasets.
    """
    collector = RepositoryCollector(
        opened.key_value, opened.singly(), lambda: commits_of_datasets(opened, {})
    )
    names, reasons = collector.explain([each.id for each in commits], HistoryRule(*find_history()))
    refs = defaultdict[str, list[str]](list)
    for name, record in opened.repository.branches().items():
        refs[record.head].append(f"head of {name}")
    for name, commit_id in opened.repository.tags().items():
        refs[commit_id].append(f"tag {name}")
    for commit_id in names.pinned:
        refs[commit_id].append("named by a dataset")
    return [_explained(each, reasons.get(each.id), refs[each.id]) for each in commits]


def commits_of_datasets(opened: LakeContext, sources: dict[str, str]) -> set[str]:
    """Return the commits that datasets name on any branch or tag.

    `sources` has the commit that each example names, by the checksum of the example. Each other example is read, and
    added.
    """
    repository = Repository(opened.key_value, opened.singly())
    names = {record.head for record in repository.branches().values()} | set(repository.tags().values())
    files = {
        (path, reference)
        for commit in names - {""}
        for path, reference in repository.entries(commit, *below(DATASETS)).items()
        if isinstance(reference, FileAt)
    }
    if not files:
        return set()
    from tracelake.datasets.files import source_commits  # noqa: PLC0415  most lakes have no datasets, and it is slow
    from tracelake.datasets.model import is_spec  # noqa: PLC0415

    examples = {file for path, file in files if not is_spec(path)}
    sources |= source_commits(opened.singly(), [file for file in examples if file.sha256 not in sources])
    return {sources[file.sha256] for file in examples} - {""}


def _explained(commit: CommitInfo, retained: Retained | None, refs: Sequence[str]) -> CommitInfo:
    if retained is None:
        return commit
    has_names = retained.reason is RetentionReason.NAMED and refs
    reason = ", ".join(refs) if has_names else str(retained.reason)
    return replace(commit, retained_because=reason, retained_until=retained.until)
