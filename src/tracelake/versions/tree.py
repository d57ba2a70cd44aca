"""What commits name: the ranges of a metarange, and for some commits changes on top of those of an ancestor.

A commit that is built together with later ones is history at once, and seldom read. It says only what it changes: so
a sweep of many commits writes one small object for each, and a metarange and ranges for few. Who reads such a commit
goes back to the nearest one that has a metarange, and makes the ranges up from there.

How entries are split in ranges, changed, and compared. Pure: ranges are read through a function.

A range ends after a path whose hash says so. So where ranges end depends on the paths alone, not on the order in
which they came: the same entries have the same ranges, whatever was there before, a change rewrites the ranges that
it touches and no other, and two commits that share most entries share most ranges.

Immutable records in the object store: written under the id of their content, checked against it when read.
"""

from __future__ import annotations

import hashlib
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
from tracelake.limits import (
    CHANGES_INLINE_MAX,
    COMMIT_RECORDS_CACHED,
    COMMITS_WITHOUT_METARANGE_MAX,
    OBJECTS_READ_AHEAD,
    RANGE_ENTRIES_MAX,
    RANGE_ENTRIES_MEAN,
)
from tracelake.storage import ObjectStore, copy_all, create_all, for_each
from tracelake.versions.model import (
    ChangeSet,
    Commit,
    FileAt,
    Metarange,
    PathChanges,
    Range,
    RangeRef,
    Reference,
    content_id,
    from_bytes,
    to_bytes,
)

PathEntry = tuple[str, Reference]
RangeReader = Callable[[str], Range]


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry that differs: what the one side names, and what the other; None where it names nothing."""

    path: str
    before: Reference | None
    after: Reference | None


def is_last(path: str) -> bool:
    """Tell whether a range ends after this path."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % RANGE_ENTRIES_MEAN == 0


def split(entries: Iterable[PathEntry], inside: Container[str] = ()) -> Iterator[tuple[PathEntry, ...]]:
    """Cut entries in order of path into runs; the last may end at a path after which none ends.

    No range ends after the paths `inside`: they are known, and not asked again.
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
    ranges: Sequence[RangeRef], changes: PathChanges, read: RangeReader, epoch: int
) -> tuple[tuple[RangeRef, ...], list[Range]]:
    """Return the ranges that hold the entries as changed, and those of them that are new.

    Reads the ranges that a change falls into, and those that follow as far as their cuts move.
    """
    result: list[RangeRef] = []
    new: list[Range] = []
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
        # A run that ends at no natural cut flows into the next range.
        while at < len(ranges) and entries and not is_last(entries[-1][0]):
            more = todo.pop(0)[1] if todo and todo[0][0] == at else {}
            old.append(ranges[at])
            entries += _applied(_entries(ranges[at : at + 1], read), more)
            at += 1
        kept = {(ref.first, ref.last, ref.entries): ref for ref in old}
        inside = {path for ref in old for path, _ in read(ref.id).entries[:-1]}
        for run in split(entries, inside):
            same = kept.get((run[0][0], run[-1][0], len(run)))
            if same is not None and read(same.id).entries == run:
                result.append(same)
                continue
            new.append(new_range := Range(run, epoch))
            result.append(reference(new_range))
    result.extend(ranges[at:])
    return tuple(result), new


def reference(new_range: Range) -> RangeRef:
    """Return what a metarange says of a range."""
    entries = new_range.entries
    return RangeRef(content_id(to_bytes(new_range)), entries[0][0], entries[-1][0], len(entries))


def _entries(refs: Iterable[RangeRef], read: RangeReader) -> list[PathEntry]:
    return [entry for ref in refs for entry in read(ref.id).entries]


def _applied(entries: list[PathEntry], wanted: Mapping[str, Reference | None]) -> list[PathEntry]:
    if not wanted:
        return entries
    merged = {**dict(entries), **wanted}
    return [(path, value) for path in sorted(merged) if (value := merged[path]) is not None]


def scan(
    ranges: Sequence[RangeRef], read: RangeReader, start: str = "", stop: str | None = None
) -> Iterator[PathEntry]:
    """Yield the entries with start <= path < stop in order; reads only the ranges that may hold one."""
    for ref in ranges:
        if ref.last < start or (stop is not None and ref.first >= stop):
            continue
        for path, value in read(ref.id).entries:
            if path >= start and (stop is None or path < stop):
                yield path, value


def below(folder: str) -> tuple[str, str]:
    """Return start and stop of the paths in a folder: with a slash after its name, at any depth."""
    return f"{folder}/", f"{folder}0"  # what follows on a slash


def count(ranges: Sequence[RangeRef], read: RangeReader, start: str, stop: str) -> int:
    """Return how many entries have start <= path < stop; reads only the ranges where they begin and end."""
    inside = [ref for ref in ranges if start <= ref.first and ref.last < stop]
    whole = {ref.id for ref in inside}
    edges = [ref for ref in ranges if ref.id not in whole]
    return sum(ref.entries for ref in inside) + sum(1 for _ in scan(edges, read, start, stop))


def find(ranges: Sequence[RangeRef], paths: Sequence[str], read: RangeReader) -> dict[str, Reference]:
    """Return what the paths name, those that name something; `paths` are in order."""
    lasts = [ref.last for ref in ranges]
    references: dict[str, Reference] = {}
    for index, group in groupby(paths, key=lambda path: bisect_left(lasts, path)):
        if index < len(ranges):
            entries = dict(read(ranges[index].id).entries)
            references.update({path: entries[path] for path in group if path in entries})
    return references


def differences(
    before: Sequence[RangeRef], after: Sequence[RangeRef], read: RangeReader
) -> Iterator[Difference]:
    """Yield the entries that differ, in order of path; ranges that both sides have are not read.

    An equal range holds the same paths on both sides, so what lies outside of the common ranges can only
    differ from what lies outside of them.
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
    left: Iterator[PathEntry], right: Iterator[PathEntry]
) -> Iterator[tuple[str, Reference | None, Reference | None]]:
    mine, theirs = next(left, None), next(right, None)
    while mine is not None or theirs is not None:
        if theirs is None or (mine is not None and mine[0] < theirs[0]):
            assert mine is not None
            yield mine[0], mine[1], None
            mine = next(left, None)
        elif mine is None or theirs[0] < mine[0]:
            yield theirs[0], None, theirs[1]
            theirs = next(right, None)
        else:
            yield mine[0], mine[1], theirs[1]
            mine, theirs = next(left, None), next(right, None)


