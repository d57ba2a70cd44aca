"""The entries of a commit: sorted ranges in a metarange, or changes on top of an ancestor; and walks through history.

A commit that one sweep builds together with later commits is rarely read, so it contains only its changes. A sweep of
many commits thus writes one small object for each, and few metaranges and ranges. Readers of such a commit go back to
the nearest one with a metarange, and compute the ranges from there.

A path is the last of its range if the hash of the path has a certain form. The boundaries therefore depend only on the
paths, not on the order of the changes: the same entries always have the same ranges. A change rewrites only the ranges
that it touches, and similar commits share most ranges. Splitting, changing and comparing ranges is pure: the caller
passes a function that reads ranges.

`ContentStore` keeps the immutable records in the object store, under the id of their content, which each read checks.

Two commits can have several best common ancestors after criss-cross merges. Using only one of them is wrong: a change
that it has and the others lack, and that one side reverted, would look like no change. The ancestors are therefore
merged with one another first, using their own common ancestors as base, and so on recursively. If that merge has a
conflict in an entry, the base of the entry is unclear, and the outer merge has a conflict if its sides differ. Only
entries that the outer merge needs are merged, and no commit is made.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from tracelake._errors import DamageError, NotFoundError
from tracelake.limits import MERGE_ANCESTORS_MAX
from tracelake.storage import ObjectStore, copy_all, create_all, for_each, read_in_parallel
from tracelake.versions import model
from tracelake.versions.model import AFTER, TRANSACTION, Commit
from tracelake.versions.protocol import UNCLEAR, Base, Theirs, agreed

_COMMIT_RECORDS_CACHED: Final = 1_024
"""Commits, metaranges and ranges that a process caches."""
COMMITS_WITHOUT_METARANGE_MAX: Final = 15
"""Consecutive commits, built together, that store only their changes; a reader goes back as far."""
RANGE_ENTRIES_MEAN: Final = 256
"""Mean entries of a range; it ends after a path whose hash marks a boundary."""
RANGE_ENTRIES_MAX: Final = 8 * RANGE_ENTRIES_MEAN
"""Entries of a range without such a path; one in three thousand is so long."""
CHANGES_INLINE_MAX: Final = 32
"""Changes stored inline."""

PathEntry = tuple[str, model.Reference]
RangeReader = Callable[[str], model.Range]


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry that differs between two commits; None for a commit that does not have it."""

    path: str
    before: model.Reference | None
    after: model.Reference | None


def is_last(path: str) -> bool:
    """Return whether a range ends after this path."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % RANGE_ENTRIES_MEAN == 0


def split(entries: Iterable[PathEntry], inside: Container[str] = ()) -> Iterator[tuple[PathEntry, ...]]:
    """Split entries in order of path into runs. The last run may end after a path that is no boundary.

    No range ends after the paths in `inside`, which saves hashing them again.
    """
    run: list[PathEntry] = []
    for entry in entries:
        run.append(entry)
        if len(run) == RANGE_ENTRIES_MAX or (entry[0] not in inside and is_last(entry[0])):
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)


def changed(
    ranges: Sequence[model.RangeRef], changes: model.PathChanges, read: RangeReader, epoch: int
) -> tuple[tuple[model.RangeRef, ...], list[model.Range]]:
    """Apply changes to sorted ranges; return all resulting ranges, and those that are new.

    Reads the ranges that contain a changed path, and following ranges as far as their boundaries move.
    """
    result: list[model.RangeRef] = []
    new: list[model.Range] = []
    lasts = [ref.last for ref in ranges]
    at = 0
    touched = groupby(changes, key=lambda change: min(bisect_left(lasts, change[0]), max(len(lasts) - 1, 0)))
    todo = [(index, dict(group)) for index, group in touched]
    while todo:
        index, wanted = todo.pop(0)
        result.extend(ranges[at:index])
        old = list(ranges[index : index + 1])
        at = index + len(old)
        entries = _applied(_entries(old, read), wanted)
        # A run without a natural boundary continues in the next range.
        while at < len(ranges) and entries and not is_last(entries[-1][0]):
            more = todo.pop(0)[1] if todo and todo[0][0] == at else {}
            old.append(ranges[at])
            entries += _applied(_entries(ranges[at : at + 1], read), more)
            at += 1
        old_ranges = {(ref.first, ref.last, ref.entries): ref for ref in old}
        inside = {path for ref in old for path, _ in read(ref.id).entries[:-1]}
        for run in split(entries, inside):
            same = old_ranges.get((run[0][0], run[-1][0], len(run)))
            if same is not None and read(same.id).entries == run:
                result.append(same)
                continue
            new.append(new_range := model.Range(run, epoch))
            result.append(reference(new_range))
    result.extend(ranges[at:])
    return tuple(result), new


def reference(new_range: model.Range) -> model.RangeRef:
    """Return a metarange's reference to a range."""
    entries = new_range.entries
    return model.RangeRef(
        model.content_id(model.to_bytes(new_range)), entries[0][0], entries[-1][0], len(entries)
    )


