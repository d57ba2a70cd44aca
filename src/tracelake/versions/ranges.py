"""How entries are split in ranges, changed, and compared. Pure: ranges are read through a function.

A range ends after a path whose hash says so. So where ranges end depends on the paths alone, not on the order in
which they came: the same entries have the same ranges, whatever was there before, a change rewrites the ranges that
it touches and no other, and two commits that share most entries share most ranges.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from tracelake.limits import RANGE_ENTRIES_MAX, RANGE_ENTRIES_MEAN
from tracelake.versions.model import PathChanges, Range, RangeRef, Reference, content_id, to_bytes

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