def latest(changes: Iterable[tuple[str, Reference | None]]) -> PathChanges:
    """Return changes in order of path, of several to one path the last."""
    return tuple(sorted(dict(changes).items(), key=itemgetter(0)))


VERSIONS: Final = "versions/"
_KINDS: Final[Mapping[type, str]] = {
    Commit: "commits",
    Metarange: "metaranges",
    Range: "ranges",
    ChangeSet: "changes",
}
Content = Commit | Metarange | Range | ChangeSet
ContentT = TypeVar("ContentT", bound=Content)


def folder_of(kind: type[ContentT]) -> str:
    """Return where records of a kind are, each as `<id>.json`."""
    return f"{VERSIONS}{_KINDS[kind]}/"


def path_of(kind: type[ContentT], record_id: str) -> str:
    """Return the path of the object that holds a record."""
    return f"{folder_of(kind)}{record_id}.json"


COMMITS: Final = folder_of(Commit)
FILES: Final = "files/"
"""Where files are, each as `<epoch>/<SHA-256 of its bytes>`."""


def file_path(file: FileAt) -> str:
    """Return the path of a file."""
    return f"{FILES}{file.epoch:06d}/{file.sha256}"


def file_epoch(path: str) -> int | None:
    """Return the epoch in which the file at a path was written; None for what is no file."""
    epoch = path.removeprefix(FILES).partition("/")[0]
    return int(epoch) if epoch.isdecimal() else None