def _entries(refs: Iterable[model.RangeRef], read: RangeReader) -> list[PathEntry]:
    return [entry for ref in refs for entry in read(ref.id).entries]


def _applied(entries: list[PathEntry], wanted: Mapping[str, model.Reference | None]) -> list[PathEntry]:
    if not wanted:
        return entries
    merged = {**dict(entries), **wanted}
    return [(path, value) for path in sorted(merged) if (value := merged[path]) is not None]


def scan(
    ranges: Sequence[model.RangeRef], read: RangeReader, start: str = "", stop: str | None = None
) -> Iterator[PathEntry]:
    """Yield the entries with start <= path < stop in order; reads only ranges that may contain one."""
    for ref in ranges:
        if ref.last < start or (stop is not None and ref.first >= stop):
            continue
        for path, value in read(ref.id).entries:
            if path >= start and (stop is None or path < stop):
                yield path, value


def below(folder: str) -> tuple[str, str]:
    """Return start and stop of the paths in a folder at any depth, not those that only share its name's beginning."""
    return f"{folder}/", f"{folder}0"  # `0` is the character after the slash.


def count(ranges: Sequence[model.RangeRef], read: RangeReader, start: str, stop: str) -> int:
    """Return the number of entries with start <= path < stop; reads only the ranges at both ends."""
    inside = [ref for ref in ranges if start <= ref.first and ref.last < stop]
    inner_ids = {ref.id for ref in inside}
    edges = [ref for ref in ranges if ref.id not in inner_ids]
    return sum(ref.entries for ref in inside) + sum(1 for _ in scan(edges, read, start, stop))


def find(
    ranges: Sequence[model.RangeRef], paths: Sequence[str], read: RangeReader
) -> dict[str, model.Reference]:
    """Return the references at the paths, which are in order; paths without one are omitted."""
    lasts = [ref.last for ref in ranges]
    references: dict[str, model.Reference] = {}
    for index, group in groupby(paths, key=lambda path: bisect_left(lasts, path)):
        if index < len(ranges):
            entries = dict(read(ranges[index].id).entries)
            references.update({path: entries[path] for path in group if path in entries})
    return references


def differences(
    before: Sequence[model.RangeRef], after: Sequence[model.RangeRef], read: RangeReader
) -> Iterator[Difference]:
    """Yield the entries that differ between two commits' ranges, in order of path. Ranges that both have are not read.

    Skipping a common range is safe: it contains all entries of its paths on both sides, so entries outside never differ
    from those in it.
    """
    common = {ref.id for ref in before} & {ref.id for ref in after}
    sides = [
        ((path, value) for ref in refs if ref.id not in common for path, value in read(ref.id).entries)
        for refs in (before, after)
    ]
    for path, was, now in _side_by_side(*sides):
        if was != now:
            yield Difference(path, was, now)


def _side_by_side(
    our_entries: Iterator[PathEntry], their_entries: Iterator[PathEntry]
) -> Iterator[tuple[str, model.Reference | None, model.Reference | None]]:
    mine, theirs = next(our_entries, None), next(their_entries, None)
    while mine is not None or theirs is not None:
        if theirs is None or (mine is not None and mine[0] < theirs[0]):
            assert mine is not None
            yield mine[0], mine[1], None
            mine = next(our_entries, None)
        elif mine is None or theirs[0] < mine[0]:
            yield theirs[0], None, theirs[1]
            theirs = next(their_entries, None)
        else:
            yield mine[0], mine[1], theirs[1]
            mine, theirs = next(our_entries, None), next(their_entries, None)


def latest(changes: Iterable[tuple[str, model.Reference | None]]) -> model.PathChanges:
    """Return changes in order of path; the last change of a path wins."""
    return tuple(sorted(dict(changes).items(), key=itemgetter(0)))


VERSIONS: Final = "versions/"
_KINDS: Final[Mapping[type, str]] = {
    model.Commit: "commits",
    model.Metarange: "metaranges",
    model.Range: "ranges",
    model.ChangeSet: "changes",
}
Content = model.Commit | model.Metarange | model.Range | model.ChangeSet
ContentT = TypeVar("ContentT", bound=Content)


def folder_of(kind: type[ContentT]) -> str:
    """Return the folder of a kind of record, in which each is `<id>.json`."""
    return f"{VERSIONS}{_KINDS[kind]}/"


def path_of(kind: type[ContentT], record_id: str) -> str:
    """Return the path of a record's object."""
    return f"{folder_of(kind)}{record_id}.json"


COMMITS: Final = folder_of(model.Commit)
FILES: Final = "files/"
"""Folder of files, each `<epoch>/<SHA-256 of its bytes>`."""
DATASETS: Final = "datasets"
"""First part of the paths of entries of datasets."""


def file_path(file: model.FileAt) -> str:
    """Return the path of a file."""
    return f"{FILES}{file.epoch:06d}/{file.sha256}"


def file_epoch(path: str) -> int | None:
    """Return the epoch of the file at a path; None if it is not a file."""
    epoch = path.removeprefix(FILES).partition("/")[0]
    return int(epoch) if epoch.isdecimal() else None