class ContentStore:
    """Reads and writes records by id. Threads may share one; it remembers what it read or wrote last."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[type, str], Content] = OrderedDict()

    def read(self, kind: type[ContentT], record_id: str) -> ContentT:
        """Return a record. Raises DamageError where it is gone, or is not what was written."""
        with self._lock:
            known = self._known.get((kind, record_id))
            if isinstance(known, kind):
                self._known.move_to_end((kind, record_id))
                return known
        path = path_of(kind, record_id)
        try:
            data = self._objects.get(path)
        except NotFoundError as error:
            raise DamageError(f"{path} is gone; restore it from a backup.") from error
        if content_id(data) != record_id:
            raise DamageError(f"{path} is not what was written: its content has another id.")
        record = from_bytes(kind, data, path)
        self._remember(record_id, record)
        return record

    def read_each(
        self, kind: type[ContentT], ids: Collection[str]
    ) -> Iterator[tuple[str, ContentT | DamageError]]:
        """Yield records with their ids, or what is wrong with them; many are read at once, and few are held."""
        todo = list(ids)
        for start in range(0, len(todo), OBJECTS_READ_AHEAD):
            some = todo[start : start + OBJECTS_READ_AHEAD]
            yield from zip(some, for_each(self._objects, partial(self._try, kind), some), strict=True)

    def _try(self, kind: type[ContentT], record_id: str) -> ContentT | DamageError:
        try:
            return self.read(kind, record_id)
        except DamageError as error:
            return error

    def write(self, records: Mapping[str, Content]) -> None:
        """Write records under their ids; they are durable on return. What is there already stays."""
        create_all(
            self._objects,
            {path_of(type(content), made_id): to_bytes(content) for made_id, content in records.items()},
        )
        for record_id, record in records.items():
            self._remember(record_id, record)

    def renew(self, files: Iterable[FileAt], epoch: int) -> dict[str, FileAt]:
        """Write files again, in a later epoch; return them by the paths that they had, without those that are gone."""
        newer = {file_path(file): replace(file, epoch=epoch) for file in files}
        there = copy_all(self._objects, {path: file_path(file) for path, file in newer.items()})
        return {path: newer[path] for path in there}

    def present(self, files: Iterable[FileAt]) -> set[str]:
        """Return the paths of those files that are there."""
        paths = sorted({file_path(file) for file in files})
        infos = for_each(self._objects, self._objects.head, paths)
        return {info.path for info in infos if info is not None}

    def find(self, beginning: str, at_most: int) -> list[str]:
        """Return the ids of commits that begin so, `at_most` of them."""
        ids = []
        for info in self._objects.list(COMMITS + beginning):
            ids.append(info.path.removeprefix(COMMITS).removesuffix(".json"))
            if len(ids) == at_most:
                break
        return ids

    def has_commits(self) -> bool:
        """Whether there is any commit."""
        return bool(self.find("", at_most=1))

    def _remember(self, record_id: str, record: Content) -> None:
        with self._lock:
            self._known[type(record), record_id] = record
            while len(self._known) > COMMIT_RECORDS_CACHED:
                self._known.popitem(last=False)


def id_of(record: Content) -> str:
    """Return the id of a record."""
    return content_id(to_bytes(record))


class ReadContent(Protocol):
    """Returns a record by kind and id."""

    def __call__(self, kind: type[ContentT], record_id: str, /) -> ContentT:
        """Return the record. Raises DamageError where it is gone, or is not what was written."""


@dataclass(frozen=True, slots=True)
class CommitTree:
    """All that a commit names."""

    refs: tuple[RangeRef, ...] = ()
    """The ranges of the nearest commit, itself or an ancestor, that has a metarange."""
    since: Mapping[str, Reference | None] = field(default_factory=dict)
    """What the commits after that one changed, by path."""
    commits: int = 0
    """How many these are."""

    def then(self, changes: PathChanges) -> CommitTree:
        """Return what a commit names that makes these changes, and has no metarange."""
        return CommitTree(self.refs, {**self.since, **dict(changes)}, self.commits + 1)

    def needs_metarange(self, changes: PathChanges) -> bool:
        """Tell whether a commit that makes these changes must have one: else reading it would take too long."""
        return self.commits + 1 > COMMITS_WITHOUT_METARANGE_MAX or len(changes) > CHANGES_INLINE_MAX


class Tree:
    """Reads what commits name; remembers the ranges that it made up."""

    def __init__(self, read: ReadContent) -> None:
        """Read records by this function."""
        self._read = read
        self._made: dict[str, Range] = {}

    def view(self, commit_id: str) -> CommitTree:
        """Return what a commit names; nothing where there is no commit."""
        changes: list[PathChanges] = []
        at = commit_id
        while at:
            commit = self._read(Commit, at)
            if commit.changes is None:
                refs = self._read(Metarange, commit.metarange).ranges
                break
            changes.append(commit.changes)
            at = commit.parents[0] if commit.parents else ""
        else:
            refs = ()
        since = dict(change for step in reversed(changes) for change in step)
        return CommitTree(refs, since, len(changes))

    def ranges(self, commit_id: str) -> tuple[RangeRef, ...]:
        """Return the ranges of all that a commit names, to be read by `range`."""
        view = self.view(commit_id)
        if not view.since:
            return view.refs
        refs, new = self.changed(view, (), self._read(Commit, commit_id).epoch)
        self._made.update({id_of(new_range): new_range for new_range in new})
        return refs

    def changed(
        self, view: CommitTree, changes: PathChanges, epoch: int
    ) -> tuple[tuple[RangeRef, ...], list[Range]]:
        """Return the ranges of a view after changes, and those of them that no metarange names yet."""
        return changed(view.refs, latest((*view.since.items(), *changes)), self.range, epoch)

    def find(self, view: CommitTree, paths: Sequence[str]) -> dict[str, Reference]:
        """Return what these paths name, those that name something; `paths` are in order."""
        references = find(view.refs, [path for path in paths if path not in view.since], self.range)
        return references | {
            path: reference for path in paths if (reference := view.since.get(path)) is not None
        }

    def range(self, range_id: str) -> Range:
        """Return a range."""
        return self._made.get(range_id) or self._read(Range, range_id)