class ContentStore:
    """Content-addressed store of records, safe for threads. Caches the most recently used records."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[type, str], Content] = OrderedDict()

    def read(self, kind: type[ContentT], record_id: str) -> ContentT:
        """Return a record. Raises DamageError if it is missing or altered."""
        with self._lock:
            cached = self._cache.get((kind, record_id))
            if isinstance(cached, kind):
                self._cache.move_to_end((kind, record_id))
                return cached
        path = path_of(kind, record_id)
        try:
            data = self._objects.get(path)
        except NotFoundError as error:
            raise DamageError(f"{path} is missing; restore it from a backup.") from error
        if model.content_id(data) != record_id:
            raise DamageError(f"{path} is damaged: its checksum does not match. Restore it from a backup.")
        record = model.from_bytes(kind, data, path)
        self._remember(record_id, record)
        return record

    def read_each(
        self, kind: type[ContentT], ids: Collection[str]
    ) -> Iterator[tuple[str, ContentT | DamageError]]:
        """Yield ids with their records or errors. Reads run in parallel batches, so few records are in memory."""
        return read_in_parallel(self._objects, partial(self._try, kind), ids)

    def _try(self, kind: type[ContentT], record_id: str) -> ContentT | DamageError:
        try:
            return self.read(kind, record_id)
        except DamageError as error:
            return error

    def write(self, records: Mapping[str, Content]) -> None:
        """Write records under their ids; they are durable on return. Existing records are not written again."""
        create_all(
            self._objects,
            {
                path_of(type(content), made_id): model.to_bytes(content)
                for made_id, content in records.items()
            },
        )
        for record_id, record in records.items():
            self._remember(record_id, record)

    def renew(self, files: Iterable[model.FileAt], epoch: int) -> dict[str, model.FileAt]:
        """Copy files into a later epoch; return the copies by old path. Missing files are left out."""
        newer = {file_path(file): replace(file, epoch=epoch) for file in files}
        there = copy_all(self._objects, {path: file_path(file) for path, file in newer.items()})
        return {path: newer[path] for path in there}

    def present(self, files: Iterable[model.FileAt]) -> set[str]:
        """Return the paths of the files that exist."""
        paths = sorted({file_path(file) for file in files})
        infos = for_each(self._objects, self._objects.head, paths)
        return {info.path for info in infos if info is not None}

    def find(self, beginning: str, at_most: int) -> list[str]:
        """Return at most `at_most` ids of commits with this prefix."""
        ids = []
        for info in self._objects.list(COMMITS + beginning):
            ids.append(info.path.removeprefix(COMMITS).removesuffix(".json"))
            if len(ids) == at_most:
                break
        return ids

    def has_commits(self) -> bool:
        """Return whether any commit exists."""
        return bool(self.find("", at_most=1))

    def _remember(self, record_id: str, record: Content) -> None:
        with self._lock:
            self._cache[type(record), record_id] = record
            while len(self._cache) > _COMMIT_RECORDS_CACHED:
                self._cache.popitem(last=False)


def id_of(record: Content) -> str:
    """Return the id of a record."""
    return model.content_id(model.to_bytes(record))


class ReadContent(Protocol):
    """Function that returns a record by kind and id."""

    def __call__(self, kind: type[ContentT], record_id: str, /) -> ContentT:
        """Return the record. Raises DamageError if it is missing or altered."""


@dataclass(frozen=True, slots=True)
class CommitTree:
    """All entries of a commit."""

    refs: tuple[model.RangeRef, ...] = ()
    """Ranges of the nearest commit with a metarange: the commit itself or an ancestor."""
    since: Mapping[str, model.Reference | None] = field(default_factory=dict)
    """Changes by path of the commits after that one."""
    commits: int = 0
    """Number of those commits."""

    def then(self, changes: model.PathChanges) -> CommitTree:
        """Return the tree of a commit that makes these changes and has no metarange."""
        return CommitTree(self.refs, {**self.since, **dict(changes)}, self.commits + 1)

    def needs_metarange(self, changes: model.PathChanges) -> bool:
        """Return whether a commit with these changes needs a metarange, because reading it would take too long."""
        return self.commits + 1 > COMMITS_WITHOUT_METARANGE_MAX or len(changes) > CHANGES_INLINE_MAX


class Tree:
    """Reads the entries of commits; keeps the ranges that it computed."""

    def __init__(self, read: ReadContent) -> None:
        """Read records with this function."""
        self._read = read
        self._new_ranges: dict[str, model.Range] = {}

    def view(self, commit_id: str) -> CommitTree:
        """Return the tree of a commit; an empty tree without a commit."""
        changes: list[model.PathChanges] = []
        at = commit_id
        while at:
            commit = self._read(model.Commit, at)
            if commit.changes is None:
                refs = self._read(model.Metarange, commit.metarange).ranges
                break
            changes.append(commit.changes)
            at = commit.parents[0] if commit.parents else ""
        else:
            refs = ()
        since = dict(change for step in reversed(changes) for change in step)
        return CommitTree(refs, since, len(changes))

    def ranges(self, commit_id: str) -> tuple[model.RangeRef, ...]:
        """Return references to the ranges of all entries of a commit. `range` reads them."""
        view = self.view(commit_id)
        if not view.since:
            return view.refs
        refs, new = self.changed(view, (), self._read(model.Commit, commit_id).epoch)
        self._new_ranges.update({id_of(new_range): new_range for new_range in new})
        return refs

    def changed(
        self, view: CommitTree, changes: model.PathChanges, epoch: int
    ) -> tuple[tuple[model.RangeRef, ...], list[model.Range]]:
        """Return the ranges of a tree after changes, and those of them that must be written with a metarange."""
        return changed(view.refs, latest((*view.since.items(), *changes)), self.range, epoch)

    def find(self, view: CommitTree, paths: Sequence[str]) -> dict[str, model.Reference]:
        """Return the references at the paths, which are in order; paths without one are omitted."""
        references = find(view.refs, [path for path in paths if path not in view.since], self.range)
        return references | {
            path: reference for path in paths if (reference := view.since.get(path)) is not None
        }

    def range(self, range_id: str) -> model.Range:
        """Return a range."""
        return self._new_ranges.get(range_id) or self._read(model.Range, range_id)


ReadCommit = Callable[[str], Commit]
_LEFT: Final = 1
_RIGHT: Final = 2
_BEHIND: Final = 4
"""Bit flags of a commit: reached from the left side, from the right side, or from a common ancestor."""


def log(commit_id: str, read: ReadCommit) -> Iterator[tuple[str, Commit]]:
    """Yield (id, commit) from this commit back to the first along first parents, which are the branch's history."""
    following: str | None = commit_id or None
    while following is not None:
        commit = read(following)
        yield following, commit
        following = commit.parents[0] if commit.parents else None


def newest_transaction(commit_id: str, read: ReadCommit) -> int:
    """Return the newest transaction that a commit contains; -1 if it contains none, or if there is no commit."""
    if not commit_id:
        return -1
    metadata = read(commit_id).metadata
    return int(metadata.get(TRANSACTION, metadata.get(AFTER, "-1")))


def commit_of(transaction: int, head: str, read: ReadCommit) -> str:
    """Return the commit of a transaction, searching back from the commit `head`. Raises DamageError if the history has
    no such commit."""
    for commit_id, commit in log(head, read):
        if commit.metadata.get(TRANSACTION) == str(transaction):
            return commit_id
    raise DamageError(f"no commit of transaction {transaction} in the history of {head[:12]}.")


def merge_bases(ours: Collection[str], theirs: Collection[str], read: ReadCommit) -> tuple[str, ...]:
    """Return the best common ancestors of two sides: common ancestors that no other common ancestor descends from.

    Each side is everything that its commits reach. After criss-cross merges there are several. The order depends only
    on the commits.

    The walk goes back from both sides in order of decreasing generation, so it meets a commit after all its
    descendants. A common ancestor that was not reached through another is a best one; its ancestors are not. When
    only those remain, the walk ends.
    """
    reached: dict[str, int] = {}
    queue: list[tuple[int, str]] = []
    open_ones: set[str] = set()
    best: list[str] = []

    def reach(commit_id: str, marks: int) -> None:
        if commit_id not in reached:
            heapq.heappush(queue, (-read(commit_id).generation, commit_id))
        reached[commit_id] = now = reached.get(commit_id, 0) | marks
        (open_ones.discard if now & _BEHIND else open_ones.add)(commit_id)

    for commit_id in filter(None, ours):
        reach(commit_id, _LEFT)
    for commit_id in filter(None, theirs):
        reach(commit_id, _RIGHT)
    while open_ones:
        _, commit_id = heapq.heappop(queue)
        open_ones.discard(commit_id)
        marks = reached[commit_id]
        if marks == _LEFT | _RIGHT:
            best.append(commit_id)
            marks |= _BEHIND
        for parent in read(commit_id).parents:
            reach(parent, marks)
    return tuple(best)


def contains(head: str, commit_id: str, read: ReadCommit) -> bool:
    """Return whether a commit is `head` or an ancestor of it, by any parent.

    Ancestors have a lower generation, so the walk stops at the commit's generation.
    """
    if not head or not commit_id:
        return False
    generation = read(commit_id).generation
    todo, visited = [head], {head}
    while todo:
        at = todo.pop()
        if at == commit_id:
            return True
        commit = read(at)
        if commit.generation > generation:
            todo.extend(parent for parent in commit.parents if parent not in visited)
            visited.update(commit.parents)
    return False


def their_changes(bases: Sequence[str], theirs: str, tree: Tree, read: ReadCommit) -> list[Theirs]:
    """Return the changes that lead from the merged `bases`, the best common ancestors, to commit `theirs`, in order of
    path."""
    after = {
        change.path: change.after
        for base in bases or ("",)
        for change in differences(tree.ranges(base), tree.ranges(theirs), tree.range)
    }
    paths = sorted(after)
    before = _Ancestors(tree, read).merged(bases, paths)
    return [(path, before[path], after[path]) for path in paths]


class _Ancestors:
    """Merges common ancestors with one another, limited to some paths."""

    def __init__(self, tree: Tree, read: ReadCommit) -> None:
        self._tree = tree
        self._read = read
        self._searches = 0

    def merged(self, commits: Sequence[str], paths: Sequence[str]) -> dict[str, Base]:
        """Return the merged entries of these commits at the paths; None per path without a commit."""
        result: dict[str, Base] = dict.fromkeys(paths)
        for count, commit_id in enumerate(commits):
            standing = self._tree.find(self._tree.view(commit_id), paths)
            differing = [path for path in paths if count and result[path] != standing.get(path)]
            before = self._parted(commits[:count], commit_id, differing) if differing else {}
            for path in differing:
                result[path] = agreed(before[path], result[path], standing.get(path))
            if not count:
                result |= standing
        return result

    def _parted(self, commits: Sequence[str], other: str, paths: Sequence[str]) -> dict[str, Base]:
        """Return the entries at the paths in the merge base of these commits and another."""
        self._searches += 1
        if self._searches > MERGE_ANCESTORS_MAX:
            return dict.fromkeys(paths, UNCLEAR)
        return self.merged(merge_bases(commits, (other,), self._read), paths)
